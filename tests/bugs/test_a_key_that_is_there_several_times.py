"""Who writes a table from outside may write a key several times; each row is captured once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from wal2lake.lake.capture.rows import Memory, _compare, _Layout
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

RELATION = Relation(
    Oid(1),
    "s",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True), Column("v", Oid(25), -1, False)),
)
SCHEMA = pa.schema([("v0", pa.binary()), ("v1", pa.binary())])

Rows = list[tuple[bytes, bytes]]


class Reader:
    """Pieces are rows already."""

    schema = SCHEMA

    def read(self, pieces: Rows) -> list[pa.Table]:
        columns = [pa.array([row[i] for row in pieces], pa.binary()) for i in (0, 1)]
        return [pa.Table.from_arrays(columns, schema=SCHEMA)]


@pytest.mark.parametrize(
    ("gone", "came", "said"),
    [
        ("aaa", "bbb", {"U": 3}),
        ("aaa", "b", {"U": 1, "D": 2}),
        ("a", "bbb", {"U": 1, "I": 2}),
        ("a", "a", {}),
        ("ab", "ab", {}),
    ],
)
def test_rows_of_one_key_are_told_apart(
    tmp_path: Path, gone: str, came: str, said: dict[str, int]
) -> None:
    batches = _compare(
        cast(Any, Reader()),
        cast(Any, [(b"1", v.encode()) for v in gone]),
        cast(Any, [(b"1", v.encode()) for v in came]),
        _Layout(RELATION),
        [0],
        Memory(64 << 20, tmp_path),
    )
    ops = Counter(chr(op) for b in batches for op in b.column("op").to_pylist())
    assert ops == said
