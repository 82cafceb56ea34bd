"""Connections for urllib that end after a time that covers all: names, handshakes, each byte.

A socket's time-out is for each read, so an answer that comes byte by byte never meets it; several
addresses of one name are tried one after the other, each with the whole time-out; and the system's
resolver takes no time-out at all: with a name server that is silent it takes half a minute. So the
name is looked up in a thread that nobody waits for longer than the time that is left, the addresses
share that time, and a timer cuts the connection at the end.

In: the seconds of one delivery. Out: a handler for urllib. Called by: ``channels``.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import ssl
import threading
import time
import urllib.request
from concurrent.futures import Future
from typing import Any, Final, Self, TypeAlias

_SHORTEST_SECONDS: Final = 0.001

Place: TypeAlias = tuple[str, int]
"""Host and port."""
_Address: TypeAlias = tuple[Any, ...]
"""One result of getaddrinfo."""


class NameLookup:
    """Looks up names. For all threads.

    A look-up that nobody waits for any more goes on. The next one for the same name waits for its
    result, so that a resolver that hangs has one thread, however often an alert is sent again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Place, Future[list[_Address]]] = {}

    def find(self, place: Place, seconds: float) -> list[_Address]:
        """Return the addresses of a place, at least one. Raises OSError if there is none, and
        TimeoutError if the resolver takes longer."""
        with self._lock:
            running = self._running.get(place)
            if running is None:
                running = Future()
                _start(
                    threading.Thread(
                        target=self._look_up, args=(place, running), daemon=True
                    )
                )
                self._running[place] = running
        return running.result(max(seconds, 0.0))

    def _look_up(self, place: Place, lookup: Future[list[_Address]]) -> None:
        try:
            addresses = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
            if not addresses:
                raise OSError("getaddrinfo returns an empty list")
        except Exception as error:
            self._end(place)
            lookup.set_exception(error)
        else:
            self._end(place)
            lookup.set_result(list(addresses))

    def _end(self, place: Place) -> None:
        with self._lock:
            del self._running[place]


def _start(thread: threading.Thread) -> None:
    """Start a thread. Raises OSError if the system has none to give."""
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "could not start a thread") from error


class Deadline:
    """Ends the connections of one delivery when its time is over. A context manager."""

    def __init__(self, seconds: float, names: NameLookup) -> None:
        """``names`` is shared by the deliveries to one place."""
        self._names = names
        self._ends = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._cut_off = False

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self._cut_off or self._left() <= 0

    def __enter__(self) -> Self:
        _start(self._timer)
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _cut(self) -> None:
        with self._lock:
            self._cut_off = True
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def connect(
        self, place: Place, timeout: object = None, source: Place | None = None
    ) -> socket.socket:
        """Make a connection as socket.create_connection does, within the time that is left."""
        try:
            addresses = self._names.find(place, self._left())
        except TimeoutError:
            self._cut_off = True
            raise
        failure: OSError | None = None
        for number, address in enumerate(addresses):
            # Each gets its share, so that a first one that is silent does not hide the others.
            seconds = self._left() / (len(addresses) - number)
            try:
                return self._connected(address, seconds, source)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    def _connected(
        self, candidate: _Address, seconds: float, source: Place | None
    ) -> socket.socket:
        family, kind, protocol, _, address = candidate
        connection = socket.socket(family, kind, protocol)
        try:
            # A time-out of 0 would be another mode.
            connection.settimeout(max(seconds, _SHORTEST_SECONDS))
            if source is not None:
                connection.bind(source)
            connection.connect(address)
            connection.settimeout(max(self._left(), _SHORTEST_SECONDS))
            self._note(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _note(self, connection: socket.socket) -> None:
        with self._lock:
            if self._cut_off:
                raise TimeoutError("timed out")
            # The handshake of TLS takes the socket itself away, but not this second descriptor.
            self._connections.append(connection.dup())

    def handler(self) -> urllib.request.BaseHandler:
        """Return what opens connections for urllib."""
        return _Opening(self)


class _Opening(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections through a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection without TLS."""
        return self.do_open(self._http, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection with TLS."""
        return self.do_open(self._https, req)

    def _http(self, host: str, /, **options: Any) -> http.client.HTTPConnection:
        return self._through(http.client.HTTPConnection(host, **options))

    def _https(self, host: str, /, **options: Any) -> http.client.HTTPConnection:
        context = ssl.create_default_context()
        return self._through(
            http.client.HTTPSConnection(host, context=context, **options)
        )

    def _through(
        self, connection: http.client.HTTPConnection
    ) -> http.client.HTTPConnection:
        # http.client keeps this function in an attribute for its own tests, and calls it for
        # connections with TLS and through proxies, too.
        connection._create_connection = self._deadline.connect  # type: ignore[attr-defined]
        return connection
