"""Intervals: reading of PostgreSQL's text, and the binary form.

Comes in: an interval as text, in the stored form (``1 year 2 mons 3 days -04:05:06.7``), or as a
user writes it (``90 minutes``). Goes out: months, days and microseconds; the bytes of
interval_send. Called by ``binary`` and for constants in SQL.

Sources: PostgreSQL manual 8.5.4 and 8.5.5; interval_send in timestamp.c, DecodeInterval.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.registry.pg_type import (
    INTERVAL_FULL_PRECISION,
    INTERVAL_FULL_RANGE,
    INTERVAL_MASKS,
)

_SECOND: Final = 1_000_000
_UNITS: Final = {
    "millennium": ("months", 12_000),
    "century": ("months", 1_200),
    "decade": ("months", 120),
    "year": ("months", 12),
    "yr": ("months", 12),
    "month": ("months", 1),
    "mon": ("months", 1),
    "week": ("days", 7),
    "day": ("days", 1),
    "hour": ("microseconds", 3600 * _SECOND),
    "hr": ("microseconds", 3600 * _SECOND),
    "minute": ("microseconds", 60 * _SECOND),
    "min": ("microseconds", 60 * _SECOND),
    "second": ("microseconds", _SECOND),
    "sec": ("microseconds", _SECOND),
    "millisecond": ("microseconds", 1000),
    "microsecond": ("microseconds", 1),
    "y": ("months", 12),
    "w": ("days", 7),
    "d": ("days", 1),
    "h": ("microseconds", 3600 * _SECOND),
    "m": ("microseconds", 60 * _SECOND),
    "s": ("microseconds", _SECOND),
    "msec": ("microseconds", 1000),
    "ms": ("microseconds", 1000),
    "usec": ("microseconds", 1),
    "us": ("microseconds", 1),
}
_LONGEST_ABBREVIATION: Final = 2
"""Units of one or two letters have no plural."""
_IRREGULAR: Final = {"centuries": "century", "millennia": "millennium"}
_PART = re.compile(
    r"\s*(?:([+-]?)(\d+):(\d\d)(?::(\d\d(?:\.\d*)?))?|([+-]?\d+(?:\.\d+)?)\s*([a-z]+))"
)
_BARE_NUMBER: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)$")
"""A number without a unit at the end, which counts seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """PostgreSQL's three fields, which are not converted into each other."""

    months: int
    days: int
    microseconds: int

    def to_binary(self) -> bytes:
        """interval_send."""
        return struct.pack("!qii", self.microseconds, self.days, self.months)

    def __str__(self) -> str:
        """EncodeInterval with IntervalStyle postgres."""
        years, months = abs(self.months) // 12, abs(self.months) % 12
        sign = -1 if self.months < 0 else 1
        parts: list[tuple[int, str]] = [
            (sign * years, "year"),
            (sign * months, "mon"),
            (self.days, "day"),
        ]
        words: list[str] = []
        before = False
        for number, unit in parts:
            if number:
                plus = "+" if before and number > 0 else ""
                words.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
                before = number < 0
        micros = abs(self.microseconds)
        if micros or not words:
            sign_text = "-" if self.microseconds < 0 else "+" if before else ""
            seconds, fraction = divmod(micros, _SECOND)
            minutes, seconds = divmod(seconds, 60)
            shown = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
            words.append(sign_text + shown + f".{fraction:06d}".rstrip("0").rstrip("."))
        return " ".join(words)


INFINITY: Final = Interval(2**31 - 1, 2**31 - 1, 2**63 - 1)
NEGATIVE_INFINITY: Final = Interval(-(2**31), -(2**31), -(2**63))


_FIELDS: Final = {mask: fields for fields, mask in INTERVAL_MASKS.items()}

_CLOCK_UNITS: Final = {"hour": 3600 * _SECOND, "minute": 60 * _SECOND, "second": 1}
"""Microseconds that a declaration ending in this field keeps."""


def interval_of(text: str, typmod: int = -1) -> Interval:
    """Read an interval of the declared fields and precision.

    Raises 22007, or 0A000 for forms that are not supported.
    """
    last, _ = declared_limits(typmod)
    if last is not None and re.fullmatch(r"\s*[+-]?\d+\s*", text):
        # A number without a unit counts the last field.
        text = f"{text.strip()} {last}"
    return _adjusted(_read(text), typmod)


def declared_limits(typmod: int) -> tuple[str | None, int]:
    """The last field of a declared interval, None for all fields; and the digits of its seconds."""
    fields = _FIELDS.get(typmod >> 16 & INTERVAL_FULL_RANGE) if typmod >= 0 else None
    digits = typmod & INTERVAL_FULL_PRECISION if typmod >= 0 else 6
    return fields and fields.rpartition(" ")[2], min(digits, 6)


def _adjusted(interval: Interval, typmod: int) -> Interval:
    """AdjustIntervalForTypmod()."""
    if interval in (INFINITY, NEGATIVE_INFINITY):
        return interval
    months, days, micros = interval.months, interval.days, interval.microseconds
    last, digits = declared_limits(typmod)
    if last is not None:
        months = _whole(months, 12) if last == "year" else months
        days = 0 if last in ("year", "month") else days
        micros = _whole(micros, _CLOCK_UNITS[last]) if last in _CLOCK_UNITS else 0
    if digits < 6:
        step = 10 ** (6 - digits)
        micros = _whole(micros + (step // 2 if micros >= 0 else -step // 2), step)
    return Interval(months, days, micros)


def _whole(number: int, unit: int) -> int:
    """The number without the part of a unit, towards 0."""
    whole = abs(number) // unit * unit
    return whole if number >= 0 else -whole


def _read(text: str) -> Interval:
    bare = text.strip().lower()
    if bare in ("infinity", "-infinity"):
        return INFINITY if bare == "infinity" else NEGATIVE_INFINITY
    total = {"months": 0, "days": 0, "microseconds": 0}
    position = 0
    while position < len(bare):
        match = _PART.match(bare, position)
        if match is None and (seconds := _BARE_NUMBER.match(bare, position)):
            total["microseconds"] += round(Decimal(seconds[1]) * _SECOND)
            position = seconds.end()
            continue
        if match is None:
            break
        position = match.end()
        if match[2] is not None:
            _add_clock(total, match)
            continue
        name = _IRREGULAR.get(match[6], match[6])
        unit = _UNITS.get(name)
        if unit is None and len(name) > _LONGEST_ABBREVIATION:
            unit = _UNITS.get(name.removesuffix("s"))
        if unit is None:
            break
        field, factor = unit
        amount = Decimal(match[5]) * factor
        if amount != int(amount):
            raise _unsupported(text)
        total[field] += int(amount)
    else:
        if bare:
            return Interval(**total)
    if not re.search(r"\d", bare):
        raise UsageError(
            f'invalid input syntax for type interval: "{text}"', sqlstate="22007"
        )
    raise _unsupported(text)


def _add_clock(total: dict[str, int], match: re.Match[str]) -> None:
    seconds = Decimal(match[4] or 0) * _SECOND
    clock = (int(match[2]) * 60 + int(match[3])) * 60 * _SECOND + round(seconds)
    total["microseconds"] += -clock if match[1] == "-" else clock


def _unsupported(text: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'the interval "{text}" is not supported',
        hint="Write whole units, as 1 year 2 mons 3 days 04:05:06.7.",
    )
