"""COPY ... TO STDOUT (FORMAT binary): runs of CopyData payloads to Arrow, column by column.

In: blocks of whole payloads and their sizes. The server sends each row in a payload of its
own, with the header before the first row and the trailer after the last. Out: for each block one
Arrow binary array per column, null for NULL. The state between blocks is whether header and
trailer have been read. Raises ProtocolViolation for data in any other format.

As in ``columns``, one cursor per row moves over one column at a time, with a 32-bit gather and an
addition each.

Called by tablesync. Not thread-safe.

Source: PostgreSQL manual, COPY, "Binary Format"; 54.2.6 (one message is one row).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.columnar.columns import binary_array
from wal2lake.wire.columnar.framing import Ints

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_FLAGS_END: Final = len(_SIGNATURE) + 4
_HEADER: Final = _FLAGS_END + 4
"""Bytes of the header without its extension."""
_CRITICAL_FLAGS: Final = 0xFFFF0000
_TRAILER: Final = -1


class BinaryCopy:
    """One COPY, from its header to its trailer."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._begun = False
        self._ended = False

    def feed(self, data: bytes, sizes: Sequence[int]) -> list[Any]:
        """Return the rows of a block, as one array per column; the arrays own their memory."""
        ends = np.cumsum(np.array(sizes, np.int64))
        if len(ends) and int(ends[-1]) != len(data):
            raise _violation("a block is not as long as its messages")
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))[: len(ends)]
        if len(ends) and not self._begun:
            starts[0] = _after_header(data[: int(ends[0])])
            self._begun = True
        filled = starts < ends
        starts, ends = starts[filled], ends[filled]
        if len(ends) and self._ended:
            raise _violation("there is data behind the trailer")
        counts = _gather(data, starts, ends, np.int16)
        if len(counts) and counts[-1] == _TRAILER:
            if starts[-1] + 2 != ends[-1]:
                raise _violation("there is data behind the trailer")
            self._ended = True
            starts, ends, counts = starts[:-1], ends[:-1], counts[:-1]
        if (counts != self._columns).any():
            raise _violation(f"a row does not have {self._columns} columns")
        return self._walk(data, starts + 2, ends)

    def finish(self) -> None:
        """Check at the end of the COPY that it was complete."""
        if not self._ended:
            raise _violation("it ended without a trailer")

    def _walk(self, data: bytes, cursors: Ints, ends: Ints) -> list[Any]:
        arrays = []
        for _ in range(self._columns):
            lengths = _gather(data, cursors, ends, np.int32)
            if (lengths < -1).any():
                raise _violation("a value has a negative length")
            start = cursors + 4
            cursors = start + np.maximum(lengths, 0)
            if (cursors > ends).any():
                raise _violation("a value reaches beyond its row")
            arrays.append(binary_array(data, start, cursors, lengths >= 0))
        if (cursors != ends).any():
            raise _violation("a row is longer than its columns")
        return arrays


def _after_header(data: bytes) -> int:
    """Return the position of the first row."""
    if len(data) < _HEADER or not data.startswith(_SIGNATURE):
        raise _violation("it does not begin with the signature")
    if int.from_bytes(data[len(_SIGNATURE) : _FLAGS_END]) & _CRITICAL_FLAGS:
        raise _violation("its header has unknown critical flags")
    extension = int.from_bytes(data[_FLAGS_END:_HEADER], signed=True)
    if not 0 <= extension <= len(data) - _HEADER:
        raise _violation("its header has a wrong length")
    return _HEADER + extension


def _gather(data: bytes, positions: Ints, ends: Ints, kind: type[Any]) -> Ints:
    """Return the integers at these positions, which must end before ``ends``."""
    size = np.dtype(kind).itemsize
    if (positions + size > ends).any():
        raise _violation("a row ends too early")
    # A view with a number at every byte allows unaligned gathers.
    integers = np.ndarray((max(len(data) - size + 1, 0),), kind, data, 0, (1,))[
        positions
    ]
    if sys.byteorder == "little":
        integers.byteswap(inplace=True)
    return integers.astype(np.int64)


def _violation(what: str) -> ProtocolViolation:
    return ProtocolViolation(f"invalid COPY data in binary format: {what}")
