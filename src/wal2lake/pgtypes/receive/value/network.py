"""inet, cidr and hardware addresses: one binary value to text. Called through ``scalar``.

Sources: network_send and network_out in network.c; inet_net_ntop.c; macaddr_out.
"""

from __future__ import annotations

from wal2lake.pgtypes.binary import incorrect_format
from wal2lake.pgtypes.decode.addresses import shown_address
from wal2lake.pgtypes.receive.value.cursor import ValueCursor

_INET, _INET6 = 2, 3
"""PGSQL_AF_INET and PGSQL_AF_INET6, the same on every platform."""


def read_inet(data: bytes) -> str:
    """inet prints the mask only if it is shorter than the address."""
    return _address(data, is_cidr=False)


def read_cidr(data: bytes) -> str:
    """cidr always prints the mask."""
    return _address(data, is_cidr=True)


def _address(data: bytes, *, is_cidr: bool) -> str:
    cursor = ValueCursor(data)
    family, bits, cidr, size = cursor.take(4)
    address = cursor.take(size)
    cursor.end()
    width = {_INET: 4, _INET6: 16}.get(family)
    if size != width or bits > 8 * size or bool(cidr) != is_cidr:
        raise incorrect_format()
    text = shown_address(address)
    return text if bits == 8 * size and not is_cidr else f"{text}/{bits}"


def read_macaddr(data: bytes) -> str:
    """6 bytes."""
    return _hardware(data, 6)


def read_macaddr8(data: bytes) -> str:
    """8 bytes."""
    return _hardware(data, 8)


def _hardware(data: bytes, size: int) -> str:
    if len(data) != size:
        raise incorrect_format()
    return data.hex(":")
