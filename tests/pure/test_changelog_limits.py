"""The log's size limit: below, near, reached (changelog/retention.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.changelog import Inventory, LimitState, LogSize, check_limit, log_size
from wal2lake.errors import StorageError
from wal2lake.settings import LogSettings


def state(size: int, limit: int, percent: int = 80) -> LimitState:
    settings = LogSettings(size_limit_bytes=limit, size_warning_percent=percent)
    return check_limit(LogSize(size // 3, size - size // 3), settings)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, LimitState.BELOW),
        (799, LimitState.BELOW),
        (800, LimitState.NEAR),
        (999, LimitState.NEAR),
        (1000, LimitState.REACHED),
        (5000, LimitState.REACHED),
    ],
)
def test_the_states_of_a_log_of_1000_bytes_at_80_percent(
    size: int, expected: LimitState
) -> None:
    assert state(size, 1000) is expected


def test_without_a_limit_nothing_is_ever_near() -> None:
    assert state(1 << 60, 0) is LimitState.BELOW


def test_journal_and_segments_count_together() -> None:
    settings = LogSettings(size_limit_bytes=100, size_warning_percent=50)
    assert check_limit(LogSize(49, 0), settings) is LimitState.BELOW
    assert check_limit(LogSize(25, 25), settings) is LimitState.NEAR
    assert check_limit(LogSize(1, 99), settings) is LimitState.REACHED


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 50), st.integers(1, 100))
def test_a_growing_log_goes_through_the_states_in_order(
    size: int, limit: int, percent: int
) -> None:
    order = [LimitState.BELOW, LimitState.NEAR, LimitState.REACHED]
    now = order.index(state(size, limit, percent))
    assert order.index(state(size + 1, limit, percent)) >= now
    assert (state(size, limit, percent) is LimitState.REACHED) == (size >= limit)


def test_the_size_counts_every_file_that_the_log_has(tmp_path: Path) -> None:
    assert log_size(tmp_path) == LogSize(0, 0)
    (tmp_path / f"journal-{1:020d}").write_bytes(b"x" * 10)
    (tmp_path / f"journal-{2:020d}").write_bytes(b"x" * 5)
    (tmp_path / f"seg-{1:020d}.json").write_bytes(b"x" * 20)
    (tmp_path / f"seg-{1:020d}-7-0.parquet").write_bytes(b"x" * 30)
    # One that is being written takes space too.
    (tmp_path / f"seg-{2:020d}.json.tmp").write_bytes(b"x" * 40)
    (tmp_path / "something-else").write_bytes(b"x" * 1000)
    (tmp_path / f"spool-{1:020d}-7-0.parquet").write_bytes(b"x" * 50)
    (tmp_path / f"spool-{1:020d}.json").write_bytes(b"x" * 6)
    assert log_size(tmp_path) == LogSize(15, 90, 56)
    contents = Inventory(tmp_path).read()
    assert contents is not None
    assert contents.size == log_size(tmp_path)
    assert log_size(tmp_path).total_bytes == 161


def test_transactions_that_are_open_or_prepared_never_stop_the_receiver() -> None:
    limit = LogSettings(size_limit_bytes=100)
    assert check_limit(LogSize(10, 20, 10_000), limit) is LimitState.BELOW
    assert check_limit(LogSize(10, 90, 10_000), limit) is LimitState.REACHED


def test_a_directory_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not open directory"):
        log_size(tmp_path / "gone")
