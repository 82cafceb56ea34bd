"""The CopyBoth stream of START_REPLICATION, payload by payload.

Reading is shaped by a measurement: a reader that wakes for each packet costs the source twice the
CPU and is slower than one that reads in large, spaced gulps. ``read`` therefore drains
whatever libpq has, and pauses a moment before it asks the kernel again, but only while the previous
gulp shows a backlog; a quiet stream is answered at once.

Source: PostgreSQL manual, 54.4 (streaming replication protocol); libpq 32.10.
"""

from __future__ import annotations

import select
import time
from typing import Final

from psycopg import Error, pq

from wal2lake.errors import PublisherError
from wal2lake.pg.connection import Session, result_error

_BACKLOG_BYTES: Final = 32 * 1024
"""A gulp this large means that the walsender is ahead of us: a busy one sends 40 MB/s."""

_BACKLOG_PAUSE_SECONDS: Final = 0.001
"""Measured: 1 ms between reads costs the source 4.0 CPU-s per 1.7 M changes, none 7.0."""

_STREAM_ENDED: Final = -1


class CopyBothStream:
    """A session in CopyBoth mode. One thread reads and writes it."""

    def __init__(self, session: Session, command: str) -> None:
        """Send START_REPLICATION; PublisherError if it is refused."""
        self._session = session
        self._pgconn = session.pgconn
        self._last_gulp_bytes = 0
        try:
            result = self._pgconn.exec_(command.encode())
        except Error as error:
            raise PublisherError(str(error).strip()) from None
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise result_error(result, self._pgconn)
        self._pgconn.nonblocking = 1

    def read(
        self, timeout_seconds: float, max_bytes: int, wake: int
    ) -> list[memoryview] | None:
        """The next payloads; empty if the time passes or descriptor ``wake`` becomes
        readable first; None at the end of the stream.

        At most about ``max_bytes`` are returned; the rest stays in libpq's buffer.
        """
        payloads = self._drain(max_bytes)
        if payloads or payloads is None:
            return payloads
        if self._last_gulp_bytes >= _BACKLOG_BYTES:
            time.sleep(_BACKLOG_PAUSE_SECONDS)
        ready, _, _ = select.select(
            [self._session.fileno, wake], [], [], timeout_seconds
        )
        if self._session.fileno not in ready:
            self._last_gulp_bytes = 0
            return []
        return self._gulp(max_bytes)

    def _gulp(self, max_bytes: int) -> list[memoryview] | None:
        """All that has arrived: libpq takes 16 KB off the socket at a time."""
        payloads: list[memoryview] = []
        total = 0
        while True:
            try:
                self._pgconn.consume_input()
            except Error as error:
                raise PublisherError(
                    self._pgconn.get_error_message().strip() or str(error)
                ) from None
            more = self._drain(max_bytes - total)
            if more is None:
                # The end: found again, and told, by the next call.
                return payloads or None
            payloads += more
            total += sum(map(len, more))
            self._last_gulp_bytes = total
            if total >= max_bytes or not self._has_arrived():
                return payloads

    def _has_arrived(self) -> bool:
        ready, _, _ = select.select([self._session.fileno], [], [], 0)
        return bool(ready)

    def write(self, payload: bytes) -> None:
        """Send one CopyData payload (a status update)."""
        try:
            self._pgconn.put_copy_data(payload)
            # A status update is 34 bytes: it fits the socket buffer unless the
            # server has stopped reading, and then wal_receiver_timeout decides.
            self._pgconn.flush()
        except Error as error:
            raise PublisherError(str(error).strip()) from None

    def finish(self) -> None:
        """End the stream in order: CopyDone, then read until the server agrees."""
        try:
            self._pgconn.nonblocking = 0
            self._pgconn.put_copy_end()
            while self._drain(1 << 30):
                pass
        except (Error, PublisherError):
            return

    def _drain(self, max_bytes: int) -> list[memoryview] | None:
        payloads: list[memoryview] = []
        append = payloads.append
        get = self._pgconn.get_copy_data
        total = 0
        try:
            while total < max_bytes:
                size, data = get(1)
                if size <= 0:
                    if size == _STREAM_ENDED and not payloads:
                        self._check_end()
                        return None
                    break
                append(data)
                total += size
        except Error as error:
            raise PublisherError(
                self._pgconn.get_error_message().strip() or str(error)
            ) from None
        return payloads

    def _check_end(self) -> None:
        result = self._pgconn.get_result()
        while result is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise result_error(result, self._pgconn)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
            result = self._pgconn.get_result()
