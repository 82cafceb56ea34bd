"""System queries are answered by an embedded engine with functions of its own. In FROM they read
any file of the node's user, and relations that the role may not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from tests.fakes.catalog_source import FakeSource, session

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.sysviews import SystemCatalog

HOLES = (
    "select * from read_text('{file}')",
    "select * from read_blob('{file}')",
    "select * from read_csv('{file}')",
    "select * from read_csv_auto('{file}')",
    "select * from read_parquet('{file}')",
    "select * from read_json_auto('{file}')",
    "select * from glob('{file}')",
    "select * from sniff_csv('{file}')",
    "select * from query('select 1')",
    "select * from query_table('pg_catalog.pg_authid')",
    "select * from duckdb_settings()",
    "select * from pragma_database_list()",
    "select * from pg_class c, lateral read_text('{file}') t",
    "select * from pg_class c cross join lateral read_text('{file}') t",
    "select (select content from read_text('{file}'))",
    'select * from "pg_catalog.pg_authid"',
    'select * from (with "pg_catalog.pg_authid" as (select 1 a) select a from'
    ' "pg_catalog.pg_authid") x, "pg_catalog.pg_authid"',
)


@pytest.fixture
def catalog() -> Iterator[SystemCatalog]:
    made = SystemCatalog(FakeSource())
    yield made
    made.close()


@pytest.mark.parametrize("sql", HOLES)
def test_nothing_else_can_stand_in_from(
    catalog: SystemCatalog, tmp_path: Path, sql: str
) -> None:
    file = tmp_path / "secret"
    file.write_text("a,b\nhidden,1\n")
    catalog.query("select * from pg_authid", (), session())
    with pytest.raises(Wal2LakeError) as raised:
        catalog.query(sql.format(file=file), (), session())
    assert raised.value.sqlstate in ("42883", "42P01", "42601", "0A000")


def test_the_engine_itself_reaches_no_file(
    catalog: SystemCatalog, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden")
    catalog.query("select 1 from pg_class", (), session())
    with pytest.raises(duckdb.Error, match="disabled"):
        catalog._connection.sql(f"select * from read_text('{file}')").fetchall()
    with pytest.raises(duckdb.Error, match="locked"):
        catalog._connection.execute("set enable_external_access = true")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select * from generate_series(1, 3) g", [("1",), ("2",), ("3",)]),
        ("select * from pg_catalog.generate_series(1, 2) g", [("1",), ("2",)]),
        ("select * from unnest(array[1, 2]) u", [("1",), ("2",)]),
        (
            "select n.nspname, u from pg_namespace n, lateral unnest(array[7]) u"
            " where n.nspname = 'pg_catalog'",
            [("pg_catalog", "7")],
        ),
    ],
)
def test_functions_of_postgresql_can(
    catalog: SystemCatalog, sql: str, rows: list[tuple[str, ...]]
) -> None:
    assert catalog.query(sql, (), session())[1] == rows
