"""Reads constants of dates and times as PostgreSQL's input functions do.

Comes in: the text of a constant. Goes out: the canonical text or the stored number; a typed Spark
constant. Called by ``literals``.

Constants may be ISO 8601 dates of any year, times with or without seconds, and zones as offsets,
abbreviations or names. Other spellings that PostgreSQL reads (``Jan 1 2024``, ``now``,
``yesterday``) are refused.

Sources: PostgreSQL manual 8.5; src/backend/utils/adt/datetime.c.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import pyarrow as pa
from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.pgtypes.abbreviations import constant_zone, offset_zone
from wal2lake.pgtypes.moments import (
    DAY_MICROSECONDS,
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
    day_of,
    fields_of,
    infinite,
    spark_text,
)
from wal2lake.pgtypes.timezone import zone_for
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.types import Operand, Type, cast, plain

_HINT: Final = "Write it in ISO 8601: 2024-01-31 23:59:59.5+00."
_DATE = re.compile(r"(\d{4,7})-(\d{1,2})-(\d{1,2})\Z")
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d)(\.\d*)?)?\Z")
_DIGITS: Final = r"\d\d?(?::?\d\d)?(?::?\d\d)?"
_MOMENT = re.compile(
    r"(\d{4,7}-\d{1,2}-\d{1,2})(?:[T ]\s*(\d{1,2}:\d\d(?::\d\d(?:\.\d*)?)?)"
    rf"\s*(Z|[+-]{_DIGITS}|[A-Za-z][A-Za-z_/+-]*\d*)?"
    # A date may have a zone, too, but a "-" directly behind the day is not an offset's.
    rf"|\s*(Z|\+{_DIGITS})|\s+(-{_DIGITS}))?\Z",
    re.IGNORECASE,
)
_ZONED = re.compile(rf"(.*?)\s*(Z|[+-]{_DIGITS})\Z", re.IGNORECASE | re.DOTALL)

_NO_OFFSET: Final = timedelta(0)


def parse_time(text: str) -> str:
    """The canonical text of a time; a zone is checked and ignored."""
    zoned = _ZONED.match(text.strip())
    if zoned is not None:
        offset_zone(zoned[2], text)
    return _time_of_day(text.strip() if zoned is None else zoned[1], "time", text)


def parse_timetz(text: str, zone: str) -> str:
    """The canonical text of a time with time zone.

    A text without a zone gets today's offset of the session's time zone ``zone``.
    """
    zoned = _ZONED.match(text.strip())
    bare = text.strip() if zoned is None else zoned[1]
    clock = _time_of_day(bare, "time with time zone", text)
    place = zone_for(zone)[1] if zoned is None else offset_zone(zoned[2], text)
    seconds = int((datetime.now(place).utcoffset() or _NO_OFFSET).total_seconds())
    sign = "-" if seconds < 0 else "+"
    hours, remainder = divmod(abs(seconds), 3600)
    minutes, seconds = divmod(remainder, 60)
    parts = [hours, minutes, seconds][: 3 if seconds else 2 if minutes else 1]
    return clock + sign + ":".join(f"{part:02d}" for part in parts)


def _time_of_day(bare: str, name: str, text: str) -> str:
    match = _TIME.match(bare)
    if match is None:
        raise _unreadable(name, text)
    hours, minutes, seconds, micros = _clock(match)
    if hours > 24 or minutes > 59 or seconds > 59 or micros >= 1_000_000:
        raise _out_of_range(text)
    if hours == 24 and (minutes or seconds or micros):
        raise _out_of_range(text)
    fraction = f".{micros:06d}".rstrip("0").rstrip(".")
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


_CLOCK: Final = re.compile(r"[\d:.]+")


def rounded_clock(text: str, places: int) -> str:
    """Round the canonical text of a time, maybe with a zone: AdjustTimeForTypmod()."""
    digits = _CLOCK.match(text)
    clock = _TIME.match(digits[0]) if digits is not None else None
    assert digits is not None and clock is not None
    hours, minutes, seconds, micros = _clock(clock)
    unit = 10 ** max(6 - places, 0)
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
    total = (total + unit // 2) // unit * unit
    seconds, micros = divmod(total, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0").rstrip(".")
    shown = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return shown + fraction + text[digits.end() :]


_ERA: Final = re.compile(r"\s+(BC|AD)\Z", re.IGNORECASE)


def parse_moment(text: str, oid: int, zone: str) -> int:
    """The stored number of a date, timestamp or timestamptz constant.

    ``zone`` is the session's time zone.
    """
    bare = text.strip()
    sign = infinite(bare)
    if sign is not None:
        return sign * (INFINITE_DAY if oid == t.DATE else INFINITE_MICROSECOND)
    if bare.lower() == "epoch":
        return 0
    era = _ERA.search(bare)
    match = _MOMENT.match(bare if era is None else bare[: era.start()])
    if match is None:
        raise _unreadable(plain(oid).name, text)
    day = _day(match[1], era, text)
    named = match[3] or match[4] or match[5]
    place = None
    if named is not None:
        place = _named(named, text, oid, zone)
    if oid == t.DATE:
        if not FIRST_DAY <= day <= LAST_DAY:
            raise UsageError(f'date out of range: "{text}"', sqlstate="22008")
        return day
    number = day * DAY_MICROSECONDS
    if match[2] is not None:
        clock = _TIME.match(match[2])
        assert clock is not None
        hours, minutes, seconds, micros = _clock(clock)
        if hours > 24 or minutes > 59 or seconds > 60:
            raise _out_of_range(text)
        number += ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
    if oid == t.TIMESTAMPTZ:
        number -= _offset(number, place or zone_for(zone)[1]) * 1_000_000
    if not FIRST_MICROSECOND <= number <= LAST_MICROSECOND:
        raise UsageError(f'timestamp out of range: "{text}"', sqlstate="22008")
    return number


def parse_timestamp(text: str, zone: str) -> str:
    """The ISO 8601 text in UTC of a timestamptz between the years 1 and 9999."""
    number = parse_moment(text, t.TIMESTAMPTZ, zone)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number)
    except OverflowError:
        raise _out_of_range(text) from None
    return moment.isoformat(" ")


def _day(text: str, era: re.Match[str] | None, whole_text: str) -> int:
    match = _DATE.match(text)
    assert match is not None
    year = int(match[1])
    if era is not None and era[1].upper() == "BC":
        year = 1 - year
    day = day_of(year, int(match[2]), int(match[3])) if int(match[1]) else None
    if day is None:
        raise _out_of_range(whole_text)
    return day


_CYCLE_DAYS: Final = 146_097
"""The days of 400 years, after which the calendar and the rules of zones repeat."""


def _offset(local: int, zone: tzinfo) -> int:
    """The zone's offset at a local time, in seconds east of Greenwich."""
    day, time_of_day = divmod(local, DAY_MICROSECONDS)
    year = fields_of(day)[0]
    # Python's years are 1 to 9999.
    shift = 9600 - year // 400 * 400 if year >= 9999 else 400 - year // 400 * 400
    moved = day if 1 < year < 9999 else day + shift // 400 * _CYCLE_DAYS
    moment = datetime(1970, 1, 1) + timedelta(days=moved, microseconds=time_of_day)
    earlier = moment.replace(tzinfo=zone)
    later = earlier.replace(fold=1)
    if (earlier.utcoffset() or _NO_OFFSET) > (later.utcoffset() or _NO_OFFSET):
        # The clock goes back over this time: take the later one, as DetermineTimeZoneOffset does.
        earlier = later
    offset = earlier.utcoffset() or _NO_OFFSET
    return offset.days * 86_400 + offset.seconds


