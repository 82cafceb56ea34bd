"""Reads dates and times as PostgreSQL does, and translates operations on them.

Comes in: texts of constants; operands of date and time types. Goes out: canonical texts;
Spark expressions. Called by ``literals``, ``expressions`` and ``functions``.

Spark's session is in UTC. An operation that PostgreSQL does in the session's time zone, such as
truncating a timestamptz to its day, shifts the value to local time and back.

An infinity is stored as the greatest or least number (``pgtypes.moments``). An expression that
computes with a date or time checks for infinities first, unless its operand is a finite constant.

Constants may be ISO 8601 dates of any year, times with or without seconds, and zones as offsets,
abbreviations or names. Other spellings that PostgreSQL reads (``Jan 1 2024``, ``now``,
``yesterday``) are refused.

Sources: PostgreSQL manual 8.5 and 9.9; src/backend/utils/adt/timestamp.c.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

import pyarrow as pa
from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.pgtypes.abbreviations import constant_zone, offset_zone
from wal2lake.pgtypes.encode.interval import interval_of
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
from wal2lake.sql.query.values import intervals
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
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

# ---- constants ------------------------------------------------------------------------


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


# ---- infinities -------------------------------------------------------------------------


_DAYS: Final = "datediff(:x, date '1970-01-01')"
"""The number of a date. sqlglot turns UNIX_DATE into a timestamp difference, which overflows."""


def _number(oid: int) -> str:
    return _DAYS if oid == t.DATE else "unix_micros(cast(:x as timestamp))"


def _infinity(oid: int, sign: int = 1) -> str:
    if oid == t.DATE:
        return f"date_from_unix_date({sign * INFINITE_DAY})"
    moment = f"timestamp_micros({sign * INFINITE_MICROSECOND}L)"
    return moment if oid == t.TIMESTAMPTZ else f"cast({moment} as timestamp_ntz)"


def is_infinite(operand: Operand) -> exp.Expression:
    """Whether a date or timestamp is one of the infinities."""
    end = INFINITE_DAY if operand.type.oid == t.DATE else INFINITE_MICROSECOND
    number = _number(operand.type.oid)
    return spark(f"({number} = {end}L or {number} = {-end}L)", x=operand.node)


def _is_finite_constant(node: exp.Expression) -> bool:
    """Whether a node is now(), or a constant that is finite and has a year of four digits.

    A zone may move a constant into the next or the previous year, so the years 0000 (1 BC), 0001
    and 9999 do not count.
    """
    if isinstance(node, exp.CurrentTimestamp | exp.CurrentDate):
        return True
    return (
        isinstance(node, exp.Cast)
        and isinstance(node.this, exp.Literal)
        and node.this.is_string
        and node.this.name[:1] not in ("+", "-")
        and node.this.name[:5] not in ("0000-", "0001-", "9999-")
    )


def unless_infinite(
    operand: Operand, infinite_: str | exp.Expression, finite: exp.Expression
) -> exp.Expression:
    """``finite``, or ``infinite_`` if the operand is an infinity."""
    if _is_finite_constant(operand.node):
        return finite
    return spark(
        "if(:i, :e, :f)",
        i=is_infinite(operand),
        e=spark(infinite_) if isinstance(infinite_, str) else infinite_,
        f=finite,
    )


def carried(operand: Operand, finite: exp.Expression, target: int) -> exp.Expression:
    """``finite``, of type ``target``, or the operand's infinity in that type."""
    if _is_finite_constant(operand.node):
        return finite
    oid = operand.type.oid
    end = INFINITE_DAY if oid == t.DATE else INFINITE_MICROSECOND
    return spark(
        f"case {_number(oid)} when {end}L then {_infinity(target)}"
        f" when {-end}L then {_infinity(target, -1)} else :f end",
        x=operand.node,
        f=finite,
    )


# ---- zones -------------------------------------------------------------------------------


def _zone_name(zone: str, place: tzinfo) -> str:
    """Spark's name of a zone; raises 0A000 for a zone that Spark names differently."""
    if isinstance(place, timezone):
        return "UTC" if place == UTC else str(place).removeprefix("UTC")
    if not re.fullmatch(r"[A-Za-z_]+(?:/[A-Za-z_]+)*", zone):
        raise t.refuse(f'time zone "{zone}"', "Use a zone's name, as America/New_York.")
    return zone


