"""Checks the publisher of one connection before it streams, and records it once it does.

    check       IDENTIFY_SYSTEM, TIMELINE_HISTORY, the slot: can the log continue?    writes nothing
                START_REPLICATION: the server acquires the slot for this receiver
    accepted    writes the file ``confirmed``, then the catalog's timeline, then the journal
                the first status update

A server that refuses leaves no trace: it may be a standby that lags, and the next connection may
reach the primary again; or another receiver may still hold the slot and advance it. Once the server
streams, only this receiver advances the slot.

A confirmed position counts only as far as this server has the WAL. If the server's timeline
branched off, the position counts up to the switch: above it, positions denote other WAL, and a slot
created there must not pass for the old slot only because the old timeline had reached that
position. The file does not contain the timeline; the catalog does. The catalog is written after the
file, so after a crash in between the same check has the same result. (In the reverse order, the
check would miss the switch.) Nothing is sent until both are durable.

A standby goes on sending while its timeline changes, without a message: it is promoted, or its
upstream server is promoted. The receiver recognizes the standby by its start time: then changes
logged above the switch, and confirmed to its slot, are the standby's own. While the standby
streams, it is queried (``check_timeline``), and its new timeline is recorded.

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
"""Interval between queries for the timeline that a standby replays. A query needs a connection and,
briefly, a walsender. Chosen arbitrarily. A standby restarted sooner after a failover is refused as
another history."""


def ask_history(
    publisher: Publisher,
    identity: Identity,
    ours: Subscription,
    *,
    logged: Lsn,
    copied: Lsn = INVALID_LSN,
    stayed: bool = False,
) -> str | None:
    """Query the server for ``check_history``, and call it. Return the timeline's history file, if
    it was needed. Raises DivergedHistory."""
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
    """Results of ``check``."""

    identity: Identity
    started: str
    standby: bool
    received: Lsn
    """Position up to which everything that this server has was received."""
    same: bool
    """Whether the received changes came from this slot, or nothing was received and the slot was
    created for the subscription."""
    confirmed: Lsn | None
    """Recorded position confirmed to this slot. None if there is no record."""
    seen: Lsn
    """The slot's confirmed position before START_REPLICATION."""


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
        *,
        look_again: bool = False,
    ) -> None:
        """``ask`` opens an ordinary connection, for queries while the walsender streams.
        ``ask_walsender`` opens one for replication commands. ``look_again``: whether another
        machine may have moved the slot until this one has it in use."""
        self._catalog = catalog
        self._subscription = subscription
        self._log = log
        self._confirmed = confirmed
        self._ask = ask
        self._ask_walsender = ask_walsender
        self._look_again = look_again
        self._slot_name = str(subscription.slot_name)
        self._findings: SourceFindings | None = None
        self._timeline: int | None = None
        """Recorded timeline of the server that streams."""
        self._promoted = False
        self._followed_at = -FOLLOW_SECONDS
        self._unfollowed = False

    def check(self, publisher: Publisher) -> SourceFindings:
        """Check source and slot. Raises DivergedHistory, and UnusableSlot if the slot cannot send
        the missing changes."""
        subscription = self._subscription
        # Read first: a standby promoted in between may still have reported its old timeline.
        standby = publisher.in_recovery()
        identity = publisher.identify()
        started = publisher.started() or ""
        stayed = bool(started) and started == subscription.source_started
        history = ask_history(
            publisher,
            identity,
            subscription,
            logged=self._log.logged,
            copied=self._copied(),
            stayed=stayed,
        )
        confirmed = self._on_record(identity, history)
        received = max(confirmed or INVALID_LSN, self._log.logged)
        last = self._confirmed.last
        if last is None:
            confirmed = self._made_at()
            received = max(confirmed or INVALID_LSN, received)
        elif last.slot_name != self._slot_name:
            confirmed = None
        same = confirmed is not None
        seen = self._look(publisher, identity, received, same=same)
        recorded = confirmed if last is not None else None
        self._findings = SourceFindings(
            identity,
            started,
            standby,
            received,
            same,
            recorded,
            seen,
        )
        return self._findings

    def _copied(self) -> Lsn:
        """Return the highest snapshot position of a copied table, or slightly more: for a table
        that joined long ago, its vector's position."""
        rels = self._catalog.rels(self._subscription.oid)
        return max((r.lsn for r in rels if r.lsn is not None), default=INVALID_LSN)

    def _on_record(self, identity: Identity, history: str | None) -> Lsn | None:
        """Return the recorded position, as far as this server has the WAL."""
        last, timeline = self._confirmed.last, self._subscription.timeline
        if last is None:
            return None
        # The server lacks no logged changes (``check_history``), so a lower position is correct.
        position = min(last.position, identity.position)
        if history is not None and timeline is not None:
            position = min(position, switch_point(history, timeline) or INVALID_LSN)
        return position

    def _made_at(self) -> Lsn | None:
        """Return the consistent point of a slot that CREATE SUBSCRIPTION created, if nothing was
        received yet."""
        subscription = self._subscription
        if (
            subscription.system_identifier is not None
            or subscription.made_slot != self._slot_name
        ):
            return None
        return subscription.floor

    def accepted(self) -> Lsn:
        """Record the source after START_REPLICATION succeeded, before the first status update.
        Return the recorded confirmed position.

        Raises the error of a message that the journal cannot decode and that the publisher will not
        send again.
        """
        findings = self._findings
        if findings is None:
            raise InternalError("a source is accepted that was not checked")
        start, confirmed = findings.seen, findings.confirmed
        if confirmed is None or self._look_again or self._log.undecodable is not None:
            with self._ask() as session:
                slot_position = self._look(
                    Publisher(session),
                    findings.identity,
                    findings.received,
                    same=findings.same,
                )
            # The other session may have reached another server, whose slot lags.
            start = max(start, slot_position)
        if confirmed is None:
            confirmed = start
            self._warn_of_gap(findings, start)
        self._record(confirmed)
        self._learn(findings.identity, findings.started)
        self._log.ask_again(start)
        return confirmed

    def check_timeline(self, session: Session) -> None:
        """Record the timeline of the streaming standby if it has changed, so that the standby may
        be restarted. Uses an ordinary connection, which may reach another server. Called while the
        standby streams, by another thread than the other methods."""
        findings = self._findings
        if findings is None or not findings.standby or self._promoted:
            return
        publisher = Publisher(session)
        if publisher.started() != findings.started:
            return
        if publisher.in_recovery():
            self._follow(findings)
            return
        self._learn_timeline(publisher.timeline(), "has been promoted to")
        self._promoted = True

    def _follow(self, findings: SourceFindings) -> None:
        """Query, at intervals, the timeline that a standby replays."""
        now = time.monotonic()
        if now - self._followed_at < FOLLOW_SECONDS:
            return
        self._followed_at = now
        try:
            with self._ask_walsender() as session:
                publisher = Publisher(session)
                if publisher.started() != findings.started:
                    return
                timeline = publisher.identify().timeline
        except Wal2LakeError as error:
            # If no walsender is free, positions can be confirmed all the same.
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

    def _learn_timeline(self, timeline: int, event: str) -> None:
        if timeline == self._timeline:
            return
        self._catalog.update_subscription(self._subscription.oid, timeline=timeline)
        self._timeline = timeline
        get_logger().info(
            f"publisher {event} timeline {timeline}",
            subscription=self._subscription.name,
        )

    def _look(
        self, publisher: Publisher, identity: Identity, received: Lsn, *, same: bool
    ) -> Lsn:
        """Return the slot's confirmed position. Raises UnusableSlot."""
        return check_slot(
            publisher.slot(self._slot_name),
            name=self._slot_name,
            database=identity.database,
            received=received or None,
            # The slot may be beyond a message that the journal cannot decode: ``ask_again``.
            same=same and self._log.undecodable is None,
        )

    def _warn_of_gap(self, findings: SourceFindings, start: Lsn) -> None:
        if self._confirmed.last is not None and start > findings.received:
            get_logger().warning(
                f'replication slot "{self._slot_name}" starts at {start}, above'
                f" {findings.received}, up to where everything has been received; what was"
                " committed in between is not received",
                subscription=self._subscription.name,
            )

    def _record(self, position: Lsn) -> None:
        last = self._confirmed.last
        if last is None or (last.slot_name, last.position) != (
            self._slot_name,
            position,
        ):
            self._confirmed.record(self._slot_name, position)

    def _learn(self, identity: Identity, started: str) -> None:
        subscription = self._subscription
        self._timeline = identity.timeline
        if (subscription.system_identifier, subscription.timeline) != (
            identity.system_identifier,
            identity.timeline,
        ):
            self._catalog.update_subscription(
                subscription.oid,
                system_identifier=identity.system_identifier,
                timeline=identity.timeline,
            )
        if subscription.source_started != (started or None):
            self._catalog.set_options(subscription.oid, {SOURCE_STARTED: started})
