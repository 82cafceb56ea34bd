"""Dates, times and intervals as PostgreSQL prints them with DateStyle ISO.

Comes in: Arrow dates (days), timestamps, times and durations (microseconds). Goes out: one
text per value, None for null. Called by ``text``.

Arrow prints years 0001 to 9999, from which trailing zeros of the fraction are removed as in
PostgreSQL. Other years are computed here. The stored numbers of infinities (``moments``) are
printed as words.

Sources: EncodeDateTime, EncodeDateOnly, EncodeTimezone, AppendSeconds and EncodeInterval in
src/backend/utils/adt/datetime.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.moments import (
    INFINITE_DAY,
    INFINITE_MICROSECOND,
    MAX_DAY,
    MAX_MICROSECOND,
    MIN_DAY,
    MIN_MICROSECOND,
    fields_of,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND

_CYCLE = 146_097 * _DAY
"""400 years."""

Texts = list[bytes | None]

FEW = 32
"""Number of values up to which Python converts one after the other. A call of Arrow's costs several
microseconds, whatever the number of values is: a timestamp takes 3 here and 250 there."""


def dates_column(days: pa.Array) -> pa.Array | None:
    """Convert date32 to ``YYYY-MM-DD`` and infinities as Arrow strings; None: a year does not have
    four digits."""
    numbers = days.cast(pa.int32())
    finite, words = _without_infinities(numbers, INFINITE_DAY)
    if not _within(finite, MIN_DAY, MAX_DAY):
        return None
    return _joined(finite.cast(pa.date32()).cast(pa.string()), words)


def _without_infinities(
    numbers: pa.Array, largest: int
) -> tuple[pa.Array, pa.Array | None]:
    """Return the numbers with nulls for infinities, and the words for these (None: there are
    none)."""
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["max"] < largest and ends["min"] > -largest):
        return numbers, None
    high, low = pc.equal(numbers, largest), pc.equal(numbers, -largest)
    words = pc.if_else(high, "infinity", pc.if_else(low, "-infinity", None))
    return pc.if_else(pc.or_(high, low), pa.scalar(None, numbers.type), numbers), words


def _within(numbers: pa.Array, low: int, high: int) -> bool:
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (ends["min"] >= low and ends["max"] <= high)


def _joined(texts: pa.Array, words: pa.Array | None) -> pa.Array:
    return texts if words is None else pc.coalesce(words, texts)


def dates_text(days: pa.Array) -> Texts:
    """Convert date32 to ``YYYY-MM-DD``, with ``BC`` for years before 1."""
    texts = dates_column(days)
    if texts is not None:
        return _bytes(texts)
    return [
        None if day is None else _date_text(day).encode()
        for day in days.cast(pa.int32()).to_pylist()
    ]


def _date_text(day: int) -> str:
    if abs(day) == INFINITE_DAY:
        return "infinity" if day > 0 else "-infinity"
    return "".join(date_text(day))


def timestamps_text(instants: pa.Array, zone: tzinfo | None) -> Texts:
    """Convert timestamp[us] to text, in local time with an offset; ``zone`` None: without zone.

    The array's values count from 1970 in UTC (or in local time without zone).
    """
    numbers = instants.cast(pa.int64())
    if zone is None:
        return _local_text(numbers, None)
    if zone is UTC:
        return _local_text(numbers, "+00")
    micros = numbers.to_pylist()
    offsets = [None if number is None else _offset(number, zone) for number in micros]
    local = [
        number
        if offset is None or abs(number) == INFINITE_MICROSECOND
        # Near the end of the range the local time needs more than 64 bits.
        else number + offset * _SECOND
        for number, offset in zip(micros, offsets, strict=True)
    ]
    suffixes = [None if offset is None else offset_text(offset) for offset in offsets]
    try:
        return _local_text(pa.array(local, pa.int64()), suffixes)
    except (OverflowError, pa.ArrowInvalid):
        return _local_text_one_by_one(local, suffixes)


def _offset(number: int, zone: tzinfo) -> int:
    """Return the seconds east of Greenwich at an instant. For an instant outside of Python's years
    the offset of an instant a multiple of 400 years away is used, because the calendar and the
    zones' rules are the same then."""
    if number >= MAX_MICROSECOND - _DAY:
        number -= ((number - MAX_MICROSECOND + _DAY) // _CYCLE + 1) * _CYCLE
    elif number < MIN_MICROSECOND + _DAY:
        number += ((MIN_MICROSECOND + _DAY - number) // _CYCLE + 1) * _CYCLE
    instant = _EPOCH + timedelta(microseconds=number)
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


def offset_text(seconds: int) -> str:
    """Print an offset, such as ``+05:30``, ``-08`` or ``+05:53:28``."""
    sign, magnitude = ("-", -seconds) if seconds < 0 else ("+", seconds)
    text = f"{sign}{magnitude // 3600:02d}"
    if magnitude % 3600:
        text += f":{magnitude % 3600 // 60:02d}"
    if magnitude % 60:
        text += f":{magnitude % 60:02d}"
    return text


def timestamps_column(instants: pa.Array, *, zoned: bool) -> pa.Array | None:
    """Convert timestamps without zone or in UTC to Arrow strings; None: a year does not have four
    digits."""
    return _local_column(instants.cast(pa.int64()), "+00" if zoned else None)


def _local_text(numbers: pa.Array, suffix: str | Sequence[str | None] | None) -> Texts:
    texts = None if len(numbers) <= FEW else _local_column(numbers, suffix)
    if texts is None:
        return _local_text_one_by_one(numbers.to_pylist(), suffix)
    return _bytes(texts)


def _local_column(
    numbers: pa.Array, suffix: str | Sequence[str | None] | None
) -> pa.Array | None:
    numbers, words = _without_infinities(numbers, INFINITE_MICROSECOND)
    if not _within(numbers, MIN_MICROSECOND, MAX_MICROSECOND):
        return None
    plain = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if (plain % _SECOND).any():
        # All have six digits: remove trailing zeros, then a point without digits.
        texts = numbers.cast(pa.timestamp("us")).cast(pa.string())
        texts = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
    else:
        seconds = pc.divide(numbers, _SECOND)
        texts = seconds.cast(pa.timestamp("s")).cast(pa.string())
    if suffix is not None:
        if not isinstance(suffix, str):
            suffix = pa.array(suffix, pa.string())
        texts = pc.binary_join_element_wise(texts, suffix, "")
    return _joined(texts, words)


def _local_text_one_by_one(
    numbers: Sequence[int | None], suffix: str | Sequence[str | None] | None
) -> Texts:
    texts: Texts = []
    for row, number in enumerate(numbers):
        if number is None:
            texts.append(None)
            continue
        if abs(number) == INFINITE_MICROSECOND:
            texts.append(b"infinity" if number > 0 else b"-infinity")
            continue
        day, rest = divmod(number, _DAY)
        date, era = date_text(day)
        zone = suffix if isinstance(suffix, str) else suffix[row] if suffix else None
        texts.append(f"{date} {clock_text(rest)}{zone or ''}{era}".encode())
    return texts


def date_text(day: int) -> tuple[str, str]:
    """Return (date, `` BC`` or empty) of days since 1970, proleptic Gregorian."""
    year, month, day_of_month = fields_of(day)
    if year > 0:
        return f"{year:04d}-{month:02d}-{day_of_month:02d}", ""
    return f"{1 - year:04d}-{month:02d}-{day_of_month:02d}", " BC"


def clock_text(microseconds: int) -> str:
    """Print ``HH:MM:SS[.ffffff]``; hours may exceed 24."""
    seconds, fraction = divmod(microseconds, _SECOND)
    text = f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"
    return text if not fraction else f"{text}.{fraction:06d}".rstrip("0")


def times_text(times: pa.Array) -> Texts:
    """Convert time64[us] to ``HH:MM:SS[.ffffff]``."""
    return [
        None if number is None else clock_text(number).encode()
        for number in times.cast(pa.int64()).to_pylist()
    ]


def durations_text(durations: pa.Array) -> Texts:
    """Convert duration[us] to an interval of days and time, IntervalStyle postgres."""
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
