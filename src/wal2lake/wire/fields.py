"""Fields of PostgreSQL's messages: integers big-endian, strings NUL-terminated.

In: the bytes of one whole message. Out: values of model's classes, or ProtocolViolation
with the message's name and the offset of the wrong byte. The writers are the inverse and
treat a value that does not fit as our own bug (InternalError).

No byte is skipped silently: at the end a reader calls ``end()``, which refuses trailing
bytes. Texts of the violations are those of PostgreSQL's pqformat.c.

Sources: PostgreSQL manual 54.9 ("Message Data Types"); src/backend/libpq/pqformat.c.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import Lsn, Oid, Xid

_UINT8 = struct.Struct(">B")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")

_Written = TypeVar("_Written")


def violation(problem: str, *, message: str, offset: int) -> ProtocolViolation:
    """Build the error for bytes that break the protocol; ``offset`` counts from the kind."""
    error = ProtocolViolation(
        problem, context=f'during message type "{message}" at byte {offset}'
    )
    error.offset = offset
    return error


class FieldReader:
    """A cursor over one message. ``name`` is the message's name in violations."""

    __slots__ = ("data", "name", "offset")

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.offset = 0

    def violation(
        self, problem: str, *, position: int | None = None
    ) -> ProtocolViolation:
        """Build the error to raise; ``position`` defaults to the cursor."""
        offset = self.offset if position is None else position
        return violation(problem, message=self.name, offset=offset)

    def _number(self, layout: struct.Struct) -> int:
        if self.offset + layout.size > len(self.data):
            raise self.violation("insufficient data left in message")
        value: int = layout.unpack_from(self.data, self.offset)[0]
        self.offset += layout.size
        return value

    def uint8(self) -> int:
        return self._number(_UINT8)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def oid(self) -> Oid:
        return Oid(self._number(_UINT32))

    def xid(self) -> Xid:
        return Xid(self._number(_UINT32))

    def uint32(self) -> int:
        return self._number(_UINT32)

    def uint64(self) -> int:
        return self._number(_UINT64)

    def lsn(self) -> Lsn:
        return Lsn(self._number(_UINT64))

    def flag(self) -> bool:
        """Read one byte that must be 0 or 1."""
        value = self.uint8()
        if value > 1:
            raise self.violation(
                f"unrecognized flag value {value}", position=self.offset - 1
            )
        return value == 1

    def raw(self, length: int) -> bytes:
        """Read exactly ``length`` bytes; a negative length is a violation."""
        if length < 0 or self.offset + length > len(self.data):
            raise self.violation("insufficient data left in message")
        start = self.offset
        self.offset += length
        return self.data[start : self.offset]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.raw(len(self.data) - self.offset)

    def string(self) -> str:
        """Read a NUL-terminated string in UTF-8, which is the client_encoding we request."""
        stop = self.data.find(b"\0", self.offset)
        if stop < 0:
            raise self.violation("invalid string in message")
        try:
            text = self.data[self.offset : stop].decode()
        except UnicodeDecodeError as error:
            raise self.violation(
                'invalid byte sequence for encoding "UTF8"',
                position=self.offset + error.start,
            ) from None
        self.offset = stop + 1
        return text

    def end(self) -> None:
        """Refuse trailing bytes."""
        if self.offset != len(self.data):
            raise self.violation("invalid message format")


def uint8(value: int) -> bytes:
    return _UINT8.pack(value)


def uint16(value: int) -> bytes:
    return _UINT16.pack(value)


def int32(value: int) -> bytes:
    return _INT32.pack(value)


def uint32(value: int) -> bytes:
    return _UINT32.pack(value)


def int64(value: int) -> bytes:
    return _INT64.pack(value)


def uint64(value: int) -> bytes:
    return _UINT64.pack(value)


def string(text: str) -> bytes:
    """Encode a String field."""
    if "\0" in text:
        raise InternalError("a string field cannot hold a NUL byte")
    return text.encode() + b"\0"


def written(write: Callable[[_Written], bytes], message: _Written) -> bytes:
    """Return ``write(message)``; a value that does not fit its field is our own bug."""
    try:
        return write(message)
    except (struct.error, UnicodeEncodeError) as error:
        raise InternalError(
            "a value does not fit its field of a message",
            original=f"{type(message).__name__}: {error}",
        ) from error
