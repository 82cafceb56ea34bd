"""A segment of what was waiting at the publisher ends when everything has come."""

from __future__ import annotations

import pytest

from wal2lake.model import Lsn
from wal2lake.receive.threads.catchup import LONGEST_SECONDS, Arrival, CatchUp

_USUAL = 0.25
_SECOND = 1_000_000
"""A second of commit times."""


def caught(seconds_of_commits: float, *, taking: float = 0.1) -> CatchUp:
    """Return the state after commits of so many seconds have come within ``taking``."""
    catch_up = CatchUp(10.0)
    catch_up.look((0, round(seconds_of_commits * _SECOND)), 10.0 + taking, came=True)
    return catch_up


@pytest.mark.parametrize(
    ("seconds", "taking", "is_on"),
    [(4.0, 0.1, True), (1.2, 0.1, True), (0.25, 0.25, False), (3.0, 2.5, False)],
)
def test_commits_that_span_more_time_than_they_took_to_come_had_been_waiting(
    seconds: float, taking: float, is_on: bool
) -> None:
    assert caught(seconds, taking=taking).is_on is is_on


def test_a_single_transaction_never_had_been_waiting() -> None:
    catch_up = CatchUp(10.0)
    catch_up.look((_SECOND, _SECOND), 10.2, came=True)
    assert not catch_up.is_on


def test_a_clock_that_differs_does_not_matter() -> None:
    catch_up = CatchUp(10.0)
    day = 86_400 * _SECOND
    catch_up.look((day, day + 4 * _SECOND), 10.1, came=True)
    assert catch_up.is_on
    catch_up = CatchUp(10.0)
    catch_up.look((day, day + _SECOND // 10), 10.1, came=True)
    assert not catch_up.is_on


def test_it_is_sealed_once_everything_has_come() -> None:
    catch_up = caught(4.0)
    assert not catch_up.is_due(0.5, _USUAL)
    catch_up.end()
    assert not catch_up.is_on and catch_up.is_due(0.01, _USUAL)


def test_it_is_sealed_after_the_longest_time_and_goes_on() -> None:
    catch_up = caught(4.0)
    assert catch_up.is_due(LONGEST_SECONDS, _USUAL)
    catch_up.sealed(12.0)
    assert catch_up.is_on and not catch_up.is_due(1.0, _USUAL)


def test_a_silent_stream_has_nothing_to_wait_for() -> None:
    catch_up = caught(4.0)
    catch_up.look((0, 4 * _SECOND), 10.2, came=False)
    assert not catch_up.is_due(0.2, _USUAL)
    catch_up.look((0, 4 * _SECOND), 10.4, came=False)
    assert catch_up.is_due(0.2, _USUAL)


def test_what_lies_below_the_publishers_position_had_been_waiting() -> None:
    catch_up = CatchUp(10.0)
    catch_up.look((0, _SECOND // 10), 10.2, came=True, behind=True)
    assert catch_up.is_on
    # Few commits come before the rows of a large transaction, and none while it is read.
    catch_up.look((0, _SECOND // 5), 10.8, came=True, behind=True)
    catch_up.look((0, _SECOND // 5), 11.4, came=False, behind=True)
    assert catch_up.is_on and not catch_up.is_due(1.0, _USUAL)
    catch_up.look((0, _SECOND // 5), 11.9, came=False, behind=True)
    assert catch_up.is_due(1.0, _USUAL)


def test_the_rate_counts_from_the_publishers_position_on() -> None:
    catch_up = CatchUp(10.0)
    catch_up.look((0, _SECOND), 10.2, came=True, behind=True)
    catch_up.look((0, 2 * _SECOND), 11.2, came=True, behind=True)
    catch_up.look((0, 2 * _SECOND + _SECOND // 5), 11.3, came=True)
    assert catch_up.is_on
    catch_up.look((0, 2 * _SECOND + _SECOND // 2), 11.8, came=True)
    assert not catch_up.is_on


def test_with_nothing_received_there_is_nothing_to_wait_for() -> None:
    catch_up = CatchUp(10.0)
    catch_up.look(None, 10.2, came=False, behind=True)
    assert not catch_up.is_on


@pytest.mark.parametrize(
    ("received", "alive", "is_behind", "is_whole"),
    [
        (0, 0, True, False),
        (90, 0, True, False),
        # A reply to a status, or the publisher's sign of life while it reads.
        (90, 95, True, False),
        (90, 100, False, True),
        (120, 0, False, False),
        (120, 121, False, True),
    ],
)
def test_a_keepalive_says_that_everything_has_come_from_the_publishers_position_on(
    received: int, alive: int, is_behind: bool, is_whole: bool
) -> None:
    arrival = Arrival(Lsn(100), Lsn(received), Lsn(alive))
    assert (arrival.is_behind, arrival.is_whole) == (is_behind, is_whole)


def test_a_stream_that_is_as_fast_as_its_commits_has_caught_up() -> None:
    catch_up = caught(4.0)
    catch_up.look((0, 8 * _SECOND), 10.7, came=True)
    assert catch_up.is_on
    catch_up.look((0, 8 * _SECOND + _SECOND // 10), 10.8, came=True)
    assert catch_up.is_on
    catch_up.look((0, 8 * _SECOND + _SECOND // 2), 11.3, came=True)
    assert not catch_up.is_on


def test_the_rows_of_a_large_transaction_come_without_a_commit() -> None:
    catch_up = caught(4.0)
    for look in range(1, 11):
        catch_up.look((0, 4 * _SECOND), 10.1 + look / 10, came=True)
    assert catch_up.is_on


def test_a_stream_that_keeps_up_has_nothing_to_end() -> None:
    catch_up = caught(0.1)
    catch_up.end()
    assert not catch_up.is_due(0.01, _USUAL)


def test_segments_are_as_usual_after_it() -> None:
    catch_up = caught(4.0)
    catch_up.end()
    assert catch_up.is_due(0.01, _USUAL)
    catch_up.sealed(10.2)
    assert not catch_up.is_due(0.01, _USUAL)
    assert catch_up.is_due(0.25, _USUAL)
    catch_up.look((0, _SECOND // 4), 10.45, came=True)
    assert not catch_up.is_on
