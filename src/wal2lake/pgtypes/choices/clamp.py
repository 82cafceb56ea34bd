"""The nearest value that a type can hold, for policy ``clamp``.

Comes in: values, as text, that could not be converted, and the mapping. Goes out: a Conversion
with the nearest value of each value that has one; other values keep their failure. Called by
``coerce``.

Numbers out of range become the end of the range, digits beyond the scale are rounded as PostgreSQL
rounds numeric (half away from zero), timestamps out of range become the last or first one that can
be stored, text is truncated to its declared length. NaN becomes NULL. An invalid text, a time that
does not exist, and an array of another shape have no nearest value. Arrays are converted element by
element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.pgtypes.decode.array import decode_array
from wal2lake.pgtypes.decode.conversion import Conversion, Failures
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.mapping import ConversionKind, TypeMapping
from wal2lake.pgtypes.moments import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
    fields_of,
)

BEYOND: Final = frozenset(("22001", "22003", "22008"))
"""string_data_right_truncation, numeric_value_out_of_range, datetime_field_overflow: failures of
values that may have a nearest value."""
_YEAR: Final = re.compile(r"(\d+)-\d\d-\d\d")
_LAST_YEAR: Final = fields_of(LAST_DAY)[0]
_LAST_YEAR_OF_TIMES: Final = fields_of(LAST_MICROSECOND // 86_400_000_000)[0]
_FIRST_YEAR: Final = 4714
"""First year, BC, of dates and timestamps."""


class _NoNearest(Exception):
    """The value is not out of range, so it has no nearest value."""


def clamped(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert texts, with the nearest value for those that are out of range."""
    if mapping.kind is ConversionKind.ARRAY:
        return decode_array(values, mapping, clamped)
    converted = text_to_arrow(values, mapping)
    nearest = _NEAREST.get(mapping.kind)
    if not converted.failures or nearest is None:
        return converted
    left = Failures()
    rows: list[int] = []
    replacements: list[object] = []
    # A column often has many equal values of this kind.
    nearest_by_text: dict[bytes, object] = {}
    for failure in converted.failures:
        if failure.sqlstate not in BEYOND:
            left.add_rows(failure.rows, failure.sqlstate, failure.message)
            continue
        texts = values.take(pa.array(failure.rows)).to_pylist()
        for row, text in zip(failure.rows.tolist(), texts, strict=True):
            if text not in nearest_by_text:
                nearest_by_text[text] = _nearest_or_none(nearest, text, mapping)
            if isinstance(nearest_by_text[text], _NoNearest):
                left.add(row, failure.sqlstate, failure.message)
                continue
            rows.append(row)
            replacements.append(nearest_by_text[text])
    array = replaced(converted.array, rows, pa.array(replacements, mapping.arrow_type))
    return left.conclude(array)


def _nearest_or_none(
    nearest: Callable[[str, TypeMapping], object], text: bytes, mapping: TypeMapping
) -> object:
    """Return the nearest value, or a _NoNearest if there is none."""
    try:
        word = text.decode("utf-8", "replace")
        return nearest(
            word if mapping.kind is ConversionKind.TEXT else word.strip(), mapping
        )
    except _NoNearest as reason:
        return reason


def replaced(array: pa.Array, rows: list[int], by: pa.Array) -> pa.Array:
    """Return the array with other values in some rows; also for lists."""
    if not rows:
        return array
    places = np.arange(len(array))
    places[rows] = len(array) + np.arange(len(rows))
    return pa.concat_arrays([array, by]).take(pa.array(places))


def _text(word: str, mapping: TypeMapping) -> str | None:
    assert mapping.length is not None
    return word[: mapping.length.limit]


def _integer(word: str, mapping: TypeMapping) -> int | None:
    bits: int = mapping.arrow_type.bit_width
    try:
        number = int(word)
    except ValueError:
        raise _NoNearest from None
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, number))


def _decimal(word: str, mapping: TypeMapping) -> Decimal | None:
    arrow = mapping.arrow_type
    number = _number(word)
    if number.is_nan():
        return None
    # The largest value has 9 as every digit.
    highest = Decimal((0, (9,) * arrow.precision, -arrow.scale))
    with localcontext(prec=2 * len(word) + 80, rounding=ROUND_HALF_UP):
        if abs(number) <= highest:
            number = number.quantize(Decimal(1).scaleb(-arrow.scale))
        return max(-highest, min(highest, number))


def _float(word: str, mapping: TypeMapping) -> float | None:
    number = _number(word)
    if number.is_nan():
        return None
    highest = np.finfo(
        np.float32 if mapping.arrow_type == pa.float32() else np.float64
    ).max
    if abs(number) > Decimal(float(highest)):
        return float(highest) if number > 0 else -float(highest)
    with np.errstate(under="ignore"):
        single = mapping.arrow_type == pa.float32()
        return float(np.float32(word)) if single else float(word)


def _number(word: str) -> Decimal:
    try:
        return Decimal(word)
    except InvalidOperation:
        raise _NoNearest from None


def _is_high(word: str, last_year: int) -> bool:
    match = _YEAR.match(word)
    if match is None:
        raise _NoNearest
    year, before_christ = int(match[1]), word.endswith("BC")
    if year < (_FIRST_YEAR if before_christ else last_year):
        # The day or time does not exist.
        raise _NoNearest
    return not before_christ


def _date(word: str, mapping: TypeMapping) -> int | None:
    del mapping
    return LAST_DAY if _is_high(word, _LAST_YEAR) else FIRST_DAY


def _timestamp(word: str, mapping: TypeMapping) -> int | None:
    del mapping
    is_high = _is_high(word, _LAST_YEAR_OF_TIMES)
    return LAST_MICROSECOND if is_high else FIRST_MICROSECOND


_NEAREST: Mapping[ConversionKind, Callable[[str, TypeMapping], object]] = (
    MappingProxyType(
        {
            ConversionKind.TEXT: _text,
            ConversionKind.INTEGER: _integer,
            ConversionKind.DECIMAL: _decimal,
            ConversionKind.FLOAT: _float,
            ConversionKind.DATE: _date,
            ConversionKind.TIMESTAMP: _timestamp,
            ConversionKind.TIMESTAMPTZ: _timestamp,
        }
    )
)
