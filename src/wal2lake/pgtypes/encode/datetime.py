"""Dates, times and intervals as PostgreSQL prints them with DateStyle ISO.

Comes in: Arrow dates (days), timestamps, times and durations (microseconds). Goes out: one
text per value, None for null. Called by ``text``.

Arrow prints years 0001 to 9999, PostgreSQL's fraction without trailing zeros is joined to
it; the other years, which a query or a session's zone can bring about, are computed here.

Sources: EncodeDateTime, EncodeDateOnly, EncodeTimezone, AppendSeconds and EncodeInterval in
src/backend/utils/adt/datetime.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.decode.datetime import (
    MAX_DAY,
    MAX_MICROSECOND,
    MIN_DAY,
    MIN_MICROSECOND,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_DAYS_0000_03_01 = 719_468
"""Days from 0000-03-01, where the 400-year cycle begins, to 1970-01-01."""

Texts = list[bytes | None]


def dates_column(days: pa.Array) -> pa.Array | None:
    """date32 to ``YYYY-MM-DD``, Arrow strings; None: a year has no four digits."""
    ends = pc.min_max(days.cast(pa.int32())).as_py()
    if ends["min"] is None or (ends["min"] >= MIN_DAY and ends["max"] <= MAX_DAY):
        return days.cast(pa.string())
    return None


def dates_text(days: pa.Array) -> Texts:
    """date32 to ``YYYY-MM-DD``, ``BC`` behind years before 1."""
    texts = dates_column(days)
    if texts is not None:
        return _bytes(texts)
    return [
        None if day is None else (date_text(day)[0] + date_text(day)[1]).encode()
        for day in days.cast(pa.int32()).to_pylist()
    ]


def timestamps_text(instants: pa.Array, zone: tzinfo | None) -> Texts:
    """timestamp[us] to text; ``zone`` None: without zone, else shifted and suffixed.

    The array's values count from 1970 in UTC (or in local time without zone).
    """
    numbers = instants.cast(pa.int64())
    if zone is None:
        return _local_text(numbers, None)
    if zone is UTC:
        return _local_text(numbers, "+00")
    local: list[int | None] = []
    suffixes: list[str | None] = []
    for number in numbers.to_pylist():
        if number is None:
            local.append(None)
            suffixes.append(None)
            continue
        offset = _offset(number, zone)
        local.append(number + offset * _SECOND)
        suffixes.append(offset_text(offset))
    return _local_text(pa.array(local, pa.int64()), suffixes)


def _offset(number: int, zone: tzinfo) -> int:
    """Seconds east of Greenwich at an instant; outside datetime's years, at their end."""
    inside = min(max(number, MIN_MICROSECOND + _DAY), MAX_MICROSECOND - _DAY)
    instant = _EPOCH + timedelta(microseconds=inside)
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


def offset_text(seconds: int) -> str:
    """``+05:30``, ``-08``, ``+05:53:28``."""
    sign, magnitude = ("-", -seconds) if seconds < 0 else ("+", seconds)
    text = f"{sign}{magnitude // 3600:02d}"
    if magnitude % 3600:
        text += f":{magnitude % 3600 // 60:02d}"
    if magnitude % 60:
        text += f":{magnitude % 60:02d}"
    return text


def timestamps_column(instants: pa.Array, *, zoned: bool) -> pa.Array | None:
    """The same without zone or in UTC, as Arrow strings; None: a year has no four digits."""
    return _local_column(instants.cast(pa.int64()), "+00" if zoned else None)


def _local_text(numbers: pa.Array, suffix: str | Sequence[str | None] | None) -> Texts:
    texts = _local_column(numbers, suffix)
    return _local_text_one_by_one(numbers, suffix) if texts is None else _bytes(texts)


def _local_column(
    numbers: pa.Array, suffix: str | Sequence[str | None] | None
) -> pa.Array | None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None:
        return pa.nulls(len(numbers), pa.string())
    if ends["min"] < MIN_MICROSECOND or ends["max"] > MAX_MICROSECOND:
        return None
    plain = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if (plain % _SECOND).any():
        # Six digits of all of them: zeros behind are cut, then a point without digits.
        texts = numbers.cast(pa.timestamp("us")).cast(pa.string())
        texts = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    else:
        seconds = pc.divide(numbers, _SECOND)
        texts = seconds.cast(pa.timestamp("s")).cast(pa.string())
    if suffix is None:
        return texts
    if not isinstance(suffix, str):
        suffix = pa.array(suffix, pa.string())
    return pc.binary_join_element_wise(texts, suffix, "")


def _local_text_one_by_one(
    numbers: pa.Array, suffix: str | Sequence[str | None] | None
) -> Texts:
    texts: Texts = []
    for row, number in enumerate(numbers.to_pylist()):
        if number is None:
            texts.append(None)
            continue
        day, rest = divmod(number, _DAY)
        date, era = date_text(day)
        zone = suffix if isinstance(suffix, str) else suffix[row] if suffix else None
        texts.append(f"{date} {clock_text(rest)}{zone or ''}{era}".encode())
    return texts


def date_text(day: int) -> tuple[str, str]:
    """(date, `` BC`` or nothing) of days since 1970, proleptic Gregorian."""
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
    year = year_of_era + era * 400 + (month <= 2)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day_of_month:02d}", ""
    return f"{1 - year:04d}-{month:02d}-{day_of_month:02d}", " BC"


def clock_text(microseconds: int) -> str:
    """``HH:MM:SS[.ffffff]``; hours may exceed 24."""
    seconds, fraction = divmod(microseconds, _SECOND)
    text = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    return text if not fraction else f"{text}.{fraction:06d}".rstrip("0")


def times_text(times: pa.Array) -> Texts:
    """time64[us] to ``HH:MM:SS[.ffffff]``."""
    return [
        None if number is None else clock_text(number).encode()
        for number in times.cast(pa.int64()).to_pylist()
    ]


def durations_text(durations: pa.Array) -> Texts:
    """duration[us] as an interval of days and time, IntervalStyle postgres."""
    return [
        None if number is None else _duration_text(number).encode()
        for number in durations.cast(pa.int64()).to_pylist()
    ]


def _duration_text(number: int) -> str:
    sign = "-" if number < 0 else ""
    days, rest = divmod(abs(number), _DAY)
    parts = []
    if days:
        parts.append(f"{sign}{days} {'day' if days == 1 and not sign else 'days'}")
    if rest or not days:
        parts.append(f"{sign}{clock_text(rest)}")
    return " ".join(parts)


def _bytes(texts: pa.Array) -> Texts:
    return texts.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