def at_time_zone(operand: Operand, zone: str, place: tzinfo) -> Operand:
    """``AT TIME ZONE``: the local time of an instant, or the instant of a local time.

    ``zone``, ``place``: the zone and its name."""
    name = exp.Literal.string(_zone_name(zone, place))
    # In UTC the number of the local time is that of the instant.
    is_utc = name.name in ("UTC", "GMT")
    if operand.type.oid == t.TIMESTAMPTZ:
        node = cast(operand.node, "TIMESTAMP_NTZ")
        if not is_utc:
            node = spark("convert_timezone('UTC', :z, :x)", z=name, x=node)
            node = carried(operand, node, t.TIMESTAMP)
        return Operand(node, plain(t.TIMESTAMP))
    if is_utc:
        return Operand(cast(operand.node, "TIMESTAMP"), plain(t.TIMESTAMPTZ))
    node = carried(operand, _instant(operand.node, name.name), t.TIMESTAMPTZ)
    return Operand(node, plain(t.TIMESTAMPTZ))


def _instant(local: exp.Expression, zone: str) -> exp.Expression:
    """The instant of a local time; the later one if the clock goes back over it.

    Spark computes the earlier instant (``u``). ``w`` is the instant by the offset of one day later;
    it is the result if its local time is ``local``.
    """
    instants = let(
        f"struct(:x as x, convert_timezone('{zone}', 'UTC', :x) as u)", x=local
    )
    next_day = f"convert_timezone('UTC', '{zone}', :p.u + interval 1 day)"
    candidates = let(
        "struct(:p.x as x, :p.u as u,"
        f" :p.x - ({next_day} - (:p.u + interval 1 day)) as w)",
        p=instants,
    )
    return let(
        f"cast(if(convert_timezone('UTC', '{zone}', :q.w) = :q.x, :q.w, :q.u)"
        " as timestamp)",
        q=candidates,
    )


def converted(operand: Operand, target: int, zone: str) -> Operand:
    """Convert between date, timestamp and timestamptz in the session's zone."""
    kind, target_type = operand.type.oid, plain(target)
    if kind == target:
        return operand
    if kind == t.DATE:
        operand = Operand(_midnight(operand), plain(t.TIMESTAMP))
        return converted(operand, target, zone)
    if kind == t.TIMESTAMPTZ:
        operand = at_time_zone(operand, *zone_for(zone))
        return converted(operand, target, zone)
    if target == t.TIMESTAMPTZ:
        return at_time_zone(operand, *zone_for(zone))
    node = cast(operand.node, t.spark_name(target_type))
    return Operand(carried(operand, node, target), target_type)


_LAST_DAY_OF_TIMES: Final = LAST_MICROSECOND // DAY_MICROSECONDS


def _midnight(operand: Operand) -> exp.Expression:
    """Convert a date to timestamp; fails with 22008 if the date is out of range."""
    node = cast(operand.node, "TIMESTAMP_NTZ")
    if _is_finite_constant(operand.node):
        return node
    error = t.failure("22008", "date out of range for timestamp")
    node = spark(
        f"if({_DAYS} > {_LAST_DAY_OF_TIMES}, cast({error} as timestamp_ntz), :n)",
        x=operand.node,
        n=node,
    )
    return carried(operand, node, t.TIMESTAMP)


_ERAS: Final = (
    "case when :s like '+%' then concat(substring(:s, 2), :z)"
    " when :s like '-%' or :s like '0000-%' then concat(format_string('%04d', 1 +"
    " cast(split_part(trim(leading '-' from :s), '-', 1) as int)), '-',"
    " substring_index(split_part(:s, ' ', 1), '-', -2),"
    " if(:s like '% %', concat(' ', split_part(:s, ' ', 2)), ''), :z, ' BC')"
    " else concat(:s, :z) end"
)
"""PostgreSQL's text from Spark's text, which has a sign before years of more than four digits."""


def text_of(operand: Operand) -> exp.Expression:
    """The text of a date or timestamp."""
    return _text(operand, cast(operand.node, "STRING"), exp.Literal.string(""))


