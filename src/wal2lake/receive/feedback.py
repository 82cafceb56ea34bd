"""Which positions go upstream, and when. Pure: no socket, no clock of its own.

The only writer of positions upstream. Three numbers go out in a standby status update:

    write   everything the walsender has sent up to here has arrived
    flush   every change below is durable in our change log (fsynced)
    apply   every change below is durable in every table it touches

While changes are pending, flush is the end of the last whole transaction that the log
holds and apply is what apply has published. When nothing is pending, all three follow the
walsender's keepalives, so that an idle slot lets WAL go and a synchronous commit
of an unpublished table does not wait. None of the three ever goes back.

A keepalive is only believed up to a position the server itself has been seen to have flushed
(``verified``): PostgreSQL's subscriber believes any, and one that lies in the future would make the
slot skip transactions that are still to come.

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
    """Below this everything is durable in every table."""
    received: Lsn = field(default=INVALID_LSN)
    """End of what has arrived, keepalives included."""
    verified: Lsn = field(default=INVALID_LSN)
    """The server has flushed its WAL at least up to here, and that may be confirmed: it is
    on record (``verifier``)."""
    pending: int = 0
    """Payloads handed to the log that are not durable yet."""
    open_transaction: bool = False
    """A Begin has arrived without its Commit."""
    last_sent: FeedbackPositions | None = None

    def data_arrived(self, end: Lsn) -> None:
        """A gulp of changes was taken off the socket."""
        self.received = max(self.received, end)
        self.pending += 1

    def data_logged(self, last_end: Lsn | None, open_transaction: bool) -> None:
        """One gulp has become durable; ``last_end`` if it ended a transaction."""
        self.pending -= 1
        self.open_transaction = open_transaction
        if last_end is not None:
            self.logged = max(self.logged, last_end)

    def keepalive(self, end: Lsn) -> None:
        """A keepalive named this position."""
        self.received = max(self.received, end)

    def needs_verification(self) -> bool:
        """The keepalives have gone past what the server is known to have."""
        return self.idle and self.received > max(self.verified, self.logged)

    @property
    def idle(self) -> bool:
        """Everything that arrived is durable, and no transaction is half here."""
        return self.pending == 0 and not self.open_transaction

    def positions(self) -> FeedbackPositions:
        """The truth as of now."""
        flush = self.logged
        if self.idle:
            flush = max(flush, min(self.received, self.verified))
        apply = flush if self.applied >= self.logged else self.applied
        write, apply = max(self.received, flush), min(apply, flush)
        sent = self.last_sent
        if sent is None:
            return FeedbackPositions(write, flush, apply)
        # What was true stays true: a transaction that comes after keepalives must not
        # take the positions back to the one before it.
        return FeedbackPositions(
            max(write, sent.write), max(flush, sent.flush), max(apply, sent.apply)
        )

    def worth_sending(self) -> bool:
        """Flush or apply has moved since the last update."""
        now = self.positions()
        last = self.last_sent
        return last is None or now.flush != last.flush or now.apply != last.apply
