"""A walsender from START_REPLICATION to its end: PostgreSQL's WalSndLoop.

    log ──▶ decoding ──▶ plugin ──▶ XLogData ──▶ client
                                                   │ status updates, CopyDone
    page (mapped memory) ◀── write, flush, apply ──┘

It sleeps in one poll on two descriptors: the client's socket, and a pipe that gets a byte whenever
the log has grown. The end of that pipe is the end of the engine.

Keepalives: after each look at the log that has sent nothing, at the log's end, so that positions go
on where nothing is published; and at half of ``wal_sender_timeout``, with a wish for an answer.

What a client may not say has PostgreSQL's three ends:

    a message of another kind              ConnectionEnd: FATAL
    a reply that is too short              ProtocolViolation: ERROR, the session goes on
    a reply of another kind, an impossible a word in the log, the connection is cut
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
"""Bytes that are gathered before they are sent: a client that reads in large gulps is a faster
one."""

_RECEIVE_BYTES: Final = 64 * 1024

_MESSAGE_BYTES: Final = 64 * 1024
"""Bytes of a client's message at most: a status has 34."""

_KINDS: Final = {b"d": _MESSAGE_BYTES, b"c": 10_000, b"X": 10_000}
"""Messages that a client may send, with their greatest length."""

_REPLY_BYTES: Final = {b"r": 34, b"h": 25, b"p": 9}
"""Bytes of a CopyData that are read; the rest is ignored, as in PostgreSQL."""

_CONFIRM_SECONDS: Final = 1.0
"""Between two times that the slot learns what the client has: after a crash that much is sent
again."""

_EPOCH_SECONDS: Final = 946_684_800


class End(Enum):
    """Why a stream ended."""

    DONE = 0
    """The client has said CopyDone: the connection goes on with commands."""
    GONE = 1
    """The client has gone, or says nothing any more."""
    ORDERED = 2
    """The node is stopping, and the client has been sent everything."""


class ConnectionEnd(BaseException):
    """FATAL: the client is told ``error``, and cut off. Like ``_Ended`` it passes a plugin."""

    def __init__(self, error: ProtocolViolation) -> None:
        super().__init__(error.message)
        self.error = error


class _Ended(BaseException):
    """There is nobody to decode for: not an error of the plugin, which lets it through."""


