"""Framing: a kind byte, a length that counts itself, a body.

In: bytes from a socket, divided anywhere. Out: whole frames. Every message after the startup
packet has this form in both directions, so one reader serves both; a table has the kinds and
their maximal lengths.

A length is checked as soon as its header is complete, before any of the body is buffered, so that
five hostile bytes cannot allocate a gigabyte of memory. After a violation the next message cannot
be found, so the reader stays broken, as PostgreSQL's does ("protocol synchronization was lost"). A
violation *inside* a whole frame, which ``Body`` raises, leaves the stream usable; the server
answers it with an ordinary error.

Source: PostgreSQL manual, section 54.7; src/backend/tcop/postgres.c (SocketBackend),
src/backend/libpq/pqformat.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import ProtocolViolation

_INT16 = struct.Struct("!h")
_UINT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")
_HEADER = struct.Struct("!ci")

SMALL_MESSAGE_BYTES: Final = 10_000
"""Limit for messages that have names only; PostgreSQL's PQ_SMALL_MESSAGE_LIMIT."""

LARGE_MESSAGE_BYTES: Final = 0x3FFFFFFE
"""PostgreSQL's PQ_LARGE_MESSAGE_LIMIT, MaxAllocSize - 1; our server sets a lower limit."""

_COMPACT_BYTES: Final = 64 * 1024
"""Consumed bytes are removed from the buffer in steps of this size. Chosen arbitrarily: one read
of a socket."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole message with its undecoded body."""

    kind: bytes
    body: bytes

    def encode(self) -> bytes:
        """Encode the frame."""
        return write_frame(self.kind, self.body)


def write_frame(kind: bytes, body: bytes) -> bytes:
    """Encode one frame; ``kind`` is a single byte."""
    return _HEADER.pack(kind, len(body) + 4) + body


class FrameReader:
    """Reads frames from bytes. Buffers at most the bytes that were fed and not read."""

    __slots__ = ("_broken", "_buffer", "_limits", "_peer", "_start")

    def __init__(self, limits: Mapping[bytes, int], *, peer: str) -> None:
        self._limits = limits
        self._peer = peer
        self._buffer = bytearray()
        self._start = 0
        self._broken: ProtocolViolation | None = None

    def feed(self, data: bytes) -> None:
        """Append bytes from the socket."""
        self._buffer += data

    @property
    def buffered(self) -> int:
        """Number of bytes that were fed and not yet returned."""
        return len(self._buffer) - self._start

    def take_rest(self) -> bytes:
        """Remove and return all buffered bytes."""
        rest = bytes(self._buffer[self._start :])
        self._buffer.clear()
        self._start = 0
        return rest

    @property
    def next_kind(self) -> bytes:
        """Kind of the next frame; empty if nothing is buffered."""
        return bytes(self._buffer[self._start : self._start + 1])

    def next_frame(self) -> Frame | None:
        """Return the next whole message, or None until more is fed.

        Raises ProtocolViolation for an unknown kind or an impossible length, and at every later
        call.
        """
        if self._broken is not None:
            raise self._broken
        available = self.buffered
        if available == 0:
            return None
        kind = bytes(self._buffer[self._start : self._start + 1])
        limit = self._limits.get(kind)
        if limit is None:
            raise self._break(f"invalid {self._peer} message type {kind[0]}")
        if available < 5:
            return None
        (length,) = _INT32.unpack_from(self._buffer, self._start + 1)
        if not 4 <= length <= limit:
            raise self._break("invalid message length")
        if available < length + 1:
            return None
        end = self._start + 1 + length
        body = bytes(memoryview(self._buffer)[self._start + 5 : end])
        self._consume(end)
        return Frame(kind, body)

    def _consume(self, end: int) -> None:
        if end == len(self._buffer):
            # A new buffer, so that an idle connection does not keep its largest message allocated.
            self._buffer = bytearray()
            self._start = 0
        elif end >= _COMPACT_BYTES:
            del self._buffer[:end]
            self._start = 0
        else:
            self._start = end

    def _break(self, message: str) -> ProtocolViolation:
        self._broken = ProtocolViolation(message)
        self._buffer = bytearray()
        self._start = 0
        return self._broken


class Body:
    """A cursor over one message body; every short read is a ProtocolViolation."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _advance(self, count: int) -> int:
        start = self._at
        if count < 0 or start + count > len(self._data):
            raise self.violation("insufficient data left in message")
        self._at = start + count
        return start

    def violation(self, message: str) -> ProtocolViolation:
        """Build a ProtocolViolation with the position in the body."""
        error = ProtocolViolation(message)
        error.offset = self._at
        return error

    def byte(self) -> bytes:
        """Byte1."""
        start = self._advance(1)
        return self._data[start : start + 1]

    def uint8(self) -> int:
        """Int8."""
        return self._data[self._advance(1)]

    def int16(self) -> int:
        """Int16, signed."""
        value: int = _INT16.unpack_from(self._data, self._advance(2))[0]
        return value

    def uint16(self) -> int:
        """Int16 as a count, which PostgreSQL reads unsigned, up to 65535."""
        value: int = _UINT16.unpack_from(self._data, self._advance(2))[0]
        return value

    def int32(self) -> int:
        """Int32, signed."""
        value: int = _INT32.unpack_from(self._data, self._advance(4))[0]
        return value

    def uint32(self) -> int:
        """An OID."""
        value: int = _UINT32.unpack_from(self._data, self._advance(4))[0]
        return value

    def take(self, count: int) -> bytes:
        """Byte(count)."""
        start = self._advance(count)
        return self._data[start : start + count]

    def value(self) -> bytes | None:
        """An Int32 length and that many bytes; length -1 is NULL."""
        length = self.int32()
        if length == -1:
            return None
        return self.take(length)

    def string(self) -> bytes:
        """String: up to and without its NUL."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.violation("invalid string in message")
        text = self._data[self._at : end]
        self._at = end + 1
        return text

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        start, self._at = self._at, len(self._data)
        return self._data[start:]

    @property
    def at_end(self) -> bool:
        """True if no bytes are left."""
        return self._at == len(self._data)

    def end(self) -> None:
        """Raise ProtocolViolation if bytes are left."""
        if self._at != len(self._data):
            raise self.violation("invalid message format")


def int16(value: int) -> bytes:
    """Int16, signed."""
    return _INT16.pack(value)


def uint16(value: int) -> bytes:
    """A count."""
    return _UINT16.pack(value)


def int32(value: int) -> bytes:
    """Int32, signed."""
    return _INT32.pack(value)


def uint32(value: int) -> bytes:
    """An OID."""
    return _UINT32.pack(value)


def string(text: bytes) -> bytes:
    """String. Raises ValueError for a NUL in it, which is a bug of the caller."""
    if b"\0" in text:
        raise ValueError("a protocol string cannot contain NUL")
    return text + b"\0"


def value(data: bytes | None) -> bytes:
    """A length-prefixed value; None is NULL."""
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data
