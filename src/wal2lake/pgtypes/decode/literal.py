"""Splitting of PostgreSQL's array and hstore literals into elements.

Comes in: a BinaryArray of literals (``{1,NULL,"a \\"b"}``; ``"k"=>"v", "l"=>NULL``). Goes
out: ``Elements``: one flat BinaryArray of unquoted element texts, and the rows' offsets
into it. Called by ``array`` only.

Why this way. The whole column is one byte buffer; a few NumPy passes over it find quotes, escapes
and delimiters, independent of the number of rows. A backslash at an even position of its run
escapes the next byte; quotes that are not escaped toggle "inside"; a delimiter counts only outside.
Without the structure, the remaining bytes are the concatenation of the elements' texts. A malformed
literal would change the parity for the rows behind it. ``unframed`` and ``unbalanced``, in this
order, find such rows, and the caller empties them first.

The grammar is the output of array_out and hstore_out: no spaces around elements, no
dimension prefix, one dimension. Any other text is a bad row.

Sources: array_out in src/backend/utils/adt/arrayfuncs.c; hstore_out in
contrib/hstore/hstore_io.c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.pgtypes.decode.conversion import Mask, binary_array

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPEN = ord("{")


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of all rows, one after the other."""

    flat: pa.BinaryArray
    """Texts without quotes and escapes; an unquoted NULL is null."""
    offsets: Offsets
    """The elements of row i are flat[offsets[i]:offsets[i + 1]]."""


@dataclass(frozen=True, slots=True)
class LiteralStructure:
    """Quotes and escapes in a buffer of literals."""

    toggles: Mask
    """Quotes that are not escaped."""
    escapers: Mask
    """Backslashes that escape the next byte."""
    inside: Mask | None
    """Bytes between quotes, including the opening quote; None: there are no quotes."""


def mark(data: Bytes) -> LiteralStructure:
    """Find quotes and escapes; parity starts outside at the first byte."""
    escapers = data == _BACKSLASH
    toggles = data == _QUOTE
    if escapers.any():
        positions = np.flatnonzero(escapers)
        # A run starts where the preceding byte is not a backslash; the position in the run is
        # the distance to its start.
        starts = np.concatenate(([True], np.diff(positions) != 1))
        first = np.maximum.accumulate(np.where(starts, positions, 0))
        escapers[positions[(positions - first) % 2 == 1]] = False
        escaped = np.flatnonzero(escapers) + 1
        toggles[escaped[escaped < len(data)]] = False
    inside = None
    if toggles.any():
        turns = np.flatnonzero(toggles)
        stretches = np.diff(np.concatenate(([0], turns, [len(data)])))
        inside = np.repeat(np.arange(len(stretches)) % 2 == 1, stretches)
    return LiteralStructure(toggles, escapers, inside)


def count_in_rows(mask: Mask, offsets: Offsets) -> npt.NDArray[np.int64]:
    """Count the marked bytes of each row."""
    return np.diff(np.searchsorted(np.flatnonzero(mask), offsets))


