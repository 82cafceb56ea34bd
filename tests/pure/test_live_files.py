"""Rows that the runs of a batch remove are kept as what they are, few or many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pure.test_upsert import Table

from wal2lake.lake.upsert.files.livefiles import LiveFiles, _Gone

pytestmark = pytest.mark.usefixtures("no_fsync")


@given(
    held=st.integers(1, 300),
    removed=st.lists(st.lists(st.integers(0, 299), max_size=9), max_size=9),
)
def test_deleted_rows_are_all_that_were_removed(
    held: int, removed: list[list[int]]
) -> None:
    gone = _Gone(np.zeros(0, np.uint64), held)
    expected: set[int] = set()
    for some in removed:
        rows = [row % held for row in some]
        gone.add(np.array(rows, np.int64))
        expected |= set(rows)
        assert gone.count == len(expected)
        assert gone.rows().dtype == np.uint64
        assert gone.rows().tolist() == sorted(expected)


def test_a_row_of_a_huge_file_is_removed_for_the_price_of_a_row(tmp_path: Path) -> None:
    """A bit for each row of this file would not fit into any memory."""
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(3)], 1)
    (file,) = table.files
    live = LiveFiles(table.state, table.files)
    for row in (1 << 49, 5):
        live.remove(file, np.array([row]), 1 << 50)
    gone = live.gone(file)
    assert gone is not None
    assert gone.tolist() == [5, 1 << 49]
    assert live.files == [file]
