"""Relays bytes between a client's TLS connection and a plain socket.

Comes in: a TCP socket after its TLS handshake, and one end of a socket pair. A thread passes bytes
in both directions until either side is closed. The owner of the other end of the pair (a session,
or the process of a walsender) reads and writes as without TLS. Back-pressure passes through: the
thread does not read from one side until the other side has taken the bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from typing import Final

_CHUNK_BYTES: Final = 64 * 1024


class Relay:
    """The relay of one connection; it owns both sockets from ``start`` on."""

    def __init__(
        self,
        client: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        plain: socket.socket,
    ) -> None:
        """Both sockets are non-blocking. ``incoming`` and ``outgoing`` are the buffers of ``tls``,
        and may hold bytes that came with the end of the handshake."""
        self._client, self._plain = client, plain
        self._tls, self._incoming, self._outgoing = tls, incoming, outgoing
        self._up = bytearray()
        """Plain bytes for the node."""
        self._down = bytearray()
        """Encrypted bytes for the client."""
        self._client_reads = self._node_reads = True
        """False once that side has closed its direction."""

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="tls", daemon=True).start()

    def _run(self) -> None:
        try:
            self._decrypt()
            while self._step():
                pass
        except (OSError, ssl.SSLError):
            # One side is gone, or has sent no valid TLS: the other side sees the end.
            pass
        finally:
            self._client.close()
            self._plain.close()

    def _step(self) -> bool:
        """Wait for a side to become ready and pass on bytes; False when both have ended."""
        poll = select.poll()
        reads = self._client_reads and not self._up
        poll.register(
            self._client,
            (select.POLLIN if reads else 0) | (select.POLLOUT if self._down else 0),
        )
        reads = self._node_reads and not self._down
        poll.register(
            self._plain,
            (select.POLLIN if reads else 0) | (select.POLLOUT if self._up else 0),
        )
        ready = dict(poll.poll())
        client = ready.get(self._client.fileno(), 0)
        plain = ready.get(self._plain.fileno(), 0)
        if client & select.POLLIN:
            self._from_client()
        elif client & (select.POLLHUP | select.POLLERR):
            return False
        if plain & select.POLLIN:
            self._from_node()
        elif plain & (select.POLLHUP | select.POLLERR):
            # The other end of the pair is closed: its last bytes are still sent.
            self._node_reads = False
            self._ignore_client()
        self._send(self._client, self._down)
        try:
            self._send(self._plain, self._up)
        except BrokenPipeError:
            # The reader was woken by a shutdown of its side, and may still write.
            self._ignore_client()
        if not self._client_reads and not self._up:
            with contextlib.suppress(OSError):
                self._plain.shutdown(socket.SHUT_WR)
        return self._client_reads or self._node_reads or bool(self._down or self._up)

    def _from_client(self) -> None:
        data = self._client.recv(_CHUNK_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self._decrypt()

    def _decrypt(self) -> None:
        while True:
            try:
                data = self._tls.read(_CHUNK_BYTES)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                data = b""
            if not data:
                self._client_reads = False
                break
            self._up += data
        self._down += self._outgoing.read()

    def _from_node(self) -> None:
        data = self._plain.recv(_CHUNK_BYTES)
        if data:
            self._tls.write(data)
        else:
            self._node_reads = False
            with contextlib.suppress(ssl.SSLError):
                # Send close_notify, without waiting for the client's.
                self._tls.unwrap()
        self._down += self._outgoing.read()

    def _ignore_client(self) -> None:
        self._client_reads = False
        self._up.clear()

    @staticmethod
    def _send(to: socket.socket, data: bytearray) -> None:
        if data:
            with contextlib.suppress(BlockingIOError):
                del data[: to.send(data)]