def _text(
    operand: Operand, text: exp.Expression, suffix: exp.Expression
) -> exp.Expression:
    if _is_finite_constant(operand.node):
        return spark("concat(:s, :z)", s=text, z=suffix)
    word = spark(
        f"if({_number(operand.type.oid)} > 0, 'infinity', '-infinity')", x=operand.node
    )
    return unless_infinite(operand, word, let(_ERAS, s=text, z=suffix))


def zoned_text(operand: Operand, zone: str) -> exp.Expression:
    """The text of a timestamptz in the session's zone, with the offset."""
    if zone == "UTC":
        local_text = cast(cast(operand.node, "TIMESTAMP_NTZ"), "STRING")
        return _text(operand, local_text, exp.Literal.string("+00"))
    local = at_time_zone(operand, *zone_for(zone)).node
    offset = let(
        "concat(if(:o < 0, '-', '+'), date_format("
        "timestamp_seconds(abs(:o)), case when :o % 60 <> 0 then 'HH:mm:ss'"
        " when :o % 3600 <> 0 then 'HH:mm' else 'HH' end))",
        o=spark(
            "((unix_micros(cast(:l as timestamp)) - unix_micros(:x)) div 1000000)",
            l=local,
            x=operand.node,
        ),
    )
    return _text(operand, cast(local, "STRING"), offset)


_EPOCH_2000: Final = 946_684_800_000_000
"""PostgreSQL's epoch in Unix microseconds. Rounding goes away from it in both directions."""


def rounded(operand: Operand, kind: Type) -> Operand:
    """Round to timestamp(p) or timestamptz(p): AdjustTimestampForTypmod()."""
    places = kind.typmod - 6
    if places >= 0:
        return Operand(operand.node, kind)
    micros = f"unix_micros(cast(:x as timestamp)) - {_EPOCH_2000}"
    node = spark(
        f"timestamp_micros(cast(round({micros}, {places}) as bigint) + {_EPOCH_2000})",
        x=operand.node,
    )
    node = carried(operand, cast(node, t.spark_name(kind)), kind.oid)
    return Operand(node, kind)


