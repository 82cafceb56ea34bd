"""Rows with values of many megabytes are compared within the memory that there is, exactly."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.errors import StorageError
from wal2lake.lake.capture import apart
from wal2lake.lake.capture.comparison import (
    DELETE,
    INSERT,
    MOVE,
    UPDATE,
    ComparisonMemory,
    RecordedUpdates,
    compare,
)
from wal2lake.lake.capture.moves import MovedKey
from wal2lake.publish.capture.recorder import is_gone

SCHEMA = pa.schema([(f"v{i}", pa.binary()) for i in range(3)])

MB = 1 << 20

Row = tuple[bytes | None, bytes | None, bytes | None]
Difference = tuple[int, Row, Row]


def rows(*given: Row) -> list[pa.Table]:
    columns = [pa.array(column, pa.binary()) for column in zip(*given, strict=True)]
    return [pa.table(columns, schema=SCHEMA)] if given else []


def compared(
    directory: Path, gone: list[pa.Table], came: list[pa.Table], key: tuple[int, ...]
) -> list[Difference]:
    memory = ComparisonMemory(64 * MB, directory / "of its own")
    found: list[Difference] = []
    for table in compare(gone, came, SCHEMA, key, RecordedUpdates(), memory):
        assert table.nbytes < 100 * MB
        for one in table.to_pylist():
            old, new = (tuple(one[f"{side}{i}"] for i in range(3)) for side in "gv")
            found.append((one["kind"], old, new))
    assert list((directory / "of its own").iterdir()) == []
    return found


NONE: Row = (None, None, None)


@pytest.mark.parametrize("key", [(0,), ()], ids=["by key", "whole rows"])
def test_large_values_do_not_need_memory_for_all(
    tmp_path: Path, key: tuple[int, ...]
) -> None:
    before: list[Row] = [(b"%d" % n, bytes([n]) * (20 * MB), None) for n in range(8)]
    after: list[Row] = [
        (k, v if n % 4 else b"y" * (20 * MB), w) for n, (k, v, w) in enumerate(before)
    ]
    found = compared(tmp_path, rows(*before), rows(*after), key)
    changed = [(before[n], after[n]) for n in (0, 4)]
    wanted: list[Difference]
    if key:
        wanted = [(UPDATE, *pair) for pair in changed]
    else:
        wanted = [(DELETE, old, NONE) for old, _ in changed]
        wanted += [(INSERT, NONE, new) for _, new in changed]
    assert found == wanted


def test_values_of_all_sizes_are_as_they_were(tmp_path: Path) -> None:
    sizes = (0, 1, 32, 4095, 4096, 5000, 70_000)
    values = [bytes([n]) * size for n in (0, 97) for size in sizes]
    before: list[Row] = [
        (b"%d" % n, value, values[-n]) for n, value in enumerate(values)
    ]
    before += [(b"k" * 9000, None, b"x" * 5000), (b"same", b"s" * 9000, None)]
    after: list[Row] = [*((k, w, v) for k, v, w in before[:-1]), before[-1]]
    found = compared(tmp_path, rows(*before), rows(*after), (0,))
    pairs = zip(before, after, strict=True)
    assert found == [(UPDATE, *pair) for pair in pairs if pair[0] != pair[1]]
    assert compared(tmp_path, rows(*before), [], (0,)) == [
        (DELETE, row, NONE) for row in before
    ]


def test_a_full_disk_is_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: apart.Apart, value: memoryview) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(apart.Apart, "_mark", full)
    large = rows((b"1", b"x" * 5000, None))
    with pytest.raises(StorageError, match="No space left") as caught:
        compared(tmp_path, large, large, (0,))
    assert caught.value.sqlstate == "53100"


@pytest.mark.parametrize("key", [(0,), ()], ids=["by key", "whole rows"])
def test_a_row_with_large_values_moves(tmp_path: Path, key: tuple[int, ...]) -> None:
    large = "x" * 9000
    old, new = (large + "1", large, None), (large + "2", large, None)
    moved = MovedKey(old[:1], new[:1]) if key else MovedKey(old, new)
    before, after = (
        rows((one[0].encode(), large.encode(), None)) for one in (old, new)
    )
    found = compare(
        before,
        after,
        SCHEMA,
        key,
        RecordedUpdates(moved=[moved]),
        ComparisonMemory(64 * MB, tmp_path / "m"),
    )
    (table,) = [one for one in found if one.num_rows]
    assert table.column("kind").to_pylist() == [MOVE]
    assert table.column("g0").to_pylist() == [old[0].encode()]
    assert table.column("v0").to_pylist() == [new[0].encode()]


def test_a_file_that_is_gone_is_told_from_one_out_of_reach(tmp_path: Path) -> None:
    def gone() -> Iterator[pa.Table]:
        yield from rows((b"1", b"x", None))
        missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
        raise StorageError("could not open file") from missing

    with pytest.raises(StorageError, match="could not open file") as caught:
        list(
            compare(
                gone(),
                [],
                SCHEMA,
                (0,),
                RecordedUpdates(),
                ComparisonMemory(64 * MB, tmp_path / "m"),
            )
        )
    assert is_gone(caught.value)
