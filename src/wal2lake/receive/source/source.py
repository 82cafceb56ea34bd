"""The publisher of one connection: checked before it is asked to stream, believed once it does.

    check       IDENTIFY_SYSTEM, TIMELINE_HISTORY, the slot: may we go on here?     writes nothing
                START_REPLICATION: the server lets us have the slot
    accepted    the file ``confirmed``, then the catalog's timeline, then the journal
                the first status update

A server that refuses leaves no trace: it may be a standby that lags, and the next one the primary
again; the slot may be somebody else's still, who moves it. Once it streams, nobody moves the slot
but we.

What was confirmed counts as far as this server has it. On a timeline that left ours that is up to
where it left: above, positions name other WAL, and a slot that was made anew there must not pass
for ours because the old timeline had come as far. The file does not say of which timeline
it is; the catalog does, and is told after it: after a crash in between the same is found again.
(The other way round it would find nothing to take back.) Nothing has been sent until both are
durable.

A standby goes on sending while its timeline changes, and nobody tells: it is promoted, or it
follows a server above it that was. It is known again by the time that it was started: what is
logged above the switch, and confirmed to its slot, is its own then. While it streams it is asked
(``look``), and its new timeline is ours as soon as it answers.

Called by the walreceiver, on the reader's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import SOURCE_STARTED, Catalog, Subscription
from wal2lake.changelog import ChangeLog
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import get_logger
from wal2lake.pg import Identity, Publisher, Session
from wal2lake.receive.source.history import check_history, switch_point
from wal2lake.receive.source.slotcheck import check_slot

FOLLOW_SECONDS: Final = 10.0
"""How often a standby is asked which timeline it replays: that takes a connection and, for a
moment, a walsender. A guess; who restarts it sooner after a failover is told of another history."""


def ask_history(
    publisher: Publisher,
    identity: Identity,
    ours: Subscription,
    *,
    logged: Lsn,
    copied: Lsn = INVALID_LSN,
    stayed: bool = False,
) -> str | None:
    """``check_history`` with what it has to know of the server: raises DivergedHistory. Returns
    the timeline's history, if it was needed."""
    history = None
    if ours.timeline not in (None, identity.timeline) and not stayed:
        history = publisher.timeline_history(identity.timeline)
    check_history(
        identity,
        known_system=ours.system_identifier,
        known_timeline=ours.timeline,
        logged=logged,
        timeline_history=history,
        copied=copied,
        stayed=stayed,
    )
    return history


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """Findings of ``check``."""

    identity: Identity
    started: str
    standby: bool
    received: Lsn
    """Up to here everything has been received that this server has."""
    same: bool
    """That has come from this slot, or nothing has and it is the one that was made for it."""
    known: Lsn | None
    """Up to here it is on record as confirmed to this slot; None: nothing is."""
    seen: Lsn
    """The slot's confirmed position, before it was ours."""


