"""A bigint that did not fit its integer column, as drivers send large numbers, was an "invalid
inline table" of Spark's."""

from __future__ import annotations

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import UsageError
from wal2lake.model import Oid
from wal2lake.sql.query.translate import BoundParameter, TableRef
from wal2lake.sql.query.writes import translate_write

COLUMNS = (ColumnDef("i", Oid(23)), ColumnDef("s", Oid(21)))
TABLE = TableDef(Oid(16384), "public", "t", Oid(10), COLUMNS, (), "/t")
LARGE = BoundParameter("1099511627776", 20)


def resolve(schema: str | None, name: str) -> TableRef:
    return TableRef(TABLE, None)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("insert into t (i) values ($1)", "integer"),
        ("insert into t (s) values (5), (($1))", "smallint"),
        ("insert into t (i) values (1099511627776::bigint)", "integer"),
        ("insert into t (s) values (70000::int::bigint)", "smallint"),
        ("insert into t (s) values (-70000::int)", "smallint"),
        ("update t set i = $1", "integer"),
    ],
)
def test_it_is_out_of_range(sql: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} out of range") as raised:
        translate_write(sql, resolve, (LARGE,))
    assert raised.value.sqlstate == "22003"


def test_what_fits_is_a_constant() -> None:
    sql = translate_write(
        "insert into t (i, s) values (5::bigint, -(7::int))", resolve, ()
    ).sql
    assert "VALUES (CAST('5' AS INT), CAST('-7' AS SMALLINT))" in sql, sql
