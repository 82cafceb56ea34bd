"""Decides which positions are reported upstream, and when. Pure: no socket, no clock.

Only this module decides about reported positions. A standby status update has three:

    write   everything that the walsender sent up to here has arrived
    flush   every change below is durable in the change log (fsynced)
    apply   every change below is durable in every table that it touches

While changes are pending, flush is the end of the last whole transaction in the log, and apply is
the position that the apply worker has published. When nothing is pending, all three follow the
walsender's keepalives, so that an idle slot releases WAL and a synchronous commit to an unpublished
table does not wait. No position ever decreases.

With ``log.confirm = store`` a position is reported only if the store has everything below it
(``archived``): until then flush stays where the store ends, and with it apply. Nothing else waits.

A keepalive is trusted only up to a position that the server is known to have flushed
(``verified``). PostgreSQL's subscriber trusts every keepalive; a position in the future would make
the slot skip transactions that are still to come.

Source: reference 3.7; walreceiver's send_feedback and get_flush_position in worker.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wal2lake.model import INVALID_LSN, Lsn


@dataclass(frozen=True, slots=True)
class FeedbackPositions:
    """Positions of a status update. write >= flush >= apply."""

    write: Lsn
    flush: Lsn
    apply: Lsn


@dataclass(slots=True)
class Feedback:
    """Positions of one connection."""

    logged: Lsn
    """End of the last whole transaction that is durable in the log."""
    applied: Lsn
    """Position below which everything is durable in every table."""
    received: Lsn = field(default=INVALID_LSN)
    """End of the received stream, keepalives included."""
    verified: Lsn = field(default=INVALID_LSN)
    """The server has flushed its WAL at least up to this position. It is recorded (``verifier``),
    so it may be confirmed."""
    pending: int = 0
    """Number of gulps handed to the log that are not durable yet."""
    open_transaction: bool = False
    """Whether a Begin has arrived without its Commit."""
    waits_for_store: bool = False
    """Whether a position must be in the store before it is reported."""
    archived: Lsn | None = None
    """End of the last transaction up to which the store has everything, with the catalog; None: the
    store has not answered yet, and nothing is reported as durable."""
    _durable: Lsn = field(default=INVALID_LSN)
    last_sent: FeedbackPositions | None = None

    def data_arrived(self, end: Lsn) -> None:
        """Note that a gulp of changes was read from the socket."""
        self.received = max(self.received, end)
        self.pending += 1

    def data_logged(self, last_end: Lsn | None, open_transaction: bool) -> None:
        """Note that a gulp has become durable. ``last_end``: end of the last transaction that it
        ends."""
        self.pending -= 1
        self.open_transaction = open_transaction
        if last_end is not None:
            self.logged = max(self.logged, last_end)

    def keepalive(self, end: Lsn) -> None:
        """Note the position of a keepalive."""
        self.received = max(self.received, end)

    def needs_verification(self) -> bool:
        """Whether keepalives name a position beyond the verified one, and it may be recorded: a
        store must have all of the log first."""
        if self.waits_for_store and (self.archived or INVALID_LSN) < self.logged:
            return False
        return self.idle and self.received > max(self.verified, self.logged)

    @property
    def idle(self) -> bool:
        """Whether everything received is durable and no transaction is incomplete."""
        return self.pending == 0 and not self.open_transaction

    def durable(self) -> Lsn:
        """Return the position below which everything is durable on this machine. It never
        decreases."""
        durable = self.logged
        if self.idle:
            durable = max(durable, min(self.received, self.verified))
        self._durable = max(self._durable, durable)
        return self._durable

    def positions(self) -> FeedbackPositions:
        """Compute the positions to report now."""
        flush = self.durable()
        if self.waits_for_store:
            archived = INVALID_LSN if self.archived is None else self.archived
            # Above the log only recorded positions are reported, and the store has the record.
            if self.archived is None or archived < self.logged:
                flush = min(flush, archived)
        apply = flush if self.applied >= self.logged else self.applied
        write, apply = max(self.received, flush), min(apply, flush)
        sent = self.last_sent
        if sent is None:
            return FeedbackPositions(write, flush, apply)
        # A transaction that arrives after keepalives must not decrease the positions to the end
        # of the transaction before it.
        return FeedbackPositions(
            max(write, sent.write), max(flush, sent.flush), max(apply, sent.apply)
        )

    def worth_sending(self) -> bool:
        """Whether flush or apply has changed since the last update."""
        now = self.positions()
        last = self.last_sent
        return last is None or now.flush != last.flush or now.apply != last.apply
