"""Dates, times and intervals: one binary value to text (DateStyle ISO, TimeZone UTC).

Called through ``scalar``. Dates and timestamps count from 2000-01-01; the zone of a timetz is in
seconds west of Greenwich.

Sources: date_send, time_send, timetz_send, timestamp_send, interval_send in
src/backend/utils/adt.
"""

from __future__ import annotations

from wal2lake.errors import UsageError
from wal2lake.pgtypes.binary import (
    DATE_EPOCH,
    DATE_INFINITY,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
)
from wal2lake.pgtypes.encode.datetime import clock_text, date_text, offset_text
from wal2lake.pgtypes.encode.interval import INFINITY, NEGATIVE_INFINITY, Interval
from wal2lake.pgtypes.receive.value.cursor import ValueCursor

_DAY = 86_400_000_000


def read_date(data: bytes) -> str:
    """Int32 days."""
    cursor = ValueCursor(data)
    days = cursor.number("i")
    cursor.end()
    if days in (DATE_INFINITY, ~DATE_INFINITY):
        return "infinity" if days > 0 else "-infinity"
    return "".join(date_text(days + DATE_EPOCH))


def read_timestamp(data: bytes) -> str:
    """Int64 microseconds."""
    return _timestamp(data, "")


def read_timestamptz(data: bytes) -> str:
    """Int64 microseconds in UTC."""
    return _timestamp(data, "+00")


def _timestamp(data: bytes, suffix: str) -> str:
    cursor = ValueCursor(data)
    number = cursor.number("q")
    cursor.end()
    if number in (TIMESTAMP_INFINITY, ~TIMESTAMP_INFINITY):
        return "infinity" if number > 0 else "-infinity"
    day, rest = divmod(number + TIMESTAMP_EPOCH, _DAY)
    date, era = date_text(day)
    return f"{date} {clock_text(rest)}{suffix}{era}"


def _clock(cursor: ValueCursor) -> str:
    number = cursor.number("q")
    if not 0 <= number <= _DAY:
        raise UsageError("time out of range", sqlstate="22008")
    return clock_text(number)


def read_time(data: bytes) -> str:
    """Int64 microseconds of the day; 24:00:00 is allowed."""
    cursor = ValueCursor(data)
    text = _clock(cursor)
    cursor.end()
    return text


def read_timetz(data: bytes) -> str:
    """A time, then Int32 seconds west of Greenwich."""
    cursor = ValueCursor(data)
    text = _clock(cursor)
    west = cursor.number("i")
    cursor.end()
    return text + offset_text(-west)


def read_interval(data: bytes) -> str:
    """Int64 microseconds, Int32 days, Int32 months; IntervalStyle postgres."""
    cursor = ValueCursor(data)
    time, days, months = cursor.number("q"), cursor.number("i"), cursor.number("i")
    cursor.end()
    value = Interval(months, days, time)
    # Infinity exists since PostgreSQL 17. Earlier, the extremes of all three fields were an
    # ordinary value; the bytes do not show which version sent them.
    if value in (INFINITY, NEGATIVE_INFINITY):
        return "infinity" if value == INFINITY else "-infinity"
    return str(value)
