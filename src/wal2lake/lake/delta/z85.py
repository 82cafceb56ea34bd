"""Encodes and decodes Z85, the text form of bytes in Delta's log (ZeroMQ RFC 32)."""

from __future__ import annotations

import string
from typing import Final

_DIGITS: Final = (
    string.digits
    + string.ascii_lowercase
    + string.ascii_uppercase
    + ".-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}


def encode_z85(data: bytes) -> str:
    """Encode bytes whose number is a multiple of four."""
    if len(data) % 4:
        raise ValueError("Z85 encodes a multiple of four bytes")
    text = []
    for start in range(0, len(data), 4):
        value = int.from_bytes(data[start : start + 4], "big")
        digits = [""] * 5
        for place in range(4, -1, -1):
            value, digit = divmod(value, 85)
            digits[place] = _DIGITS[digit]
        text += digits
    return "".join(text)


def decode_z85(text: str) -> bytes:
    """Decode text; ValueError if it is not Z85."""
    if len(text) % 5:
        raise ValueError("Z85 text has a multiple of five characters")
    decoded = bytearray()
    for start in range(0, len(text), 5):
        value = 0
        for character in text[start : start + 5]:
            if character not in _VALUES:
                raise ValueError(f"character {character!r} is not Z85")
            value = value * 85 + _VALUES[character]
        if value >= 1 << 32:
            raise ValueError("Z85 group is out of range")
        decoded += value.to_bytes(4, "big")
    return bytes(decoded)
