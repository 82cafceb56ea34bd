"""DataRow in bulk: columns in, one run of frames out. The hot path of every SELECT.

Results arrive column by column, but the protocol sends them row by row. Building a message per
row in Python costs a loop over the values. Here every step is one C-level pass over a whole
column: lengths by ``map(len)``, length words from a table, all parts put in their places by
strided slice assignment, and one ``join``. The parts of one row are

    [frame header and column count] [length word] [value] [length word] [value] ...

so column k's words fill the slice ``parts[2k+1::2n+1]``.

Source: PostgreSQL manual, section 54.7 (DataRow).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.frontback.frames import Body

_INT32 = struct.Struct("!i")
_ROW_HEADER = struct.Struct("!ciH")
_NULL_WORD: Final = _INT32.pack(-1)

_SHORT: Final = 512
"""Values up to this length get their length word from a table; most values are shorter."""

_LENGTH_WORDS: Final = tuple(_INT32.pack(length) for length in range(_SHORT + 1))

MAX_COLUMNS: Final = 1664
"""PostgreSQL's MaxTupleAttributeNumber: the most columns that clients expect."""


def write_data_rows(
    columns: Sequence[Sequence[bytes | None]],
    rows: int | None = None,
    *,
    kind: bytes = b"D",
) -> bytes:
    """Write the DataRow frames of equally long columns; without columns ``rows`` is required.

    A row of a binary COPY has the same layout in a frame of kind ``d``."""
    if not columns:
        return _ROW_HEADER.pack(kind, 6, 0) * (rows or 0)
    count = len(columns[0]) if rows is None else rows
    if count == 0:
        return b""
    stride = 2 * len(columns) + 1
    parts: list[bytes] = [b""] * (count * stride)
    fixed = 6 + 4 * len(columns)
    totals: list[int] = [fixed] * count
    for index, column in enumerate(columns):
        if len(column) != count:
            raise ValueError("columns of a batch differ in length")
        words, values, lengths = _split(column)
        parts[2 * index + 1 :: stride] = words
        parts[2 * index + 2 :: stride] = values
        totals = list(map(add, totals, lengths))
    pack = _ROW_HEADER.pack
    parts[::stride] = map(pack, repeat(kind), totals, repeat(len(columns)))
    return b"".join(parts)


def _split(
    column: Sequence[bytes | None],
) -> tuple[list[bytes], Sequence[bytes], list[int]]:
    """Return length words, values without None, and lengths (0 for NULL)."""
    try:
        # A None raises TypeError, which is cheaper than a search for None in every column.
        lengths = list(map(len, column))  # type: ignore[arg-type]
    except TypeError:
        values = [b"" if item is None else item for item in column]
        lengths = list(map(len, values))
        words = _words(lengths)
        for index, item in enumerate(column):
            if item is None:
                words[index] = _NULL_WORD
        return words, values, lengths
    return _words(lengths), column, lengths  # type: ignore[return-value]


def _words(lengths: list[int]) -> list[bytes]:
    if not lengths or max(lengths) <= _SHORT:
        return list(map(_LENGTH_WORDS.__getitem__, lengths))
    return list(map(_INT32.pack, lengths))


def read_data_rows(bodies: Iterable[bytes]) -> list[tuple[bytes | None, ...]]:
    """Read the rows of DataRow bodies; raises ProtocolViolation."""
    rows: list[tuple[bytes | None, ...]] = []
    for body in bodies:
        cursor = Body(body)
        count = cursor.uint16()
        if count > MAX_COLUMNS:
            raise ProtocolViolation(f"a row of {count} columns")
        rows.append(tuple([cursor.value() for _ in range(count)]))
        cursor.end()
    return rows
