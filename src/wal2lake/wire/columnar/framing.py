"""A run of XLogData payloads as columns of numbers.

In: ``data``, the payloads of n CopyData messages one after the other, and ``lengths``,
their n lengths. Out: Frames, which finds fixed-size fields of many messages at once.

NumPy reads the raw buffer because a Python object for a message costs a microsecond, and a gather
of one field of one message three nanoseconds. A view of the buffer with a 64-bit word at *every*
byte (stride 1) allows one fancy index to read unaligned fields.

This module does not find out which rule bad bytes break, only that they break one (Suspect); the
caller then uses the scalar wire/stream.py to find the rule.
"""

from __future__ import annotations

import sys
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import Lsn
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.pgoutput import read_message
from wal2lake.wire.stream import StreamReader, StreamState, read_header

Bools: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

SIZE_LIMIT: Final = 1 << 31
"""Bytes in one run: Arrow's binary arrays have 32-bit offsets."""

_SHORTEST: Final = XLOGDATA_HEADER + 1
COMMIT_LENGTH: Final = 26
"""Bytes of a Commit message."""
_XID_BYTES: Final = 4
_SEND_TIME: Final = 17
"""Position of the publisher's clock in an XLogData."""


class Suspect(Exception):
    """The bytes break a rule; the scalar reader finds out which one."""


def require(condition: bool | np.bool_) -> None:
    """Raise Suspect unless the condition holds."""
    if not condition:
        raise Suspect


def where(mask: Bools) -> Ints:
    """Return the positions at which the mask is true."""
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def explain(
    data: bytes, lengths: NDArray[np.uint32], state: StreamState, skip_below: Lsn
) -> ProtocolViolation:
    """Return the violation in a suspect run, found message by message.

    ``state`` is the state before the run; it is changed.
    """
    reader = StreamReader(state, skip_below=skip_below)
    start = 0
    for length in lengths.tolist():
        try:
            reader.read(data[start : start + length])
        except ProtocolViolation as error:
            return error
        start += length
    raise InternalError("the columnar decoder refuses what the scalar reader accepts")


class Frames:
    """The messages of one run. All positions are byte offsets into ``data``.

    Raises Suspect if a payload is not an XLogData with a message, InternalError if the
    lengths do not add up (they are ours, not the peer's).
    """

    __slots__ = (
        "_limit",
        "_words",
        "bytes",
        "data",
        "ends",
        "fields",
        "kinds",
        "starts",
        "xids",
    )

    def __init__(self, data: bytes, lengths: NDArray[np.uint32]) -> None:
        self.data = data
        self.ends: Ints = np.cumsum(lengths, dtype=np.int64)
        total = int(self.ends[-1]) if len(self.ends) else 0
        if total != len(data) or total >= SIZE_LIMIT:
            raise InternalError(
                f"{len(data)} bytes cannot hold payloads of {total} bytes"
            )
        require(len(self.ends) == 0 or lengths.min() >= _SHORTEST)
        self.starts: Ints = self.ends - lengths
        """Start of each payload."""
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        require((self.bytes[self.starts] == ord("w")).all())
        self.kinds: Bytes = self.bytes[self.starts + XLOGDATA_HEADER]
        self.fields: Ints = self.starts + _SHORTEST
        """Position of each message's first field: behind its kind and, in a part of a stream
        block, behind its xid."""
        self.xids: Ints | None = None
        """Subtransaction of each message; None outside of stream blocks."""
        # A word at every byte; a run that is not empty has room for at least one.
        self._limit = max(total - 8, 0)
        self._words = np.ndarray(
            (self._limit + 1 if total else 0,), np.uint64, data, 0, (1,)
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, first: int, last: int) -> Frames:
        """Return messages [first, last) as a run of their own, over the same buffer."""
        part = object.__new__(Frames)
        part.data, part.bytes = self.data, self.bytes
        part._words, part._limit = self._words, self._limit
        part.starts, part.ends = self.starts[first:last], self.ends[first:last]
        part.kinds, part.fields = self.kinds[first:last], self.fields[first:last]
        part.xids = None
        return part

    def streamed(self) -> Frames:
        """Return the same messages as messages of a stream block, which begin with an xid."""
        part = self.part(0, len(self))
        require((self.lengths(np.arange(len(self))) > _XID_BYTES).all())
        part.xids = (self.windows(self.fields) >> np.uint64(32)).view(np.int64)
        require((part.xids != 0).all())
        part.fields = self.fields + _XID_BYTES
        return part

    def of_transaction(self, xid: int) -> Frames:
        """Return the same messages as messages of one transaction, without xids of their own."""
        part = self.part(0, len(self))
        part.xids = np.full(len(self), xid, np.int64)
        return part

    def words(self, positions: Ints) -> Words:
        """Return the unsigned 64-bit numbers at these positions, all of them inside the run."""
        numbers = self._words[positions]
        return numbers.byteswap(inplace=True) if sys.byteorder == "little" else numbers

    def integers(self, positions: Ints) -> Ints:
        """Return the signed 64-bit numbers at these positions."""
        return self.words(positions).view(np.int64)

    def windows(self, positions: Ints) -> Words:
        """Return the eight bytes from each position on, padded with zeros at the end of the run.

        Positions ascend. Only positions in the last message can be that near to the end, so only
        the last position can need padding. Other positions beyond the end, from messages with
        wrong lengths, get arbitrary bytes.
        """
        numbers = self.words(np.minimum(positions, self._limit))
        if len(positions) and positions[-1] > self._limit:
            tail = self.data[int(positions[-1]) :][:8]
            numbers[-1] = int.from_bytes(tail.ljust(8, b"\0"))
        return numbers

    def lengths(self, numbers: Ints) -> Ints:
        """Return the length of each of these messages, including its kind."""
        return self.ends[numbers] - self.fields[numbers] + 1

    def message(self, number: int) -> bytes:
        """Return one message from its kind on, without the xid of a stream block."""
        body = self.data[int(self.fields[number]) : int(self.ends[number])]
        return bytes((int(self.kinds[number]),)) + body

    def payload(self, number: int) -> bytes:
        """Return one message with its XLogData header."""
        return self.data[int(self.starts[number]) : int(self.ends[number])]

    def send_time(self, number: int) -> int:
        """Return the time at which the publisher sent a message, by its own clock."""
        time = int(self.starts[number]) + _SEND_TIME
        return int.from_bytes(self.data[time : time + 8], "big", signed=True)


def misframed(
    data: bytes, lengths: NDArray[np.uint32]
) -> tuple[int, ProtocolViolation]:
    """Return the first payload that is not an XLogData with a message, and its violation."""
    start = 0
    for number, length in enumerate(lengths.tolist()):
        try:
            message = read_header(data[start : start + length]).message
            if not message:
                read_message(message)
        except ProtocolViolation as error:
            return number, error
        start += length
    raise InternalError("no payload of the run is misframed")
