"""Positions upstream: events in, write, flush and apply out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.model import Lsn
from wal2lake.receive.feedback import Feedback, FeedbackPositions

Event = Callable[[Feedback], None]


def arrived(end: int) -> Event:
    return lambda feedback: feedback.data_arrived(Lsn(end))


def logged(end: int | None, open_transaction: bool = False) -> Event:
    return lambda feedback: feedback.data_logged(
        None if end is None else Lsn(end), open_transaction
    )


def keepalive(end: int) -> Event:
    return lambda feedback: feedback.keepalive(Lsn(end))


def applied(lsn: int) -> Event:
    return lambda feedback: setattr(feedback, "applied", Lsn(lsn))


def verified(lsn: int) -> Event:
    return lambda feedback: setattr(feedback, "verified", Lsn(lsn))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # A new connection says where it starts.
        ([], (100, 100, 100)),
        # Received is not logged, logged is not applied.
        ([arrived(200)], (200, 100, 100)),
        ([arrived(200), logged(200)], (200, 200, 100)),
        ([arrived(200), logged(200), applied(200)], (200, 200, 200)),
        # Part of a transaction moves nothing but write.
        ([arrived(200), logged(None, True)], (200, 100, 100)),
        (
            [arrived(200), logged(None, True), arrived(300), logged(300)],
            (300, 300, 100),
        ),
        # Idle: all three follow the keepalive, as far as the server has flushed.
        ([verified(500), keepalive(400)], (400, 400, 400)),
        ([verified(300), keepalive(400)], (400, 300, 300)),
        ([keepalive(400)], (400, 100, 100)),
        # Not idle: a keepalive says nothing of what is still on its way to the disk.
        ([verified(500), arrived(200), keepalive(400)], (400, 100, 100)),
        (
            [verified(500), arrived(200), logged(None, True), keepalive(400)],
            (400, 100, 100),
        ),
        # Everything is logged but not applied: flush follows the keepalive, apply does not.
        ([verified(500), arrived(200), logged(200), keepalive(400)], (400, 400, 100)),
        (
            [verified(500), arrived(200), logged(200), keepalive(400), applied(200)],
            (400, 400, 400),
        ),
        # A floor above what this connection has logged is not believed beyond flush.
        ([applied(900)], (100, 100, 100)),
        # An apply word that lags behind the start is what it is.
        ([applied(50)], (100, 100, 50)),
        # A keepalive from the past changes nothing.
        ([verified(500), keepalive(50)], (100, 100, 100)),
    ],
)
def test_events_and_what_is_reported_after_them(
    events: list[Event], expected: tuple[int, int, int]
) -> None:
    feedback = Feedback(logged=Lsn(100), applied=Lsn(100), received=Lsn(100))
    for event in events:
        event(feedback)
    assert feedback.positions() == FeedbackPositions(*map(Lsn, expected))


def test_a_keepalive_asks_for_verification_only_while_idle_and_ahead() -> None:
    feedback = Feedback(logged=Lsn(100), applied=Lsn(100), verified=Lsn(200))
    feedback.keepalive(Lsn(200))
    assert not feedback.needs_verification()
    feedback.keepalive(Lsn(201))
    assert feedback.needs_verification()
    feedback.data_arrived(Lsn(300))
    assert not feedback.needs_verification()
    feedback.data_logged(Lsn(300), open_transaction=False)
    assert not feedback.needs_verification(), "the log itself is enough"
    feedback.keepalive(Lsn(301))
    assert feedback.needs_verification()
    feedback.verified = Lsn(301)
    assert not feedback.needs_verification()


def test_an_update_is_worth_sending_when_flush_or_apply_has_moved() -> None:
    feedback = Feedback(logged=Lsn(100), applied=Lsn(100))
    assert feedback.worth_sending(), "nothing was ever sent"
    feedback.last_sent = feedback.positions()
    assert not feedback.worth_sending()
    feedback.data_arrived(Lsn(200))
    assert not feedback.worth_sending(), "write alone can wait for the interval"
    feedback.data_logged(Lsn(200), open_transaction=False)
    assert feedback.worth_sending()
    feedback.last_sent = feedback.positions()
    feedback.applied = Lsn(200)
    assert feedback.worth_sending()


@dataclass
class World:
    """A publisher's stream, a log and an engine, and what is true of them."""

    feedback: Feedback = field(
        default_factory=lambda: Feedback(logged=Lsn(1000), applied=Lsn(1000))
    )
    server: int = 1000
    """End of what the server has sent, keepalives included."""
    open: bool = False
    unlogged: list[tuple[int | None, bool]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Ends of transactions that have been sent, or begun to be: they have committed."""
    logged: int = 1000
    applied: int = 1000
    archived: int = 0
    """End of the last transaction that the store has."""

    def step(self, kind: str, size: int) -> None:
        feedback = self.feedback
        if kind in ("piece", "commit") and not self.open:
            self.server += size
            self.ends.append(self.server)
        if kind == "piece":
            self.open = True
            self.unlogged.append((None, True))
            feedback.data_arrived(Lsn(self.ends[-1] - 1))
        elif kind == "commit":
            self.open = False
            self.unlogged.append((self.ends[-1], False))
            feedback.data_arrived(Lsn(self.ends[-1]))
        elif kind == "sync" and self.unlogged:
            end, still_open = self.unlogged.pop(0)
            self.logged = end or self.logged
            feedback.data_logged(None if end is None else Lsn(end), still_open)
        elif kind == "keepalive":
            self.server += 0 if self.open else size
            feedback.keepalive(Lsn(self.server))
        elif kind == "lying keepalive":
            feedback.keepalive(Lsn(self.server + 5000))
        elif kind == "verify" and feedback.needs_verification():
            feedback.verified = Lsn(self.server)
        elif kind == "apply":
            self.applied = min(self.applied + size, self.logged)
            feedback.applied = Lsn(self.applied)
        elif kind == "archive":
            # A segment at a time, perhaps not the newest.
            done = [end for end in (1000, *self.ends) if end <= self.logged]
            self.archived = max(self.archived, done[-1 - size % len(done)])
            feedback.archived = Lsn(self.archived)
        elif kind == "send":
            feedback.last_sent = feedback.positions()


KINDS = (
    "piece",
    "commit",
    "sync",
    "keepalive",
    "lying keepalive",
    "verify",
    "apply",
    "send",
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 300)), max_size=60))
def test_whatever_happens_no_position_claims_too_much_or_goes_back(
    events: list[tuple[str, int]],
) -> None:
    world = World()
    world.feedback.received = world.feedback.verified = Lsn(1000)
    sent = world.feedback.positions()
    for kind, size in events:
        world.step(kind, size)
        now = world.feedback.positions()
        assert now.write >= now.flush >= now.apply
        # Invariant 1, said of transactions: none that ends at or below a reported
        # position is missing where the position says that it is.
        assert not [e for e in world.ends if world.logged < e <= now.flush]
        assert not [e for e in world.ends if world.applied < e <= now.apply]
        # No transaction that is still to come may end below.
        assert now.flush <= world.server
        if kind == "send":
            assert now.write >= sent.write
            assert now.flush >= sent.flush
            assert now.apply >= sent.apply
            sent = now


@given(
    st.lists(
        st.tuples(st.sampled_from((*KINDS, "archive")), st.integers(1, 300)),
        max_size=60,
    )
)
def test_with_a_store_no_position_is_reported_before_the_store_has_it(
    events: list[tuple[str, int]],
) -> None:
    world, disk = World(), World()
    world.feedback.waits_for_store = True
    for one in (world, disk):
        one.feedback.received = one.feedback.verified = Lsn(1000)
    for kind, size in events:
        world.step(kind, size)
        disk.step(kind, size)
        now, at_once = world.feedback.positions(), disk.feedback.positions()
        assert now.write >= now.flush >= now.apply
        assert not [end for end in world.ends if world.archived < end <= now.flush]
        assert now.flush <= at_once.flush
        # What other processes read does not wait.
        assert world.feedback.durable() >= world.logged
        if kind != "send":
            continue
        # Nothing is held back for ever.
        if world.archived == world.logged:
            assert now.flush >= world.logged


def test_until_the_store_answers_nothing_is_reported_or_recorded() -> None:
    feedback = Feedback(
        logged=Lsn(100), applied=Lsn(100), received=Lsn(100), verified=Lsn(300)
    )
    feedback.waits_for_store = True
    feedback.keepalive(Lsn(400))
    assert feedback.positions() == FeedbackPositions(Lsn(400), Lsn(0), Lsn(0))
    assert not feedback.needs_verification()
    feedback.archived = Lsn(100)
    assert feedback.positions() == FeedbackPositions(Lsn(400), Lsn(300), Lsn(300))
    assert feedback.needs_verification()
    feedback.data_arrived(Lsn(500))
    feedback.data_logged(Lsn(500), open_transaction=False)
    assert feedback.durable() == 500
    feedback.last_sent = FeedbackPositions(Lsn(400), Lsn(300), Lsn(300))
    assert feedback.positions() == FeedbackPositions(Lsn(500), Lsn(300), Lsn(300))
    feedback.archived = feedback.applied = Lsn(500)
    assert feedback.positions() == FeedbackPositions(Lsn(500), Lsn(500), Lsn(500))
