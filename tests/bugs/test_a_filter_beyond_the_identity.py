"""Who writes a table from outside is not refused an UPDATE or DELETE where a row filter needs more
than the replica identity. Its rows stayed at the subscriber, or were never there to be updated."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.pgtypes.expressions import Filter
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.publish.sending import Sending, published_rows

COLUMNS = (Column("id", Oid(23), -1, True), Column("on", Oid(16), -1, False))
RELATION = Relation(Oid(7), "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)
FILTER = Filter(Expression(ExpressionNode.COLUMN, 16, value=0), ("on",))

Row = tuple[str, str | None, str | None, str | None]
"""Operation, old key, new key, whether the new row matches."""


def sent(rows: list[Row], operations: str, *, old_keys: bool) -> list[Row]:
    def binary(values: list[str | None]) -> pa.Array:
        return pa.array([v and v.encode() for v in values], pa.binary())

    columns = {
        "ordinal": pa.array(range(len(rows)), pa.int64()),
        "op": pa.array([ord(op) for op, *_ in rows], pa.uint8()),
        "old": pa.array([0 if old is None else ord("K") for _, old, *_ in rows]).cast(
            pa.uint8()
        ),
        "c0": binary([new for _, _, new, _ in rows]),
        "c1": binary([on for *_, on in rows]),
    }
    if old_keys:
        columns["o0"] = binary([old for _, old, *_ in rows])
    sending = Sending(
        frozenset(operations), None, dict.fromkeys(set(operations) & set("IUD"), FILTER)
    )
    found = published_rows(sending, RELATION, pa.RecordBatch.from_pydict(columns))
    told: list[Row] = []
    for row in found.to_pylist():
        op, has_old = chr(row["op"]), row["old"] != 0
        key = row["o0"].decode() if has_old else None
        if op == "D":
            told.append((op, key, None, None))
        else:
            told.append((op, key, row["c0"].decode(), row["c1"].decode()))
    return told


@pytest.mark.parametrize("old_keys", [False, True])
def test_a_row_that_may_be_there_goes_first(old_keys: bool) -> None:
    rows: list[Row] = [
        ("I", None, "1", "t"),
        ("I", None, "2", "f"),
        ("U", None, "3", "t"),
        ("U", None, "4", "f"),
    ]
    wanted: list[Row] = [
        ("I", None, "1", "t"),
        ("D", "3", None, None),
        ("I", None, "3", "t"),
        ("D", "4", None, None),
    ]
    if old_keys:
        rows += [("U", "5", "6", "t"), ("U", "7", "8", "f"), ("D", "9", None, None)]
        wanted += [
            ("D", "5", None, None),
            ("I", None, "6", "t"),
            ("D", "7", None, None),
            ("D", "9", None, None),
        ]
    assert sent(rows, "IUD", old_keys=old_keys) == wanted
    updates = wanted[1:-1] if old_keys else wanted[1:]
    assert sent(rows, "U", old_keys=old_keys) == updates
    inserts: list[Row] = [("I", None, "1", "t")]
    assert sent(rows, "I", old_keys=old_keys) == inserts
