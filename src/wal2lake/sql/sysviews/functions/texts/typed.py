"""Texts of dates, times, intervals and numbers, PostgreSQL's and the embedded engine's.

Comes in: a text with the type's OID and modifier (``typed_in``); the numbers that make up a value
of the engine (``moment_out``, ``interval_out``). Goes out: the text of the same value, rounded or
cut as the modifier says, in the form that the engine casts to its own type; the text that
PostgreSQL's output function writes.

The engine reads other spellings than PostgreSQL, knows neither ``BC`` nor the session's time zone,
and ignores modifiers. So each cast that depends on one of these goes through a text
(``query.casts``).

Sources: the input and output functions in src/backend/utils/adt; AdjustTimestampForTypmod(),
AdjustTimeForTypmod() and AdjustIntervalForTypmod() there; manual, chapter 8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.encode.datetime import clock_text, date_text, timestamps_text
from wal2lake.pgtypes.encode.interval import (
    INFINITY,
    NEGATIVE_INFINITY,
    Interval,
    interval_of,
)
from wal2lake.pgtypes.expressions import operators
from wal2lake.pgtypes.expressions.values import reader
from wal2lake.pgtypes.moments import (
    DAY_MICROSECONDS,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
)
from wal2lake.pgtypes.registry.pg_type import VARHDRSZ, format_type
from wal2lake.pgtypes.timezone import zone_for
from wal2lake.sql.query.values import moments
from wal2lake.sql.sysviews.functions.call import Call

BPCHAR, VARCHAR, DATE, TIME, TIMESTAMP = 1042, 1043, 1082, 1083, 1114
TIMESTAMPTZ, INTERVAL, TIMETZ, BIT, VARBIT, NUMERIC = 1184, 1186, 1266, 1560, 1562, 1700

_EPOCH_2000: Final = 946_684_800_000_000
"""PostgreSQL's epoch in Unix microseconds."""

_LAST_OF_ENGINE: Final = 9_223_371_331_200_000_000
"""The engine's timestamps end in the year 294247, PostgreSQL's in 294276."""

_DATE_BEFORE: Final = re.compile(r"\s*\d{4,7}-\d{1,2}-\d{1,2}[T ]\s*", re.IGNORECASE)


def typed_in(call: Call, text: str | None, oid: int, typmod: int) -> str | None:
    """The engine's text of the value that PostgreSQL reads from a text and then makes fit."""
    if text is None:
        return None
    return _READERS[oid](text, oid, typmod, call.context.parameters["TimeZone"])


def moment_out(call: Call, number: int | None, oid: int) -> str | None:
    """PostgreSQL's text of a date, timestamp or timestamptz, given as its number since 1970."""
    if number is None:
        return None
    if oid == DATE:
        return "".join(date_text(number))
    zone = None
    if oid == TIMESTAMPTZ:
        zone = zone_for(call.context.parameters["TimeZone"])[1]
    (shown,) = timestamps_text(pa.array([number], pa.timestamp("us")), zone)
    return None if shown is None else shown.decode()


def interval_out(
    call: Call, months: int | None, days: int, microseconds: int
) -> str | None:
    """PostgreSQL's text of an interval."""
    return None if months is None else str(Interval(months, days, microseconds))


# ---- types -----------------------------------------------------------------------------


def _moment(text: str, oid: int, typmod: int, zone: str) -> str:
    number = _read_moment(text, oid, zone)
    if oid == DATE:
        return _engine_date(number)
    if abs(number) == INFINITE_MICROSECOND:
        return "infinity" if number > 0 else "-infinity"
    if 0 <= typmod < 6:
        number = _rounded(number - _EPOCH_2000, typmod) + _EPOCH_2000
    if number > _LAST_OF_ENGINE:
        raise FeatureNotSupportedError(
            f'the timestamp "{text}" is not supported on system catalogs'
        )
    day, clock = divmod(number, DAY_MICROSECONDS)
    suffix = "+00" if oid == TIMESTAMPTZ else ""
    return f"{_engine_date(day)} {clock_text(clock)}{suffix}"


def _read_moment(text: str, oid: int, zone: str) -> int:
    try:
        return moments.parse_moment(text, oid, zone)
    except FeatureNotSupportedError:
        raise _not_read(text, oid) from None


def _not_read(text: str, oid: int) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'the {format_type(oid)} constant "{text}" is not supported on system catalogs',
        hint="Write it in ISO 8601: 2024-01-31 23:59:59.5+00.",
    )


def _engine_date(day: int) -> str:
    if abs(day) == INFINITE_DAY:
        return "infinity" if day > 0 else "-infinity"
    text, era = date_text(day)
    return f"{text} (BC)" if era else text


def _rounded(number: int, digits: int) -> int:
    """Microseconds with so many digits of their seconds; halves go away from 0."""
    step = 10 ** (6 - digits)
    magnitude: int = (abs(number) + step // 2) // step * step
    return magnitude if number >= 0 else -magnitude


def _time(text: str, oid: int, typmod: int, zone: str) -> str:
    bare = _DATE_BEFORE.sub("", text)
    try:
        read = (
            moments.parse_time(bare)
            if oid == TIME
            else moments.parse_timetz(bare, zone)
        )
    except FeatureNotSupportedError:
        raise _not_read(text, oid) from None
    if not 0 <= typmod < 6:
        return read
    return moments.rounded_clock(read, typmod)


def _interval(text: str, oid: int, typmod: int, zone: str) -> str:
    del oid, zone
    read = interval_of(text, typmod)
    if read in (INFINITY, NEGATIVE_INFINITY):
        raise FeatureNotSupportedError(
            f'the interval "{text}" is not supported on system catalogs'
        )
    return f"{read.months} months {read.days} days {read.microseconds} microseconds"


def _numeric(text: str, oid: int, typmod: int, zone: str) -> str:
    del zone
    try:
        number = reader(NUMERIC)(text.strip().encode())
    except UsageError:
        raise UsageError(
            f'invalid input syntax for type numeric: "{text}"', sqlstate="22P02"
        ) from None
    number = operators.cast(NUMERIC, NUMERIC, typmod)(number)
    return f"{number:f}" if number.is_finite() else str(number)


def _character(text: str, oid: int, typmod: int, zone: str) -> str:
    del oid, zone
    return text if typmod < VARHDRSZ else text[: typmod - VARHDRSZ]


def _bits(text: str, oid: int, typmod: int, zone: str) -> str:
    del zone
    digits = text.removeprefix("b").removeprefix("B")
    wrong = next((c for c in digits if c not in "01"), None)
    if wrong is not None:
        raise UsageError(f'"{wrong}" is not a valid binary digit', sqlstate="22P02")
    if typmod < 0:
        return digits
    return digits[:typmod].ljust(typmod, "0") if oid == BIT else digits[:typmod]


_READERS: Final[Mapping[int, Callable[[str, int, int, str], str]]] = {
    BPCHAR: _character,
    VARCHAR: _character,
    DATE: _moment,
    TIME: _time,
    TIMESTAMP: _moment,
    TIMESTAMPTZ: _moment,
    INTERVAL: _interval,
    TIMETZ: _time,
    BIT: _bits,
    VARBIT: _bits,
    NUMERIC: _numeric,
}

TYPED: Final = frozenset(_READERS)
"""Types that ``typed_in`` reads."""
