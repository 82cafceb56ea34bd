"""The visitors that a node's web process must bear, all at once.

    ten scrapers       /metrics, once a second each
    an open page       reads its stream of events
    a stalled page     opens a stream and takes nothing of it
    a nonsense sender  50 connections a second, with random bytes or pieces of requests
    a webhook          accepts each alert's connection and never answers

Comes in: the port of a web process. Goes out: how often each was served, so that a benchmark can
tell that they were there.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final

SCRAPERS: Final = 10
_PERIOD_SECONDS: Final = 1.0

_STALL_SECONDS: Final = 20.0
"""The process cuts a page that does not read; it comes again as often as this."""

_NONSENSE_SECONDS: Final = 0.02
_NONSENSE_BYTES: Final = 2_000
_SEED: Final = 25
_TIMEOUT_SECONDS: Final = 30.0

_PIECES: Final = (
    b"GET /metrics HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n",
    b"Host: localhost\r\n",
    b"Host: \xff\r\n",
    b"Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    b"\r\n\r\n",
)
"""Pieces of requests, and first bytes of TLS and of PostgreSQL."""


class Crowd:
    """A context manager; the visitors come and go with it."""

    def __init__(self, port: int) -> None:
        """``port`` is the web process's, on this machine."""
        self._port = port
        self._ending = threading.Event()
        self.scrapes = self.events = self.stalls = self.nonsense = 0
        self._counting = threading.Lock()
        visits = [self._scraper] * SCRAPERS
        visits += [self._page, self._stalled_page, self._nonsense_sender]
        self._threads = [threading.Thread(target=v, daemon=True) for v in visits]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_SECONDS)
        if kind is None and not (self.scrapes and self.events and self.nonsense):
            raise RuntimeError(
                f"the visitors were not served: {self.scrapes} scrapes, {self.events}"
                f" events, {self.nonsense} pieces of nonsense"
            )

    def _count(self, **more: int) -> None:
        with self._counting:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)

    def _scraper(self) -> None:
        while not self._ending.is_set():
            began = time.monotonic()
            # Beyond its limit of connections the process closes them.
            with suppress(OSError, http.client.HTTPException):
                self._count(scrapes=scrape(self._port))
            left = began + _PERIOD_SECONDS - time.monotonic()
            self._ending.wait(max(0.0, left))

    def _page(self) -> None:
        while not self._ending.is_set():
            with suppress(OSError), self._stream() as stream:
                stream.settimeout(_PERIOD_SECONDS)
                while not self._ending.is_set():
                    with suppress(TimeoutError):
                        received = stream.recv(1 << 16)
                        if not received:
                            break
                        self._count(events=received.count(b"event: "))
            self._ending.wait(_NONSENSE_SECONDS)

    def _stalled_page(self) -> None:
        while not self._ending.is_set():
            with suppress(OSError), self._stream(receive_bytes=1):
                self._count(stalls=1)
                self._ending.wait(_STALL_SECONDS)

    def _stream(self, receive_bytes: int | None = None) -> socket.socket:
        stream = socket.socket()
        stream.settimeout(_TIMEOUT_SECONDS)
        if receive_bytes is not None:
            # The system makes it as small as it can.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        stream.connect(("127.0.0.1", self._port))
        stream.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return stream

    def _nonsense_sender(self) -> None:
        chance = random.Random(_SEED)
        while not self._ending.wait(_NONSENSE_SECONDS):
            pieces = chance.choices(_PIECES, k=chance.randrange(6))
            pieces.append(chance.randbytes(chance.randrange(_NONSENSE_BYTES)))
            chance.shuffle(pieces)
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), 2.0) as sender,
            ):
                sender.sendall(b"".join(pieces))
                sender.shutdown(socket.SHUT_WR)
                while sender.recv(1 << 16):
                    pass
                self._count(nonsense=1)


class HangingWebhook:
    """A server that takes connections and says nothing. A context manager."""

    def __init__(self) -> None:
        self._ending = ExitStack()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self.calls = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> HangingWebhook:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A close alone does not wake a thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_TIMEOUT_SECONDS)
        self._ending.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._ending.enter_context(self._listener.accept()[0])
                self.calls += 1


def scrape(port: int) -> int:
    """Scrape once; returns 1. RuntimeError if the answer is not that of a node with tables."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=2 * _TIMEOUT_SECONDS
    )
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200 or b"wal2lake_rows_total" not in body:
        raise RuntimeError(f"a scrape was answered with {answer.status}")
    return 1
