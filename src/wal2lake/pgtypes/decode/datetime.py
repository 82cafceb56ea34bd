"""PostgreSQL's ISO dates and timestamps to Arrow, column by column.

Comes in: a BinaryArray as a session with ``DateStyle ISO`` sends it (any TimeZone), and the
mapping. Goes out: a Conversion. Called by ``text`` only.

Arrow's ISO 8601 parser reads everything that PostgreSQL writes for years 1 to 9999, zone
offsets of whole minutes included. The interpreter sees what is left: offsets with seconds
(local mean time before standard zones), and the values outside Spark's range (see
``mapping``): infinity, BC, five-digit years. Those are bad rows, 22008 as in PostgreSQL.

Source: EncodeDateTime and EncodeTimezone in src/backend/utils/adt/datetime.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.decode.conversion import (
    Conversion,
    Mask,
    Rejected,
    convert,
    plain_by,
)
from wal2lake.pgtypes.mapping import TypeMapping

_EPOCH = date(1970, 1, 1)
_DAY_MICROSECONDS = 86_400_000_000
MIN_DAY = (date.min - _EPOCH).days
"""0001-01-01, in days since 1970."""
MAX_DAY = (date.max - _EPOCH).days
MIN_MICROSECOND = MIN_DAY * _DAY_MICROSECONDS
"""0001-01-01 00:00:00, in microseconds since 1970."""
MAX_MICROSECOND = (MAX_DAY + 1) * _DAY_MICROSECONDS - 1

_DATE = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?\Z", re.ASCII)
_DATE_OF_TIME = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)"
    r"(?:[ T][012]\d:[0-5]\d:[0-6]\d(?:\.\d{1,6})?(?:[+-]\d\d(?::\d\d){0,2})?)?( BC)?\Z",
    re.ASCII,
)
"""A timestamp is a date, whatever its time."""
_PLAIN_TIMESTAMP = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
)
_TIMESTAMP = re.compile(
    r"(\d{4,6})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?)?( BC)?\Z",
    re.ASCII,
)


def decode_date(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """ISO dates, years 1 to 9999."""

    def interpret(text: bytes) -> date:
        word = _word(text, "date")
        match = (_DATE if mapping.reads is None else _DATE_OF_TIME).match(word)
        if match is None:
            raise _invalid_syntax("date")
        if match[4] or len(match[1]) > 4 or match[1] == "0000":
            raise _out_of_range("date")
        try:
            return date(int(match[1]), int(match[2]), int(match[3]))
        except ValueError:
            raise _field_out_of_range() from None

    return convert(
        values,
        mapping.arrow_type,
        _parser(mapping.arrow_type),
        interpret,
        _outside(pa.int32(), MIN_DAY, MAX_DAY),
        plain=plain_by("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    )


def decode_timestamp(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """timestamp (mapping without zone) and timestamptz (UTC), years 1 to 9999."""
    zoned = mapping.arrow_type.tz is not None
    shown = "timestamp with time zone" if zoned else "timestamp"

    def interpret(text: bytes) -> datetime:
        word = _word(text, shown)
        match = _TIMESTAMP.match(word)
        foreign = mapping.reads is not None
        if match is None or not (
            foreign or (zoned == bool(match[8]) and match[4] is not None)
        ):
            raise _invalid_syntax(shown)
        if match[12] or len(match[1]) > 4 or match[1] == "0000":
            # Years beside the range could come into it by their offset alone; they
            # are refused too, for the offset is our own session's choice: UTC.
            raise _out_of_range("timestamp")
        try:
            local = datetime(
                int(match[1]),
                int(match[2]),
                int(match[3]),
                int(match[4] or 0),
                int(match[5] or 0),
                int(match[6] or 0),
                int((match[7] or "").ljust(6, "0")),
                UTC if zoned else None,
            )
        except ValueError:
            raise _field_out_of_range() from None
        # A timestamp has no zone, whatever its text says; the zone of one without is our
        # session's, UTC.
        if not zoned or match[8] is None:
            return local
        offset = timedelta(
            hours=int(match[9]),
            minutes=int(match[10] or 0),
            seconds=int(match[11] or 0),
        )
        try:
            return local + offset if match[8] == "-" else local - offset
        except OverflowError:
            raise _out_of_range("timestamp") from None

    return convert(
        values,
        mapping.arrow_type,
        _parser(mapping.arrow_type),
        interpret,
        _outside(pa.int64(), MIN_MICROSECOND, MAX_MICROSECOND),
        plain=plain_by(
            _PLAIN_TIMESTAMP + ("[+-][0-9]{2}(:[0-9]{2})?" if zoned else "")
        ),
    )


def _parser(arrow_type: pa.DataType) -> Callable[[pa.BinaryArray], pa.Array]:
    def parse(values: pa.BinaryArray) -> pa.Array:
        # Unchecked: whatever is not ASCII digits and marks does not parse anyway.
        return values.cast(pa.string(), safe=False).cast(arrow_type)

    return parse


def _outside(
    integers: pa.DataType, low: int, high: int
) -> Callable[[pa.BinaryArray, pa.Array], Mask | None]:
    """Rows that Arrow can hold and the target cannot (year 0, by offset 10000)."""

    def suspects(values: pa.BinaryArray, array: pa.Array) -> Mask | None:
        del values
        numbers = array.view(integers)
        ends = pc.min_max(numbers).as_py()
        if ends["min"] is None or (ends["min"] >= low and ends["max"] <= high):
            return None
        filled = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        mask: Mask = (filled < low) | (filled > high)
        return np.asarray(mask)

    return suspects


def _word(text: bytes, shown: str) -> str:
    word = text.decode("ascii", "replace").strip()
    if word.lower() in ("infinity", "-infinity"):
        raise Rejected("22008", f"{shown} infinity cannot be stored")
    return word


def _invalid_syntax(shown: str) -> Rejected:
    return Rejected("22007", f"invalid input syntax for type {shown}")


def _out_of_range(shown: str) -> Rejected:
    return Rejected("22008", f"{shown} out of range")


def _field_out_of_range() -> Rejected:
    return Rejected("22008", "date/time field value out of range")