def _count_between(
    mask: Mask, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    positions = np.flatnonzero(mask)
    return np.searchsorted(positions, end) - np.searchsorted(positions, begin)


def unframed(data: Bytes, offsets: Offsets, opening: bytes, closing: bytes) -> Mask:
    """Find rows with bytes that do not begin and end with one of the given bytes.

    Offsets start at 0. Without these rows no escape extends from one row into the next.
    """
    lengths = np.diff(offsets)
    present = lengths > 0
    bad: Mask = lengths == 1
    firsts = data[offsets[:-1][present]]
    lasts = data[offsets[1:][present] - 1]
    bad[present] |= ~np.isin(firsts, np.frombuffer(opening, np.uint8))
    bad[present] |= ~np.isin(lasts, np.frombuffer(closing, np.uint8))
    return bad


def unbalanced(marks: LiteralStructure, offsets: Offsets) -> Mask:
    """Find rows whose last byte is escaped, or with an odd number of quotes.

    All rows are framed. Without these rows the parity of quotes is correct in all rows.
    """
    bad: Mask = count_in_rows(marks.toggles, offsets) % 2 == 1
    if marks.escapers.any():
        present = np.diff(offsets) > 0
        bad[present] |= marks.escapers[offsets[1:][present] - 2]
    return bad


def nested_arrays(data: Bytes, offsets: Offsets, marks: LiteralStructure) -> Mask:
    """Find rows with a brace inside the outer pair: arrays of several dimensions."""
    braces = data == _OPEN
    braces &= ~_escaped(marks)
    if marks.inside is not None:
        braces &= ~marks.inside
    return count_in_rows(braces, offsets) > 1


def _escaped(marks: LiteralStructure) -> Mask:
    escaped = np.zeros(len(marks.escapers), np.bool_)
    escaped[1:] = marks.escapers[:-1]
    return escaped


def split_arrays(
    data: Bytes, offsets: Offsets, marks: LiteralStructure, delimiter: int
) -> tuple[Elements, Mask]:
    """Split well-framed one-dimensional literals; also return which rows are malformed.

    Rows are empty (no value) or begin and end with their braces. The second result marks
    rows with an empty or partly quoted element; their elements are meaningless.
    """
    lengths = np.diff(offsets)
    present = lengths > 0
    separators = data == delimiter
    if marks.escapers.any():
        separators &= ~_escaped(marks)
    if marks.inside is not None:
        separators &= ~marks.inside
    # Every element is between two boundaries of its row: the opening brace or a separator
    # before it, a separator or the closing brace behind it.
    before, behind = separators.copy(), separators
    before[offsets[:-1][present]] = True
    behind[offsets[1:][present] - 1] = True
    begin = np.flatnonzero(before) + 1
    end = np.flatnonzero(behind)
    counts = count_in_rows(before, offsets)
    row_of = np.repeat(np.arange(len(lengths)), counts)
    empty = end == begin
    hollow = empty & (counts[row_of] == 1) & (lengths[row_of] == 2)
    if hollow.any():
        begin, end, empty = begin[~hollow], end[~hollow], empty[~hollow]
        row_of = row_of[~hollow]
        counts = np.where(lengths == 2, 0, counts)
    bad_elements = empty
    quoted = np.zeros(len(begin), np.bool_)
    if marks.inside is not None and len(begin):
        quoted, mixed = _quoting(marks, begin, end)
        bad_elements = bad_elements | mixed
    flat = _compact(data, before | behind, marks, begin, end, quoted)
    bad = np.zeros(len(lengths), np.bool_)
    bad[row_of[bad_elements]] = True
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return Elements(flat, starts), bad


def _quoting(
    marks: LiteralStructure, begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[Mask, Mask]:
    """Return which elements are quoted as a whole, and which only in part."""
    toggles = _count_between(marks.toggles, begin, end)
    longer = end - begin >= 2
    whole = longer & (toggles == 2)
    whole &= marks.toggles[np.minimum(begin, len(marks.toggles) - 1)]
    whole &= marks.toggles[end - 1]
    return whole, (toggles > 0) & ~whole


def _compact(
    data: Bytes,
    between: Mask,
    marks: LiteralStructure,
    begin: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    quoted: Mask,
) -> pa.BinaryArray:
    """Build an array of the elements' own bytes; an unquoted NULL is null.

    ``between`` marks the bytes that are in no element.
    """
    sizes = end - begin
    if marks.inside is not None or marks.escapers.any():
        syntax = marks.toggles | marks.escapers
        sizes = sizes - _count_between(syntax, begin, end)
        between = between | syntax
    offsets = np.zeros(len(begin) + 1, np.int32)
    offsets[1:] = np.cumsum(sizes)
    kept = data[~between]
    null = ~quoted & (np.diff(offsets) == 4)
    for place, letter in enumerate(b"NULL"):
        rows = np.flatnonzero(null)
        null[rows] = kept[offsets[rows] + place] | 0x20 == letter | 0x20
    return binary_array(np.ascontiguousarray(kept), offsets, null)


def split_hstores(
    data: Bytes, offsets: Offsets, marks: LiteralStructure
) -> tuple[Elements, Mask]:
    """Split into keys and values alternately, as hstore_out writes them; also return which rows
    are malformed.

    Every key is quoted, and every value that is not NULL.
    """
    rows = len(offsets) - 1
    outside = (
        np.ones(len(data), np.bool_) if marks.inside is None else ~marks.inside
    ) & ~marks.toggles
    arrows = outside & (data == ord("="))
    commas = outside & (data == ord(","))
    fillers = outside & ((data == ord(">")) | (data == ord(" ")))
    present = np.diff(offsets) > 0
    # An element ends at the arrow, the comma or the end of its row, and the next one
    # begins two bytes after an arrow ("=>") or a comma (", ").
    separators = arrows | commas
    counts = np.where(present, count_in_rows(separators, offsets) + 1, 0)
    begin = np.sort(
        np.concatenate((offsets[:-1][present], np.flatnonzero(separators) + 2))
    )
    end = np.sort(np.concatenate((offsets[1:][present], np.flatnonzero(separators))))
    row_of = np.repeat(np.arange(rows), counts)
    bad = present & (
        (count_in_rows(arrows, offsets) != count_in_rows(commas, offsets) + 1)
        | (counts % 2 == 1)
    )
    sound = _hstore_separators(data, arrows, commas, fillers)
    bad |= count_in_rows(~sound, offsets) > 0
    bad[row_of[end < begin]] = True
    if bad.any():
        return _NOTHING, bad
    quoted = np.zeros(len(begin), np.bool_)
    if marks.inside is not None and len(begin):
        quoted, mixed = _quoting(marks, begin, end)
        bad[row_of[mixed]] = True
    flat = _compact(data, separators | fillers, marks, begin, end, quoted)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    bad[row_of[~quoted & ~_is_null(flat)]] = True
    place = np.arange(len(begin)) - np.repeat(starts[:-1], counts)
    bad[row_of[(place % 2 == 0) & ~quoted]] = True
    return Elements(flat, starts), bad


_NOTHING = Elements(binary_array(b"", np.zeros(1, np.int32)), np.zeros(1, np.int32))


def _hstore_separators(data: Bytes, arrows: Mask, commas: Mask, fillers: Mask) -> Mask:
    """Return a mask that is false at each separator byte outside of ``=>`` and ``, ``."""
    sound = np.ones(len(data), np.bool_)
    following = np.append(data[1:], 0)
    sound[arrows & (following != ord(">"))] = False
    sound[commas & (following != ord(" "))] = False
    preceded = np.zeros(len(data), np.bool_)
    preceded[1:] = (arrows[:-1] & (data[1:] == ord(">"))) | (
        commas[:-1] & (data[1:] == ord(" "))
    )
    sound[fillers & ~preceded] = False
    return sound


def _is_null(flat: pa.BinaryArray) -> Mask:
    return flat.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
