"""The binary form of single values of types that tables store as text: ``FROM_TEXT``.

Comes in: a value's canonical text, as bytes. Goes out: the output of the type's send function.
Called by ``encode.binary``; the readers are in ``receive.value`` and ``pgtypes.binary``.

Sources: inet_send, macaddr_send, bit_send, timetz_send, jsonpath_send, cash_send, the send
functions of geo_ops.c in src/backend/utils/adt.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

from wal2lake.pgtypes.binary import (
    char_to_binary,
    jsonb_to_binary,
    numeric_to_binary,
    uuid_to_binary,
    vector_to_binary,
)
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.encode.textsearch import tsquery_to_binary, tsvector_to_binary

_FAMILIES = MappingProxyType({4: 2, 6: 3})
"""PGSQL_AF_INET, PGSQL_AF_INET6."""
_NUMBER = re.compile(rb"[^][(){}<>,]+")
_MONEY = re.compile(rb"(-?)\$(\d{1,3}(?:,\d{3})*)\.(\d\d)")
_OFFSET = re.compile(rb"[+-]")


def _pg_lsn(text: bytes) -> bytes:
    high, _, low = text.partition(b"/")
    return struct.pack("!Q", int(high, 16) << 32 | int(low, 16))


def _microseconds(text: bytes) -> int:
    hours, minutes, seconds = text.split(b":")
    whole, _, fraction = seconds.partition(b".")
    clock = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return clock * 1_000_000 + int(fraction.ljust(6, b"0"))


def _time(text: bytes) -> bytes:
    return struct.pack("!q", _microseconds(text))


def _timetz(text: bytes) -> bytes:
    """Encode a timetz; the offset is sent in seconds west of UTC."""
    match = _OFFSET.search(text)
    assert match is not None
    parts = [int(part) for part in text[match.end() :].split(b":")]
    hours, minutes, seconds = [*parts, 0, 0][:3]
    offset = (hours * 60 + minutes) * 60 + seconds
    west = offset if match[0] == b"-" else -offset
    return struct.pack("!qi", _microseconds(text[: match.start()]), west)


def _address(is_cidr: int) -> Callable[[bytes], bytes]:
    def write(text: bytes) -> bytes:
        interface = ipaddress.ip_interface(text.decode())
        address = interface.ip.packed
        family, bits = _FAMILIES[interface.version], interface.network.prefixlen
        return bytes((family, bits, is_cidr, len(address))) + address

    return write


def _mac(text: bytes) -> bytes:
    return bytes.fromhex(text.replace(b":", b"").decode())


def _money(text: bytes) -> bytes:
    """Encode money in the format of lc_monetary C; the unit of other locales is not known."""
    match = _MONEY.fullmatch(text)
    if match is None:
        raise ValueError("not in the format of C")
    digits = (match[1] + match[2] + match[3]).replace(b",", b"")
    return struct.pack("!q", int(digits))


def _bits(text: bytes) -> bytes:
    size = (len(text) + 7) // 8
    value = int(text.ljust(size * 8, b"0") or b"0", 2)
    return struct.pack("!i", len(text)) + value.to_bytes(size, "big")


def _numbers(text: bytes) -> bytes:
    numbers = [float(number) for number in _NUMBER.findall(text)]
    return struct.pack(f"!{len(numbers)}d", *numbers)


def _polygon(text: bytes) -> bytes:
    numbers = _numbers(text)
    return struct.pack("!i", len(numbers) // 16) + numbers


def _path(text: bytes) -> bytes:
    return bytes((text[:1] == b"(",)) + _polygon(text)


FROM_TEXT: Mapping[int, Callable[[bytes], bytes]] = MappingProxyType(
    {
        18: lambda text: char_to_binary(text.decode()),
        22: lambda text: vector_to_binary(21, text.decode()),
        30: lambda text: vector_to_binary(26, text.decode()),
        600: _numbers,
        601: _numbers,
        602: _path,
        603: _numbers,
        604: _polygon,
        628: _numbers,
        650: _address(1),
        718: _numbers,
        774: _mac,
        790: _money,
        829: _mac,
        869: _address(0),
        1083: _time,
        1186: lambda text: interval_of(text.decode()).to_binary(),
        1266: _timetz,
        1560: _bits,
        1562: _bits,
        1700: lambda text: numeric_to_binary(text.decode()),
        2950: lambda text: uuid_to_binary(text.decode()),
        3220: _pg_lsn,
        3614: tsvector_to_binary,
        3615: tsquery_to_binary,
        3802: jsonb_to_binary,
        4072: jsonb_to_binary,
    }
)
"""Writers by type. A jsonpath is sent with a version, like jsonb."""
