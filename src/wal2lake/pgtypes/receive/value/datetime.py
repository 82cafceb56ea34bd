"""Dates, times and intervals: one binary value to text (DateStyle ISO, TimeZone UTC).

Called through ``scalar``. Dates and timestamps count from 2000-01-01; a timetz has its zone
in seconds west of Greenwich.

Sources: date_send, time_send, timetz_send, timestamp_send, interval_send; EncodeInterval
in src/backend/utils/adt/datetime.c.
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
from wal2lake.pgtypes.receive.value.cursor import Cursor

_DAY = 86_400_000_000
_INT32_MAX = (1 << 31) - 1


def read_date(data: bytes) -> str:
    """Int32 days."""
    cursor = Cursor(data)
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
    cursor = Cursor(data)
    number = cursor.number("q")
    cursor.end()
    if number in (TIMESTAMP_INFINITY, ~TIMESTAMP_INFINITY):
        return "infinity" if number > 0 else "-infinity"
    day, rest = divmod(number + TIMESTAMP_EPOCH, _DAY)
    date, era = date_text(day)
    return f"{date} {clock_text(rest)}{suffix}{era}"


def _clock(cursor: Cursor) -> str:
    number = cursor.number("q")
    if not 0 <= number <= _DAY:
        raise UsageError("time out of range", sqlstate="22008")
    return clock_text(number)


def read_time(data: bytes) -> str:
    """Int64 microseconds of the day; 24:00:00 is one."""
    cursor = Cursor(data)
    text = _clock(cursor)
    cursor.end()
    return text


def read_timetz(data: bytes) -> str:
    """A time, then Int32 seconds west of Greenwich."""
    cursor = Cursor(data)
    text = _clock(cursor)
    west = cursor.number("i")
    cursor.end()
    return text + offset_text(-west)


def read_interval(data: bytes) -> str:
    """Int64 microseconds, Int32 days, Int32 months; IntervalStyle postgres."""
    cursor = Cursor(data)
    time, days, months = cursor.number("q"), cursor.number("i"), cursor.number("i")
    cursor.end()
    # Since PostgreSQL 17; before, these were ordinary values that nobody could write.
    limits = (TIMESTAMP_INFINITY, _INT32_MAX, _INT32_MAX)
    if (time, days, months) == limits:
        return "infinity"
    if (~time, ~days, ~months) == limits:
        return "-infinity"
    years, rest = divmod(abs(months), 12)
    if months < 0:
        years, rest = -years, -rest
    parts: list[str] = []
    before = False
    for value, unit in ((years, "year"), (rest, "mon"), (days, "day")):
        if value:
            plus = "+" if before and value > 0 else ""
            parts.append(f"{plus}{value} {unit}{'' if value == 1 else 's'}")
            before = value < 0
    if time or not parts:
        sign = "-" if time < 0 else "+" if before else ""
        parts.append(sign + clock_text(abs(time)))
    return " ".join(parts)
