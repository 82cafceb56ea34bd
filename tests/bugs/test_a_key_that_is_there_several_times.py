"""Who writes a table from outside may write a key several times; each row is captured once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.lake.capture.comparison import ComparisonMemory, RecordedUpdates, compare
from wal2lake.lake.capture.moves import MovedKey

SCHEMA = pa.schema([("v0", pa.binary()), ("v1", pa.binary())])


def rows(values: str) -> list[pa.Table]:
    columns = [[b"1"] * len(values), [v.encode() for v in values]]
    return [
        pa.Table.from_arrays([pa.array(c, pa.binary()) for c in columns], schema=SCHEMA)
    ]


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
    # What a commit says of moved keys cannot be told of several rows.
    for moved in ([], [MovedKey(("1",), ("1",)), MovedKey(("2",), ("1",))]):
        memory = ComparisonMemory(64 << 20, tmp_path)
        found = compare(
            rows(gone), rows(came), SCHEMA, [0], RecordedUpdates(moved), memory
        )
        kinds = Counter(
            "DUMI"[kind] for t in found for kind in t.column("kind").to_pylist()
        )
        assert kinds == said
