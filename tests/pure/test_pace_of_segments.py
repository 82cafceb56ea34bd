"""Segments are as short as the setting says while apply keeps up, and longer while it does not."""

from __future__ import annotations

import pytest

from wal2lake.model import Lsn
from wal2lake.receive.threads.pace import Pace


def applied_after(pace: Pace, seconds: float, end: int = 100) -> float:
    pace.sealed(Lsn(end), 10.0)
    pace.adapt(Lsn(end - 1), 10.0 + seconds / 2)
    pace.adapt(Lsn(end), 10.0 + seconds)
    return pace.seconds


@pytest.mark.parametrize(
    ("took", "lasts"), [(0.0, 0.25), (0.9, 0.25), (2.0, 0.5), (3.6, 0.9), (60.0, 1.0)]
)
def test_a_segment_lasts_a_quarter_of_what_the_one_before_took(
    took: float, lasts: float
) -> None:
    assert applied_after(Pace(0.25), took) == pytest.approx(lasts)


def test_a_setting_above_a_second_is_kept() -> None:
    assert applied_after(Pace(5.0), 60.0) == 5.0


def test_the_newest_that_is_applied_counts() -> None:
    pace = Pace(0.25)
    for end, at in ((1, 0.0), (2, 8.0), (3, 9.0)):
        pace.sealed(Lsn(end), at)
    pace.adapt(Lsn(2), 10.0)
    assert pace.seconds == pytest.approx(0.5)


def test_it_is_short_again_once_apply_keeps_up_or_nothing_comes() -> None:
    pace = Pace(0.25)
    assert applied_after(pace, 4.0) == 1.0
    assert applied_after(pace, 0.1, 200) == 0.25
    assert applied_after(pace, 4.0, 300) == 1.0
    pace.nothing_to_seal()
    assert pace.seconds == 0.25


def test_apply_that_stands_still_changes_nothing() -> None:
    pace = Pace(0.25)
    for end in range(1, 1000):
        pace.sealed(Lsn(end), float(end))
        pace.adapt(Lsn(0), float(end))
    assert pace.seconds == 0.25
    pace.adapt(Lsn(2000), 1001.0)
    assert pace.seconds == pytest.approx(0.5)
