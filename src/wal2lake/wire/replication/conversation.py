"""The server's side of the CopyBoth that START_REPLICATION ... LOGICAL opens. Pure.

In: the client's frames, what has been sent, the time. Out: what to answer, how far the client
is, whether it is still there. Changes go out beside it (wire/encoder); this is everything else:

    client                          here
    d 'r'  standby status update    positions; answered by a keepalive if it asks for one
    d 'h'  hot standby feedback     read and ignored: a lake has no xmin
    d 'p'  primary status request   STATUS_REQUESTED; the caller knows the numbers
    c      CopyDone                 CopyDone, COPY 0, START_REPLICATION: the CopyBoth is over
    X      Terminate, no answer     TERMINATED
    anything else                   ProtocolViolation with PostgreSQL's text; the connection ends

A client that is silent for half of wal_sender_timeout is asked to say something, and after
all of it the connection is given up. ``now`` is of a monotonic clock, in seconds; ``send_time`` in
microseconds since 2000-01-01 UTC. Not thread-safe.

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
"""Text of the log line at a time-out. The client is told nothing: it does not listen."""

FAREWELL: Final = write_backend(CommandComplete("COPY 0"))
"""At a shutdown, once everything is replicated; then the connection is closed."""

_DONE: Final = (
    write_backend(CopyDone())
    + FAREWELL
    + write_backend(CommandComplete("START_REPLICATION"))
)
"""Both tags are wanted: libpq takes one for the COPY, one for the command. ReadyForQuery is the
session's to add."""


class ConversationEvent(Enum):
    """Meaning of a frame from the client."""

    NOTHING = "nothing"
    POSITIONS = "positions"
    """``Conversation.positions`` and ``confirmed`` are new."""
    STATUS_REQUESTED = "status requested"
    """To be answered by ``primary_status``."""
    DONE = "done"
    """The client wants commands again; the answer is complete but for ReadyForQuery."""
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class ClientPositions:
    """How far the client says it is; 0: it has not said. They may go back."""

    write: Lsn = INVALID_LSN
    flush: Lsn = INVALID_LSN
    apply: Lsn = INVALID_LSN
    reply_time: int = 0
    """When it said so, by its own clock: microseconds since 2000-01-01 UTC."""


class Conversation:
    """One CopyBoth, from CopyBothResponse on.

    ``start``: where the stream begins. ``timeout_seconds``: wal_sender_timeout, 0 is none;
    it may be set later, too.
    """

    def __init__(self, start: Lsn, *, timeout_seconds: float, now: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.sent = start
        """Up to here everything has been sent, or is none of the client's."""
        self.positions = ClientPositions()
        self.confirmed = INVALID_LSN
        """The greatest flush position, so what the slot may forget. Never above ``sent``:
        nobody has what was not sent."""
        self._last_reply = now
        self._waiting_for_reply = False
        self._nudged_at = INVALID_LSN

    # ---- what the client says ---------------------------------------------------

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
                asked = status.reply_requested
                answer = self._keepalive(send_time, ask=False) if asked else b""
                return ConversationEvent.POSITIONS, answer
            case PrimaryStatusRequest():
                return ConversationEvent.STATUS_REQUESTED, b""
            case HotStandbyFeedback():
                return ConversationEvent.NOTHING, b""

    # ---- what is said to it -----------------------------------------------------

    def sent_up_to(self, lsn: Lsn) -> None:
        """Changes up to here have been handed to the socket, or there are none."""
        self.sent = max(self.sent, lsn)

    def idle(self, send_time: int) -> bytes:
        """There is nothing to send now: a keepalive if the client does not know yet how far
        that is, once for each position."""
        behind = self.positions.flush < self.sent and self.positions.write < self.sent
        if not behind or self._waiting_for_reply or self._nudged_at >= self.sent:
            return b""
        return self._keepalive(send_time, ask=False)

    def tick(self, now: float, send_time: int) -> bytes:
        """A keepalive that asks for an answer, if it is time for one."""
        if self._waiting_for_reply or not self.timeout_seconds:
            return b""
        if now < self._last_reply + self.timeout_seconds / 2:
            return b""
        return self._keepalive(send_time, ask=True)

    def ask(self, send_time: int) -> bytes:
        """A keepalive that asks for an answer, unless one is out: before a shutdown ends."""
        if self._waiting_for_reply:
            return b""
        return self._keepalive(send_time, ask=True)

    def primary_status(
        self, send_time: int, *, oldest_xid: int, next_xid: int
    ) -> bytes:
        """The answer to STATUS_REQUESTED; both with their epochs in the upper half."""
        return _framed(
            write_payload(PrimaryStatus(self.sent, oldest_xid, next_xid, send_time))
        )

    def _keepalive(self, send_time: int, *, ask: bool) -> bytes:
        self._waiting_for_reply = self._waiting_for_reply or ask
        self._nudged_at = self.sent
        return _framed(write_payload(Keepalive(self.sent, send_time, ask)))

    # ---- when -------------------------------------------------------------------

    def has_timed_out(self, now: float) -> bool:
        """The client has been silent for all of wal_sender_timeout: give the connection up."""
        return bool(self.timeout_seconds) and (
            now >= self._last_reply + self.timeout_seconds
        )

    @property
    def next_tick(self) -> float | None:
        """When ``tick`` or ``has_timed_out`` is to be asked at the latest; None: never."""
        if not self.timeout_seconds:
            return None
        share = 1.0 if self._waiting_for_reply else 0.5
        return self._last_reply + self.timeout_seconds * share

    @property
    def is_replicated(self) -> bool:
        """The client has all that was sent, durably if it ever says what is durable."""
        return (self.positions.flush or self.positions.write) >= self.sent


def _framed(payload: bytes) -> bytes:
    return write_backend(CopyData(payload))


def _char(kind: bytes) -> str:
    """Show a byte as C prints it, made safe for a log."""
    return kind.decode("ascii", "backslashreplace")
