"""Dates and timestamps as numbers: PostgreSQL's calendar without Python's, which ends at 9999.

Comes in: fields of a date, numbers that are stored. Goes out: days and microseconds since 1970,
and back; the same as Spark and Delta write them. Called by the decoders and encoders of dates, and
by who has constants or partitions of them.

A lake's DATE is an integer of 32 bits, a TIMESTAMP one of 64; both count from 1970 where
PostgreSQL counts from 2000. So all of PostgreSQL's dates have a place, and all timestamps up to
January of the year 294247; those of the thirty years behind it, where PostgreSQL ends, have none.

``infinity`` is the largest integer and ``-infinity`` its negative, as DuckDB has them. The lowest
integer, which PostgreSQL has for ``-infinity``, is no value: NumPy and pandas take it for a missing
one (NaT), and DuckDB cannot print it.

Spark's texts have a sign before a year of more than four digits, and before one before 1, where
year 0 is 1 BC.

Sources: PostgreSQL's datatype/timestamp.h (DATE_END_JULIAN, MIN_TIMESTAMP); DuckDB's date.hpp and
timestamp.hpp (infinity(), ninfinity()); Spark's SparkDateTimeUtils.scala (stringToDate()).
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

INFINITE_DAY: Final = (1 << 31) - 1
"""The date ``infinity`` as it is stored; its negative is ``-infinity``."""
INFINITE_MICROSECOND: Final = (1 << 63) - 1
"""The same of a timestamp."""

DAY_MICROSECONDS: Final = 86_400_000_000

FIRST_DAY: Final = -2_440_588
"""4714-11-24 BC, the first day of PostgreSQL's calendar, in days since 1970."""
LAST_DAY: Final = 2_145_042_905
"""5874897-12-31."""
FIRST_MICROSECOND: Final = FIRST_DAY * DAY_MICROSECONDS
LAST_MICROSECOND: Final = INFINITE_MICROSECOND - 1
"""294247-01-10 04:00:54.775806: what 64 bits since 1970 hold. PostgreSQL ends in 294276."""

MIN_DAY: Final = -719_162
"""0001-01-01: from here on to ``MAX_DAY`` a year has four digits in texts."""
MAX_DAY: Final = 2_932_896
"""9999-12-31."""
MIN_MICROSECOND: Final = MIN_DAY * DAY_MICROSECONDS
MAX_MICROSECOND: Final = (MAX_DAY + 1) * DAY_MICROSECONDS - 1

_DAYS_0000_03_01: Final = 719_468
"""Days from 0000-03-01, where the 400-year cycle begins, to 1970-01-01."""
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def day_of(year: int, month: int, day: int) -> int | None:
    """Days since 1970 of a date, year 0 being 1 BC; None: there is no such day."""
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
    """(year, month, day of the month) of days since 1970; the year before 1 is 0."""
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
    """1 for ``infinity``, -1 for ``-infinity``, None for what is neither."""
    return {"infinity": 1, "+infinity": 1, "-infinity": -1}.get(word.strip().lower())


_SPARKS: Final = re.compile(
    r"(?P<year>[+-]?\d{4,7})-(?P<month>\d\d?)-(?P<day>\d\d?)"
    r"(?:[ T](?P<hour>\d\d?):(?P<minute>\d\d?):(?P<second>\d\d?)"
    r"(?:\.(?P<fraction>\d{1,6})\d*)?)?(?:Z|UTC|\+00:00)?"
)


def spark_text(number: int, kind: pa.DataType) -> str:
    """A date or timestamp as Spark reads it; with ``Z`` if the type has a zone."""
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
    """Read a moment's text, in UTC, or a text that Spark has written; None: it is no moment."""
    found = _SPARKS.fullmatch(text.strip())
    is_date = pa.types.is_date32(kind)
    if found is None or (is_date and found["hour"] is not None):
        return None
    day = day_of(int(found["year"]), int(found["month"]), int(found["day"]))
    if day is None or is_date:
        return day
    seconds = 0
    if found["hour"] is not None:
        seconds = int(found["hour"]) * 3600 + int(found["minute"]) * 60
        seconds += int(found["second"])
    fraction = int((found["fraction"] or "").ljust(6, "0"))
    return day * DAY_MICROSECONDS + seconds * 1_000_000 + fraction


def numbered(array: pa.Array) -> pa.Array:
    """A column, or lists, of dates or timestamps as the numbers that they are kept as."""
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
