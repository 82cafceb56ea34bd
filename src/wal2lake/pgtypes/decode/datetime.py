"""PostgreSQL's ISO dates and timestamps to Arrow, column by column.

Comes in: a BinaryArray as a session with ``DateStyle ISO`` sends it (any TimeZone), and the
mapping. Goes out: a Conversion. Called by ``text`` only.

Arrow's ISO 8601 parser reads all of PostgreSQL's output for years 1 to 9999, including zone
offsets of whole minutes. The interpreter reads the rest: infinity, BC, years of more digits,
offsets with seconds (local mean time before standard zones). A timestamp beyond the range of a
column (``moments``) is a bad row, 22008.

Source: EncodeDateTime and EncodeTimezone in src/backend/utils/adt/datetime.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
from wal2lake.pgtypes.moments import (
    DAY_MICROSECONDS,
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
    MIN_DAY,
    MIN_MICROSECOND,
    day_of,
    infinite,
)

_DATE = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?\Z", re.ASCII)
_DATE_OF_TIME = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)"
    r"(?:[ T][012]\d:[0-5]\d:[0-6]\d(?:\.\d{1,6})?(?:[+-]\d\d(?::\d\d){0,2})?)?( BC)?\Z",
    re.ASCII,
)
"""Matches a date or a timestamp, whose time is ignored."""
_PLAIN_TIMESTAMP = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
)
_TIMESTAMP = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?)?( BC)?\Z",
    re.ASCII,
)


def decode_date(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert ISO dates, ``infinity`` and ``-infinity``."""

    def interpret(text: bytes) -> int:
        word = _word(text)
        sign = infinite(word)
        if sign is not None:
            return sign * INFINITE_DAY
        match = (_DATE if mapping.reads is None else _DATE_OF_TIME).match(word)
        if match is None:
            raise _invalid_syntax("date")
        day = _day(match[1], match[2], match[3], match[4])
        if not FIRST_DAY <= day <= LAST_DAY:
            raise _out_of_range("date")
        return day

    return convert(
        values,
        mapping.arrow_type,
        _parser(mapping.arrow_type),
        interpret,
        _before(pa.int32(), MIN_DAY),
        plain=plain_by("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    )


def decode_timestamp(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    """Convert timestamp (mapping without zone) and timestamptz (UTC), including infinities."""
    zoned = mapping.arrow_type.tz is not None
    shown = "timestamp with time zone" if zoned else "timestamp"

    def interpret(text: bytes) -> int:
        word = _word(text)
        sign = infinite(word)
        if sign is not None:
            return sign * INFINITE_MICROSECOND
        match = _TIMESTAMP.match(word)
        foreign = mapping.reads is not None
        if match is None or not (
            foreign or (zoned == bool(match[8]) and match[4] is not None)
        ):
            raise _invalid_syntax(shown)
        seconds = _seconds(match[4], match[5], match[6])
        # The zone in a text for timestamp is ignored. A text without zone for timestamptz is in
        # our session's zone, UTC.
        if zoned and match[8] is not None:
            offset = int(match[9]) * 3600 + int(match[10] or 0) * 60
            offset += int(match[11] or 0)
            seconds += offset if match[8] == "-" else -offset
        micros = _day(match[1], match[2], match[3], match[12]) * DAY_MICROSECONDS
        micros += seconds * 1_000_000 + int((match[7] or "").ljust(6, "0"))
        if not FIRST_MICROSECOND <= micros <= LAST_MICROSECOND:
            raise _out_of_range("timestamp")
        return micros

    return convert(
        values,
        mapping.arrow_type,
        _parser(mapping.arrow_type),
        interpret,
        _before(pa.int64(), MIN_MICROSECOND),
        plain=plain_by(
            _PLAIN_TIMESTAMP + ("[+-][0-9]{2}(:[0-9]{2})?" if zoned else "")
        ),
    )


def _day(year: str, month: str, day: str, before_christ: str | None) -> int:
    number = 1 - int(year) if before_christ else int(year)
    days = day_of(number, int(month), int(day)) if int(year) else None
    if days is None:
        raise _field_out_of_range()
    return days


def _seconds(hour: str | None, minute: str | None, second: str | None) -> int:
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 60 or total > 86_400:
        raise _field_out_of_range()
    return total


def _parser(arrow_type: pa.DataType) -> Callable[[pa.BinaryArray], pa.Array]:
    def parse(values: pa.BinaryArray) -> pa.Array:
        # Without a check of UTF-8: only ASCII digits and punctuation can be parsed.
        return values.cast(pa.string(), safe=False).cast(arrow_type)

    return parse


def _before(
    integers: pa.DataType, first: int
) -> Callable[[pa.BinaryArray, pa.Array], Mask | None]:
    """Return a function that finds rows before year 1. There Arrow has read a year 0, which
    PostgreSQL's dates do not have, or an offset has moved the value there."""

    def suspects(values: pa.BinaryArray, array: pa.Array) -> Mask | None:
        del values
        numbers = array.view(integers)
        least = pc.min(numbers).as_py()
        if least is None or least >= first:
            return None
        mask: Mask = numbers.fill_null(0).to_numpy(zero_copy_only=False) < first
        return np.asarray(mask)

    return suspects


def _word(text: bytes) -> str:
    return text.decode("ascii", "replace").strip()


def _invalid_syntax(shown: str) -> Rejected:
    return Rejected("22007", f"invalid input syntax for type {shown}")


def _out_of_range(shown: str) -> Rejected:
    return Rejected("22008", f"{shown} out of range")


def _field_out_of_range() -> Rejected:
    return Rejected("22008", "date/time field value out of range")
