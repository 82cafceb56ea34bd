"""Results of conversions, and the one way in which every scalar conversion works.

Comes in: a BinaryArray of PostgreSQL's text. Goes out: a ``Conversion``: the typed array,
and which rows could not be converted, with SQLSTATE and message. Used by the other
modules of this room; the result is for apply and tablesync.

Why this way. A column is first given whole to a vectorised parser that raises on the first
value it does not like. Only then are the offending rows found, by halving, and looked at one by one
by an interpreter that knows PostgreSQL's rarer spellings and why a value cannot be
stored. So a clean column costs one pass, and a column with k odd values k log n small ones.

Messages are PostgreSQL's without the value: rows' contents do not go to logs.
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
"""Below so many rows halving costs more than looking at each. A guess."""


class Rejected(Exception):
    """One value cannot be stored; stays inside this room."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message


@dataclass(frozen=True, slots=True)
class ConversionFailure:
    """One reason, and the rows it holds for."""

    sqlstate: str
    message: str
    """PostgreSQL's words, without the value."""
    rows: Rows
    """Positions in the input, ascending, each in one Failure only."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted column. Bad rows are null in ``array`` and true in ``bad``."""

    array: pa.Array | pa.ChunkedArray
    """The converted values, of the mapping's Arrow type; chunked iff the input was."""
    bad: pa.BooleanArray | None
    """None: every value was converted. Never contains null."""
    failures: tuple[ConversionFailure, ...] = ()
    """By first row."""

    def failure_at(self, row: int) -> ConversionFailure | None:
        """Why a row is bad; None if it is not."""
        for failure in self.failures:
            at = int(np.searchsorted(failure.rows, row))
            if at < len(failure.rows) and failure.rows[at] == row:
                return failure
        return None

    @property
    def first_bad_row(self) -> int | None:
        """The lowest bad position."""
        return int(self.failures[0].rows[0]) if self.failures else None


class Failures:
    """Collects rows by reason; a row keeps the reason it got first."""

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
        """Take over failures of elements; ``parent`` maps element to row."""
        for failure in failures:
            self.add_rows(parent[failure.rows], failure.sqlstate, failure.message)

    def mask(self, length: int) -> Mask:
        """True at the bad rows."""
        mask = np.zeros(length, np.bool_)
        mask[list(self._seen)] = True
        return mask

    def conclude(self, array: pa.Array) -> Conversion:
        """The Conversion; ``array`` is null at the bad rows already."""
        if not self._seen:
            return Conversion(array, None)
        found = [
            ConversionFailure(sqlstate, message, np.array(sorted(rows), np.int64))
            for (sqlstate, message), rows in self._by_reason.items()
        ]
        found.sort(key=lambda f: int(f.rows[0]))
        return Conversion(array, pa.array(self.mask(len(array))), tuple(found))


def raw(values: pa.BinaryArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The bytes of all values and the n + 1 offsets into them; no copy.

    A null's slot may hold bytes; offsets need not begin at 0 (a slice).
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
    """True where not null; None: there is no null."""
    if values.null_count == 0:
        return None
    return values.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def packed(
    values: pa.BinaryArray,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], Mask | None]:
    """Like ``raw``, but offsets begin at 0 and nulls have no bytes; and the null mask.

    Copies only if some null's slot holds bytes.
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
    """An array over these buffers; ``null`` is true at nulls."""
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
    """The array with null where ``mask`` is true."""
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

    ``parse`` is vectorised and raises ArrowInvalid when any value is not in its grammar.
    ``interpret`` takes one value's bytes and returns what Arrow makes a value of
    ``arrow_type`` from, or raises Rejected. ``suspects`` looks at a parsed array and
    names the rows that must be interpreted all the same. ``plain`` says, vectorised or
    nearly so, which rows look as ``parse`` wants them; it is asked only after ``parse`` has
    failed, and keeps a column full of odd values (valid_until = infinity) from being
    halved down to each of its rows. It may be wrong in both directions.
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
    """The value, or the Rejected that says why there is none."""
    try:
        return interpret(text)
    except Rejected as reason:
        return reason


def plain_by(pattern: str) -> Callable[[pa.BinaryArray], Mask]:
    """The ``plain`` of ``convert``: values that match a whole RE2 pattern."""

    def plain(values: pa.BinaryArray) -> Mask:
        matches = pc.match_substring_regex(values, f"^(?:{pattern})$")
        return matches.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    return plain


def _offenders(
    values: pa.BinaryArray, parse: Callable[[pa.BinaryArray], pa.Array]
) -> list[int]:
    """The rows that ``parse`` refuses, ascending."""
    found: list[int] = []
    pending = [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        try:
            parse(values.slice(start, stop - start))
        except pa.ArrowInvalid:
            if stop - start == 1:
                found.append(start)
            elif stop - start <= _SMALL:
                pending.extend((row, row + 1) for row in reversed(range(start, stop)))
            else:
                middle = (start + stop) // 2
                pending.append((middle, stop))
                pending.append((start, middle))
    return found
