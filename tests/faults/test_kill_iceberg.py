"""SIGKILL at each durable step of mirrors, moments and entries: every reader sees the same rows."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached
from tests.fakes.iceberg_readers import (
    Columns,
    at_node,
    by_pyiceberg,
    by_spark,
    catalog_url,
    has_come,
    rest_catalog,
)
from tests.fakes.iceberg_rest import ICEBERG
from tests.fakes.iceberg_spark import IcebergSpark

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until
from wal2lake.testing.workload import SCHEMA, TABLES, Workload

COLUMNS: Final[dict[str, Columns]] = {
    "public.orders": {
        "id": "number",
        "customer": "text",
        "amount": "number",
        "balance": "number",
        "placed": "time",
        "paid": "bool",
    },
    "public.parts": {
        "order_id": "number",
        "line": "number",
        "sku": "text",
        "balance": "number",
        "qty": "number",
        "price": "real",
    },
    "public.notes": {
        "id": "number",
        "body": "text",
        "tag": "text",
        "raw": "bytes",
        "flags": "array",
    },
}

STEPS: Final = (
    ("mirror.written", "kill"),
    ("mirror.committed", "kill"),
    ("moment.recorded", "kill"),
    ("catalog.noted", "kill"),
    ("catalog.told", "kill"),
    ("apply.tables_committed", "kill"),
    ("journal.synced", "kill"),
    ("mirror.committed", "kill-tree"),
    ("moment.recorded", "kill-tree"),
    ("catalog.told", "kill-tree"),
)

READER: Final = "reader:sesame"


@pytest.mark.slow
def test_all_readers_see_the_same_rows_at_ten_lsns_after_kills(
    tmp_path: Path, make_node: Callable[..., Node], pg18: Database
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    others = f"sqlite:///{tmp_path}/others.sqlite"
    node = make_node(
        environ={VARIABLE: str(points)},
        settings={
            "node.authentication": "trust",
            "web.listen": "127.0.0.1:0",
            "iceberg.interval_ms": 1000,
            "iceberg.catalog.type": "sql",
            "iceberg.catalog.uri": others,
            "iceberg.catalog.name": "lake",
        },
    ).start()
    workload, pick = Workload(27), random.Random(27)
    pg18.psql(SCHEMA)
    pg18.transactions(list(workload.initial(200)))
    pg18.psql("create publication k for all tables")
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
        " with (table_format = iceberg)"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    node.sql("create role reader login password 'sesame'")
    node.sql(f"grant select on {', '.join(TABLES)} to reader")
    lsns = []
    for name, action in STEPS:
        arm(points, name, action)
        pg18.transactions([workload.transaction() for _ in range(pick.randint(5, 25))])
        wait_reached(node, points, name)
        if action == "kill-tree":
            node.wait_end()
            node.start()
        pg18.transactions([workload.transaction() for _ in range(pick.randint(1, 10))])
        mirror.caught_up()
        lsn = node.value("select max(lsn) from wal2lake.snapshots where subname = 'k'")
        assert lsn is not None
        moment = f"lsn-{lsn.replace('/', '-')}"
        wait_until(partial(has_come, node, moment, READER), timeout_seconds=90)
        lsns.append((lsn, moment))
    assert len(set(lsns)) == len(STEPS)
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ, [ICEBERG])
    with IcebergSpark(tmp_path / "spark", jars, catalog_url(node), READER) as spark:
        for lsn, moment in lsns:
            past = rest_catalog(node, moment, READER)
            for table, columns in COLUMNS.items():
                expected = at_node(node, table, lsn, columns)
                assert by_pyiceberg(past, table, columns) == expected, (lsn, table)
                assert by_spark(spark, moment, table, columns) == expected, (lsn, table)
    outside = SqlCatalog("lake", uri=others)
    wait_until(
        lambda: (
            not node.sql(
                "select 1 from wal2lake.catalog_tables where error is not null"
            )
        )
    )
    for table, columns in COLUMNS.items():
        assert by_pyiceberg(outside, table, columns) == expected_now(
            node, table, columns
        )
    outside.engine.dispose()
    mirror.assert_equal(TABLES)


def expected_now(node: Node, table: str, columns: Columns) -> object:
    """Return the node's rows at its newest position."""
    lsn = node.value("select max(lsn) from wal2lake.snapshots where subname = 'k'")
    assert lsn is not None
    return at_node(node, table, lsn, columns)
