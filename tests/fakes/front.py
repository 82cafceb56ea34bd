"""A port in front of a server. Comes in: a server's port. Goes out: a port of its own, each of
whose connections is one thread's, in ``_serve``, which ends it by returning.

Called by ``pooler_front`` and ``tls_front``.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from types import TracebackType
from typing import Self

CHUNK = 1 << 16


class Front:
    """A context manager; connections that are open at its end stay."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="front", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(
                    target=self._keep, args=(client,), name="front", daemon=True
                ).start()

    def _keep(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def _reach(self) -> socket.socket:
        """Another connection to the server."""
        return socket.create_connection(("127.0.0.1", self._target))


def readable(*sources: socket.socket) -> list[socket.socket]:
    """Those with something to read, waiting for the first; TLS may have it already."""
    for one in sources:
        if isinstance(one, ssl.SSLSocket) and one.pending():
            return [one]
    return select.select(sources, [], [])[0]


def pass_on(source: socket.socket, target: socket.socket) -> bool:
    """What is there to read; False: it has ended."""
    data = source.recv(CHUNK)
    if data:
        target.sendall(data)
    return bool(data)
