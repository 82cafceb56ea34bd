"""inet, cidr and hardware addresses: one binary value to text. Called through ``scalar``.

Sources: network_send and network_out in network.c; inet_net_ntop.c; macaddr_out.
"""

from __future__ import annotations

from wal2lake.pgtypes.binary import incorrect_format
from wal2lake.pgtypes.receive.value.cursor import Cursor

_INET, _INET6 = 2, 3
"""PGSQL_AF_INET and PGSQL_AF_INET6, the same on every platform."""


def read_inet(data: bytes) -> str:
    """inet shows the mask only if it is not the whole address."""
    return _address(data, is_cidr=False)


def read_cidr(data: bytes) -> str:
    """cidr always shows it."""
    return _address(data, is_cidr=True)


def _address(data: bytes, *, is_cidr: bool) -> str:
    cursor = Cursor(data)
    family, bits, cidr, size = cursor.take(4)
    address = cursor.take(size)
    cursor.end()
    width = {_INET: 4, _INET6: 16}.get(family)
    if size != width or bits > 8 * size or bool(cidr) != is_cidr:
        raise incorrect_format()
    text = ".".join(map(str, address)) if family == _INET else _ipv6(address)
    return text if bits == 8 * size and not is_cidr else f"{text}/{bits}"


def _ipv6(address: bytes) -> str:
    words = [int.from_bytes(address[at : at + 2]) for at in range(0, 16, 2)]
    start, length = _longest_zeros(words)
    embedded = start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    shown = [f"{word:x}" for word in words]
    if embedded:
        shown[6:] = [".".join(map(str, address[12:]))]
    if not length:
        return ":".join(shown)
    return ":".join(shown[:start]) + "::" + ":".join(shown[start + length :])


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """The first longest run of at least two zeros: (start, length), or (0, 0)."""
    best = (0, 0)
    start = 0
    for at, word in enumerate((*words, 1)):
        if word:
            if at - start > max(best[1], 1):
                best = (start, at - start)
            start = at + 1
    return best


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
