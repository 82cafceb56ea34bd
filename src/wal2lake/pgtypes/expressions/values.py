"""PostgreSQL's texts as Python values with PostgreSQL's equality, order and arithmetic.

Comes in: the text of a value, as a session with DateStyle ISO sends it, and its type. Goes out:

    bool                      bool
    smallint integer bigint   int
    numeric                   Decimal, including NaN and infinities
    real double precision     float
    text varchar char bytea   bytes, compared byte by byte (collation "C"); char with its
                              trailing blanks
    date                      int, days since 2000-01-01; infinity is ``math.inf``
    timestamp timestamptz     int, microseconds since 2000-01-01 (UTC); infinity likewise
    uuid                      bytes

    json jsonb                bytes of the text
    arrays                    constants only: ``array_items``

Python's datetime is not used, because it does not cover PostgreSQL's calendar.

Source: date2j() in datetime.c; the manual's chapter 8.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from wal2lake.errors import UsageError
from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid

Value = Any
"""A value of the types above; None is NULL."""

BOOL, BYTEA, INT8, INT2, INT4, TEXT = 16, 17, 20, 21, 23, 25
FLOAT4, FLOAT8, BPCHAR, VARCHAR = 700, 701, 1042, 1043
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 1082, 1114, 1184, 1700, 2950
JSON, JSONB = 114, 3802

SUPPORTED: Final = frozenset(
    (
        BOOL,
        BYTEA,
        INT8,
        INT2,
        INT4,
        TEXT,
        FLOAT4,
        FLOAT8,
        BPCHAR,
        VARCHAR,
        DATE,
        TIMESTAMP,
        TIMESTAMPTZ,
        NUMERIC,
        UUID,
    )
)
"""Types that row filters can have. Of json and jsonb they can have members."""

DAY_MICROSECONDS: Final = 86_400_000_000

EPOCH_DAYS: Final = 10_957
"""From 1970-01-01 to 2000-01-01."""

_EPOCH: Final = 2_451_545
"""POSTGRES_EPOCH_JDATE: the Julian day of 2000-01-01."""

_DATE: Final = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?\Z", re.ASCII)
_MOMENT: Final = re.compile(
    r"(\d{4,7})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?( BC)?\Z",
    re.ASCII,
)


def reader(type_oid: int) -> Callable[[bytes], Value]:
    """Return a function that reads texts of a type; it raises 22P02 for an invalid text. For a
    type that is not ``SUPPORTED`` a filter can only test whether the value is NULL."""
    read = _READERS.get(type_oid, _same)
    name = format_type(type_oid)

    def checked(text: bytes) -> Value:
        try:
            return read(text)
        except (ValueError, ArithmeticError):
            raise UsageError(
                f"invalid input syntax for type {name}", sqlstate="22P02"
            ) from None

    return checked


# ---- arrays ------------------------------------------------------------------------------


def is_array(type_oid: int) -> bool:
    """Return whether a type is an array type."""
    pg_type = type_by_oid(type_oid)
    return pg_type is not None and pg_type.is_array


_ITEM: Final = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|((?:[^"\\{},\s]|\\.)(?:(?:[^"\\{},]|\\.)*(?:[^"\\{},\s]|\\.))?))\s*',
    re.DOTALL,
)
_PLAIN_ITEM: Final = re.compile(r'(?!null\Z)[^"\\{},\s]+', re.IGNORECASE)


def array_items(text: str) -> list[str | None] | None:
    """Return the items of a one-dimensional array literal; None: the text is not one."""
    inner = text.strip()
    if inner[:1] != "{" or inner[-1:] != "}" or len(inner) < 2:
        return None
    inner, position = inner[1:-1], 0
    if not inner.strip():
        return []
    items: list[str | None] = []
    while True:
        match = _ITEM.match(inner, position)
        if match is None:
            return None
        quoted, bare = match.groups()
        if bare is not None and bare.lower() == "null":
            items.append(None)
        else:
            raw = bare if quoted is None else quoted
            items.append(re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL))
        position = match.end()
        if position == len(inner):
            return items
        if inner[position] != ",":
            return None
        position += 1


def array_text(items: Sequence[str | None]) -> str:
    """Print an array as array_out() does."""
    shown = []
    for item in items:
        if item is not None and not _PLAIN_ITEM.fullmatch(item):
            escaped = item.replace("\\", "\\\\").replace('"', '\\"')
            item = f'"{escaped}"'
        shown.append("NULL" if item is None else item)
    return "{" + ",".join(shown) + "}"


def julian_day(year: int, month: int, day: int) -> int:
    """date2j(): days since 2000-01-01; ``year`` 0 is 1 BC."""
    if month > 2:
        month += 1
        year += 4800
    else:
        month += 13
        year += 4799
    century = year // 100
    days = year * 365 - 32167 + year // 4 - century + century // 4
    return days + 7834 * month // 256 + day - _EPOCH


def _bool(text: bytes) -> bool:
    return {b"t": True, b"f": False, b"true": True, b"false": False}[text]


def _checked_bool(text: bytes) -> bool:
    try:
        return _bool(text)
    except KeyError:
        raise ValueError from None


def _numeric(text: bytes) -> Decimal:
    return Decimal(text.decode("ascii"))


def _bytea(text: bytes) -> bytes:
    if text[:2] != b"\\x":
        raise ValueError
    return bytes.fromhex(text[2:].decode("ascii"))


def _date(text: bytes) -> int | float:
    shown = text.decode("ascii")
    if shown.endswith("infinity"):
        return -math.inf if shown.startswith("-") else math.inf
    match = _DATE.match(shown)
    if match is None:
        raise ValueError
    return _day(match[1], match[2], match[3], match[4])


def _moment(text: bytes) -> int | float:
    shown = text.decode("ascii")
    if shown.endswith("infinity"):
        return -math.inf if shown.startswith("-") else math.inf
    match = _MOMENT.match(shown)
    if match is None:
        raise ValueError
    seconds = int(match[4]) * 3600 + int(match[5]) * 60 + int(match[6])
    if match[8]:
        offset = int(match[9]) * 3600 + int(match[10] or 0) * 60 + int(match[11] or 0)
        seconds += -offset if match[8] == "+" else offset
    micros = int((match[7] or "").ljust(6, "0"))
    day = _day(match[1], match[2], match[3], match[12])
    return day * DAY_MICROSECONDS + seconds * 1_000_000 + micros


def _day(year: str, month: str, day: str, before_christ: str | None) -> int:
    number = 1 - int(year) if before_christ else int(year)
    return julian_day(number, int(month), int(day))


def _same(text: bytes) -> bytes:
    return text


def _single(text: bytes) -> float:
    return single(float(text))


def single(value: float) -> float:
    """Round a number to ``real``."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


_READERS: Final[Mapping[int, Callable[[bytes], Value]]] = MappingProxyType(
    {
        BOOL: _checked_bool,
        BYTEA: _bytea,
        INT8: int,
        INT2: int,
        INT4: int,
        TEXT: _same,
        FLOAT4: _single,
        FLOAT8: float,
        BPCHAR: _same,
        VARCHAR: _same,
        DATE: _date,
        TIMESTAMP: _moment,
        TIMESTAMPTZ: _moment,
        NUMERIC: _numeric,
        UUID: lambda text: text.lower(),
    }
)
