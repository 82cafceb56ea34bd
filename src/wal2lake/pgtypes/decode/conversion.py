"""Results of conversions, and the method of all scalar conversions.

Comes in: a BinaryArray of PostgreSQL's text. Goes out: a ``Conversion``: the typed array,
and the rows that could not be converted, with SQLSTATE and message. Used by the other
modules of this room; the result is for apply and tablesync.

Why this way. A vectorised parser first tries the whole column; it raises at the first value that
it does not accept. Only then are the offending rows found, by bisection. An interpreter, which
knows PostgreSQL's rarer spellings and the reasons why a value cannot be stored, reads them one by
one. So a clean column costs one pass, and a column with k odd values k log n small ones.

Messages are PostgreSQL's without the value, because rows' contents do not go to logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SMALL = 16
"""For fewer rows bisection costs more than parsing each row. Chosen arbitrarily."""


class Rejected(Exception):
    """One value cannot be stored; never raised out of this room."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


@dataclass(frozen=True, slots=True)
class ConversionFailure:
    """A reason, and the rows that have it."""

    sqlstate: str
    message: str
    """PostgreSQL's message without the value."""
    rows: Rows
    """Positions in the input, ascending; each is in one failure only."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted column. Bad rows are null in ``array`` and true in ``bad``."""

    array: pa.Array | pa.ChunkedArray
    """The converted values, of the mapping's Arrow type; chunked if the input is."""
    bad: pa.BooleanArray | None
    """True for bad rows, without nulls. None: every value was converted."""
    failures: tuple[ConversionFailure, ...] = ()
    """Failures in the order of their first rows."""

    def failure_at(self, row: int) -> ConversionFailure | None:
        """Return the failure of a row; None if the row is not bad."""
        for failure in self.failures:
            index = int(np.searchsorted(failure.rows, row))
            if index < len(failure.rows) and failure.rows[index] == row:
                return failure
        return None

    @property
    def first_bad_row(self) -> int | None:
        """The lowest bad position."""
        return int(self.failures[0].rows[0]) if self.failures else None


class Failures:
    """Collects rows by reason; a row keeps its first reason."""

    __slots__ = ("_by_reason", "_seen")

    def __init__(self) -> None:
        self._by_reason: dict[tuple[str, str], list[int]] = {}
        self._seen: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._seen)

    def add(self, row: int, sqlstate: str, message: str) -> None:
        if row not in self._seen:
            self._seen.add(row)
            self._by_reason.setdefault((sqlstate, message), []).append(row)

    def add_rows(self, rows: Sequence[int] | Rows, sqlstate: str, message: str) -> None:
        for row in rows:
            self.add(int(row), sqlstate, message)

    def extend(self, failures: Sequence[ConversionFailure], parent: Rows) -> None:
        """Add failures of elements; ``parent`` maps elements to rows."""
        for failure in failures:
            self.add_rows(parent[failure.rows], failure.sqlstate, failure.message)

    def mask(self, length: int) -> Mask:
        """Return a mask that is true at bad rows."""
        mask = np.zeros(length, np.bool_)
        mask[list(self._seen)] = True
        return mask

    def conclude(self, array: pa.Array) -> Conversion:
        """Build the Conversion; ``array`` is null at bad rows already."""
        if not self._seen:
            return Conversion(array, None)
        failures = [
            ConversionFailure(sqlstate, message, np.array(sorted(rows), np.int64))
            for (sqlstate, message), rows in self._by_reason.items()
        ]
        failures.sort(key=lambda f: int(f.rows[0]))
        return Conversion(array, pa.array(self.mask(len(array))), tuple(failures))


