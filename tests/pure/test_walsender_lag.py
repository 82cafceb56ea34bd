"""The lags of pg_stat_replication, measured as PostgreSQL's LagTracker does."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.model import Lsn
from wal2lake.publish.walsender.lag import LagTracker
from wal2lake.publish.walsender.page import Page

SECOND = 1_000_000


@pytest.fixture
def tracker() -> LagTracker:
    """Three positions were sent, a second apart; a fourth came too soon to be kept."""
    found = LagTracker()
    for lsn, second in ((100, 10.0), (200, 11.0), (250, 11.5), (300, 12.0)):
        found.sent(Lsn(lsn), int(second * SECOND))
    return found


def test_nothing_is_known_before_the_client_has_reached_a_sample(
    tracker: LagTracker,
) -> None:
    tracker.reported(Lsn(50), Lsn(0), Lsn(0), Lsn(300), 13 * SECOND)
    assert tracker.lags_us == (None, None, None)


def test_each_position_has_its_own_lag(tracker: LagTracker) -> None:
    tracker.reported(Lsn(300), Lsn(200), Lsn(100), Lsn(300), 13 * SECOND)
    assert tracker.lags_us == (1 * SECOND, 2 * SECOND, 3 * SECOND)


def test_a_position_between_two_samples_has_a_time_between_theirs(
    tracker: LagTracker,
) -> None:
    tracker.reported(Lsn(100), Lsn(100), Lsn(100), Lsn(300), 13 * SECOND)
    tracker.reported(Lsn(150), Lsn(100), Lsn(200), Lsn(300), 14 * SECOND)
    assert tracker.lags_us == (int(3.5 * SECOND), 4 * SECOND, 3 * SECOND)


def test_lags_are_forgotten_at_the_second_reply_of_a_client_that_has_all(
    tracker: LagTracker,
) -> None:
    at = Lsn(300)
    tracker.reported(at, at, at, at, 13 * SECOND)
    assert set(tracker.lags_us) == {SECOND}
    tracker.reported(at, at, at, at, 14 * SECOND)
    assert set(tracker.lags_us) == {None}
    # An idle hour is no lag of what comes behind it.
    tracker.sent(Lsn(400), 3600 * SECOND)
    tracker.reported(Lsn(350), at, at, Lsn(400), 3601 * SECOND)
    assert set(tracker.lags_us) == {None}


def test_a_client_that_is_far_behind_keeps_the_oldest_samples() -> None:
    tracker = LagTracker()
    for number in range(1, 10_001):
        tracker.sent(Lsn(number), number * SECOND)
    tracker.reported(Lsn(1), Lsn(10_000), Lsn(0), Lsn(10_000), 10_000 * SECOND)
    assert tracker.lags_us == (9_999 * SECOND, 0, None)


def test_the_page_tells_an_unknown_lag_from_none_at_all(tmp_path: Path) -> None:
    page = Page(tmp_path / "page")
    try:
        page.set(sent=1, write=2, flush=3, apply=4, total_txns=7)
        assert page.read().write_lag_us is None
        page.set_lags((0, 5, None))
        found = page.read()
        lags = found.write_lag_us, found.flush_lag_us, found.apply_lag_us
        assert lags == (0, 5, None)
        assert (found.sent, found.apply, page.read_counts().total_txns) == (1, 4, 7)
    finally:
        page.close()