class Stream:
    """One client's."""

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
        """``grown``: the pipe's reading end. ``confirm`` takes a position into the slot.
        ``timeout_seconds``: without a word of the client; 0: for ever."""
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
        """The client has been told of a position at or above."""
        self._out = bytearray()
        self._poll = select.poll()
        self._poll.register(grown, select.POLLIN)
        self._heard = time.monotonic()
        self._asked = False
        self._flush = self._written = self._confirmed = Lsn(0)
        self._pinged = False
        """The client was asked where it is, and has not answered."""
        self._confirmed_at = 0.0
        self._grew = False
        """The log has, since it was looked at last."""
        self._end: End | None = None
        self._stopping = False

    def stop(self) -> None:
        """Send what is there, then end when the client has confirmed it."""
        self._stopping = True

    @property
    def left(self) -> bytes:
        """Bytes that the client has sent behind its CopyDone, or behind its mistake."""
        return self._frames.take_rest()

    def write(self, payload: bytes, lsn: Lsn, last: bool) -> None:
        """A plugin's message."""
        self._check_end()
        at = lsn if last else Lsn(0)
        self._announced = max(self._announced, lsn)
        head = int(at).to_bytes(8, "big")
        self._data(
            b"w" + head + head + _now().to_bytes(8, "big", signed=True) + payload
        )

    def write_frames(self, data: memoryview) -> None:
        """Many of them, framed already."""
        self._check_end()
        self._out += data
        if len(self._out) >= _SEND_BYTES:
            self._send()

    def warn(self, said: Wal2LakeError, codec: str) -> None:
        """A NoticeResponse, behind what was written."""
        fields = Diagnostic(
            severity="WARNING",
            sqlstate=said.sqlstate,
            message=said.message,
            detail=said.detail or "",
            hint=said.hint or "",
            where=said.context or "",
        )
        self._out += write_backend(ErrorResponse(fields, notice=True), encoding=codec)

    def run(self) -> End:
        """Until it ends."""
        self._out += write_backend(CopyResponse(CopyMode.BOTH, 0))
        while self._end is None:
            self._hear()
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
            # What the client has said while it was sent something may have been the last word.
            if caught_up and not self._grew and self._end is None:
                self._watch(select.POLLIN)
                self._check_timeout()
        self._tell_slot(force=True)
        return self._end or End.GONE

    def _ping(self) -> None:
        """Ask the client for its positions, so that waiters (a synchronous commit, an orderly end)
        learn soon what the client has, also of changes that were not sent to it."""
        has = max(self._flush, self._written) >= self._announced
        if self._pinged or (self._has_all() if self._stopping else has):
            return
        self._pinged = True
        self._keepalive(self._announced, True)

    def _has_all(self) -> bool:
        """The client has confirmed what it was sent, and told of; as in WalSndDone(), what it has
        written counts for one that never flushes."""
        return (self._flush or self._written) >= self._announced

    def _check_end(self) -> None:
        if self._end is not None:
            raise _Ended

    def drain(self) -> None:
        """Send what is gathered, before an error that ends the stream: messages stay whole. The
        client is not heard meanwhile."""
        self._end = None
        self._tell_slot(force=True)
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
        """All that is gathered; meanwhile the client is heard, and asked for a word."""
        while self._out and self._end is None:
            self._check_timeout()
            if not self._send_some():
                self._watch(select.POLLIN | select.POLLOUT)
            self._hear()

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
        """Between two transactions."""
        self._lag.sent(self._decoding.position, _now())
        self._check_timeout()
        self._hear()
        return self._end is None

    def _finish(self) -> End:
        """The node is stopping: what is there has arrived; CommandComplete says that it is all."""
        self._out += b"C" + (4 + 7).to_bytes(4, "big") + b"COPY 0\0"
        self._send()
        self._tell_slot(force=True)
        return End.ORDERED

    # ---- in ----------------------------------------------------------------------

    def _watch(self, events: int) -> None:
        """Wait for the log or the client."""
        self._poll.register(self._socket, events)
        for descriptor, _ in self._poll.poll(self._until_timeout()):
            if descriptor == self._grown:
                self._grew = True
                if not os.read(self._grown, 4096):
                    # The engine has ended.
                    self._end = End.GONE

    def _until_timeout(self) -> int:
        """Milliseconds until something must be done."""
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
        """The client has said nothing for too long: it is given up."""
        if not self._timeout or time.monotonic() - self._heard < self._timeout:
            return False
        self._log.info("terminating walsender process due to replication timeout")
        self._end = End.GONE
        return True

    def _hear(self) -> None:
        """All that the client has said."""
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
        self._tell_slot()

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
        """End a connection whose message deserves no answer."""
        self._log.info(reason)
        self._end = End.GONE

    def _message(self, kind: bytes, body: bytes) -> None:
        if kind == b"d":
            self._payload(body)
        elif kind == b"c":
            # Whole messages only, also if this came in the middle of a transaction.
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
        found = read_from_client(body[:length])
        if isinstance(found, StandbyStatus):
            # PostgreSQL would believe one that lies ahead, and lose what is between.
            self._flush = max(self._flush, min(found.flush_lsn, self._announced))
            self._written = found.write_lsn
            self._pinged = False
            now_us = _now()
            self._page.set(
                write=found.write_lsn,
                flush=found.flush_lsn,
                apply=found.apply_lsn,
                reply_time=now_us,
            )
            self._lag.reported(
                found.write_lsn,
                found.flush_lsn,
                found.apply_lsn,
                self._decoding.position,
                now_us,
            )
            self._page.set_lags(self._lag.lags_us)
            if found.reply_requested:
                self._keepalive(self._decoding.position, False)
        elif not isinstance(found, HotStandbyFeedback):
            # A subscriber of PostgreSQL 19 asks where the primary is: here.
            self._keepalive(self._decoding.position, False)

    def _tell_slot(self, *, force: bool = False) -> None:
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
    """CopyData."""
    return b"d" + (len(payload) + 4).to_bytes(4, "big") + payload


def _now() -> int:
    """Microseconds since 2000-01-01 UTC."""
    return time.time_ns() // 1000 - _EPOCH_SECONDS * 1_000_000