def rounded_time(text: str, places: int) -> str:
    """Round a constant to time(p): AdjustTimeForTypmod()."""
    clock = _TIME.match(text)
    assert clock is not None
    hours, minutes, seconds, micros = _clock(clock)
    unit = 10 ** max(6 - places, 0)
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros
    total = (total + unit // 2) // unit * unit
    seconds, micros = divmod(total, 1_000_000)
    fraction = f".{micros:06d}".rstrip("0").rstrip(".")
    return (
        f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
    )


# ---- operators ----------------------------------------------------------------------------


def add(operator: str, left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``+`` and ``-`` with a date or timestamp (manual, table 9.33)."""
    a, b = left.type, right.type
    if operator == "+" and b.oid in t.MOMENTS and a.oid not in t.MOMENTS:
        left, right, a, b = right, left, b, a
    if a.oid == t.DATE and b.oid in (t.INT2, t.INT4):
        error = t.failure("22008", "date out of range")
        days = _DAYS.replace(":x", ":a")
        moved = f"(cast({days} as bigint) {operator} (:b))"
        node = spark(
            f"if({moved} between {FIRST_DAY} and {LAST_DAY},"
            f" date_from_unix_date(cast({moved} as int)), cast({error} as date))",
            a=left.node,
            b=right.node,
        )
        # With NULL in its condition, IF would take the second branch and fail.
        node = spark(
            "if(:a is null or :b is null, cast(null as date), :n)",
            a=left.node,
            b=right.node,
            n=node,
        )
        return Operand(carried(left, node, t.DATE), plain(t.DATE))
    if a.oid in t.MOMENTS and b.oid == t.INTERVAL:
        moved_ = _shifted(operator, left, right, zone)
        return Operand(carried(left, moved_.node, moved_.type.oid), moved_.type)
    if operator == "-" and a.oid in t.MOMENTS and b.oid in t.MOMENTS:
        if a.oid == b.oid == t.DATE:
            error = t.failure("22008", "cannot subtract infinite dates")
            node = spark("datediff(:a, :b)", a=left.node, b=right.node)
            for side in (left, right):
                node = unless_infinite(side, f"cast({error} as int)", node)
            return Operand(node, plain(t.INT4))
        wide = t.TIMESTAMPTZ if t.TIMESTAMPTZ in (a.oid, b.oid) else t.TIMESTAMP
        ends = [converted(o, wide, zone) for o in (left, right)]
        node = spark("(:a - :b)", a=ends[0].node, b=ends[1].node)
        error = t.failure(
            "0A000", "an infinite interval is not supported on lake tables"
        )
        for side in ends:
            infinite_ = f"cast({error} as interval day to second)"
            node = unless_infinite(side, infinite_, node)
        return Operand(node, Type(t.INTERVAL, duration=True))
    raise t.no_operator(a, operator, b)


def _shifted(operator: str, left: Operand, right: Operand, zone: str) -> Operand:
    """Shift the local time by months and days, and the instant by microseconds."""
    sign = 1 if operator == "+" else -1
    kind = t.TIMESTAMP if left.type.oid == t.DATE else left.type.oid
    local = converted(left, t.TIMESTAMP, zone)
    if not isinstance(right.node, exp.Literal):
        parts = intervals.parts(right)
        node = let(
            f"(:x + make_interval(0, cast({sign} * :p.m as int), 0,"
            f" cast({sign} * :p.d as int)))",
            x=local.node,
            p=parts,
        )
        moved = converted(Operand(node, plain(t.TIMESTAMP)), kind, zone)
        if kind == t.TIMESTAMPTZ:
            # The local time may belong to two instants, so keep the instant if nothing moves.
            node = spark(
                "if(:p.m = 0 and :p.d = 0, :x, :y)", p=parts, x=left.node, y=moved.node
            )
            moved = Operand(node, moved.type)
        node = let(
            "(:x + make_interval(0, 0, 0, 0, 0, 0,"
            f" cast({sign} * :p.u * 0.000001BD as decimal(18,6))))",
            x=moved.node,
            p=parts,
        )
        return Operand(node, plain(kind))
    span = interval_of(right.node.name)
    node = spark(
        f"(:x + make_interval(0, {sign * span.months}, 0, {sign * span.days}))",
        x=local.node,
    )
    moved = converted(Operand(node, plain(t.TIMESTAMP)), kind, zone)
    if kind == t.TIMESTAMPTZ and not span.months and not span.days:
        moved = left
    if span.microseconds == 0:
        return moved
    seconds = f"{sign * span.microseconds / 1_000_000:.6f}"
    node = spark(f"(:x + make_interval(0, 0, 0, 0, 0, 0, {seconds}))", x=moved.node)
    return Operand(node, plain(kind))


def interval_constant(text: str, typmod: int = -1) -> Operand:
    """Read an interval literal into canonical text."""
    shown = str(interval_of(text, typmod))
    return Operand(exp.Literal.string(shown), plain(t.INTERVAL))


# ---- functions -----------------------------------------------------------------------------

_TRUNCATIONS: Final = frozenset(
    (
        "YEAR",
        "QUARTER",
        "MONTH",
        "WEEK",
        "DAY",
        "HOUR",
        "MINUTE",
        "SECOND",
        "MILLISECOND",
        "MICROSECOND",
    )
)
_WITHIN_HOURS: Final = frozenset(
    ("HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
)
_FIELDS: Final = {
    # Spark's year 0 is 1 BC.
    "YEAR": "(year(:x) - if(year(:x) <= 0, 1, 0))",
    "ISOYEAR": "(extract(yearofweek from :x)"
    " - if(extract(yearofweek from :x) <= 0, 1, 0))",
    "DECADE": "if(year(:x) >= 0, year(:x) div 10, -((9 - year(:x)) div 10))",
    "CENTURY": "if(year(:x) > 0, (year(:x) + 99) div 100, -((100 - year(:x)) div 100))",
    "QUARTER": "quarter(:x)",
    "MONTH": "month(:x)",
    "WEEK": "weekofyear(:x)",
    "DAY": "day(:x)",
    "DOY": "dayofyear(:x)",
    "DOW": "(dayofweek(:x) - 1)",
    "ISODOW": "(weekday(:x) + 1)",
    "HOUR": "hour(:x)",
    "MINUTE": "minute(:x)",
}


def date_trunc(unit: str, operand: Operand, zone: str) -> Operand:
    """Translate date_trunc(). The result has the operand's type; a date gives timestamptz."""
    unit = unit.upper().rstrip("S")
    if unit not in _TRUNCATIONS:
        raise t.refuse(f"date_trunc('{unit.lower()}', ...)")
    kind = t.TIMESTAMPTZ if operand.type.oid == t.DATE else operand.type.oid
    if kind not in (t.TIMESTAMP, t.TIMESTAMPTZ):
        raise t.refuse(f"date_trunc() of {operand.type.name}")
    # Within an hour the offset does not change, even if the local time belongs to two instants.
    keeps_offset = kind == t.TIMESTAMPTZ and zone != "UTC" and unit in _WITHIN_HOURS
    if keeps_offset:
        operand = converted(operand, kind, zone)
    local = converted(operand, t.TIMESTAMP, zone)
    whole = f"cast(date_trunc('{unit}', cast(:x as timestamp)) as timestamp_ntz)"
    if keeps_offset:
        remainder = let(f"(:x - {whole})", x=local.node)
        node = spark("(:i - :p)", i=operand.node, p=remainder)
        return Operand(carried(operand, node, kind), plain(kind))
    node = spark(whole, x=local.node)
    truncated = converted(Operand(node, plain(t.TIMESTAMP)), kind, zone)
    return Operand(carried(operand, truncated.node, kind), truncated.type)


def extract(field: str, operand: Operand, zone: str) -> Operand:
    """Translate EXTRACT. The result is numeric, with scale 6 for fields with fractions."""
    field = field.upper()
    if operand.type.oid == t.INTERVAL:
        return intervals.extract(field, operand)
    if operand.type.oid not in t.MOMENTS:
        raise t.refuse(f"EXTRACT from {operand.type.name}")
    extracted = _extracted(field, operand, zone)
    ddl = t.spark_name(extracted.type)
    instead = f"cast(null as {ddl})"
    if field in _GROWING:
        error = t.failure(
            "0A000",
            f"EXTRACT({field.lower()} from infinity) is not supported on lake tables",
        )
        instead = f"cast({error} as {ddl})"
    return Operand(unless_infinite(operand, instead, extracted.node), extracted.type)


_GROWING: Final = frozenset(("EPOCH", "YEAR", "ISOYEAR", "DECADE", "CENTURY"))
"""Fields that are infinite for an infinity. Other fields are NULL (NonFiniteTimestampTzPart)."""


def _extracted(field: str, operand: Operand, zone: str) -> Operand:
    if field == "EPOCH":
        instant = operand
        if operand.type.oid == t.TIMESTAMP:
            instant = Operand(cast(operand.node, "TIMESTAMP"), plain(t.TIMESTAMPTZ))
        if operand.type.oid == t.DATE:
            node = spark(f"cast({_DAYS} * 86400L as decimal(20,0))", x=operand.node)
            return Operand(node, t.decimal(20, 0))
        node = spark(
            "cast(cast(unix_micros(:x) as decimal(20,0)) * 0.000001BD as decimal(26,6))",
            x=instant.node,
        )
        return Operand(node, t.decimal(26, 6))
    # A date may be out of the range of timestamps.
    has_day_only = operand.type.oid == t.DATE and field not in _WITHIN_HOURS
    local = operand if has_day_only else converted(operand, t.TIMESTAMP, zone)
    if field == "SECOND":
        if operand.type.oid == t.DATE:
            raise UsageError(
                'unit "second" not supported for type date', sqlstate="0A000"
            )
        node = spark("cast(extract(second from :x) as decimal(8,6))", x=local.node)
        return Operand(node, t.decimal(8, 6))
    if field in ("MILLISECONDS", "MICROSECONDS") and operand.type.oid != t.DATE:
        micros = "pmod(unix_micros(cast(:x as timestamp)), 60000000)"
        if field == "MICROSECONDS":
            node = spark(f"cast({micros} as decimal(10,0))", x=local.node)
            return Operand(node, t.decimal(10, 0))
        node = spark(f"cast({micros} * 0.001BD as decimal(10,3))", x=local.node)
        return Operand(node, t.decimal(10, 3))
    template = _FIELDS.get(field)
    if template is None:
        raise t.refuse(f"EXTRACT({field.lower()} ...)")
    node = spark(f"cast({template} as decimal(10,0))", x=local.node)
    return Operand(node, t.decimal(10, 0))
