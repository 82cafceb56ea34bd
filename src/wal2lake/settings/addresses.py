"""Addresses of the web process: ``HOST:PORT``, comma-separated.

Takes the text of ``[web] listen``; returns hosts and ports, or raises ConfigurationError. Whether a
host is this machine alone is decided by its text: a name other than ``localhost`` counts as
reachable from elsewhere, since what it resolves to may change.

Called by: ``loading`` (a check of every start and reload), the web process.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import ConfigurationError

_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """One address to listen on."""

    host: str
    """Name or IP address; ``*`` for all addresses of the machine."""
    port: int
    """TCP port; 0 lets the system choose."""

    @property
    def is_loopback(self) -> bool:
        """True if only programs on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_web_listen(text: str) -> tuple[ListenAddress, ...]:
    """Parse ``HOST:PORT, [IPV6]:PORT, *:PORT``; empty for an empty text."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(_parse(part) for part in parts if part))


def _parse(text: str) -> ListenAddress:
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if not separator or not host or not digits or int(port) > _PORT_MAX:
        raise ConfigurationError(
            f'invalid value for parameter "web.listen": "{text}"',
            hint="Name each address with its port, as in 127.0.0.1:5481, [::1]:5481 or *:5481;"
            " several with commas between them, an empty text for none.",
        )
    return ListenAddress(host, int(port))


def check_web_listen(text: str, *, ssl: bool) -> None:
    """Raise ConfigurationError if the addresses are invalid, or need TLS that is off."""
    exposed = [a for a in parse_web_listen(text) if not a.is_loopback]
    if exposed and not ssl:
        raise ConfigurationError(
            f'parameter "web.listen" names the address "{exposed[0]}", which needs TLS, but'
            ' "node.ssl" is off',
            detail="Clients on other machines send a role's password to the web process.",
            hint='Set "ssl", "ssl_cert_file" and "ssl_key_file" of [node], or listen on'
            " 127.0.0.1 alone.",
        )
