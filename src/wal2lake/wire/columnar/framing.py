"""A run of XLogData payloads seen as columns of numbers.

In: ``data``, the payloads of n CopyData messages one after the other, and ``lengths``,
their n lengths. Out: Frames, which finds fixed-size fields of many messages at once.

Why NumPy over the raw buffer: a Python object for a message costs a microsecond, a gather
of one field of one message three nanoseconds. The trick is a view of the buffer that has
a 64-bit word at *every* byte (stride 1), so that one fancy index reads unaligned fields.

Code here does not say what is wrong with bad bytes, only that something is (Suspect);
the caller then lets the scalar wire/stream.py find out.
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
"""Where an XLogData has the publisher's clock."""


class Suspect(Exception):
    """The bytes break a rule; which one is the scalar reader's to say."""


def require(condition: bool | np.bool_) -> None:
    """Raises Suspect unless the condition holds."""
    if not condition:
        raise Suspect


def where(mask: Bools) -> Ints:
    """The positions at which the mask is true."""
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def explain(
    data: bytes, lengths: NDArray[np.uint32], state: StreamState, skip_below: Lsn
) -> ProtocolViolation:
    """The violation in a run that is suspect, found message by message.

    ``state`` is the state before the run; it is used up.
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
        """Where each payload is."""
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        require((self.bytes[self.starts] == ord("w")).all())
        self.kinds: Bytes = self.bytes[self.starts + XLOGDATA_HEADER]
        self.fields: Ints = self.starts + _SHORTEST
        """Where each message's first field is: behind its kind, and in a part of a stream
        block behind its xid."""
        self.xids: Ints | None = None
        """Per message: its subtransaction; None outside of stream blocks."""
        # One word at every byte; a run that is not empty has room for more than one.
        self._limit = max(total - 8, 0)
        self._words = np.ndarray(
            (self._limit + 1 if total else 0,), np.uint64, data, 0, (1,)
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, first: int, last: int) -> Frames:
        """Messages [first, last) as a run of their own, over the same buffer."""
        part = object.__new__(Frames)
        part.data, part.bytes = self.data, self.bytes
        part._words, part._limit = self._words, self._limit
        part.starts, part.ends = self.starts[first:last], self.ends[first:last]
        part.kinds, part.fields = self.kinds[first:last], self.fields[first:last]
        part.xids = None
        return part

    def streamed(self) -> Frames:
        """The same messages as those of a stream block, each with its xid in front."""
        part = self.part(0, len(self))
        require((self.lengths(np.arange(len(self))) > _XID_BYTES).all())
        part.xids = (self.windows(self.fields) >> np.uint64(32)).view(np.int64)
        require((part.xids != 0).all())
        part.fields = self.fields + _XID_BYTES
        return part

    def of_transaction(self, xid: int) -> Frames:
        """The same messages as those of one transaction, whose xid they do not carry."""
        part = self.part(0, len(self))
        part.xids = np.full(len(self), xid, np.int64)
        return part

    def words(self, at: Ints) -> Words:
        """The unsigned 64-bit numbers at these positions, all of them inside the run."""
        found = self._words[at]
        return found.byteswap(inplace=True) if sys.byteorder == "little" else found

    def integers(self, at: Ints) -> Ints:
        """The signed 64-bit numbers at these positions."""
        return self.words(at).view(np.int64)

    def windows(self, at: Ints) -> Words:
        """The eight bytes from each position on, zeros behind the end of the run.

        Positions ascend. Only those in the last message can be so near the end, so only
        the last position can need the zeros; others beyond it (of messages that lie
        about their lengths) get any eight bytes.
        """
        found = self.words(np.minimum(at, self._limit))
        if len(at) and at[-1] > self._limit:
            tail = self.data[int(at[-1]) :][:8]
            found[-1] = int.from_bytes(tail.ljust(8, b"\0"))
        return found

    def lengths(self, at: Ints) -> Ints:
        """How many bytes each of these messages has, its kind included."""
        return self.ends[at] - self.fields[at] + 1

    def message(self, at: int) -> bytes:
        """One message, from its kind on, without the xid that a stream block adds."""
        body = self.data[int(self.fields[at]) : int(self.ends[at])]
        return bytes((int(self.kinds[at]),)) + body

    def payload(self, at: int) -> bytes:
        """One message with its XLogData header."""
        return self.data[int(self.starts[at]) : int(self.ends[at])]

    def send_time(self, at: int) -> int:
        """When the publisher sent a message, by its own clock."""
        time = int(self.starts[at]) + _SEND_TIME
        return int.from_bytes(self.data[time : time + 8], "big", signed=True)


def misframed(
    data: bytes, lengths: NDArray[np.uint32]
) -> tuple[int, ProtocolViolation]:
    """The first payload that is no XLogData with a message, and what is wrong with it."""
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
