"""Limits of one HTTP connection, which Uvicorn leaves to a proxy in front of it.

No client can hold the process's memory or descriptors: connections are counted, the head of a
request has a size and a deadline, an idle connection ends, and so does one whose client has stopped
reading. A stalled event stream is therefore cut; browsers connect again by themselves.

Called by: ``listening``. Source: uvicorn's h11_impl.py, which this protocol extends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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
            # The rest of a request, or of a body that nobody reads.
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
