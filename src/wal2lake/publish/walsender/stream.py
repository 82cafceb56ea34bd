"""A walsender from START_REPLICATION to its end: PostgreSQL's WalSndLoop.

    log ──▶ decoding ──▶ plugin ──▶ XLogData ──▶ client
                                                   │ status updates, CopyDone
    page (mapped memory) ◀── write, flush, apply ──┘

The walsender sleeps in one poll on two descriptors: the client's socket, and a pipe that gets a
byte whenever the log has grown. When the pipe is closed, the engine has ended.

Keepalives are sent after each look at the log that has sent nothing, with the log's end, so that
positions advance if nothing is published; and after half of ``wal_sender_timeout``, with a request
for a reply.

Invalid messages of a client have the same three consequences as in PostgreSQL:

    a message of another kind              ConnectionEnd: FATAL
    a reply that is too short              ProtocolViolation: ERROR, the session goes on
    a reply of another kind, an impossible a log line, and the connection is closed
      length, the end in a message

Source: src/backend/replication/walsender.c (ProcessRepliesIfAny); reference 3.7, 4.2.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from typing import Any, Final

from wal2lake.changelog import LogReader
from wal2lake.errors import ProtocolViolation, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.publish.driver import Decoding
from wal2lake.publish.walsender.lag import LagTracker
from wal2lake.publish.walsender.page import Page
from wal2lake.wire.copyboth import (
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    read_from_client,
    write_keepalive,
)
from wal2lake.wire.frontback import (
    Diagnostic,
    ErrorResponse,
    Frame,
    FrameReader,
    write_backend,
)
from wal2lake.wire.frontback.backend import CopyMode, CopyResponse

_SEND_BYTES: Final = 256 * 1024
"""Bytes to gather before sending: clients are faster if they read large chunks."""

_RECEIVE_BYTES: Final = 64 * 1024

_MESSAGE_BYTES: Final = 64 * 1024
"""Maximum bytes of a client's message. A status update has 34."""

_KINDS: Final = {b"d": _MESSAGE_BYTES, b"c": 10_000, b"X": 10_000}
"""Messages that a client may send, with their maximum length."""

_REPLY_BYTES: Final = {b"r": 34, b"h": 25, b"p": 9}
"""Bytes of a CopyData to read. The rest is ignored, as in PostgreSQL."""

_CONFIRM_SECONDS: Final = 1.0
"""Interval between updates of the slot's confirmed position. After a crash, the changes of this
time are sent again."""

_EPOCH_SECONDS: Final = 946_684_800


class End(Enum):
    """Reason why a stream ended."""

    DONE = 0
    """The client has sent CopyDone. The connection goes on with commands."""
    GONE = 1
    """The client has disconnected, or does not respond."""
    ORDERED = 2
    """The node is stopping, and the client has been sent everything."""


class ConnectionEnd(BaseException):
    """Raised to send ``error`` as FATAL and disconnect. Like ``_Ended``, it passes through a
    plugin."""

    def __init__(self, error: ProtocolViolation) -> None:
        super().__init__(error.message)
        self.error = error


class _Ended(BaseException):
    """Raised if the client is gone. It is not an error of the plugin, and passes through it."""


