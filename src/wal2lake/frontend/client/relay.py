"""A client's encrypted bytes on one side, their plain ones on the other.

In: a TCP socket whose TLS handshake is done, one end of a socket pair. Out: bytes, both ways, in a
thread of its own, until either side has closed. Whoever holds the other end of the pair (a session,
or the process of a walsender) reads and writes as without TLS; back-pressure passes through, for no
more is read from one side than the other has taken.
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
    """Owns both sockets from ``start`` on."""

    def __init__(
        self,
        client: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        plain: socket.socket,
    ) -> None:
        """Non-blocking sockets; ``incoming`` and ``outgoing`` are those of ``tls``, and may hold
        what came with the handshake's last bytes."""
        self._client, self._plain = client, plain
        self._tls, self._incoming, self._outgoing = tls, incoming, outgoing
        self._up = bytearray()
        """To the node, plain."""
        self._down = bytearray()
        """To the client, encrypted."""
        self._client_reads = self._node_reads = True
        """Neither has said that nothing more will come."""

    def start(self) -> None:
        """Pass on from now on."""
        threading.Thread(target=self._run, name="tls", daemon=True).start()

    def _run(self) -> None:
        try:
            self._decrypt()
            while self._step():
                pass
        except (OSError, ssl.SSLError):
            # One side is gone, or sends what is no TLS: the other sees the end.
            pass
        finally:
            self._client.close()
            self._plain.close()

    def _step(self) -> bool:
        """Wait for one of them and do what can be done; False: all is said."""
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
            # The other end of the pair is closed: what it has said last still goes out.
            self._node_reads = False
            self._ignore_client()
        self._send(self._client, self._down)
        try:
            self._send(self._plain, self._up)
        except BrokenPipeError:
            # Its reader was woken, and has more to say.
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
                # close_notify; the client's own is not waited for.
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
