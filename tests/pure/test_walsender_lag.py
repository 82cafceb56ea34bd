"""The lags of pg_stat_replication, measured as PostgreSQL's LagTracker does."""

from __future__ import annotations

import pytest

from wal2lake.model import Lsn
from wal2lake.publish.walsender.lag import LagTracker

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
    assert tracker.lags_us == (SECOND, SECOND, SECOND)
    tracker.reported(at, at, at, at, 14 * SECOND)
    assert tracker.lags_us == (None, None, None)
    # An idle hour is no lag of what comes behind it.
    tracker.sent(Lsn(400), 3600 * SECOND)
    tracker.reported(Lsn(350), at, at, Lsn(400), 3601 * SECOND)
    assert tracker.lags_us == (None, None, None)


def test_a_client_that_is_far_behind_keeps_the_oldest_samples() -> None:
    tracker = LagTracker()
    for number in range(1, 10_001):
        tracker.sent(Lsn(number), number * SECOND)
    tracker.reported(Lsn(1), Lsn(10_000), Lsn(0), Lsn(10_000), 10_000 * SECOND)
    assert tracker.lags_us == (9_999 * SECOND, 0, None)
