"""When a table whose copy fails is tried again."""

from __future__ import annotations

from wal2lake.catalog import SubscriptionRel
from wal2lake.model import Oid, SyncState
from wal2lake.receive.patience import Patience


def rel(relid: int = 7, epoch: int = 1) -> SubscriptionRel:
    return SubscriptionRel(
        Oid(1), Oid(relid), "s", "t", SyncState.DATASYNC, None, epoch
    )


def pauses(patience: Patience, first: float, failures: int) -> list[float]:
    found, now = [], 0.0
    for _ in range(failures):
        patience.failed(rel(), 3, now, first)
        length = next(n for n in range(1, 2000) if patience.is_over(rel(), 3, now + n))
        found.append(float(length))
        now += length
    return found


def test_a_table_that_did_not_fail_need_not_wait() -> None:
    patience = Patience()
    assert not patience
    assert patience.is_over(rel(), None, 0.0)
    patience.failed(rel(8), 3, 0.0, 5.0)
    assert patience
    assert patience.is_over(rel(7), 3, 0.0)
    assert not patience.is_over(rel(8), 3, 0.0)


def test_a_pause_doubles_up_to_five_minutes() -> None:
    assert pauses(Patience(), 60.0, 5) == [60, 120, 240, 300, 300]


def test_a_setting_that_is_longer_stays_as_it_is() -> None:
    assert pauses(Patience(), 600.0, 3) == [600, 600, 600]


def test_whatever_was_done_about_it_ends_the_pause_and_begins_anew() -> None:
    patience = Patience()
    pauses(patience, 60.0, 3)
    patience.failed(rel(), 3, 0.0, 60.0)
    assert not patience.is_over(rel(), 3, 100.0)
    assert patience.is_over(rel(), 4, 0.0), "somebody has written the table"
    assert patience.is_over(rel(epoch=2), 3, 0.0), "it has left and come"
    patience.failed(rel(), 4, 0.0, 60.0)
    assert patience.is_over(rel(), 4, 60.0)
