"""``WHERE column IS NOT NULL`` was answered from a table's files as IS NULL: the parser has one
node for both, and says in a flag which of them it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.model import Oid
from wal2lake.sql.query.matching import matches
from wal2lake.sql.query.translate import TableRef, translate_query

COLUMNS = (ColumnDef("a", Oid(23)), ColumnDef("t", Oid(25)))
TABLE = TableDef(Oid(30000), "public", "t", Oid(10), COLUMNS, (), "/t")
ROWS = pa.table({"a": pa.array([1, None, 3], pa.int32()), "t": ["x", "y", None]})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("a is null", [False, True, False]),
        ("a is not null", [True, False, True]),
        ("not a is null", [True, False, True]),
        ("not a is not null", [False, True, False]),
        ("a notnull and t is not null", [True, False, False]),
        ("a isnull or not (t is not null)", [False, True, True]),
        ("a not in (1, 2)", [False, None, True]),
        ("a not between 1 and 2", [False, None, True]),
        ("t not like 'x'", None),
        ("a is distinct from 1", None),
        ("a is not distinct from 1", None),
    ],
)
def test_what_a_condition_is_true_for(
    where: str, expected: list[bool | None] | None
) -> None:
    query = translate_query(
        f"select a from t where {where}", lambda schema, name: TableRef(TABLE, None)
    )
    if expected is None:
        assert query.plain is None
    else:
        assert query.plain is not None and query.plain.condition is not None
        assert matches(ROWS, query.plain.condition).to_pylist() == expected
