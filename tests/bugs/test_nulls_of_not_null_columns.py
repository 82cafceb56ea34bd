"""Rows with NULL in a column that is NOT NULL here. Delta's columns are all nullable, NOT NULL is
in our catalog; apply and copies looked at Delta's alone, and stored such rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from tests.fakes.columns_in_files import in_files

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.convert import ConversionRules, SentColumn
from wal2lake.lake.staging.layout import RowFailure
from wal2lake.lake.staging.rowchanges import StageTarget, change_rows, insert_rows
from wal2lake.lake.staging.wholerows import convert_columns
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

INT4 = Oid(23)
FIELDS = tuple(FieldSpec(name, "int", pg_type_oid=INT4) for name in "kve")
"""The publisher sends no ``e``."""

RELATION = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("k", INT4, -1, True), Column("v", INT4, -1, False)),
)


def failures(
    ops: str, values: Sequence[bytes | None], rules: ConversionRules
) -> list[str]:
    rows = pa.RecordBatch.from_pydict(
        {
            "commit_lsn": pa.array([1] * len(ops), pa.int64()),
            "ordinal": pa.array(range(len(ops)), pa.int64()),
            "op": pa.array([ord(op) for op in ops], pa.uint8()),
            "old": pa.array([ord("K") if op == "D" else 0 for op in ops], pa.uint8()),
            "c0": pa.array([None if op == "D" else b"1" for op in ops], pa.binary()),
            "c1": pa.array(values, pa.binary()),
            "o0": pa.array([b"1"] * len(ops), pa.binary()),
        }
    )
    target = StageTarget(
        "public", "t", "", FIELDS, in_files(FIELDS), ("k",), rules=rules
    )
    stage = insert_rows if set(ops) == {"I"} else change_rows
    found: Sequence[RowFailure] = stage(rows, RELATION, target)[2]
    assert all(one.sqlstate == "23502" for one in found)
    return [f"{one.seq.ordinal} {one.column}" for one in found]


def rules(*required: str, follows: bool = False) -> ConversionRules:
    return ConversionRules(
        required=frozenset(required), key=frozenset({"k"}), follows=follows
    )


@pytest.mark.parametrize(
    ("ops", "values", "given", "expected"),
    [
        ("II", [b"1", None], rules("v"), ["1 v"]),
        ("II", [b"1", None], rules(), []),
        ("IUD", [b"1", None, None], rules("v"), ["1 v"]),
        ("UD", [b"1", None], rules("v"), []),
        # Not sent, without a default: an INSERT has nothing for it, an UPDATE leaves it.
        ("I", [b"1"], rules("e"), ["0 e"]),
        ("UI", [b"1", b"1"], rules("e"), ["1 e"]),
        # The publisher's NOT NULL is followed; ours is not its business.
        ("II", [b"1", None], rules("v", follows=True), []),
        ("I", [b"1"], rules("e", follows=True), ["0 e"]),
    ],
)
def test_changes_are_refused(
    ops: str,
    values: Sequence[bytes | None],
    given: ConversionRules,
    expected: list[str],
) -> None:
    assert failures(ops, values, given) == expected


@pytest.mark.parametrize("follows", [False, True])
def test_copies_are_refused(follows: bool) -> None:
    sent = {
        "k": SentColumn(pa.array([b"1", b"2"], pa.binary())),
        "v": SentColumn(pa.array([b"1", None], pa.binary())),
    }
    given = rules("v", follows=follows)
    _, bad, _ = convert_columns(sent, FIELDS, required=("k",), rules=given)
    assert [(one.row, one.column, one.sqlstate) for one in bad] == (
        [] if follows else [(1, "v", "23502")]
    )
    _, bad, _ = convert_columns(sent, FIELDS, required=("k",), rules=rules("e"))
    assert [(one.row, one.column) for one in bad] == [(0, "e")]
