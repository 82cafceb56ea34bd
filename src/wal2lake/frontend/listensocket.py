"""The listening socket, apart from what serves it.

In: an address. Out: a bound socket, or ConfigurationError in PostgreSQL's words. The
supervisor opens it and hands its descriptor to the engine, so the port survives an
engine restart and clients are told "starting up" instead of being refused; hence nothing but
the standard library is imported here.

Source: src/backend/libpq/pqcomm.c (ListenServerPort).
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from wal2lake.errors import ConfigurationError

_BACKLOG: Final = 200
"""Connections waiting to be accepted; PostgreSQL takes twice max_connections."""

_FAMILIES: Final = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Bind and listen. ``host``: a name, an address, or ``*``; ``port`` 0: any free one.

    A name with several addresses is bound at the first that can be, IPv4 first.
    """
    failure: ConfigurationError | None = None
    for family, address in _addresses(host, port):
        try:
            return _listen(family, address)
        except OSError as error:
            failure = failure or _could_not_bind(family, address, error)
    assert failure is not None
    raise failure


def inherited_socket(descriptor: int) -> socket.socket:
    """The socket behind a descriptor that the supervisor left open for us."""
    return socket.socket(fileno=descriptor)


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    name = "0.0.0.0" if host in ("*", "") else host
    try:
        found = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigurationError(
            f'could not translate host name "{host}", service "{port}" to address: '
            f"{error.strerror}",
            hint="Check the host of the listen address.",
        ) from None
    known = [
        (int(family), (str(address[0]), int(address[1])))
        for family, _, _, _, address in found
        if family in _FAMILIES
    ]
    return sorted(dict.fromkeys(known), key=lambda entry: entry[0] != socket.AF_INET)


def _listen(family: int, address: tuple[str, int]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of the last run in TIME_WAIT must not block the next one.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        with contextlib.suppress(OSError):
            listening.close()
        raise
    return listening


def _could_not_bind(
    family: int, address: tuple[str, int], error: OSError
) -> ConfigurationError:
    kind = _FAMILIES[socket.AddressFamily(family)]
    return ConfigurationError(
        f'could not bind {kind} address "{address[0]}": {error.strerror}',
        hint=f"Is another server already running on port {address[1]}? If not, wait a "
        "few seconds and retry, or choose another port with --listen HOST:PORT.",
    )