class Stream:
    """The stream of one client."""

    def __init__(
        self,
        connection: socket.socket,
        grown: int,
        reader: LogReader,
        decoding: Decoding,
        page: Page,
        confirm: Callable[[Lsn], None],
        timeout_seconds: float,
        log: Any,
    ) -> None:
        """``grown``: the pipe's reading end. ``confirm`` writes a position to the slot.
        ``timeout_seconds``: longest silence of the client; 0 for no limit."""
        connection.setblocking(False)
        self._socket = connection
        self._grown = grown
        self._reader = reader
        self._decoding = decoding
        self._page = page
        self._confirm = confirm
        self._timeout = timeout_seconds
        self._log = log
        self._frames = FrameReader(_KINDS, peer="standby")
        self._lag = LagTracker()
        self._announced = Lsn(0)
        """Highest position that was sent to the client."""
        self._out = bytearray()
        self._poll = select.poll()
        self._poll.register(grown, select.POLLIN)
        self._heard = time.monotonic()
        self._asked = False
        self._flush = self._written = self._confirmed = Lsn(0)
        self._pinged = False
        """Whether the client has not yet replied to a request for its positions."""
        self._confirmed_at = 0.0
        self._grew = False
        """Whether the log has grown since the last look."""
        self._end: End | None = None
        self._stopping = False

    def stop(self) -> None:
        """Send the rest of the log, and end when the client has confirmed it."""
        self._stopping = True

    @property
    def left(self) -> bytes:
        """Bytes that the client has sent after its CopyDone, or after its invalid message."""
        return self._frames.take_rest()

    def write(self, payload: bytes, lsn: Lsn, last: bool) -> None:
        """Send a plugin's message."""
        self._check_end()
        shown_lsn = lsn if last else Lsn(0)
        self._announced = max(self._announced, lsn)
        head = int(shown_lsn).to_bytes(8, "big")
        self._data(
            b"w" + head + head + _now().to_bytes(8, "big", signed=True) + payload
        )

    def write_frames(self, data: memoryview) -> None:
        """Send many messages, which are framed already."""
        self._check_end()
        self._out += data
        if len(self._out) >= _SEND_BYTES:
            self._send()

    def warn(self, warning: Wal2LakeError, codec: str) -> None:
        """Send a NoticeResponse after the gathered messages."""
        fields = Diagnostic(
            severity="WARNING",
            sqlstate=warning.sqlstate,
            message=warning.message,
            detail=warning.detail or "",
            hint=warning.hint or "",
            where=warning.context or "",
        )
        self._out += write_backend(ErrorResponse(fields, notice=True), encoding=codec)

    def run(self) -> End:
        """Stream until the end."""
        self._out += write_backend(CopyResponse(CopyMode.BOTH, 0))
        while self._end is None:
            self._read_client()
            self._grew = False
            try:
                self._decoding.advance(self._go_on)
                self._check_end()
            except _Ended:
                break
            self._lag.sent(self._decoding.position, _now())
            end = self._log_end()
            caught_up = self._decoding.position >= end
            if caught_up and end > self._announced:
                self._keepalive(end, False)
            counts = asdict(self._decoding.counts)
            self._page.set(sent=self._decoding.position, **counts)
            if caught_up:
                self._page.set(streaming=1)
                self._ping()
                if self._stopping and self._has_all():
                    return self._finish()
            self._send()
            # The stream may have ended by a message that arrived during the send.
            if caught_up and not self._grew and self._end is None:
                self._watch(select.POLLIN)
                self._check_timeout()
        self._confirm_slot(force=True)
        return self._end or End.GONE

    def _ping(self) -> None:
        """Request the client's positions, so that waiters (a synchronous commit, an orderly end)
        learn soon how far the client is, even if changes were not sent to it."""
        has = max(self._flush, self._written) >= self._announced
        if self._pinged or (self._has_all() if self._stopping else has):
            return
        self._pinged = True
        self._keepalive(self._announced, True)

    def _has_all(self) -> bool:
        """Whether the client has confirmed everything sent, keepalives included. As in
        WalSndDone(), the written position counts for a client that never flushes."""
        return (self._flush or self._written) >= self._announced

    def _check_end(self) -> None:
        if self._end is not None:
            raise _Ended

    def drain(self) -> None:
        """Send the gathered messages before an error that ends the stream, so that messages stay
        whole. Messages of the client are not read meanwhile."""
        self._end = None
        self._confirm_slot(force=True)
        self._push()

    # ---- out ---------------------------------------------------------------------

    def _data(self, payload: bytes) -> None:
        self._out += _framed(payload)
        if len(self._out) >= _SEND_BYTES:
            self._send()

    def _keepalive(self, end: Lsn, reply: bool) -> None:
        self._announced = max(self._announced, end)
        self._data(write_keepalive(Keepalive(end, _now(), reply)))

    def _send(self) -> None:
        """Send the gathered messages. Meanwhile read the client's messages, and request replies."""
        while self._out and self._end is None:
            self._check_timeout()
            if not self._send_some():
                self._watch(select.POLLIN | select.POLLOUT)
            self._read_client()

    def _push(self) -> None:
        while self._out and self._end is None:
            if not self._send_some():
                self._watch(select.POLLOUT)
                self._is_silent()

    def _send_some(self) -> bool:
        try:
            done = self._socket.send(self._out)
        except BlockingIOError:
            return False
        except OSError:
            self._end = End.GONE
            return True
        del self._out[:done]
        return True

    def _go_on(self) -> bool:
        """Check the client between two transactions. Return True to go on."""
        self._lag.sent(self._decoding.position, _now())
        self._check_timeout()
        self._read_client()
        return self._end is None

    def _finish(self) -> End:
        """End the stream when the node stops and the client has everything, with
        CommandComplete."""
        self._out += b"C" + (4 + 7).to_bytes(4, "big") + b"COPY 0\0"
        self._send()
        self._confirm_slot(force=True)
        return End.ORDERED

    # ---- in ----------------------------------------------------------------------

    def _watch(self, events: int) -> None:
        """Wait until the log grows, or the client's socket is ready."""
        self._poll.register(self._socket, events)
        for descriptor, _ in self._poll.poll(self._until_timeout()):
            if descriptor == self._grown:
                self._grew = True
                if not os.read(self._grown, 4096):
                    # The engine has ended.
                    self._end = End.GONE

    def _until_timeout(self) -> int:
        """Return the milliseconds until the next deadline."""
        soon = _CONFIRM_SECONDS if self._flush > self._confirmed else 10.0
        if self._timeout:
            limit = self._timeout if self._asked else self._timeout / 2
            soon = min(soon, max(0.0, self._heard + limit - time.monotonic()))
        return int(soon * 1000) + 1

    def _check_timeout(self) -> None:
        if self._is_silent() or not self._timeout or self._asked:
            return
        if time.monotonic() - self._heard >= self._timeout / 2:
            self._asked = True
            self._out += _framed(
                write_keepalive(Keepalive(self._announced, _now(), True))
            )

    def _is_silent(self) -> bool:
        """Whether the client's silence has reached the timeout. Then the stream ends."""
        if not self._timeout or time.monotonic() - self._heard < self._timeout:
            return False
        self._log.info("terminating walsender process due to replication timeout")
        self._end = End.GONE
        return True

    def _read_client(self) -> None:
        """Read the client's messages."""
        while self._end is None:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self._end = End.GONE
                return
            if not data:
                self._cut("unexpected EOF on standby connection")
                return
            self._heard = time.monotonic()
            self._asked = False
            self._frames.feed(data)
            while self._end is None and (frame := self._next_frame()):
                self._message(frame.kind, frame.body)
        self._confirm_slot()

    def _next_frame(self) -> Frame | None:
        kind = self._frames.next_kind
        if kind and kind not in _KINDS:
            raise ConnectionEnd(
                ProtocolViolation(
                    f'invalid standby message type "{kind.decode("latin-1")}"'
                )
            )
        try:
            return self._frames.next_frame()
        except ProtocolViolation as error:
            self._cut(error.message)
            return None

    def _cut(self, reason: str) -> None:
        """End the connection without a reply."""
        self._log.info(reason)
        self._end = End.GONE

    def _message(self, kind: bytes, body: bytes) -> None:
        if kind == b"d":
            self._payload(body)
        elif kind == b"c":
            # Gathered messages are sent whole, even in the middle of a transaction.
            self._out += b"c\0\0\0\4"
            self._push()
            self._end = self._end or End.DONE
        else:
            self._end = End.GONE

    def _payload(self, body: bytes) -> None:
        if not body:
            raise ProtocolViolation("no data left in message")
        kind = body[:1]
        if kind not in _REPLY_BYTES:
            self._cut(f'unexpected message type "{kind.decode("latin-1")}"')
            return
        length = _REPLY_BYTES[kind]
        if len(body) < length:
            raise ProtocolViolation("insufficient data left in message")
        reply = read_from_client(body[:length])
        if isinstance(reply, StandbyStatus):
            # PostgreSQL accepts a position beyond the sent one, and loses the changes in between.
            self._flush = max(self._flush, min(reply.flush_lsn, self._announced))
            self._written = reply.write_lsn
            self._pinged = False
            now_us = _now()
            self._page.set(
                write=reply.write_lsn,
                flush=reply.flush_lsn,
                apply=reply.apply_lsn,
                reply_time=now_us,
            )
            self._lag.reported(
                reply.write_lsn,
                reply.flush_lsn,
                reply.apply_lsn,
                self._decoding.position,
                now_us,
            )
            self._page.set_lags(self._lag.lags_us)
            if reply.reply_requested:
                self._keepalive(self._decoding.position, False)
        elif not isinstance(reply, HotStandbyFeedback):
            # A subscriber of PostgreSQL 19 requests the primary's position, which is this node's.
            self._keepalive(self._decoding.position, False)

    def _confirm_slot(self, *, force: bool = False) -> None:
        if self._flush <= self._confirmed:
            return
        now = time.monotonic()
        if force or now - self._confirmed_at >= _CONFIRM_SECONDS:
            self._confirm(self._flush)
            self._confirmed, self._confirmed_at = self._flush, now

    def _log_end(self) -> Lsn:
        newest = self._reader.newest()
        return self._decoding.position if newest is None else newest.sealed_lsn


def _framed(payload: bytes) -> bytes:
    """Frame a payload as CopyData."""
    return b"d" + (len(payload) + 4).to_bytes(4, "big") + payload


def _now() -> int:
    """Return the microseconds since 2000-01-01 UTC."""
    return time.time_ns() // 1000 - _EPOCH_SECONDS * 1_000_000
