"""A connection pooler in front of a server, as far as clients notice.

Comes in: the port of a PostgreSQL that trusts everybody. Goes out: a port that behaves as PgBouncer
does (``old``: before 1.20; else after 1.23): the process number that it tells is its own, a
replication connection is refused or passed on, ``options`` are refused or dropped in silence.

With ``transactions`` ordinary clients meet another server connection in each transaction: two take
turns. With ``single`` one of them is served at a time, and the others wait. One thread a
connection.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading

from tests.fakes.front import Front, pass_on, readable

_SSL = 80877103
_GSS = 80877104
_CANCEL = 80877102


class PoolerFront(Front):
    """See the header. A context manager."""

    def __init__(
        self,
        port: int,
        *,
        old: bool = False,
        transactions: bool = False,
        single: bool = False,
    ) -> None:
        self._old = old
        self._transactions = transactions
        self._room = threading.Lock() if single else None
        self._invented = itertools.count(1_500_000_000)
        super().__init__(port)

    def _serve(self, client: socket.socket) -> None:
        given = _startup(client)
        if given is None:
            return
        for name in ("replication", "options"):
            if self._old and name in given:
                _refuse(client, f"unsupported startup parameter: {name}")
                return
        given.pop("options", None)
        pool = 2 if self._transactions and "replication" not in given else 1
        servers = [self._open(given) for _ in range(pool)]
        with contextlib.ExitStack() as held:
            for server, _ in servers:
                held.enter_context(server)
            client.sendall(self._greeting(servers[0][1]))
            if self._room is not None and "replication" not in given:
                held.enter_context(self._room)
            self._turns(client, [server for server, _ in servers])

    def _open(self, given: dict[str, str]) -> tuple[socket.socket, bytes]:
        """A server connection, and all that it says up to its first ReadyForQuery."""
        server = self._reach()
        pairs = b"".join(f"{k}\0{v}\0".encode() for k, v in given.items()) + b"\0"
        server.sendall(struct.pack("!ii", len(pairs) + 8, 196608) + pairs)
        said = b""
        while True:
            kind, body = _message(server)
            said += kind + struct.pack("!i", len(body) + 4) + body
            if kind == b"Z":
                return server, said

    def _greeting(self, said: bytes) -> bytes:
        at = said.index(b"K\0\0\0\x0c")
        return said[: at + 5] + struct.pack("!i", next(self._invented)) + said[at + 9 :]

    def _turns(self, client: socket.socket, servers: list[socket.socket]) -> None:
        """Pass on; a server that says that no transaction is open makes room for the next."""
        turn = itertools.cycle(servers)
        server = next(turn)
        while True:
            for source in readable(client, server):
                if source is client or len(servers) == 1:
                    if not pass_on(source, server if source is client else client):
                        return
                else:
                    kind, body = _message(server)
                    client.sendall(kind + struct.pack("!i", len(body) + 4) + body)
                    if kind + body == b"ZI":
                        server = next(turn)
                        break


def _startup(client: socket.socket) -> dict[str, str] | None:
    """None: a CancelRequest, of a process that only the pooler knows."""
    while True:
        length, code = struct.unpack("!ii", _exactly(client, 8))
        if code in (_SSL, _GSS):
            client.sendall(b"N")
            continue
        if code == _CANCEL:
            return None
        words = _exactly(client, length - 8).decode().rstrip("\0").split("\0")
        return dict(zip(words[::2], words[1::2], strict=True))


def _refuse(client: socket.socket, text: str) -> None:
    body = f"SFATAL\0C08P01\0M{text}\0\0".encode()
    client.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, 5)
    return head[:1], _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = source.recv(count - len(found))
        if not data:
            raise EOFError
        found += data
    return found
