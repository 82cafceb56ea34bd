"""The index of keys finds what reading the keys would, and keeps to its disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.lake.keyindex import LEAST_ROWS, MOST_ROWS, KeyIndex

_INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1) | st.integers(-9, 9)


@given(
    stored=st.lists(_INTEGERS, min_size=1, max_size=60),
    sought=st.sets(_INTEGERS, max_size=30),
    is_sorted=st.booleans(),
    in_memory=st.booleans(),
)
def test_the_rows_of_keys_are_those_that_hold_them(
    tmp_path_factory, stored, sought, is_sorted, in_memory
):
    directory = tmp_path_factory.mktemp("keys") / "index"
    index = KeyIndex(directory, 1 << 20, least_rows=100 if in_memory else 1)
    held = sorted(stored) if is_sorted else stored
    keys = sorted(sought | set(held[:3]))
    index.add("file", np.array(held, np.int64))
    assert len(list(directory.iterdir())) == (0 if in_memory else 1)

    answer = index.find("file", np.array(keys, np.int64))
    assert answer is not None
    positions, rows = answer

    expected = {
        (i, row)
        for i, k in enumerate(keys)
        for row in range(len(held))
        if held[row] == k
    }
    assert len(rows) == len(expected)
    assert set(zip(positions.tolist(), rows.tolist(), strict=True)) == expected


def test_nothing_is_known_of_a_file_that_was_not_added(tmp_path: Path):
    index = KeyIndex(tmp_path / "index", 1 << 20)
    assert index.find("file", np.array([1])) is None


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path):
    directory = tmp_path / "index"
    index = KeyIndex(directory, 3 * 8_000, least_rows=1)
    keys = np.arange(1000)
    for name in ("a", "b", "c"):
        index.add(name, keys)
    assert index.knows("a")

    index.add("d", keys)

    assert index.find("b", keys) is None
    assert all(index.find(name, keys) is not None for name in ("a", "c", "d"))
    assert len(list(directory.iterdir())) == 3


def test_what_was_used_lately_is_not_thrown_out_for_something_else(tmp_path: Path):
    clock = Clock()
    index = KeyIndex(tmp_path / "index", 3 * 16_000, least_rows=1, clock=clock)
    keys = np.arange(1000)
    for name in ("a", "b", "c", "d"):
        index.add(name, keys)
    assert index.admits(1000)
    assert not index.admits(1001)
    clock.now += 301
    assert index.knows("a")
    assert index.admits(2500)
    assert not index.admits(2501)


def test_a_file_that_is_larger_than_all_room_is_not_kept(tmp_path: Path):
    index = KeyIndex(tmp_path / "index", 8_000, least_rows=1)
    index.add("small", np.arange(1000))
    index.add("unsorted", np.arange(1000)[::-1].copy())
    assert index.find("unsorted", np.array([1])) is None
    assert index.find("small", np.array([1])) is not None
    assert index.takes(500)
    assert not index.takes(501)


@pytest.mark.parametrize("damage", [b"", b"too short", None])
def test_a_file_of_the_cache_that_cannot_be_read_is_forgotten(tmp_path: Path, damage):
    clock = Clock()
    index = KeyIndex(tmp_path / "index", 1 << 20, least_rows=1, clock=clock)
    index.add("file", np.arange(1000))
    (path,) = (tmp_path / "index").iterdir()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    assert index.find("file", np.array([1])) is None
    assert not index.knows("file")
    assert not index.admits(1)
    clock.now += 61
    assert index.admits(1)


def test_a_cache_that_cannot_be_written_does_without(tmp_path: Path):
    index = KeyIndex(tmp_path / "index", 1 << 20, least_rows=1)
    (tmp_path / "index").rmdir()
    index.add("file", np.arange(1000))
    assert index.find("file", np.array([1])) is None
    assert not index.admits(1)


def test_a_start_begins_with_nothing(tmp_path: Path):
    directory = tmp_path / "index"
    KeyIndex(directory, 1 << 20, least_rows=1).add("file", np.arange(10))
    index = KeyIndex(directory, 1 << 20)
    assert index.find("file", np.array([1])) is None
    assert not list(directory.iterdir())


def test_files_that_are_kept(tmp_path: Path):
    index = KeyIndex(tmp_path / "index", 1 << 40)
    assert index.takes(LEAST_ROWS)
    assert index.takes(LEAST_ROWS - 1)
    assert not index.takes(0)
    assert not index.takes(MOST_ROWS + 1)
    assert not index.takes(None)
    assert index.is_small(LEAST_ROWS - 1)
    assert not index.is_small(LEAST_ROWS)
    assert not KeyIndex(tmp_path / "none", 0).takes(LEAST_ROWS)


def test_memory_for_small_files_is_bounded_as_the_disk_is(tmp_path: Path):
    index = KeyIndex(tmp_path / "index", 3 * 8_000)
    keys = np.arange(1000)
    for name in ("a", "b", "c"):
        index.add(name, keys)
    index.add("c", keys)
    assert index.knows("a")
    index.add("d", keys)
    assert index.find("b", keys) is None
    assert all(index.find(name, keys) is not None for name in ("a", "c", "d"))
    index.add("too large", np.arange(4000))
    assert index.find("too large", keys) is None
    assert index.find("d", keys) is not None
