"""What was confirmed, and another server: a promoted standby, one that lags, a slot of others.

The record was changed as soon as a server had been asked, before it had let the slot be used; and
it knew nothing of timelines, so that a slot that was made anew behind a failover, below what had
been confirmed on the timeline that was left, went on above a gap in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.publisher import inserts, payloads
from tests.fakes.receiver import SUBSCRIPTION, Receiver
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.catalog import MADE_SLOT
from wal2lake.changelog.confirmed import Confirmed
from wal2lake.errors import PublisherError, StorageError
from wal2lake.model import Lsn
from wal2lake.receive.source.slotcheck import UnusableSlot
from wal2lake.wire.frontback import Diagnostic, ErrorResponse

pytestmark = pytest.mark.usefixtures("no_fsync")

FIRST, SECOND = inserts(100, 3), inserts(200, 3)
SCRIPT = [Scripted(one.end_lsn, tuple(payloads(one))) for one in (FIRST, SECOND)]

SWITCH, CONFIRMED = 500, 1000
"""Where the standby left the first timeline, and what had been confirmed on it."""


@pytest.fixture
def publisher() -> Iterator[FakeWalsender]:
    with FakeWalsender([SCRIPT]) as one:
        one.end = Lsn(2000)
        yield one


@pytest.fixture
def receiver(publisher: FakeWalsender, tmp_path: Path) -> Receiver:
    """It has received everything, and confirmed more while nothing was pending."""
    one = Receiver(tmp_path, publisher)
    goes_on(one, publisher)
    one.confirm(CONFIRMED)
    publisher.confirmed = Lsn(CONFIRMED)
    return one


def goes_on(receiver: Receiver, publisher: FakeWalsender) -> None:
    """A run that streams until it has said where it is."""
    heard = publisher.heard
    error = receiver.run(until=lambda: publisher.heard > heard)
    assert error is None, error


def refuse(publisher: FakeWalsender, sqlstate: str, message: str) -> None:
    publisher.refusal = ErrorResponse(Diagnostic("ERROR", sqlstate, message))


def fail_over(publisher: FakeWalsender, slot: int) -> None:
    publisher.timeline, publisher.history = 2, f"1\t{Lsn(SWITCH)}\tno target\n"
    publisher.confirmed = Lsn(slot)


def timeline(receiver: Receiver) -> int | None:
    found = receiver.catalog.subscription(SUBSCRIPTION)
    assert found is not None
    return found.timeline


def test_a_promoted_slot_goes_on_and_counts_from_the_switch(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    fail_over(publisher, slot=400)
    goes_on(receiver, publisher)
    assert timeline(receiver) == 2
    assert receiver.confirmed() == Confirmed("s", Lsn(SWITCH))
    goes_on(receiver, publisher)


def test_a_slot_made_anew_behind_the_switch_is_refused(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    # Above the switch, below what was confirmed on the timeline that was left.
    fail_over(publisher, slot=700)
    for _ in range(2):
        error = receiver.run(until=lambda: False)
        assert isinstance(error, UnusableSlot), error
        assert f"starts at {Lsn(700)}, above {Lsn(SWITCH)}," in error.message
        assert timeline(receiver) == 1
        assert receiver.confirmed() == Confirmed("s", Lsn(CONFIRMED))


def test_a_crash_between_the_record_and_the_catalog_changes_nothing(
    receiver: Receiver, publisher: FakeWalsender, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_over(publisher, slot=400)
    with monkeypatch.context() as patch:

        def crash(*_: Any, **__: Any) -> None:
            raise StorageError("crash")

        patch.setattr(receiver.catalog, "update_subscription", crash)
        heard = publisher.heard
        assert isinstance(receiver.run(until=lambda: False), StorageError)
        assert publisher.heard == heard, "nothing is said upstream before"
    assert receiver.confirmed() == Confirmed("s", Lsn(SWITCH))
    assert timeline(receiver) == 1
    publisher.confirmed = Lsn(700)
    assert isinstance(receiver.run(until=lambda: False), UnusableSlot)
    publisher.confirmed = Lsn(400)
    goes_on(receiver, publisher)
    assert timeline(receiver) == 2


def test_a_visit_to_a_standby_that_lags_leaves_no_trace(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    publisher.end, publisher.confirmed = Lsn(300), Lsn(250)
    refuse(publisher, "55000", "cannot use replication slot: it is being synchronized")
    assert isinstance(receiver.run(until=lambda: False), PublisherError)
    assert receiver.confirmed() == Confirmed("s", Lsn(CONFIRMED))
    # Back at the primary.
    publisher.refusal = None
    publisher.end, publisher.confirmed = Lsn(2000), Lsn(CONFIRMED)
    goes_on(receiver, publisher)


def test_a_source_that_lost_what_was_confirmed_counts_anew_once_it_streams(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    publisher.end, publisher.confirmed = Lsn(300), Lsn(250)
    goes_on(receiver, publisher)
    assert receiver.confirmed() == Confirmed("s", Lsn(300))


def test_a_timeline_is_not_learnt_from_a_server_that_refuses(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    fail_over(publisher, slot=400)
    refuse(publisher, "55000", "cannot use replication slot: it is being synchronized")
    assert isinstance(receiver.run(until=lambda: False), PublisherError)
    assert timeline(receiver) == 1
    publisher.refusal, publisher.timeline = None, 1
    publisher.confirmed = Lsn(CONFIRMED)
    goes_on(receiver, publisher)


def test_a_slot_that_somebody_else_reads_is_not_recorded_before_it_is_ours(
    receiver: Receiver, publisher: FakeWalsender
) -> None:
    receiver.catalog.update_subscription(SUBSCRIPTION, slot_name="other")
    publisher.confirmed = Lsn(300)
    refuse(publisher, "55006", 'replication slot "other" is active for PID 1')
    assert isinstance(receiver.run(until=lambda: False), PublisherError)
    assert receiver.confirmed() == Confirmed("s", Lsn(CONFIRMED))
    publisher.refusal = None

    def advance() -> None:
        publisher.confirmed = Lsn(1200)
        publisher.on_start = lambda: None

    # Its other reader goes on until the slot is ours.
    publisher.on_start = advance
    goes_on(receiver, publisher)
    assert receiver.confirmed() == Confirmed("other", Lsn(1200))
    goes_on(receiver, publisher)


@pytest.mark.parametrize(
    ("made", "slot", "start", "refused"),
    [
        ("s", "s", 100, False),
        # Dropped and created again before anything had been received.
        ("s", "s", 150, True),
        # Made by somebody else, or named in the other one's place: taken as it is.
        (None, "s", 150, False),
        ("s", "other", 150, False),
    ],
)
def test_the_first_start_is_where_create_subscription_made_the_slot(
    publisher: FakeWalsender,
    tmp_path: Path,
    made: str | None,
    slot: str,
    start: int,
    refused: bool,
) -> None:
    receiver = Receiver(tmp_path, publisher)
    receiver.catalog.update_subscription(SUBSCRIPTION, floor=Lsn(100), slot_name=slot)
    if made is not None:
        receiver.catalog.set_options(SUBSCRIPTION, {MADE_SLOT: made})
    publisher.confirmed = Lsn(start)
    if not refused:
        goes_on(receiver, publisher)
        assert receiver.confirmed() == Confirmed(slot, Lsn(start))
        # From here on it counts what was received.
        receiver.confirm(1000, slot)
        publisher.confirmed = Lsn(900)
        goes_on(receiver, publisher)
        return
    for _ in range(2):
        error = receiver.run(until=lambda: False)
        assert isinstance(error, UnusableSlot), error
        assert error.message.startswith(
            f'replication slot "{slot}" starts at {Lsn(start)}, above {Lsn(100)}'
        )
        assert receiver.confirmed() is None
