"""Limits of HTTP connections, which Uvicorn leaves to a proxy in front of it.

No client can hold the process's memory or descriptors: connections are counted, the head of a
request has a size and a deadline, an idle connection ends, and so does one whose client has stopped
reading. A stalled event stream is therefore cut; browsers connect again by themselves.

Called by: ``listening``. Source: uvicorn's h11_impl.py, which the protocol extends;
asyncio's selector_events.py (``_accept_connection``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Sequence
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from wal2lake.observe import get_logger

MAX_CONNECTIONS: Final = 128
"""Open connections of one listener; further ones are closed unread. A page uses two, a scraper one.
Chosen arbitrarily."""

MAX_REQUESTS: Final = 100
"""Connections with which requests are answered; the others get 503, so that a client learns why."""

HEAD_BYTES: Final = 16 * 1024
"""Largest head of a request. Browsers and proxies send at most 8 KiB."""

REQUEST_SECONDS: Final = 10.0
"""Time from the first byte of a connection or request to the end of the request's head."""

KEEP_ALIVE_SECONDS: Final = 75
"""An idle connection ends after this time: longer than Prometheus's usual scrape interval."""

STALL_SECONDS: Final = 30.0
"""A client that takes no bytes for this time while there are some is disconnected."""

HANDSHAKE_SECONDS: Final = 10.0
"""Longest TLS handshake."""

TLS_BUFFER_BYTES: Final = 32 * 1024
"""Buffer of what a TLS connection has received: two records, and twice the head of a request."""

_PAUSE_SECONDS: Final = 1.0
"""Pause after a failed accept (no descriptors left)."""


def limit_tls_buffers() -> None:
    """Have later TLS connections of this process begin with a small buffer. asyncio takes 256 KiB
    for each, also for clients that never begin the handshake, and has no parameter for it."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


class BoundedProtocol(H11Protocol):
    """One connection with deadlines."""

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._head_timer = self._after(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the client; a request must be complete in time."""
        super().data_received(data)
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif waiting and self._head_timer is None:
            # The rest of a request, or of a body that is not read.
            self._head_timer = self._after(REQUEST_SECONDS)

    def on_response_complete(self) -> None:
        """Wait for the next request, as long as keep-alive allows."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer nonsense; close the connection if a response is already under way."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Begin the deadline of a client that has stopped reading."""
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self._after(STALL_SECONDS)

    def resume_writing(self) -> None:
        """End the deadline: the client reads."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _after(self, seconds: float) -> asyncio.TimerHandle:
        abort: Callable[[], None] = self.transport.abort
        return self.loop.call_later(seconds, abort)

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = None


class Acceptor:
    """Accepts on some sockets, in one event loop.

    asyncio's own servers accept without a bound, and write a line to the log for each connection
    that finds no descriptor, thousands a second. Here a connection beyond the bound, TLS handshakes
    included, is closed unread, and a process without descriptors pauses.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        count_open: Callable[[], int],
        tls: ssl.SSLContext | None,
    ) -> None:
        """``count_open`` returns the number of connections that protocols serve."""
        self._loop = asyncio.get_running_loop()
        self._listeners = tuple(listeners)
        self._make_protocol = make_protocol
        self._count_open = count_open
        self._tls = tls
        self._beginning: set[asyncio.Task[None]] = set()
        self._closed = False
        for listener in self._listeners:
            listener.setblocking(False)
            self._listen(listener)

    def close(self) -> None:
        """Accept no more; the caller closes the sockets."""
        self._closed = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return at once: connections are the server's."""

    def _listen(self, listener: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            get_logger().error(f"could not accept new connection: {error.strerror}")
            self._loop.remove_reader(listener)
            self._loop.call_later(_PAUSE_SECONDS, self._listen, listener)
            return
        if len(self._beginning) + self._count_open() >= MAX_CONNECTIONS:
            client.close()
            return
        client.setblocking(False)
        # asyncio does so for sockets of a known protocol, and an accepted one has none. Head and
        # body of an answer are two writes; the second would wait 40 ms for the client's TCP.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._begin(client))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, client: socket.socket) -> None:
        # Whatever a client does wrong in the handshake is its own affair.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS if self._tls else None,
            )
