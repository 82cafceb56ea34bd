"""The CopyBoth stream of START_REPLICATION, payload by payload.

Reading is shaped by a measurement: a reader that wakes for each packet costs the source twice the
CPU and is slower than one that reads in large, spaced gulps. ``read`` therefore takes
whatever has arrived, and pauses a moment before it does if something had arrived before it came
to wait: then there is a backlog. A quiet stream is answered at once.

Source: PostgreSQL manual, 54.4 (streaming replication protocol); libpq 32.10.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field
from typing import Final

from psycopg import Error, pq

from wal2lake.errors import PublisherError
from wal2lake.pg.connection import Session, result_error

_BACKLOG_PAUSE_SECONDS: Final = 0.005
"""Long enough that the walsender finds the socket full and sends in large pieces. Measured,
0.85 M changes: 1 ms 170 k/s and 5.0 CPU-s at the source, 4 ms 303 k/s and 2.8, 10 ms
324 k/s and 2.6."""

_FAREWELL_SECONDS: Final = 2.0
"""A walsender answers CopyDone after the message in hand; it also ends without this."""

_STREAM_ENDED: Final = -1


@dataclass(slots=True)
class Payloads:
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

    def read(
        self, timeout_seconds: float, max_bytes: int, wake: int
    ) -> Payloads | None:
        """The next payloads; none if the time passes or descriptor ``wake`` becomes
        readable first; None at the end of the stream.

        At most about ``max_bytes`` are returned; the rest stays in libpq's buffer.
        """
        found = Payloads()
        more = self._drain(found, max_bytes)
        if not found.sizes and more:
            if self._has_arrived():
                # Nobody had to wait for it: the walsender is ahead of us.
                time.sleep(_BACKLOG_PAUSE_SECONDS)
            elif not self._wait(timeout_seconds, wake):
                return found
            more = self._gulp(found, max_bytes)
        if not more and not found.sizes:
            self._check_end()
            return None
        # With payloads in hand the end is found again, and told, by the next call.
        return found

    def _gulp(self, found: Payloads, max_bytes: int) -> bool:
        """All that has arrived: libpq takes 16 KB off the socket at a time. False: the
        stream has ended."""
        while True:
            try:
                self._pgconn.consume_input()
            except Error as error:
                raise PublisherError(
                    self._pgconn.get_error_message().strip() or str(error)
                ) from None
            if not self._drain(found, max_bytes):
                return False
            if len(found.data) >= max_bytes or not self._has_arrived():
                return True

    def _has_arrived(self) -> bool:
        return self._wait(0)

    def _wait(self, timeout_seconds: float, *wake: int) -> bool:
        """True: there is something on the socket."""
        socket = self._session.fileno
        ready, _, _ = select.select([socket, *wake], [], [], timeout_seconds)
        return socket in ready

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
        """End the stream in order: CopyDone, then read until the server agrees, or has
        had its time."""
        deadline = time.monotonic() + _FAREWELL_SECONDS
        try:
            self._pgconn.nonblocking = 0
            self._pgconn.put_copy_end()
            while self._drain(Payloads(), 1 << 20):
                left = deadline - time.monotonic()
                if left <= 0 or not self._wait(left):
                    return
                self._pgconn.consume_input()
        except (Error, PublisherError):
            return

    def _drain(self, found: Payloads, max_bytes: int) -> bool:
        """Take what libpq holds; False: the stream has ended."""
        # Each payload's memory is libpq's: copied and let go at once it is used again,
        # kept until there are many it costs four times as much.
        data, append = found.data, found.sizes.append
        get = self._pgconn.get_copy_data
        try:
            while len(data) < max_bytes:
                size, payload = get(1)
                if size <= 0:
                    return size != _STREAM_ENDED
                data += payload
                append(size)
        except Error as error:
            raise PublisherError(
                self._pgconn.get_error_message().strip() or str(error)
            ) from None
        return True

    def _check_end(self) -> None:
        result = self._pgconn.get_result()
        while result is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise result_error(result, self._pgconn)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
            result = self._pgconn.get_result()
