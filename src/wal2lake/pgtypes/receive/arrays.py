"""One-dimensional arrays in binary form to Arrow lists, column by column.

Comes in: a BinaryArray of array_send's output, the element's type and conversion. Goes out: the
lists, the elements' failures by row, and the *odd* rows, which must be converted as text:
several dimensions, another lower bound, another element type, malformed arrays, and very long
arrays. Called by ``columns``.

Why this way. The elements of all rows become one flat column, which is converted like any other.
One cursor per row steps from element to element, for all rows at once. So an array costs a few
gathers per element and no Python; the number of steps is the length of the longest array.

Source: array_send in src/backend/utils/adt/arrayfuncs.c.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.pgtypes.decode.conversion import (
    Conversion,
    Failures,
    Mask,
    binary_array,
    packed,
)
from wal2lake.pgtypes.mapping import TypeMapping

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_EMPTY: Final = 12
"""Bytes of an array without dimensions: number of dimensions, has-null flag, element type."""
_FIRST: Final = 20
"""Position of the first element's length, behind length and lower bound of the dimension."""
_MOST: Final = 1000
"""Longest array that is read by stepping. Chosen arbitrarily."""


def decode_sent_arrays(
    values: pa.BinaryArray,
    element_oid: int,
    mapping: TypeMapping,
    convert: Callable[[pa.BinaryArray, TypeMapping], Conversion],
) -> tuple[pa.Array, Failures, Mask]:
    """Return (lists, failures of their elements, odd rows); odd rows are null."""
    assert mapping.element is not None
    data, offsets, null = packed(values)
    present = np.ones(len(values), np.bool_) if null is None else ~null
    begin, end = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    counts, empty = _counts(data, begin, end, present, element_oid)
    start, size, done = _elements(data, begin, end, counts)
    sound = empty | ((counts > 0) & done)
    if not sound[counts > 0].all():
        keep = np.repeat(sound, counts)
        start, size = start[keep], size[keep]
        counts = np.where(sound, counts, 0)
    flat = _slices(data, start, size)
    converted = convert(flat, mapping.element)
    failures = Failures()
    failures.extend(converted.failures, np.repeat(np.arange(len(values)), counts))
    bounds = np.zeros(len(values) + 1, np.int32)
    bounds[1:] = np.cumsum(counts)
    missing = ~sound | failures.mask(len(values))
    array = pa.ListArray.from_arrays(
        pa.array(bounds),
        converted.array,
        type=mapping.arrow_type,
        mask=pa.array(missing),
    )
    return array, failures, present & ~sound


def _int32(data: Bytes, positions: Ints) -> Ints:
    """Return the integers at these positions, all inside of the data."""
    room = max(len(data) - 3, 0)
    integers = np.ndarray((room,), np.int32, np.ascontiguousarray(data), 0, (1,))[
        positions
    ]
    if sys.byteorder == "little":
        integers.byteswap(inplace=True)
    return integers.astype(np.int64)


def _counts(
    data: Bytes, begin: Ints, end: Ints, present: Mask, element_oid: int
) -> tuple[Ints, Mask]:
    """Return the stated number of elements of each plain row (0: odd or none), and which rows
    are ``{}``."""
    counts = np.zeros(len(begin), np.int64)
    empty = np.zeros(len(begin), np.bool_)
    rows = np.flatnonzero(present & (end - begin >= _EMPTY))
    starts = begin[rows]
    dimensions = _int32(data, starts)
    is_usual = _int32(data, starts + 8) & 0xFFFFFFFF == element_oid
    is_usual &= _int32(data, starts + 4) & ~1 == 0
    empty[rows] = is_usual & (dimensions == 0) & (end[rows] == starts + _EMPTY)
    plain = is_usual & (dimensions == 1) & (end[rows] - starts >= _FIRST)
    rows = rows[plain]
    length = _int32(data, begin[rows] + 12)
    bound = _int32(data, begin[rows] + 16)
    usual = (bound == 1) & (length > 0) & (length <= _MOST)
    # Each element needs at least four bytes, so a wrong length cannot allocate too much memory.
    usual &= length * 4 <= end[rows] - begin[rows] - _FIRST
    counts[rows[usual]] = length[usual]
    return counts, empty


def _elements(
    data: Bytes, begin: Ints, end: Ints, counts: Ints
) -> tuple[Ints, Ints, Mask]:
    """Return start and size (-1 for NULL) of all elements, row by row, and which rows end at the
    right position. Elements of the other rows are empty or inside of their row."""
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    start, size = np.zeros(total, np.int64), np.zeros(total, np.int64)
    rows = np.flatnonzero(counts)
    cursors = begin[rows] + _FIRST
    done = np.zeros(len(begin), np.bool_)
    step = 0
    while len(rows):
        inside = cursors + 4 <= end[rows]
        rows, cursors = rows[inside], cursors[inside]
        length = _int32(data, cursors)
        stop = cursors + 4 + np.maximum(length, 0)
        inside = (length >= -1) & (stop <= end[rows])
        rows, cursors, length, stop = (
            rows[inside],
            cursors[inside],
            length[inside],
            stop[inside],
        )
        place = firsts[rows] + step
        start[place], size[place] = cursors + 4, length
        step += 1
        last = counts[rows] == step
        done[rows[last]] = stop[last] == end[rows[last]]
        rows, cursors = rows[~last], stop[~last]
    return start, size, done


def _slices(data: Bytes, start: Ints, size: Ints) -> pa.BinaryArray:
    """Build an array of slices, which ascend and do not overlap; size -1 is null."""
    null = size < 0
    size = np.maximum(size, 0)
    turns = np.zeros(len(data) + 1, np.int32)
    # A length is between two elements, so no position begins one and ends another.
    turns[start[size > 0]] = 1
    turns[(start + size)[size > 0]] = -1
    kept = data[np.cumsum(turns[:-1]) > 0]
    offsets = np.zeros(len(start) + 1, np.int32)
    offsets[1:] = np.cumsum(size)
    return binary_array(np.ascontiguousarray(kept), offsets, null)
