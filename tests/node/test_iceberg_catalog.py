"""The Iceberg REST catalog of a whole node, while the source works: joins agree at one LSN."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from tests.conftest import Database
from tests.fakes.iceberg_readers import catalog_url, has_come, rest_catalog
from tests.fakes.iceberg_rest import ICEBERG
from tests.fakes.iceberg_spark import IcebergSpark
from tests.node.conftest import create

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Rows = Counter[tuple[str | None, ...]]

READER = "reader:sesame"


def rows(catalog: RestCatalog, table: str) -> Rows:
    """Return what pyiceberg reads, as PostgreSQL's texts."""
    read = catalog.load_table(f"shop.{table}").scan().to_arrow()
    columns = [read[name].to_pylist() for name in read.column_names]
    return Counter(
        tuple(None if value is None else str(value) for value in row)
        for row in zip(*columns, strict=True)
    )


def at_node(node: Node, table: str, lsn: str) -> Rows:
    """Return the node's own rows at an LSN."""
    with node.connect() as client:
        client.rows(f"set wal2lake.as_of_lsn = '{lsn}'")
        return Counter(tuple(row) for row in client.rows(f"select * from shop.{table}"))


def total(content: Rows, column: int) -> int:
    return sum(int(row[column] or 0) * count for row, count in content.items())


@pytest.mark.slow
def test_engines_join_tables_as_they_were_at_one_lsn(
    tmp_path: Path, make_node: Callable[..., Node], pg18: Database
) -> None:
    """Each transaction moves an amount from one table to the other: the sum never changes."""
    node = make_node(
        settings={
            "node.authentication": "trust",
            "web.listen": "127.0.0.1:0",
            "iceberg.interval_ms": 1000,
        }
    ).start()
    pg18.psql(
        "create schema shop;"
        " create table shop.stock (id int primary key, amount int);"
        " create table shop.sold (id int primary key, amount int);"
        " create table shop.note (id int primary key, t text);"
        " insert into shop.stock select i, 1000 from generate_series(1, 50) i;"
        " insert into shop.sold select i, 0 from generate_series(1, 50) i;"
        " insert into shop.note values (1, 'idle');"
        " create publication shop for tables in schema shop"
    )
    create(node, pg18, "shop", "with (table_format = iceberg)")
    mirror = Mirror(node, pg18.conninfo(), "shop")
    mirror.synced()
    node.sql("create role reader login password 'sesame'")
    node.sql("grant usage on schema shop to reader")
    node.sql("grant select on shop.stock, shop.sold to reader")
    positions = []
    for number in range(1, 31):
        pg18.psql(
            f"begin; update shop.stock set amount = amount - {number} where id = {number};"
            f" update shop.sold set amount = amount + {number} where id = {number}; commit"
        )
        if number % 6 == 0:
            mirror.caught_up()
            lsn = node.value(
                "select max(lsn) from wal2lake.snapshots where subname = 'shop'"
            )
            assert lsn is not None
            name = "lsn-" + lsn.replace("/", "-")
            wait_until(partial(has_come, node, name, READER), timeout_seconds=60)
            positions.append((lsn, name))
    catalog = rest_catalog(node, "latest", READER)
    assert catalog.list_tables("shop") == [("shop", "sold"), ("shop", "stock")]
    expected = {}
    for lsn, name in positions:
        past = rest_catalog(node, name, READER)
        expected[name] = {
            table: at_node(node, table, lsn) for table in ("stock", "sold")
        }
        assert {table: rows(past, table) for table in expected[name]} == expected[name]
        assert sum(total(content, 1) for content in expected[name].values()) == 50_000
    assert len({repr(sorted(one["stock"].items())) for one in expected.values()}) == 5
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ, [ICEBERG])
    name, content = next(iter(expected.items()))
    with IcebergSpark(tmp_path / "spark", jars, catalog_url(node), READER) as spark:
        assert spark.rows(name, "select id, amount from shop.stock") == content["stock"]
        joined = (
            "select sum(a.amount), sum(b.amount), sum(a.amount + b.amount)"
            " from shop.stock a join shop.sold b using (id)"
        )
        sums = [total(content[table], 1) for table in ("stock", "sold")]
        assert spark.rows(name, joined) == Counter([(*map(str, sums), "50000")])
        assert spark.rows("latest", "show tables in shop").total() == 2
        with pytest.raises(AssertionError, match="permission denied for table note"):
            spark.rows("latest", "select * from shop.note")
        with pytest.raises(AssertionError, match="does not support endpoint: POST"):
            spark.rows("latest", "insert into shop.stock values (99, 1)")
