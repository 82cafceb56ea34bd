"""Is it still the source whose changes are in our log? (receive/source/history.py)"""

from __future__ import annotations

from typing import Any

import pytest

from wal2lake.errors import Retry
from wal2lake.model import Lsn
from wal2lake.pg import Identity
from wal2lake.receive.source.history import DivergedHistory, check_history, switch_point

HISTORY = (
    "1\t0/3000000\tno recovery target specified\n"
    "\n"
    "2\t0/5000060\tbefore 2024-01-01 00:00:00+00\n"
)


def check(
    position: str = "0/9000000",
    *,
    system: str = "7000000000000000001",
    timeline: int = 1,
    known_system: str | None = "7000000000000000001",
    known_timeline: int | None = 1,
    logged: str = "0/4000000",
    history: str | None = None,
    copied: str = "0/0",
    stayed: bool = False,
) -> None:
    check_history(
        Identity(system, timeline, Lsn.parse(position)),
        known_system=known_system,
        known_timeline=known_timeline,
        logged=Lsn.parse(logged),
        timeline_history=history,
        copied=Lsn.parse(copied),
        stayed=stayed,
    )


def diverges(**facts: Any) -> bool:
    try:
        check(**facts)
    except DivergedHistory:
        return True
    return False


def test_the_same_source_may_go_on() -> None:
    assert not diverges()
    assert not diverges(position="0/4000000")
    assert diverges(position="0/3FFFFFF")
    # The first connection knows nothing to compare with.
    assert not diverges(known_system=None, known_timeline=None, logged="0/0")


def test_another_system_identifier_is_another_source() -> None:
    with pytest.raises(DivergedHistory) as caught:
        check(system="7000000000000000002")
    error = caught.value
    assert error.message == (
        "publisher has a different system identifier (7000000000000000002)"
        " than the one subscribed to (7000000000000000001)"
    )
    assert (error.sqlstate, error.retry) == ("55000", Retry.NEVER)
    assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error.hint)


def test_a_history_that_ends_before_what_was_logged_has_lost_it() -> None:
    with pytest.raises(
        DivergedHistory, match="history ends at 0/3FFFFFF, before 0/4"
    ) as e:
        check(position="0/3FFFFFF")
    assert "lagging standby" in str(e.value.detail)


def test_a_history_that_lacks_what_a_snapshot_saw_has_lost_it() -> None:
    """A copy may be ahead of the log."""
    with pytest.raises(
        DivergedHistory, match="before 0/5000061, which has been copied"
    ):
        check(position="0/5000060", copied="0/5000061")
    switched: dict[str, Any] = {
        "timeline": 2,
        "history": HISTORY,
        "logged": "0/2000000",
    }
    check(**switched, copied="0/3000000")
    with pytest.raises(
        DivergedHistory, match="before 0/3000001, which has been copied"
    ):
        check(**switched, copied="0/3000001")


@pytest.mark.parametrize(
    ("known", "now", "logged", "fits"),
    [
        # Timeline 2 left 1 at 0/3000000, timeline 3 left 2 at 0/5000060.
        (2, 3, "0/5000060", True),
        (2, 3, "0/5000000", True),
        (2, 3, "0/5000061", False),
        # Two promotions since: what counts is where *our* timeline was left.
        (1, 3, "0/3000000", True),
        (1, 3, "0/3000001", False),
        (1, 3, "0/4FFFFFF", False),
    ],
)
def test_a_new_timeline_must_have_left_ours_behind_what_was_logged(
    known: int, now: int, logged: str, fits: bool
) -> None:
    if fits:
        check(timeline=now, known_timeline=known, logged=logged, history=HISTORY)
        return
    with pytest.raises(DivergedHistory, match=f"which left timeline {known} at 0/"):
        check(timeline=now, known_timeline=known, logged=logged, history=HISTORY)


def test_a_server_that_was_promoted_while_it_streamed_has_all_that_it_sent() -> None:
    check(timeline=2, logged="0/4000000", stayed=True)
    with pytest.raises(DivergedHistory):
        check(timeline=2, stayed=True, system="1")
    with pytest.raises(DivergedHistory):
        check(timeline=2, stayed=True, position="0/3FFFFFF")


@pytest.mark.parametrize("history", [None, "", HISTORY])
def test_a_timeline_that_never_was_ours_is_refused(history: str | None) -> None:
    with pytest.raises(DivergedHistory, match="at an unknown position"):
        check(timeline=5, known_timeline=4, history=history)


def test_the_switch_point_is_read_from_the_timeline_s_own_line() -> None:
    assert switch_point(HISTORY, 1) == Lsn.parse("0/3000000")
    assert switch_point(HISTORY, 2) == Lsn.parse("0/5000060")
    assert switch_point(HISTORY, 3) is None
    assert switch_point("", 1) is None
    # 12 is not 1.
    assert switch_point("12\t0/1\treason", 1) is None
