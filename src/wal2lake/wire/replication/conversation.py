"""The server's side of the CopyBoth that START_REPLICATION ... LOGICAL opens. Pure.

In: the client's frames, the position up to which changes have been sent, the time. Out: the
answers, the client's positions, whether it has timed out. wire/encoder sends the changes; this
module handles all other messages:

    client                          server
    d 'r'  standby status update    positions; a keepalive if the client requests a reply
    d 'h'  hot standby feedback     ignored: a lake has no xmin
    d 'p'  primary status request   STATUS_REQUESTED; the caller has the numbers
    c      CopyDone                 CopyDone, COPY 0, START_REPLICATION: the CopyBoth ends
    X      Terminate                no answer; TERMINATED
    other                           ProtocolViolation with PostgreSQL's text; the connection ends

If a client sends nothing for half of wal_sender_timeout, a keepalive requests a reply; after the
whole time the connection has timed out. ``now`` is from a monotonic clock, in seconds;
``send_time`` is in microseconds since 2000-01-01 UTC. Not thread-safe.

Sources: manual 54.4; src/backend/replication/walsender.c (ProcessRepliesIfAny,
WalSndKeepaliveIfNecessary, WalSndCheckTimeOut, WalSndDone).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.wire.copyboth import (
    HotStandbyFeedback,
    Keepalive,
    PrimaryStatus,
    PrimaryStatusRequest,
    StandbyStatus,
    read_from_client,
    write_payload,
)
from wal2lake.wire.frontback import (
    CommandComplete,
    CopyData,
    CopyDone,
    Frame,
    write_backend,
)

TIMEOUT_TEXT: Final = "terminating walsender process due to replication timeout"
"""Text of the log line at a timeout. The client gets no message, because it does not read."""

FAREWELL: Final = write_backend(CommandComplete("COPY 0"))
"""Message at a shutdown after all changes are replicated; then the connection is closed."""

_DONE: Final = (
    write_backend(CopyDone())
    + FAREWELL
    + write_backend(CommandComplete("START_REPLICATION"))
)
"""libpq needs both tags: one for the COPY, one for the command. The session adds ReadyForQuery."""


class ConversationEvent(Enum):
    """Meaning of a frame from the client."""

    NOTHING = "nothing"
    POSITIONS = "positions"
    """``Conversation.positions`` and ``confirmed`` have changed."""
    STATUS_REQUESTED = "status requested"
    """The caller must answer with ``primary_status``."""
    DONE = "done"
    """The client has ended the CopyBoth; the answer is complete except for ReadyForQuery."""
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class ClientPositions:
    """The positions that the client reports; 0: not reported. They may go back."""

    write: Lsn = INVALID_LSN
    flush: Lsn = INVALID_LSN
    apply: Lsn = INVALID_LSN
    reply_time: int = 0
    """Time of the report by the client's clock: microseconds since 2000-01-01 UTC."""


