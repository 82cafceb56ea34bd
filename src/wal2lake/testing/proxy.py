"""A TCP proxy that injects network faults on request.

    node  ->  127.0.0.1:proxy.port  ->  target

Comes in: a target address, and faults that the test requests. Goes out: the same bytes, delayed,
slowed down or not at all. There are two threads per connection; faults also affect connections
that are open already. Bytes are never altered: PostgreSQL's protocol has no checksum that would
detect it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Final

_CHUNK_BYTES: Final = 64 * 1024

_TICK_SECONDS: Final = 0.01
"""A limited stream sends the bytes for this much time at once."""


class TcpProxy:
    """A listening proxy. A context manager; ``port`` is where to connect."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to ``host:port``, with one connection for each client."""
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._closed = False
        self._delay_seconds = 0.0
        self._bytes_per_second: float | None = None
        self.accepted = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    # ---- faults -------------------------------------------------------------------

    def cut(self, *, reset: bool = True) -> int:
        """Break all open connections, with RST or with FIN; returns how many.

        New connections are accepted unless ``refuse`` is in effect.
        """
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _close(end, reset=reset)
        return len(pairs)

    def stall(self) -> None:
        """Hold back all bytes; connections stay open, as behind a dead router."""
        self._flowing.clear()

    def resume(self) -> None:
        """End ``stall``: the bytes that were held back are sent."""
        self._flowing.set()

    def delay(self, seconds: float) -> None:
        """Hold back each chunk for this time."""
        self._delay_seconds = seconds

    def limit(self, bytes_per_second: float | None) -> None:
        """Slow each direction of each connection down; None: no limit."""
        self._bytes_per_second = bytes_per_second

    def refuse(self) -> None:
        """Close new connections at once; open connections are not affected."""
        self._refusing = True

    def accept(self) -> None:
        """End ``refuse``."""
        self._refusing = False

    def close(self) -> None:
        """Break everything and stop listening."""
        self._closed = True
        # Closing alone does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.resume()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        with self._lock:
            return len(self._pairs)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- threads ------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client, reset=True)
                continue
            try:
                target = socket.create_connection(self._target, timeout=10)
            except OSError:
                _close(client, reset=True)
                continue
            target.settimeout(None)
            for end in (client, target):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, target))
                self.accepted += 1
            for source, sink, to_target in (
                (client, target, True),
                (target, client, False),
            ):
                threading.Thread(
                    target=self._pump,
                    args=(source, sink, (client, target), to_target),
                    name="proxy-pump",
                    daemon=True,
                ).start()

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        pair: tuple[socket.socket, socket.socket],
        to_target: bool,
    ) -> None:
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                if self._delay_seconds:
                    time.sleep(self._delay_seconds)
                self._flowing.wait()
                self._send(sink, chunk, pair)
            # The other direction may still be sending.
            if self._is_open(pair):
                sink.shutdown(socket.SHUT_WR)
            broken = False
        except (OSError, ValueError):
            broken = True
        if broken or not to_target:
            with self._lock:
                mine = pair in self._pairs
                if mine:
                    self._pairs.remove(pair)
            for end in pair if mine else ():
                _close(end, reset=broken)

    def _send(
        self,
        sink: socket.socket,
        chunk: bytes,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        # Never block in the kernel, because ``cut`` could not close the socket then.
        rest = memoryview(chunk)
        while rest:
            if not self._is_open(pair):
                raise ConnectionAbortedError
            _, ready, _ = select.select([], [sink], [], _TICK_SECONDS)
            if not ready:
                continue
            rate = self._bytes_per_second
            piece = rest if rate is None else rest[: max(1, int(rate * _TICK_SECONDS))]
            sent = sink.send(piece, socket.MSG_DONTWAIT)
            rest = rest[sent:]
            if rate is not None:
                time.sleep(sent / rate)

    def _is_open(self, pair: tuple[socket.socket, socket.socket]) -> bool:
        with self._lock:
            return pair in self._pairs


def _close(end: socket.socket, *, reset: bool) -> None:
    with contextlib.suppress(OSError):
        if reset:
            # With a linger time of zero the kernel sends RST instead of FIN. A thread that
            # waits in recv keeps the socket open, so SHUT_RD wakes it without a FIN.
            linger = struct.pack("ii", 1, 0)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            end.shutdown(socket.SHUT_RD)
        else:
            end.shutdown(socket.SHUT_RDWR)
    end.close()