_KINDS: Final = {
    t.DATE: pa.date32(),
    t.TIMESTAMP: pa.timestamp("us"),
    t.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}


def constant(text: str, kind: Type, zone: str) -> Operand:
    """Read ``'text'::kind`` for a date, timestamp or timestamptz."""
    number = parse_moment(text, kind.oid, zone)
    spark_literal = spark_text(number, _KINDS[kind.oid])
    return Operand(cast(exp.Literal.string(spark_literal), t.spark_name(kind)), kind)


def _clock(match: re.Match[str]) -> tuple[int, int, int, int]:
    micros = round(float("0" + (match[4] or ".0")) * 1_000_000)
    return int(match[1]), int(match[2]), int(match[3] or 0), micros


def _named(text: str, whole_text: str, oid: int, session: str) -> tzinfo | None:
    """Return the zone that a constant names; None if its type ignores what is not supported."""
    if text[0] in "+-" or text.lower() == "z":
        return offset_zone(text, whole_text)
    try:
        zone = constant_zone(text, session)
    except FeatureNotSupportedError:
        if oid == t.TIMESTAMPTZ:
            raise
        return None
    if zone is None:
        raise _invalid(plain(oid).name, whole_text)
    return zone


def _unreadable(name: str, text: str) -> Wal2LakeError:
    if not re.search(r"\d", text) and not re.search(r"[a-z]{3}", text, re.IGNORECASE):
        return _invalid(name, text)
    return t.refuse(f'the {name} constant "{text}"', _HINT)


def _invalid(name: str, text: str) -> UsageError:
    short = name.removesuffix(" without time zone")
    message = f'invalid input syntax for type {short}: "{text}"'
    return UsageError(message, sqlstate="22007")


def _out_of_range(text: str) -> UsageError:
    return UsageError(f'date/time field value out of range: "{text}"', sqlstate="22008")
