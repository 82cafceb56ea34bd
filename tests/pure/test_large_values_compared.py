"""Rows with values of many megabytes are compared within the memory that there is, exactly."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from wal2lake.lake.capture import apart
from wal2lake.lake.capture.comparison import (
    DELETE,
    INSERT,
    UPDATE,
    Memory,
    Said,
    compare,
)

SCHEMA = pa.schema([(f"v{i}", pa.binary()) for i in range(3)])

MB = 1 << 20

Row = tuple[bytes, bytes | None, bytes | None]


def rows(*given: Row) -> list[pa.Table]:
    columns = [pa.array(column, pa.binary()) for column in zip(*given, strict=True)]
    return [pa.table(columns, schema=SCHEMA)] if given else []


def compared(
    directory: Path, gone: list[pa.Table], came: list[pa.Table], key: tuple[int, ...]
) -> list[tuple[int, Row, Row]]:
    memory = Memory(64 * MB, directory / "of its own")
    found: list[tuple[int, Row, Row]] = []
    for table in compare(gone, came, SCHEMA, key, Said(), memory):
        assert table.nbytes < 100 * MB
        for one in table.to_pylist():
            old, new = (tuple(one[f"{side}{i}"] for i in range(3)) for side in "gv")
            found.append((one["kind"], old, new))
    assert list((directory / "of its own").iterdir()) == []
    return found


NONE = (None, None, None)


@pytest.mark.parametrize("key", [(0,), ()], ids=["by key", "whole rows"])
def test_large_values_do_not_need_memory_for_all(
    tmp_path: Path, key: tuple[int, ...]
) -> None:
    before = [(b"%d" % n, bytes([n]) * (20 * MB), None) for n in range(8)]
    after = [
        (k, v if n % 4 else b"y" * (20 * MB), w) for n, (k, v, w) in enumerate(before)
    ]
    found = compared(tmp_path, rows(*before), rows(*after), key)
    changed = [(before[n], after[n]) for n in (0, 4)]
    if key:
        wanted = [(UPDATE, *pair) for pair in changed]
    else:
        wanted = [(DELETE, old, NONE) for old, _ in changed]
        wanted += [(INSERT, NONE, new) for _, new in changed]
    assert found == wanted


def test_values_of_all_sizes_are_as_they_were(tmp_path: Path) -> None:
    sizes = (0, 1, 32, 4095, 4096, 5000, 70_000)
    values = [bytes([n]) * size for n in (0, 97) for size in sizes]
    before = [(b"%d" % n, value, values[-n]) for n, value in enumerate(values)]
    before += [(b"k" * 9000, None, b"x" * 5000), (b"same", b"s" * 9000, None)]
    after = [(k, w, v) for k, v, w in before[:-1]] + [before[-1]]
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
    with pytest.raises(OSError, match="No space left"):
        compared(tmp_path, large, large, (0,))
