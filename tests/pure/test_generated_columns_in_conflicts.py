"""What an expression of a conflict's resolution sees of generated columns: those of the row as it
would be, whatever values the UPDATE has left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from tests.fakes.stored_table import StoredTable

from wal2lake.apply.local.altering import field_spec
from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.constraints.generatedcolumns import generation
from wal2lake.lake.expressions import EvaluatedPair
from wal2lake.lake.staging.layout import ChangeShape, Uniqueness
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.model import Oid
from wal2lake.pgtypes import ConflictResolutions
from wal2lake.sql.grammar import parse

INT4 = Oid(23)
COLUMNS = tuple(ColumnDef(name, INT4) for name in ("id", "n", "v"))


class Looks:
    """Takes the publisher's row, and remembers both."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Any], list[Any]]] = []

    def evaluate(self, *given: Any) -> list[EvaluatedPair]:
        pairs = given[-1]
        self.seen.append((pairs.local.to_pylist(), pairs.remote.to_pylist()))
        return [
            EvaluatedPair(choice="apply_remote") for _ in range(pairs.local.num_rows)
        ]


def test_a_generated_column_is_of_the_row_that_would_be(tmp_path: Path) -> None:
    statement = parse("create table t (c int generated always as (n + v) stored)")
    table = TableDef(Oid(1), "public", "t", Oid(10), COLUMNS, ("id",), "/")
    clause = cast(Any, statement).columns[0].generated
    computed = generation(table, ColumnDef("c", INT4), clause, "UTC")
    fields = tuple(map(field_spec, (*COLUMNS, ColumnDef("c", INT4))))
    schema = pa.schema([(field.name, pa.int32()) for field in fields])
    stored = StoredTable(
        tmp_path / "t", fields, schema, [(1, 1, 10, 11), (2, 2, 20, 22)], 1
    )
    # UPDATE t SET id = 2, n = 100 WHERE id = 1, without v.
    values = {"n0": 2, "n1": 100, "n2": None, "n3": None, "o0": 1}
    event = pa.table(
        {
            "lsn": pa.array([1]),
            "ord": pa.array([0]),
            "op": pa.array([ord("U")], pa.int8()),
            "moved": [True],
            "u2": [True],
            "u3": [True],
            **{name: pa.array([one], pa.int32()) for name, one in values.items()},
        }
    )
    asks = Looks()
    planned = stored.plan(
        ChangeShape(fields, (0,), frozenset({2, 3}), True),
        [event],
        Uniqueness(False, "t_pkey", "public.t"),
        memory=1 << 24,
        rules=ConflictRules(
            ConflictResolutions.parse(
                "public.t.update_exists = (case when remote.c > local.c then"
                " 'apply_remote' else 'keep_local' end)"
            ).of("public", "t"),
            expressions=cast(Any, asks),
            generated=(("c", computed),),
            relation="t",
        ),
    )
    assert isinstance(planned, Upsert)
    names = ("id", "n", "v", "c")
    local, remote = (
        dict(zip(names, row, strict=True))
        for row in ((2, 2, 20, 22), (2, 100, 10, 110))
    )
    assert asks.seen == [([local], [remote])]
    stored.commit(planned)
    assert stored.read() == [(2, 100, 10, 110)]