class Conversation:
    """One CopyBoth, from CopyBothResponse on.

    ``start`` is the start position of the stream. ``timeout_seconds`` is wal_sender_timeout (0:
    none); it may be changed later.
    """

    def __init__(self, start: Lsn, *, timeout_seconds: float, now: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.sent = start
        """All changes for the client up to this position have been sent."""
        self.positions = ClientPositions()
        self.confirmed = INVALID_LSN
        """The highest flush position, up to which the slot may discard changes. Never above
        ``sent``, because the client cannot have changes that were not sent."""
        self._last_reply = now
        self._waiting_for_reply = False
        self._nudged_at = INVALID_LSN

    # ---- messages from the client -----------------------------------------------

    def receive(
        self, frame: Frame, now: float, send_time: int
    ) -> tuple[ConversationEvent, bytes]:
        """Return the meaning of a frame, and the answer; raise ProtocolViolation."""
        match frame.kind:
            case b"d":
                event, answer = self._payload(frame.body, send_time)
            case b"c":
                event, answer = ConversationEvent.DONE, _DONE
            case b"X":
                return ConversationEvent.TERMINATED, b""
            case kind:
                raise ProtocolViolation(f'invalid standby message type "{_char(kind)}"')
        self._last_reply = now
        self._waiting_for_reply = False
        return event, answer

    def _payload(self, data: bytes, send_time: int) -> tuple[ConversationEvent, bytes]:
        if data and data[0] not in b"rhp":
            raise ProtocolViolation(f'unexpected message type "{_char(data[:1])}"')
        match read_from_client(data):
            case StandbyStatus() as status:
                self.positions = ClientPositions(
                    status.write_lsn,
                    status.flush_lsn,
                    status.apply_lsn,
                    status.send_time,
                )
                flushed = min(status.flush_lsn, self.sent)
                self.confirmed = max(self.confirmed, flushed)
                requested = status.reply_requested
                answer = self._keepalive(send_time, ask=False) if requested else b""
                return ConversationEvent.POSITIONS, answer
            case PrimaryStatusRequest():
                return ConversationEvent.STATUS_REQUESTED, b""
            case HotStandbyFeedback():
                return ConversationEvent.NOTHING, b""

    # ---- messages to the client --------------------------------------------------

    def sent_up_to(self, lsn: Lsn) -> None:
        """Note that all changes up to this position have been passed to the socket."""
        self.sent = max(self.sent, lsn)

    def idle(self, send_time: int) -> bytes:
        """Return a keepalive when there is nothing to send, if the client does not know the
        current position; once for each position."""
        behind = self.positions.flush < self.sent and self.positions.write < self.sent
        if not behind or self._waiting_for_reply or self._nudged_at >= self.sent:
            return b""
        return self._keepalive(send_time, ask=False)

    def tick(self, now: float, send_time: int) -> bytes:
        """Return a keepalive that requests a reply, if half of the timeout has passed."""
        if self._waiting_for_reply or not self.timeout_seconds:
            return b""
        if now < self._last_reply + self.timeout_seconds / 2:
            return b""
        return self._keepalive(send_time, ask=True)

    def ask(self, send_time: int) -> bytes:
        """Return a keepalive that requests a reply, unless one is pending; for a shutdown."""
        if self._waiting_for_reply:
            return b""
        return self._keepalive(send_time, ask=True)

    def primary_status(
        self, send_time: int, *, oldest_xid: int, next_xid: int
    ) -> bytes:
        """Return the answer to STATUS_REQUESTED; both xids have their epoch in the upper half."""
        return _framed(
            write_payload(PrimaryStatus(self.sent, oldest_xid, next_xid, send_time))
        )

    def _keepalive(self, send_time: int, *, ask: bool) -> bytes:
        self._waiting_for_reply = self._waiting_for_reply or ask
        self._nudged_at = self.sent
        return _framed(write_payload(Keepalive(self.sent, send_time, ask)))

    # ---- time -------------------------------------------------------------------

    def has_timed_out(self, now: float) -> bool:
        """Return whether the client has sent nothing for wal_sender_timeout."""
        return bool(self.timeout_seconds) and (
            now >= self._last_reply + self.timeout_seconds
        )

    @property
    def next_tick(self) -> float | None:
        """Latest time for the next call of ``tick`` or ``has_timed_out``; None: none needed."""
        if not self.timeout_seconds:
            return None
        share = 1.0 if self._waiting_for_reply else 0.5
        return self._last_reply + self.timeout_seconds * share

    @property
    def is_replicated(self) -> bool:
        """True if the client has all changes that were sent. They must be durable there if the
        client reports flush positions."""
        return (self.positions.flush or self.positions.write) >= self.sent


def _framed(payload: bytes) -> bytes:
    return write_backend(CopyData(payload))


def _char(kind: bytes) -> str:
    """Return a byte as C prints it, escaped for a log."""
    return kind.decode("ascii", "backslashreplace")
