"""The CopyBoth stream of START_REPLICATION, payload by payload.

Reading is shaped by a measurement: a reader that wakes for each packet costs the source twice the
CPU and is slower than one that reads in large, spaced gulps. ``read`` therefore takes
whatever has arrived, and pauses a moment before it does if something had arrived before it came
to wait: then there is a backlog. A quiet stream is answered at once.

A silent socket proves nothing under TLS: OpenSSL takes whole records off it, and what libpq had
no room for stays there. So every wait, also one in vain, is followed by a look into libpq.

Source: PostgreSQL manual, 54.4 (streaming replication protocol); libpq 32.10.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field
from typing import Final

from psycopg import Error, pq

from wal2lake.errors import PublisherError, Retry
from wal2lake.pg.connection import Session, result_error
from wal2lake.pg.waiting import has_failed

_BACKLOG_PAUSE_SECONDS: Final = 0.005
"""Long enough that the walsender finds the socket full and sends in large pieces. Measured,
0.85 M changes: 1 ms 170 k/s and 5.0 CPU-s at the source, 4 ms 303 k/s and 2.8, 10 ms
324 k/s and 2.6."""

_FAREWELL_SECONDS: Final = 2.0
"""A walsender answers CopyDone after the message in hand; it also ends without this."""

_FAREWELL_BYTES: Final = 1 << 20
_FAREWELL_WATCH_SECONDS: Final = 0.02

_STREAM_ENDED: Final = -1

_MAY_PASS: Final = ("08", "40", "53", "57")
"""Classes of errors that may not come again: connections, conflicts with a standby's recovery,
resources, an operator's word. Any other one that the server ends a stream with will meet the next
stream at the same place: a publication that was not there then, WAL that is gone."""

_STILL_COPYING: Final = (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN)


@dataclass(slots=True)
class CopyDataPayloads:
    """CopyData payloads back to back, and the size of each."""

    data: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)


class CopyBothStream:
    """A session in CopyBoth mode. One thread reads and writes it."""

    def __init__(self, session: Session, command: str) -> None:
        """Send START_REPLICATION; PublisherError if it is refused."""
        self._session = session
        self._pgconn = session.pgconn
        try:
            result = self._pgconn.exec_(command.encode())
        except Error as error:
            raise PublisherError(str(error).strip()) from None
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise result_error(result, self._pgconn)
        self._pgconn.nonblocking = 1
        self._ended = False
        """libpq said so, which it does once: asked again, it complains."""

    def read(
        self, timeout_seconds: float, max_bytes: int, wake: int
    ) -> CopyDataPayloads | None:
        """The next payloads; none if the time passes or descriptor ``wake`` becomes
        readable first; None at the end of the stream.

        At most about ``max_bytes`` are returned; the rest stays in libpq's buffer.
        """
        found = CopyDataPayloads()
        more = self._drain(found, max_bytes)
        if not found.sizes and more:
            if self._has_arrived():
                # Nobody had to wait for it: the walsender is ahead of us.
                time.sleep(_BACKLOG_PAUSE_SECONDS)
            else:
                self._wait(timeout_seconds, wake)
            more = self._gulp(found, max_bytes)
        if not more and not found.sizes:
            self._check_end()
            return None
        # With payloads in hand the end is told by the next call.
        return found

    def _gulp(self, found: CopyDataPayloads, max_bytes: int) -> bool:
        """All that has arrived: libpq takes 16 KB off the socket at a time. False: the
        stream has ended."""
        while True:
            before = len(found.sizes)
            try:
                self._pgconn.consume_input()
            except Error as error:
                raise PublisherError(
                    self._pgconn.get_error_message().strip() or str(error)
                ) from None
            if not self._drain(found, max_bytes):
                return False
            # While there is something, OpenSSL may have more of it.
            hidden = self._pgconn.ssl_in_use and len(found.sizes) > before
            if len(found.data) >= max_bytes or not (hidden or self._has_arrived()):
                return True

    def _has_arrived(self) -> bool:
        return self._wait(0)

    def _wait(self, timeout_seconds: float, *wake: int) -> bool:
        """True: there is something on the socket."""
        socket = self._session.fileno
        ready, _, _ = select.select([socket, *wake], [], [], timeout_seconds)
        return socket in ready

    def write(self, payload: bytes) -> None:
        """Send one CopyData payload (a status update); dropped if the server has ended the
        stream in order, which the next ``read`` tells."""
        try:
            self._pgconn.put_copy_data(payload)
            # A status update is 34 bytes: it fits the socket buffer unless the
            # server has stopped reading, and then wal_receiver_timeout decides.
            self._pgconn.flush()
        except Error as error:
            if self._ended:
                # Why it has is the news, not that nothing can be sent any more.
                self._check_end()
                return
            raise PublisherError(str(error).strip()) from None

    def finish(self) -> None:
        """End the stream in order: CopyDone, then read until the server agrees, or has
        had its time."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        try:
            self._pgconn.nonblocking = 0
            self._pgconn.put_copy_end()
            while self._drain(rest := CopyDataPayloads(), _FAREWELL_BYTES):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if len(rest.data) < _FAREWELL_BYTES:
                    # libpq holds no more.
                    self._wait(min(left, _FAREWELL_WATCH_SECONDS))
                    self._pgconn.consume_input()
        except (Error, PublisherError):
            return

    def _drain(self, found: CopyDataPayloads, max_bytes: int) -> bool:
        """Take what libpq holds; False: the stream has ended."""
        if self._ended:
            return False
        # Each payload's memory is libpq's: copied and let go at once it is used again,
        # kept until there are many it costs four times as much.
        data, append = found.data, found.sizes.append
        get = self._pgconn.get_copy_data
        try:
            while len(data) < max_bytes:
                size, payload = get(1)
                if size <= 0:
                    self._ended = size == _STREAM_ENDED
                    return not self._ended
                data += payload
                append(size)
        except Error as error:
            raise PublisherError(
                self._pgconn.get_error_message().strip() or str(error)
            ) from None
        return True

    def _check_end(self) -> None:
        """Raise the server's error if that is what ended the stream."""
        # libpq has seen the whole message that ended it. For more it would wait without a
        # bound, and with the interpreter held.
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            # COPY_IN: the server sent CopyDone and waits for ours. libpq says it for ever.
            if result is None or result.status in _STILL_COPYING:
                return
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = result_error(result, self._pgconn)
                if has_failed(result) and error.sqlstate[:2] not in _MAY_PASS:
                    error.retry = Retry.NEVER
                raise error
