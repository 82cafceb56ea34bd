"""``($1,$2)``, as most drivers write it, was taken for a dollar-quoted string; and ``'$5'`` for
five parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.model import Oid
from wal2lake.sql.grammar.lexer import parameter_count, readable_by_sqlglot
from wal2lake.sql.query.translate import BoundParameter, TableRef, translate_query
from wal2lake.sql.query.writes import translate_write
from wal2lake.sql.sysviews import is_system_query

TABLE = TableDef(
    Oid(16384),
    "public",
    "t",
    Oid(10),
    (ColumnDef("a", Oid(23)), ColumnDef("b", Oid(25))),
    (),
    "/t",
)
VALUES = (BoundParameter("1", 23), BoundParameter("x", 25))


def resolve(schema: str | None, name: str) -> TableRef:
    return TableRef(TABLE, None)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t(a,b) values ($1,$2)",
        "update t set a=$1,b=$2",
        "delete from t where a=$1and b=$2",
    ],
)
def test_parameters_need_no_space_between_them_in_a_write(sql: str) -> None:
    assert "x" in translate_write(sql, resolve, VALUES).sql


def test_an_empty_string_ends_a_query_with_parameters() -> None:
    """The parser looked for the end of a dollar-quoted string behind the end of the text."""
    assert (
        "a = "
        in translate_query(
            "select a from t where a = $1 and b <> ''", resolve, VALUES
        ).sql
    )
    assert is_system_query("select 1 from pg_class where oid = $1 and relname <> ''")


def test_parameters_need_no_space_between_them_in_a_query() -> None:
    sql = "select a from t where a in ($1,$1) and b in ($2,$2)"
    assert "('x', 'x')" in translate_query(sql, resolve, VALUES).sql
    assert is_system_query("select 1 from pg_class where oid in ($1,$2)")


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select '$5', $2", 2),
        ('select $$ $7 $$, $tag$ $8 $tag$, "$9" -- $10', 0),
        ("select E'\\'$3', $1,$4", 4),
        ("select '$1", 0),
    ],
)
def test_only_parameters_are_counted(sql: str, count: int) -> None:
    assert parameter_count(sql) == count


@given(st.text("a$1', \"-/*\n", max_size=12))
def test_what_is_set_off_is_the_same_but_for_spaces(sql: str) -> None:
    assert readable_by_sqlglot(sql).replace(" ", "") == sql.replace(" ", "")


def test_a_query_with_an_array_parameter_can_be_described() -> None:
    """Before there is a value it was an array that is not constant."""
    sql = "select a from t where a = any($1)"
    assert translate_query(sql, resolve, (BoundParameter(None, 1005),)).columns
    bound = translate_query(sql, resolve, (BoundParameter("{1,3}", 1005),)).sql
    assert "a IN (CAST('1' AS SMALLINT), CAST('3' AS SMALLINT))" in bound
