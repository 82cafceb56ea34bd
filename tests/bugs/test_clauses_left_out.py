"""DELETE ... LIMIT 1 is no PostgreSQL, but the parser knows it: the clause was left out in
silence, and every row deleted."""

from __future__ import annotations

import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.model import Oid
from wal2lake.sql.query.translate import TableRef
from wal2lake.sql.query.writes import translate_write

_COLUMNS = tuple(ColumnDef(name, Oid(23)) for name in ("id", "n", "a", "b"))

_VERBS = ("INSERT", "UPDATE", "DELETE")


def resolve(schema: str | None, name: str) -> TableRef:
    table = TableDef(Oid(16384), "s", name, Oid(10), _COLUMNS, ("id",), "/t")
    return TableRef(table, None)


@pytest.mark.parametrize(
    "sql",
    [
        "delete from t order by id limit 1",
        "delete from t where id = 1 limit 1",
        "delete t from t",
        "update t, u set n = 1 where id = 1",
        "update t set n = 1 limit 1",
        "insert overwrite table t select 1",
    ],
)
def test_a_clause_that_nobody_reads_is_refused(sql: str) -> None:
    with pytest.raises(FeatureNotSupportedError, match="is not supported in"):
        translate_write(sql, resolve)


@pytest.mark.parametrize(
    "sql",
    [
        "delete from s.t as x where id = 1",
        "update s.t as x set n = 1 where id = 1",
        "insert into s.t (a, b) values (1, 2)",
        "insert into t default values",
        "with q as (select 1) insert into t select 1 from q",
    ],
)
def test_what_is_read_is_accepted(sql: str) -> None:
    verb = next(word for word in sql.upper().split() if word in _VERBS)
    write = translate_write(sql, resolve)
    assert write.verb == verb and write.sql.startswith(verb)
