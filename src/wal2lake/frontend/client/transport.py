"""One client's socket: reads that can be timed and woken, writes with back-pressure.

In: a connected TCP socket. Out: bytes, and TransportClosed when there is nobody any more.
Used by one thread; ``wake`` and ``kill`` may come from another.

The socket is non-blocking and every wait is a poll with a bound, because one socket
needs two different timeouts. Writes collect in a buffer that is sent when it exceeds
64 KiB and before every wait for the client, so rows of a result go out in large pieces
and memory does not grow with the result. A client that takes nothing for the whole
write timeout is gone; one that is merely slow is not.

Encrypted, its socket is a pair's end, and a thread of its own encrypts (``relay``).

Waking a reader is done by shutting the read side down: the poll returns, and reads give
end of file. It needs no second descriptor per idle connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from typing import Final

from wal2lake.frontend.client.relay import Relay

_GULP_BYTES: Final = 64 * 1024
"""Read size: what a client sends at once is usually far less."""

_FLUSH_BYTES: Final = 64 * 1024
"""Write-buffer size; PostgreSQL has 8 KiB, but pays no interpreter per send."""

_LINGER_S: Final = 1.0
"""How long a client is listened to after the last word. A guess: many round trips."""

_MOST_MILLISECONDS: Final = (1 << 31) - 1
"""That poll() takes."""


class TransportClosed(Exception):
    """The client is gone, or was cut off; nothing can be sent."""


class ReadTimeout(Exception):
    """Nothing came in the time given."""


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
        """time.monotonic() after which reading raises ReadTimeout; None: never."""

    def read(self, timeout_s: float | None = None) -> bytes:
        """What the client sent, at least a byte; b"" is the end. Flushes first.

        Raises ReadTimeout after ``timeout_s`` or at ``deadline``, TransportClosed.
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
        """Queue bytes; sends when there are many. Raises TransportClosed."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send everything queued; raises TransportClosed."""
        if not self._out:
            return
        # One that is large by itself is not copied.
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
        # Rounded up: a wait of half a millisecond must not become a busy loop.
        milliseconds = None
        if timeout_s is not None:
            milliseconds = min(int(timeout_s * 1000) + 1, _MOST_MILLISECONDS)
        return bool(self._poll.poll(milliseconds))

    def secure(self, context: ssl.SSLContext, received: bytes = b"") -> ssl.SSLObject:
        """Speak TLS from here on, of which ``received`` has come already; blocks for the
        handshake. Raises TransportClosed if there is none, ReadTimeout.

        From then on the socket is one end of a pair, behind which a ``Relay`` does the rest.
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
                # An alert, which says why.
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
        """The socket's descriptor, for a process that talks to the client meanwhile."""
        return self._socket.fileno()

    def has_hung_up(self) -> bool:
        """The client will send nothing more: it has closed, or is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def wake(self) -> None:
        """From any thread: a reader sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def kill(self) -> None:
        """From any thread: a writer sees an error too."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket, without waiting for unsent bytes."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def linger(self) -> None:
        """Say goodbye so that the last message arrives, then close.

        Closing a socket that holds unread bytes resets the connection, and the reset
        overtakes the error message; so what the client still sends is read for a while.
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
