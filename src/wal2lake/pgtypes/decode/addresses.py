"""Network addresses in PostgreSQL's output form.

Comes in: the bytes of an address. Goes out: its text, without a mask. Called by ``inputs``, and by
the conversion of binary values.

Source: inet_net_ntop.c.
"""

from __future__ import annotations


def shown_address(address: bytes) -> str:
    """Write an address of 4 or 16 bytes."""
    return ".".join(map(str, address)) if len(address) == 4 else _ipv6(address)


def _ipv6(address: bytes) -> str:
    words = [int.from_bytes(address[offset : offset + 2]) for offset in range(0, 16, 2)]
    start, length = _longest_zeros(words)
    embedded = start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    shown = [f"{word:x}" for word in words]
    if embedded:
        shown[6:] = [".".join(map(str, address[12:]))]
    if not length:
        return ":".join(shown)
    return ":".join(shown[:start]) + "::" + ":".join(shown[start + length :])


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Find the first longest run of at least two zeros: (start, length), or (0, 0)."""
    best = (0, 0)
    start = 0
    for index, word in enumerate((*words, 1)):
        if word:
            if index - start > max(best[1], 1):
                best = (start, index - start)
            start = index + 1
    return best
