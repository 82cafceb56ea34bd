"""The listening sockets, which outlive the engine that serves them.

The supervisor binds and listens. The engine inherits the sockets and accepts. While an engine is
replaced, the kernel keeps new clients in the queue, so clients see a pause instead of a refusal,
and no other program can take the port.

Called by: supervisor. Source: PostgreSQL's pqcomm.c, ListenServerPort (order and texts).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

from wal2lake.errors import ConfigurationError

BACKLOG: Final = 200
"""Number of clients that the kernel keeps waiting. PostgreSQL uses twice max_connections; the
system's own limit may be lower."""

_ANY: Final = ("0.0.0.0", "::")

_FAMILIES: Final = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def open_listeners(addresses: str, port: int) -> list[socket.socket]:
    """Bind every address and listen; ConfigurationError with PostgreSQL's text.

    With ``port`` 0 the system chooses a port, the same for all addresses. An address that this
    machine does not have is skipped if another address works (``localhost`` may name an IPv6
    address on a machine without IPv6).
    """
    opened: list[socket.socket] = []
    skipped: ConfigurationError | None = None
    try:
        for family, host in _resolve(addresses, port):
            try:
                opened.append(_listen(family, host, port))
            except ConfigurationError as error:
                if not isinstance(error.__cause__, OSError) or (
                    error.__cause__.errno
                    not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
                ):
                    raise
                skipped = error
            if port == 0 and opened:
                port = opened[0].getsockname()[1]
        if not opened:
            raise skipped or ConfigurationError(
                "could not create any TCP/IP sockets",
                hint="Set listen_addresses to an address of this machine.",
            )
    except BaseException:
        for listener in opened:
            listener.close()
        raise
    return opened


def describe(listener: socket.socket) -> str:
    """Return a description: ``IPv4 address "127.0.0.1", port 5480``."""
    host, port = listener.getsockname()[:2]
    return f'{_FAMILIES[listener.family]} address "{host}", port {port}'


def reachable_address(listener: socket.socket) -> str:
    """Return an address by which a client on this machine reaches the socket."""
    host: str = listener.getsockname()[0]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _resolve(addresses: str, port: int) -> Iterator[tuple[socket.AddressFamily, str]]:
    seen: set[str] = set()
    for name in (part.strip() for part in addresses.split(",")):
        if not name:
            continue
        for host in _ANY if name == "*" else (name,):
            try:
                infos = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )
            except socket.gaierror as error:
                raise ConfigurationError(
                    f'could not translate host name "{host}" to address:'
                    f" {error.strerror}",
                    hint="Set listen_addresses to a name or address of this machine.",
                ) from error
            for family, _, _, _, address in infos:
                text = str(address[0])
                if family in _FAMILIES and text not in seen:
                    seen.add(text)
                    yield family, text


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Makes the port available again immediately after a stop.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f'could not bind {_FAMILIES[family]} address "{host}":'
            f" {os.strerror(error.errno or 0)}",
            hint=_hint(error, port),
        ) from error
    return listener


def _hint(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Is another server already running on port {port}? If not, wait a few"
            " seconds and retry; or choose another port with --listen HOST:PORT."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} needs privileges; choose one above 1023."
    return "Choose an address of this machine with --listen HOST:PORT."