class SourceCheck:
    """Checks the source of one connection: first ``check``, then ``accepted``."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        log: ChangeLog,
        confirmed: ConfirmedFile,
        ask: Callable[[], Session],
        ask_walsender: Callable[[], Session],
    ) -> None:
        """``ask`` opens an ordinary connection, for what is asked while the other streams;
        ``ask_walsender`` one for replication commands."""
        self._catalog = catalog
        self._subscription = subscription
        self._log = log
        self._confirmed = confirmed
        self._ask = ask
        self._ask_walsender = ask_walsender
        self._slot_name = str(subscription.slot_name)
        self._found: SourceFindings | None = None
        self._timeline: int | None = None
        """On record of what streams."""
        self._promoted = False
        self._followed_at = -FOLLOW_SECONDS
        self._unfollowed = False

    def check(self, publisher: Publisher) -> SourceFindings:
        """Raises DivergedHistory, and UnusableSlot if the slot cannot send what is missing."""
        ours = self._subscription
        # First: one that is promoted in between may still have said its old timeline.
        standby = publisher.in_recovery()
        identity = publisher.identify()
        started = publisher.started() or ""
        stayed = bool(started) and started == ours.source_started
        history = ask_history(
            publisher,
            identity,
            ours,
            logged=self._log.logged,
            copied=self._copied(),
            stayed=stayed,
        )
        known = self._on_record(identity, history)
        received = max(known or INVALID_LSN, self._log.logged)
        last = self._confirmed.last
        if last is None:
            known = self._made_at()
            received = max(known or INVALID_LSN, received)
        elif last.slot_name != self._slot_name:
            known = None
        same = known is not None
        seen = self._look(publisher, identity, received, same=same)
        recorded = known if last is not None else None
        self._found = SourceFindings(
            identity,
            started,
            standby,
            received,
            same,
            recorded,
            seen,
        )
        return self._found

    def _copied(self) -> Lsn:
        """Where the newest of the snapshots was that tables have been copied at, or a bit above:
        of a table that was taken in long ago it is the position of the vector that did."""
        rels = self._catalog.rels(self._subscription.oid)
        return max((r.lsn for r in rels if r.lsn is not None), default=INVALID_LSN)

    def _on_record(self, identity: Identity, history: str | None) -> Lsn | None:
        """Return the recorded position, as far as this server has it."""
        last, timeline = self._confirmed.last, self._subscription.timeline
        if last is None:
            return None
        # Nothing of ours is lost with what this server does not have
        # (``check_history``), and from here on it counts anew.
        known = min(last.position, identity.position)
        if history is not None and timeline is not None:
            known = min(known, switch_point(history, timeline) or INVALID_LSN)
        return known

    def _made_at(self) -> Lsn | None:
        """Before anything was ever received: the consistent point of a slot that CREATE
        SUBSCRIPTION has made."""
        ours = self._subscription
        if ours.system_identifier is not None or ours.made_slot != self._slot_name:
            return None
        return ours.floor

    def accepted(self) -> Lsn:
        """START_REPLICATION was: write down what holds from here on. Before the first status
        update. Returns up to where everything is on record as confirmed.

        Raises the error of a message that the journal cannot give and that will not be sent
        again.
        """
        found = self._found
        if found is None:
            raise InternalError("a source is accepted that was not checked")
        start, known = found.seen, found.known
        if known is None or self._log.undecodable is not None:
            with self._ask() as session:
                now = self._look(
                    Publisher(session), found.identity, found.received, same=found.same
                )
            # Another session may have found another server, whose slot lags.
            start = max(start, now)
        if known is None:
            known = start
            self._warn_of_gap(found, start)
        self._record(known)
        self._learn(found.identity, found.started)
        self._log.ask_again(start)
        return known

    def look(self, session: Session) -> None:
        """Has the standby that streams another timeline now? Then that is ours from here on,
        and it may be started again. On an ordinary connection, which may have found another
        server; from another thread than the rest, once it streams."""
        found = self._found
        if found is None or not found.standby or self._promoted:
            return
        publisher = Publisher(session)
        if publisher.started() != found.started:
            return
        if publisher.in_recovery():
            self._follow(found)
            return
        self._learn_timeline(publisher.timeline(), "has been promoted to")
        self._promoted = True

    def _follow(self, found: SourceFindings) -> None:
        """It is a standby still: the timeline that it replays, now and then."""
        now = time.monotonic()
        if now - self._followed_at < FOLLOW_SECONDS:
            return
        self._followed_at = now
        try:
            with self._ask_walsender() as session:
                publisher = Publisher(session)
                if publisher.started() != found.started:
                    return
                timeline = publisher.identify().timeline
        except Wal2LakeError as error:
            # No walsender may be free: that is no reason to confirm nothing.
            if not self._unfollowed:
                get_logger().warning(
                    "could not ask the standby for its timeline",
                    error=error,
                    subscription=self._subscription.name,
                )
            self._unfollowed = True
            return
        self._unfollowed = False
        self._learn_timeline(timeline, "has followed its upstream server to")

    def _learn_timeline(self, timeline: int, how: str) -> None:
        if timeline == self._timeline:
            return
        self._catalog.update_subscription(self._subscription.oid, timeline=timeline)
        self._timeline = timeline
        get_logger().info(
            f"publisher {how} timeline {timeline}",
            subscription=self._subscription.name,
        )

    def _look(
        self, publisher: Publisher, identity: Identity, received: Lsn, *, same: bool
    ) -> Lsn:
        """The slot's confirmed position; raises UnusableSlot."""
        return check_slot(
            publisher.slot(self._slot_name),
            name=self._slot_name,
            database=identity.database,
            received=received or None,
            # What the journal has and cannot give may be confirmed: ``ask_again``.
            same=same and self._log.undecodable is None,
        )

    def _warn_of_gap(self, found: SourceFindings, start: Lsn) -> None:
        if self._confirmed.last is not None and start > found.received:
            get_logger().warning(
                f'replication slot "{self._slot_name}" starts at {start}, above'
                f" {found.received}, up to where everything has been received; what was"
                " committed in between is not received",
                subscription=self._subscription.name,
            )

    def _record(self, known: Lsn) -> None:
        last = self._confirmed.last
        if last is None or (last.slot_name, last.position) != (self._slot_name, known):
            self._confirmed.record(self._slot_name, known)

    def _learn(self, identity: Identity, started: str) -> None:
        ours = self._subscription
        self._timeline = identity.timeline
        if (ours.system_identifier, ours.timeline) != (
            identity.system_identifier,
            identity.timeline,
        ):
            self._catalog.update_subscription(
                ours.oid,
                system_identifier=identity.system_identifier,
                timeline=identity.timeline,
            )
        if ours.source_started != (started or None):
            self._catalog.set_options(ours.oid, {SOURCE_STARTED: started})