def raw(values: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the bytes of all values and the n + 1 offsets into them, without a copy.

    The slot of a null may have bytes; the offsets of a slice need not begin at 0.
    """
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(values) + 1, np.int32)
    offsets = np.frombuffer(offset_buffer, np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    if data_buffer is None:
        return np.zeros(0, np.uint8), offsets
    return np.frombuffer(data_buffer, np.uint8), offsets


def valid_mask(values: pa.Array) -> Mask | None:
    """Return a mask that is false at nulls; None: there are none."""
    if values.null_count == 0:
        return None
    return values.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def packed(
    values: pa.BinaryArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], Mask | None]:
    """Like ``raw``, but offsets begin at 0 and nulls have no bytes; also returns the null mask.

    Copies only if the slot of a null has bytes.
    """
    data, offsets = raw(values)
    data, offsets = data[offsets[0] : offsets[-1]], offsets - offsets[0]
    valid = valid_mask(values)
    if valid is None:
        return data, offsets, None
    lengths = np.diff(offsets)
    if lengths[~valid].any():
        data = data[np.repeat(valid, lengths)]
        offsets = np.zeros(len(values) + 1, np.int32)
        offsets[1:] = np.cumsum(np.where(valid, lengths, 0))
    return data, offsets, ~valid


def binary_array(
    data: npt.NDArray[np.uint8] | bytes,
    offsets: npt.NDArray[np.int32],
    null: Mask | None = None,
) -> pa.BinaryArray:
    """Build an array over these buffers; ``null`` is true at nulls."""
    validity = None
    if null is not None and null.any():
        validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.BinaryArray.from_buffers(
        pa.binary(),
        len(offsets) - 1,
        [
            validity,
            pa.py_buffer(np.ascontiguousarray(offsets, np.int32)),
            pa.py_buffer(data),
        ],
    )


def without(array: pa.Array, mask: Mask) -> pa.Array:
    """Return the array with nulls where ``mask`` is true."""
    if not mask.any():
        return array
    return pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)


def convert(
    values: pa.BinaryArray,
    arrow_type: pa.DataType,
    parse: Callable[[pa.BinaryArray], pa.Array],
    interpret: Callable[[bytes], object],
    suspects: Callable[[pa.BinaryArray, pa.Array], Mask | None] | None = None,
    *,
    plain: Callable[[pa.BinaryArray], Mask],
) -> Conversion:
    """Convert a column with a fast parser and a slow interpreter.

    ``parse`` is vectorised and raises ArrowInvalid if any value is not in its grammar.
    ``interpret`` takes one value's bytes and returns a Python value for ``arrow_type``, or raises
    Rejected. ``suspects`` returns the rows of a parsed array that must be interpreted nevertheless.
    ``plain`` returns, vectorised or nearly so, which rows are probably in the grammar of ``parse``.
    It is called only after ``parse`` has failed, and avoids the bisection of a column full of odd
    values (valid_until = infinity) down to single rows. It may be wrong in both directions.
    """
    failures = Failures()
    try:
        array = parse(values)
        odd: list[int] = []
    except pa.ArrowInvalid:
        mask = ~plain(values)
        if values.null_count:
            mask &= values.is_valid().to_numpy(zero_copy_only=False)
        try:
            array = parse(without(values, mask))
        except pa.ArrowInvalid:
            mask[_offenders(without(values, mask), parse)] = True
            array = parse(without(values, mask))
        odd = np.flatnonzero(mask).tolist()
    if suspects is not None:
        suspicious = suspects(values, array)
        if suspicious is not None:
            odd = sorted({*odd, *np.flatnonzero(suspicious).tolist()})
    if not odd:
        return Conversion(array, None)
    repaired: list[object] = []
    answers: dict[bytes, object] = {}
    for row, text in zip(odd, values.take(pa.array(odd)).to_pylist(), strict=True):
        if text not in answers:
            answers[text] = _answer(interpret, text)
        answer = answers[text]
        if isinstance(answer, Rejected):
            failures.add(row, answer.sqlstate, answer.message)
            answer = None
        repaired.append(answer)
    mask = np.zeros(len(values), np.bool_)
    mask[odd] = True
    replacements = pa.array(repaired, arrow_type)
    array = pc.replace_with_mask(array, pa.array(mask), replacements)
    return failures.conclude(array)


def _answer(interpret: Callable[[bytes], object], text: bytes) -> object:
    """Return the value, or the Rejected with the reason why there is none."""
    try:
        return interpret(text)
    except Rejected as reason:
        return reason


def plain_by(pattern: str) -> Callable[[pa.BinaryArray], Mask]:
    """Return a function for ``plain`` of ``convert``: values that match a whole RE2 pattern."""

    def plain(values: pa.BinaryArray) -> Mask:
        matches = pc.match_substring_regex(values, f"^(?:{pattern})$")
        return matches.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    return plain


def _offenders(
    values: pa.BinaryArray, parse: Callable[[pa.BinaryArray], pa.Array]
) -> list[int]:
    """Return the rows that ``parse`` refuses, ascending."""
    rows: list[int] = []
    pending = [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        try:
            parse(values.slice(start, stop - start))
        except pa.ArrowInvalid:
            if stop - start == 1:
                rows.append(start)
            elif stop - start <= _SMALL:
                pending.extend((row, row + 1) for row in reversed(range(start, stop)))
            else:
                middle = (start + stop) // 2
                pending.append((middle, stop))
                pending.append((start, middle))
    return rows
