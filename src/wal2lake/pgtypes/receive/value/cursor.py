"""Reading the fields of one binary value, in order.

Comes in: the bytes. Goes out: the fields. A value that ends too early, or has remaining bytes, is
the error "incorrect binary data format" (22P03) of a receive function. Used by the other
modules of this room.

Source: pqformat.c (pq_getmsgint, pq_getmsgend).
"""

from __future__ import annotations

import struct

from wal2lake.errors import UsageError
from wal2lake.pgtypes.binary import incorrect_format

_INVALID_UTF8 = 'invalid byte sequence for encoding "UTF8"'


def decoded(data: bytes) -> str:
    """Decode text; 22021 for bytes that are not UTF-8 or contain NUL."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(_INVALID_UTF8, sqlstate="22021") from None
    if "\0" in text:
        raise UsageError(f"{_INVALID_UTF8}: 0x00", sqlstate="22021")
    return text


class ValueCursor:
    """A position in a value's bytes that moves forward."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """Number of remaining bytes."""
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        """Read the next bytes."""
        if not 0 <= count <= self.left:
            raise incorrect_format()
        data = self._data[self._position : self._position + count]
        self._position += count
        return data

    def number(self, layout: str) -> int:
        """Read one big-endian integer; ``layout`` is struct's letter."""
        (number,) = struct.unpack(f"!{layout}", self.take(struct.calcsize(layout)))
        return int(number)

    def sized(self) -> bytes | None:
        """Read an Int32 length and bytes; None for length -1."""
        length = self.number("i")
        return None if length == -1 else self.take(length)

    def string(self) -> str:
        """Read text up to a NUL, and skip the NUL."""
        end = self._data.find(b"\0", self._position)
        if end < 0:
            raise incorrect_format()
        text = decoded(self.take(end - self._position))
        self._position += 1
        return text

    def end(self) -> None:
        """Raise 22P03 if bytes remain."""
        if self.left:
            raise incorrect_format()
