"""Reading the fields of one binary value, in order.

Comes in: the bytes. Goes out: its fields. Whatever ends too early, or is not used up, is what
a receive function calls "incorrect binary data format" (22P03). Used by the other
modules of this room.

Source: pqformat.c (pq_getmsgint, pq_getmsgend).
"""

from __future__ import annotations

import struct

from wal2lake.errors import UsageError
from wal2lake.pgtypes.binary import incorrect_format

_INVALID_UTF8 = 'invalid byte sequence for encoding "UTF8"'


def decoded(data: bytes) -> str:
    """Text; 22021 for what is not UTF-8 or holds NUL."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(_INVALID_UTF8, sqlstate="22021") from None
    if "\0" in text:
        raise UsageError(f"{_INVALID_UTF8}: 0x00", sqlstate="22021")
    return text


class ValueCursor:
    """A place in a value's bytes that moves forward."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= self.left:
            raise incorrect_format()
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def number(self, layout: str) -> int:
        """One integer; ``layout`` is struct's letter, big-endian."""
        (found,) = struct.unpack(f"!{layout}", self.take(struct.calcsize(layout)))
        return int(found)

    def sized(self) -> bytes | None:
        """Int32 length and bytes; None for length -1."""
        length = self.number("i")
        return None if length == -1 else self.take(length)

    def string(self) -> str:
        """Text up to a NUL, which is stepped over."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise incorrect_format()
        text = decoded(self.take(end - self._at))
        self._at += 1
        return text

    def end(self) -> None:
        """Everything must have been read."""
        if self.left:
            raise incorrect_format()
