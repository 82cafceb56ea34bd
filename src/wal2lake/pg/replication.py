"""The CopyBoth stream of START_REPLICATION, payload by payload.

A measurement determines how the stream is read: a reader that wakes for each packet costs the
source twice the CPU and is slower than a reader that reads large blocks at intervals. If data
has arrived before ``read`` starts to wait, there is a backlog: ``read`` pauses briefly and then
takes all data that has arrived. On a quiet stream ``read`` returns as soon as data arrives.

Under TLS an unreadable socket does not mean that there is no data: OpenSSL reads whole records,
and keeps the part that libpq had no room for. Therefore ``read`` asks libpq for data after every
wait, also after one that has timed out.

Source: PostgreSQL manual, 54.4 (streaming replication protocol); libpq 32.10.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from psycopg import Error, pq

from wal2lake.errors import PublisherError, Retry
from wal2lake.pg.connection import Session, result_error
from wal2lake.pg.waiting import has_failed, readable

_BACKLOG_PAUSE_SECONDS: Final = 0.005
"""Long enough for the walsender to fill the socket and send in large pieces. Measured with
0.85 M changes: 1 ms 170 k/s and 5.0 CPU-s at the source, 4 ms 303 k/s and 2.8, 10 ms
324 k/s and 2.6."""

_FAREWELL_SECONDS: Final = 2.0
"""A walsender answers CopyDone after its current message; it also ends without this wait."""

_FAREWELL_BYTES: Final = 1 << 20
_FAREWELL_WATCH_SECONDS: Final = 0.02

_STREAM_ENDED: Final = -1

_MAY_PASS: Final = ("08", "40", "53", "57")
"""Classes of transient errors: connections, conflicts with a standby's recovery, resources,
operator intervention. Any other error would end the next stream at the same position: for example
a publication that did not exist then, or removed WAL."""

_STILL_COPYING: Final = (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_IN)


@dataclass(slots=True)
class CopyDataPayloads:
    """Concatenated CopyData payloads, and the size of each."""

    data: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)


class CopyBothStream:
    """A session in CopyBoth mode. A single thread must read and write it."""

    def __init__(self, session: Session, command: str) -> None:
        """Send START_REPLICATION. Raises PublisherError if the server rejects it."""
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
        """True once libpq has reported the end; libpq reports it once, then raises errors."""

    def read(
        self, timeout_seconds: float, max_bytes: int, wake: int
    ) -> CopyDataPayloads | None:
        """Return the next payloads, or None at the end of the stream.

        The result has no payloads if the timeout ends or the descriptor ``wake`` becomes
        readable first. It has at most about ``max_bytes``; the rest stays in libpq's buffer.
        """
        payloads = CopyDataPayloads()
        is_open = self._drain(payloads, max_bytes)
        if not payloads.sizes and is_open:
            if self._has_arrived():
                # Data had arrived before the wait: the walsender is ahead of the reader.
                time.sleep(_BACKLOG_PAUSE_SECONDS)
            else:
                self._wait(timeout_seconds, wake)
            is_open = self._gulp(payloads, max_bytes)
        if not is_open and not payloads.sizes:
            self._check_end()
            return None
        # If there are payloads, the next call reports the end.
        return payloads

    def _gulp(self, payloads: CopyDataPayloads, max_bytes: int) -> bool:
        """Take all data that has arrived; libpq reads 16 KB of the socket at a time.

        Returns False if the stream has ended.
        """
        while True:
            before = len(payloads.sizes)
            try:
                self._pgconn.consume_input()
            except Error as error:
                raise PublisherError(
                    self._pgconn.get_error_message().strip() or str(error)
                ) from None
            if not self._drain(payloads, max_bytes):
                return False
            # As long as payloads come, OpenSSL may hold more.
            hidden = self._pgconn.ssl_in_use and len(payloads.sizes) > before
            if len(payloads.data) >= max_bytes or not (hidden or self._has_arrived()):
                return True

    def _has_arrived(self) -> bool:
        return self._wait(0)

    def _wait(self, timeout_seconds: float, *wake: int) -> bool:
        """Wait for the socket; return True if it is readable."""
        socket = self._session.fileno
        return socket in readable([socket, *wake], timeout_seconds)

    def write(self, payload: bytes) -> None:
        """Send one CopyData payload (a status update).

        The payload is dropped if the server has ended the stream normally, which the next
        ``read`` reports.
        """
        try:
            self._pgconn.put_copy_data(payload)
            # A status update is 34 bytes and fits into the socket buffer, unless the
            # server has stopped reading; then wal_receiver_timeout applies.
            self._pgconn.flush()
        except Error as error:
            if self._ended:
                # Report why the stream has ended, rather than the failed write.
                self._check_end()
                return
            raise PublisherError(str(error).strip()) from None

    def finish(self) -> None:
        """End the stream: send CopyDone, then read until the server's CopyDone or 2 s."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        try:
            self._pgconn.nonblocking = 0
            self._pgconn.put_copy_end()
            while self._drain(rest := CopyDataPayloads(), _FAREWELL_BYTES):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                if len(rest.data) < _FAREWELL_BYTES:
                    # libpq's buffer is empty.
                    self._wait(min(left, _FAREWELL_WATCH_SECONDS))
                    self._pgconn.consume_input()
        except (Error, PublisherError):
            return

    def _drain(self, payloads: CopyDataPayloads, max_bytes: int) -> bool:
        """Take the payloads in libpq's buffer. Returns False if the stream has ended."""
        if self._ended:
            return False
        # Each payload is in libpq's memory. Copying it and releasing it at once lets libpq
        # reuse the memory; collecting many payloads first costs four times as much.
        data, append = payloads.data, payloads.sizes.append
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
        """Raise the server's error if one has ended the stream."""
        # libpq has the whole message that ended the stream. For further input it would wait
        # without a limit and hold the interpreter.
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            # COPY_IN: the server has sent CopyDone and waits for ours. libpq then returns
            # this status for ever.
            if result is None or result.status in _STILL_COPYING:
                return
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = result_error(result, self._pgconn)
                if has_failed(result) and error.sqlstate[:2] not in _MAY_PASS:
                    error.retry = Retry.NEVER
                raise error
