"""Reads and writes one client's socket, with timeouts, wake-ups and back-pressure.

Comes in: a connected TCP socket. Goes out: bytes, or TransportClosed if the client is gone. One
thread uses the transport; other threads may call ``wake`` and ``kill``.

The socket is non-blocking, and every wait is a poll with a timeout, because reads and writes need
different timeouts. Writes are collected in a buffer. The buffer is sent when it exceeds 64 KiB and
before every wait for the client, so rows go out in large pieces, and memory does not grow with the
result. A client that takes no bytes during the whole write timeout counts as gone; a slow client
does not.

With TLS the socket is one end of a socket pair, and the thread of a ``Relay`` encrypts.

A reader is woken by shutting down the read side of the socket: the poll returns, and reads give end
of file. So an idle connection needs no second descriptor.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from typing import Final

from wal2lake.door.client.relay import Relay

_GULP_BYTES: Final = 64 * 1024
"""The size of a read. A client usually sends far less at once."""

_FLUSH_BYTES: Final = 64 * 1024
"""The size of the write buffer. PostgreSQL's 8 KiB would cost too many calls in Python."""

_LINGER_S: Final = 1.0
"""The time to wait for the client to close. Chosen arbitrarily, as many round trips."""

_MOST_MILLISECONDS: Final = (1 << 31) - 1
"""The greatest timeout of poll()."""


class TransportClosed(Exception):
    """Raised if the client is gone or was disconnected, so that nothing can be sent."""


class ReadTimeout(Exception):
    """Raised if the client has sent nothing before the timeout."""


class Transport:
    """Bytes to and from one client."""

    __slots__ = (
        "_closed",
        "_out",
        "_out_bytes",
        "_poll",
        "_socket",
        "_write_timeout_s",
        "deadline",
        "host",
        "local_host",
        "port",
    )

    def __init__(
        self,
        connection: socket.socket,
        *,
        write_timeout_s: float,
        peer: tuple[str, int],
    ) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._write_timeout_s = write_timeout_s
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._closed = False
        self._poll = select.poll()
        self.host, self.port = peer
        self.local_host = str(connection.getsockname()[0])
        self.deadline: float | None = None
        """The time.monotonic() after which reads raise ReadTimeout. None: no deadline."""

    def read(self, timeout_s: float | None = None) -> bytes:
        """Flush, then read at least one byte; b"" is the end of the stream.

        Raises ReadTimeout after ``timeout_s`` or at ``deadline``, or TransportClosed.
        """
        self.flush()
        while True:
            try:
                return self._socket.recv(_GULP_BYTES)
            except BlockingIOError:
                pass
            except OSError as error:
                raise TransportClosed(str(error)) from error
            if not self._wait(select.POLLIN, self._bounded(timeout_s)):
                raise ReadTimeout

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes, and send them if there are many; raises TransportClosed."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send all queued bytes; raises TransportClosed."""
        if not self._out:
            return
        # A single large piece is not copied.
        alone = len(self._out) == 1
        data = memoryview(self._out[0] if alone else b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        while data:
            if self._closed:
                raise TransportClosed("closed")
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT, self._write_timeout_s):
                    self.kill()
                    raise TransportClosed(
                        "could not send data to client: timeout"
                    ) from None
            except OSError as error:
                raise TransportClosed(str(error)) from error

    def _bounded(self, timeout_s: float | None) -> float | None:
        if self.deadline is None:
            return timeout_s
        left = max(0.0, self.deadline - time.monotonic())
        return left if timeout_s is None else min(left, timeout_s)

    def _wait(self, event: int, timeout_s: float | None) -> bool:
        if self._closed:
            raise TransportClosed("closed")
        self._poll.register(self._socket, event)
        # Round up: a wait of less than a millisecond must not become a busy loop.
        milliseconds = None
        if timeout_s is not None:
            milliseconds = min(int(timeout_s * 1000) + 1, _MOST_MILLISECONDS)
        return bool(self._poll.poll(milliseconds))

    def secure(self, context: ssl.SSLContext, received: bytes = b"") -> ssl.SSLObject:
        """Do the TLS handshake, of which ``received`` are the first bytes; blocks.

        Afterwards the transport's socket is one end of a pair, and a ``Relay`` has the client's
        socket. Raises TransportClosed if the handshake fails, and ReadTimeout.
        """
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(received)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.write(outgoing.read())
            except (ssl.SSLError, OSError) as error:
                # TLS has written an alert with the reason.
                self.write(outgoing.read())
                self.flush()
                raise TransportClosed(
                    f"could not accept SSL connection: {error}"
                ) from error
            received = self.read()
            if not received:
                raise TransportClosed("could not accept SSL connection: end of stream")
            incoming.write(received)
        self.write(outgoing.read())
        self.flush()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        relay = Relay(self._socket, tls, incoming, outgoing, theirs)
        self._socket, self._poll = ours, select.poll()
        relay.start()
        return tls

    def fileno(self) -> int:
        """The socket's descriptor, for a process that takes over the connection for a while."""
        return self._socket.fileno()

    def has_hung_up(self) -> bool:
        """Whether the client has closed its side or is gone, so that it sends nothing more."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def wake(self) -> None:
        """Let a reader see the end of the stream; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def kill(self) -> None:
        """Let readers and writers fail; may be called from any thread."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket, without waiting for unsent bytes."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def linger(self) -> None:
        """Close the socket so that the client receives the last message.

        Closing a socket with unread bytes resets the connection, and the reset could overtake the
        message. So the client's further bytes are read for a while.
        """
        try:
            self.flush()
            self._socket.shutdown(socket.SHUT_WR)
            self.deadline = time.monotonic() + _LINGER_S
            while self.read():
                pass
        except (TransportClosed, ReadTimeout, OSError):
            pass
        self.close()
