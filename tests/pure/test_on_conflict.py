"""ON CONFLICT in the translation of INSERT: what it may name, and the values of DO UPDATE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Deferral, Oid
from wal2lake.sql.query.changes.stored import OnConflict
from wal2lake.sql.query.translate import BoundParameter, TableRef
from wal2lake.sql.query.values.undetermined import Undetermined
from wal2lake.sql.query.writes import translate_write

COLUMNS = (ColumnDef("a", Oid(23)), ColumnDef("b", Oid(25)), ColumnDef("n", Oid(23)))
TABLE = TableDef(Oid(16384), "public", "t", Oid(10), COLUMNS, ("b", "a"), "/t")

INSERT = "insert into t values (1, 'x', 2) on conflict "


def clause(rest: str, table: TableDef = TABLE) -> OnConflict | None:
    write = translate_write(INSERT + rest, lambda *_: TableRef(table, None))
    return None if write.by_rows is None else write.by_rows.conflict


@pytest.mark.parametrize(
    "target",
    ["", "(a, b)", "(b, a)", "(a, b, a)", "on constraint t_pkey", "(a, b) where n > 1"],
)
def test_nothing_is_done_for_the_key(target: str) -> None:
    assert clause(f"{target} do nothing") == OnConflict()


def test_a_table_without_a_key_has_no_conflicts() -> None:
    keyless = replace(TABLE, key=())
    assert clause("do nothing", keyless) is None


def test_columns_of_both_rows_need_no_query() -> None:
    found = clause("(a, b) do update set n = excluded.n, b = t.b")
    assert found is not None and found.values is not None
    assert found.sets == ("n", "b") and not found.is_conditional
    assert found.values.choice == ("e2", "o1")


def test_a_condition_guards_the_values() -> None:
    found = clause("(a, b) do update set n = 1 / excluded.n where excluded.n <> 0")
    assert found is not None and found.values is not None
    assert found.is_conditional and found.values.choice is None
    assert found.values.items.startswith("CASE WHEN wal2lake_rows.e2 <> 0 THEN ")


@pytest.mark.parametrize(
    ("rest", "sqlstate"),
    [
        ("(a) do nothing", "42P10"),
        ("(a, b, n) do nothing", "42P10"),
        ("(a, lower(b)) do nothing", "42P10"),
        ("(a desc, b) do nothing", "42P10"),
        ("(a, x) do nothing", "42703"),
        ("on constraint x do nothing", "42704"),
        ("do update set n = 1", "42601"),
        ("(a, b) do update set n = n + 1", "42702"),
        ("(a, b) do update set n = u.n", "42P01"),
        ("(a, b) do update set x = 1", "42703"),
        ("(a, b) do update set n = 1 where 'x' || t.b", "42804"),
        ('(a, b collate "C") do nothing', "0A000"),
    ],
)
def test_errors_are_postgresqls(rest: str, sqlstate: str) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        clause(rest)
    assert caught.value.sqlstate == sqlstate, caught.value


def test_a_deferrable_key_cannot_be_meant() -> None:
    table = replace(TABLE, key_deferral=Deferral.DEFERRED)
    for target in ("", "(a, b)", "on constraint t_pkey"):
        with pytest.raises(Wal2LakeError) as caught:
            clause(f"{target} do nothing", table)
        assert caught.value.sqlstate == "55000"


def test_a_parameter_of_do_update_has_a_type() -> None:
    cells = [Undetermined(), Undetermined()]
    sql = f"{INSERT} (a, b) do update set n = $1 where t.b > $2"
    parameters = tuple(BoundParameter(None, 0, cell) for cell in cells)
    translate_write(sql, lambda *_: TableRef(TABLE, None), parameters)
    assert [cell.oid for cell in cells] == [23, 25]


@pytest.mark.parametrize(
    ("rest", "needs"),
    [
        ("do nothing", "a"),
        ("(a, b) do nothing", "ar"),
        ("(a, b) do update set n = 1", "awr"),
        ("on constraint t_pkey do update set n = excluded.n", "awr"),
    ],
)
def test_the_privileges_that_the_clause_needs(rest: str, needs: str) -> None:
    write = translate_write(INSERT + rest, lambda *_: TableRef(TABLE, None))
    assert write.needs == needs
