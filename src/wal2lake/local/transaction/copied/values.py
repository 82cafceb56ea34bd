"""Spellings of values that a COPY ... FROM brings, and the errors of values that are none.

The conversion of replicated values reads what PostgreSQL's output functions write, quickly. A
client may write ``Jan 5 2024``, a time without its zone, or a number with more digits than its
column has. A column with such a value is written in the usual spelling first, value by value.

Source: the input functions in src/backend/utils/adt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.catalog import ColumnDef
from wal2lake.errors import FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.lake.staging import BadValue, SentColumn
from wal2lake.model import INVALID_OID, Oid
from wal2lake.pgtypes.decode.inputs import has_input
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.literals import constant
from wal2lake.sql.query.values.moments import parse_moment

_NUMERIC: Final = 1700
_TEXT: Final = Oid(25)
_MICROSECONDS: Final = 6
"""Places of a second that are stored."""
_DATE, _TIMESTAMP, _TIMESTAMPTZ = 1082, 1114, 1184

_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"

_USUAL: Final = {
    _DATE: f"^{_DAY}$",
    _TIMESTAMP: f"^{_DAY} {_CLOCK}$",
    _TIMESTAMPTZ: f"^{_DAY} {_CLOCK}[+-][0-9]{{2}}(:[0-9]{{2}})?$",
    _NUMERIC: r"^(0|-?[1-9][0-9]*)(\.[0-9]+)?$",
    2950: "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
}
"""For types of which a usual spelling is quickly recognized, by OID."""


def as_sent(values: Any, column: ColumnDef, zone: str) -> SentColumn:
    """Return values for the conversion. Values that are none stay as they are: the conversion
    reports them."""
    oid = int(column.type_oid)
    pattern = _USUAL.get(oid)
    if pattern is None:
        return SentColumn(values, None, _TEXT if has_input(oid) else INVALID_OID)
    texts = _decoded(values)
    if texts is None or (column.typmod == -1 and _all_match(texts, pattern)):
        return SentColumn(values)
    if oid in (_DATE, _TIMESTAMP, _TIMESTAMPTZ):
        return SentColumn(_moments(texts, column, zone))
    if oid == _NUMERIC and column.typmod != -1:
        return SentColumn(_rounded(texts, column.typmod))
    return SentColumn(values, None, _TEXT)


def _decoded(values: Any) -> Any:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _all_match(texts: Any, pattern: str) -> bool:
    matching = pc.all(pc.match_substring_regex(texts, pattern)).as_py()
    return matching is not False


def _each(texts: Any, usual: Callable[[str], bytes]) -> Any:
    """Return the values of a function, which is called once for equal texts."""
    codes = texts.dictionary_encode()
    values = [usual(text) for text in codes.dictionary.to_pylist()]
    return pa.array(values, pa.binary()).take(codes.indices)


def precision_and_scale(typmod: int) -> tuple[int, int]:
    """Return the declared precision and scale of a numeric column; the scale may be negative."""
    scale = (typmod - 4) & 0x7FF
    return (typmod - 4) >> 16 & 0xFFFF, scale - 0x800 if scale >= 0x400 else scale


def _rounded(texts: Any, typmod: int) -> Any:
    """Round numbers to the scale of their column, half away from zero."""
    _, scale = precision_and_scale(typmod)
    if scale >= 0 and _all_match(texts, rf"^-?[0-9]+(\.[0-9]{{0,{scale}}})?$"):
        return texts.cast(pa.binary())
    unit = Decimal(1).scaleb(-scale)

    def rounded(text: str) -> bytes:
        try:
            number = Decimal(text.strip())
            with localcontext() as context:
                context.prec = len(number.as_tuple().digits) + abs(scale) + 400
                number = number.quantize(unit, ROUND_HALF_UP)
            return f"{number:f}".encode()
        except (ArithmeticError, ValueError):
            return text.encode()

    return _each(texts, rounded)


def _moments(texts: Any, column: ColumnDef, zone: str) -> Any:
    oid, places = int(column.type_oid), column.typmod
    pattern = _USUAL[oid]
    if 0 <= places < _MICROSECONDS:
        fraction = rf"(\.[0-9]{{1,{places}}})?" if places else ""
        pattern = pattern.replace(r"(\.[0-9]{1,6})?", fraction)
    if _all_match(texts, pattern):
        return texts.cast(pa.binary())
    return _each(texts, lambda text: _moment(text, oid, places, zone))


def _moment(text: str, oid: int, places: int, zone: str) -> bytes:
    try:
        number = parse_moment(text, oid, zone)
        if oid == _DATE:
            return (date(1970, 1, 1) + timedelta(days=number)).isoformat().encode()
        if 0 <= places < _MICROSECONDS:
            unit = 10 ** (_MICROSECONDS - places)
            sign = -1 if number < 0 else 1
            number = sign * ((abs(number) + unit // 2) // unit) * unit
        moment = datetime(1970, 1, 1) + timedelta(microseconds=number)
    except (Wal2LakeError, OverflowError):
        return text.encode()
    shown = moment.isoformat(sep=" ") + ("+00" if oid == _TIMESTAMPTZ else "")
    return shown.encode()


def input_error(
    value: bytes, column: ColumnDef, zone: str, bad: BadValue
) -> Wal2LakeError:
    """Return the error of PostgreSQL's input function for a value that is none."""
    text = value.decode("utf-8", "replace")
    if bad.sqlstate == "22003" and column.type_oid == _NUMERIC and column.typmod != -1:
        precision, scale = precision_and_scale(column.typmod)
        digits = precision - scale
        return UsageError(
            "numeric field overflow",
            sqlstate="22003",
            detail=f"A field with precision {precision}, scale {scale} must round to an"
            f" absolute value less than {f'10^{digits}' if digits else '1'}.",
        )
    try:
        constant(text, t.of_column(column), zone)
    except FeatureNotSupportedError as error:
        if column.type_oid in (_DATE, _TIMESTAMP, _TIMESTAMPTZ):
            # PostgreSQL may know the spelling.
            return error
    except UsageError as error:
        return UsageError(error.message, sqlstate=error.sqlstate, detail=error.detail)
    message = bad.message
    if bad.sqlstate == "22P02" and ': "' not in message:
        message = f'{message}: "{text}"'
    return UsageError(message, sqlstate=bad.sqlstate, detail=bad.detail)
