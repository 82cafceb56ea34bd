"""Dates and timestamps as numbers, without Python's datetime, which ends at the year 9999.

Comes in: fields of a date, stored numbers. Goes out: days and microseconds since 1970, and the
reverse; also in the text form of Spark and Delta. Called by the decoders and encoders of dates, and
for constants and partition values.

A lake's DATE is an integer of 32 bits, a TIMESTAMP one of 64. Both count from 1970, while
PostgreSQL counts from 2000. So all of PostgreSQL's dates can be stored, and all timestamps up to
January of the year 294247; timestamps of the last thirty years of PostgreSQL's range cannot.

``infinity`` is the largest integer and ``-infinity`` its negative, as in DuckDB. The lowest
integer, which PostgreSQL uses for ``-infinity``, is not used: NumPy and pandas treat it as a
missing value (NaT), and DuckDB cannot print it.

In Spark's texts a year of more than four digits, and a negative year, have a sign; year 0 is 1 BC.

Sources: PostgreSQL's datatype/timestamp.h (DATE_END_JULIAN, MIN_TIMESTAMP); DuckDB's date.hpp and
timestamp.hpp (infinity(), ninfinity()); Spark's SparkDateTimeUtils.scala (stringToDate()).
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

INFINITE_DAY: Final = (1 << 31) - 1
"""The stored number of the date ``infinity``; its negative is ``-infinity``."""
INFINITE_MICROSECOND: Final = (1 << 63) - 1
"""The stored number of the timestamp ``infinity``."""

DAY_MICROSECONDS: Final = 86_400_000_000

FIRST_DAY: Final = -2_440_588
"""4714-11-24 BC, the first day of PostgreSQL's calendar, in days since 1970."""
LAST_DAY: Final = 2_145_042_905
"""5874897-12-31."""
FIRST_MICROSECOND: Final = FIRST_DAY * DAY_MICROSECONDS
LAST_MICROSECOND: Final = INFINITE_MICROSECOND - 1
"""294247-01-10 04:00:54.775806, the end of 64 bits since 1970. PostgreSQL's range ends in
294276."""

MIN_DAY: Final = -719_162
"""0001-01-01: from here to ``MAX_DAY`` a year has four digits in texts."""
MAX_DAY: Final = 2_932_896
"""9999-12-31."""
MIN_MICROSECOND: Final = MIN_DAY * DAY_MICROSECONDS
MAX_MICROSECOND: Final = (MAX_DAY + 1) * DAY_MICROSECONDS - 1

_DAYS_0000_03_01: Final = 719_468
"""Days from 0000-03-01, the start of the 400-year cycle, to 1970-01-01."""
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def day_of(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date; year 0 is 1 BC. None: there is no such day."""
    if not 1 <= month <= 12:
        return None
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _MONTH_DAYS[month - 1] + leap:
        return None
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    day_of_era = 365 * year_of_era + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - _DAYS_0000_03_01


def fields_of(day: int) -> tuple[int, int, int]:
    """Return (year, month, day of the month) of days since 1970; year 0 is 1 BC."""
    era, day_of_era = divmod(day + _DAYS_0000_03_01, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (
        365 * year_of_era + year_of_era // 4 - year_of_era // 100
    )
    month_from_march = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_month


def infinite(word: str) -> int | None:
    """Return 1 for ``infinity``, -1 for ``-infinity``, None for other words."""
    return {"infinity": 1, "+infinity": 1, "-infinity": -1}.get(word.strip().lower())


_SPARKS: Final = re.compile(
    r"(?P<year>[+-]?\d{4,7})-(?P<month>\d\d?)-(?P<day>\d\d?)"
    r"(?:[ T](?P<hour>\d\d?):(?P<minute>\d\d?):(?P<second>\d\d?)"
    r"(?:\.(?P<fraction>\d{1,6})\d*)?)?(?:Z|UTC|\+00:00)?"
)


def spark_text(number: int, kind: pa.DataType) -> str:
    """Write a date or timestamp as Spark reads it, with ``Z`` if the type has a zone."""
    if pa.types.is_date32(kind):
        return _spark_day(number)
    day, rest = divmod(number, DAY_MICROSECONDS)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    joint, zone = (" ", "") if kind.tz is None else ("T", "Z")
    return f"{_spark_day(day)}{joint}{clock}.{fraction:06d}{zone}"


def _spark_day(number: int) -> str:
    year, month, day = fields_of(number)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def spark_number(text: str, kind: pa.DataType) -> int | None:
    """Read the text of a date or timestamp in UTC, or in Spark's form; None: not valid."""
    match = _SPARKS.fullmatch(text.strip())
    is_date = pa.types.is_date32(kind)
    if match is None or (is_date and match["hour"] is not None):
        return None
    day = day_of(int(match["year"]), int(match["month"]), int(match["day"]))
    if day is None or is_date:
        return day
    seconds = 0
    if match["hour"] is not None:
        seconds = int(match["hour"]) * 3600 + int(match["minute"]) * 60
        seconds += int(match["second"])
    fraction = int((match["fraction"] or "").ljust(6, "0"))
    return day * DAY_MICROSECONDS + seconds * 1_000_000 + fraction


def numbered(array: pa.Array) -> pa.Array:
    """Cast a column, or lists, of dates or timestamps to the stored numbers."""
    kind = array.type
    if pa.types.is_list(kind):
        inner = _number_type(kind.value_type)
        return array if inner is None else array.cast(pa.list_(inner))
    number = _number_type(kind)
    return array if number is None else array.cast(number)


def _number_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else None
