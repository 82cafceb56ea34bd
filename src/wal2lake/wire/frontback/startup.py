"""The packets before authentication: a length and a code, without a kind byte.

In: the first bytes of a connection. Out: one of four packets: a StartupMessage, one of two
requests for encryption (answered with one byte, after which the client sends another packet), or
a CancelRequest, which is the only packet of its connection.

The limit of 10,000 bytes is PostgreSQL's. Because of the limit a web browser's "GET " is refused
as an invalid length, without buffering.

Source: PostgreSQL manual, section 54.2.1 and 54.7; src/backend/tcop/backend_startup.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.frontback.frames import Body, int32, string, uint16, uint32

MAX_STARTUP_PACKET_BYTES: Final = 10_000
"""MAX_STARTUP_PACKET_LENGTH, without the length word itself."""

_CANCEL_CODE: Final = 1234 << 16 | 5678
_SSL_CODE: Final = 1234 << 16 | 5679
_GSSENC_CODE: Final = 1234 << 16 | 5680

PROTOCOL_OPTION_PREFIX: Final = b"_pq_."
"""Parameters with this prefix are options of the protocol, not settings."""


@dataclass(frozen=True, slots=True)
class SSLRequest:
    """The client requests TLS."""


@dataclass(frozen=True, slots=True)
class GSSENCRequest:
    """The client requests GSSAPI encryption."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The client requests to cancel another session's statement. There is no answer."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """Begin a session. ``parameters`` are in the client's order; of equal names the last wins."""

    major: int
    minor: int
    parameters: Mapping[bytes, bytes]

    @property
    def protocol_options(self) -> tuple[bytes, ...]:
        """Names of the ``_pq_.`` options, in the client's order."""
        return tuple(n for n in self.parameters if n.startswith(PROTOCOL_OPTION_PREFIX))


StartupPacket = StartupMessage | SSLRequest | GSSENCRequest | CancelRequest


def write_startup(packet: StartupPacket) -> bytes:
    """Encode a packet with its length word."""
    if isinstance(packet, SSLRequest):
        body = uint32(_SSL_CODE)
    elif isinstance(packet, GSSENCRequest):
        body = uint32(_GSSENC_CODE)
    elif isinstance(packet, CancelRequest):
        body = uint32(_CANCEL_CODE) + int32(packet.pid) + packet.secret
    else:
        pairs = (string(n) + string(v) for n, v in packet.parameters.items())
        version = uint16(packet.major) + uint16(packet.minor)
        body = version + b"".join(pairs) + b"\0"
    return int32(len(body) + 4) + body


def read_startup(body: bytes) -> StartupPacket:
    """Read a packet without its length word; raises ProtocolViolation.

    Only protocol 3 defines the bytes after the version, so a packet of another major version is
    returned without parameters.
    """
    cursor = Body(body)
    code = cursor.uint32()
    if code == _SSL_CODE and cursor.at_end:
        return SSLRequest()
    if code == _GSSENC_CODE and cursor.at_end:
        return GSSENCRequest()
    if code == _CANCEL_CODE:
        pid = cursor.int32()
        secret = cursor.rest()
        if not secret:
            raise ProtocolViolation("invalid length of query cancel packet")
        return CancelRequest(pid, secret)
    major, minor = code >> 16, code & 0xFFFF
    if major != 3:
        return StartupMessage(major, minor, {})
    return StartupMessage(major, minor, _read_parameters(cursor))


def _read_parameters(cursor: Body) -> dict[bytes, bytes]:
    layout = "invalid startup packet layout: expected terminator as last byte"
    parameters: dict[bytes, bytes] = {}
    try:
        while name := cursor.string():
            parameters[name] = cursor.string()
    except ProtocolViolation:
        raise cursor.violation(layout) from None
    if not cursor.at_end:
        raise cursor.violation(layout)
    return parameters
