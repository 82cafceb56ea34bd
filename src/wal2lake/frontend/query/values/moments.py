"""Dates and times as PostgreSQL reads and computes them.

Comes in: texts of constants; operands of date and time types. Goes out: canonical texts;
Spark expressions. Called by ``literals``, ``expressions`` and ``functions``.

Spark's session is in UTC. What PostgreSQL does in the session's time zone (a timestamptz
truncated to its day) is done by shifting to that zone's local time and back.

Constants: ISO 8601 dates, times with or without seconds, zones as offsets or by name.
What else PostgreSQL reads (``Jan 1 2024``, ``now``, ``yesterday``) is refused.

Sources: PostgreSQL manual 8.5 and 9.9; src/backend/utils/adt/timestamp.c.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.frontend.query.values import intervals
from wal2lake.frontend.query.values import types as t
from wal2lake.frontend.query.values.numeric import let, spark
from wal2lake.frontend.query.values.types import Operand, Type, cast, plain
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.timezone import zone_for

_HINT: Final = "Write it in ISO 8601: 2024-01-31 23:59:59.5+00."
_DATE = re.compile(r"(\d{4,5})-(\d{1,2})-(\d{1,2})\Z")
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d)(\.\d*)?)?\Z")
_MOMENT = re.compile(
    r"(\d{4,5}-\d{1,2}-\d{1,2})(?:[T ]\s*(\d{1,2}:\d\d(?::\d\d(?:\.\d*)?)?)"
    r"\s*(Z|[+-]\d\d(?::?\d\d)?(?::?\d\d)?|[A-Za-z][A-Za-z_/+-]*\d*)?)?\Z",
    re.IGNORECASE,
)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?:?(\d\d)?\Z")

_NONE: Final = timedelta(0)

# ---- constants ------------------------------------------------------------------------


def parse_date(text: str) -> str:
    """A date's canonical text; the time in a longer literal is dropped."""
    return parse_timestamp(text, None, "date")[:10]


def parse_time(text: str) -> str:
    """A time's canonical text."""
    found = _TIME.match(text.strip())
    if found is None:
        raise _unread("time", text)
    hours, minutes, seconds, micros = _clock(found)
    if hours > 24 or minutes > 59 or seconds > 59 or micros >= 1_000_000:
        raise _out_of_range(text)
    if hours == 24 and (minutes or seconds or micros):
        raise _out_of_range(text)
    fraction = f".{micros:06d}".rstrip("0").rstrip(".")
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


def parse_timestamp(text: str, zone: str | None, name: str = "timestamp") -> str:
    """Canonical text; with ``zone`` (the session's) in UTC, else any zone is ignored."""
    bare = text.strip()
    if bare.lower() == "epoch":
        return "1970-01-01 00:00:00" + ("+00:00" if zone is not None else "")
    found = _MOMENT.match(bare)
    if found is None:
        raise _unread(name if zone is None else "timestamp with time zone", text)
    moment = _day(found[1], text)
    if found[2] is not None:
        clock = _TIME.match(found[2])
        assert clock is not None
        hours, minutes, seconds, micros = _clock(clock)
        if hours > 24 or minutes > 59 or seconds > 60:
            raise _out_of_range(text)
        moment += timedelta(
            hours=hours, minutes=minutes, seconds=seconds, microseconds=micros
        )
    if zone is None:
        return moment.isoformat(" ")
    local = moment.replace(tzinfo=_zone(found[3] or zone))
    try:
        again = local.replace(fold=1)
        if (local.utcoffset() or _NONE) > (again.utcoffset() or _NONE):
            # The clock goes back over this time: it is the later one (DetermineTimeZoneOffset).
            local = again
        return local.astimezone(UTC).isoformat(" ")
    except OverflowError:
        raise _out_of_range(text) from None


def _day(text: str, shown: str) -> datetime:
    found = _DATE.match(text)
    assert found is not None
    try:
        day = date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise _out_of_range(shown) from None
    return datetime(day.year, day.month, day.day)


def _clock(found: re.Match[str]) -> tuple[int, int, int, int]:
    micros = round(float("0" + (found[4] or ".0")) * 1_000_000)
    return int(found[1]), int(found[2]), int(found[3] or 0), micros


def _zone(text: str) -> tzinfo:
    offset = _OFFSET.match(text)
    if offset is not None:
        parts = [int(p or 0) for p in offset.groups()[1:]]
        seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
        return timezone(timedelta(seconds=seconds if offset[1] == "+" else -seconds))
    return zone_for(text)[1]


def _unread(name: str, text: str) -> Wal2LakeError:
    if not re.search(r"\d", text) and not re.search(r"[a-z]{3}", text, re.IGNORECASE):
        return UsageError(
            f'invalid input syntax for type {name}: "{text}"', sqlstate="22007"
        )
    return t.refuse(f'the {name} constant "{text}"', _HINT)


def _out_of_range(text: str) -> UsageError:
    return UsageError(f'date/time field value out of range: "{text}"', sqlstate="22008")


# ---- zones -------------------------------------------------------------------------------


def zone_name(zone: str) -> str:
    """A zone as Spark names it; 0A000 for those that it spells differently."""
    name, _ = zone_for(zone)
    if not re.fullmatch(r"[A-Za-z_]+(?:/[A-Za-z_]+)*|UTC|GMT", name):
        raise t.refuse(f'time zone "{zone}"', "Use a zone's name, as America/New_York.")
    return name


def at_time_zone(operand: Operand, zone: str) -> Operand:
    """``AT TIME ZONE``: local time of an instant, or the instant of a local time."""
    name = exp.Literal.string(zone_name(zone))
    if operand.type.oid == t.TIMESTAMPTZ:
        node = spark(
            "convert_timezone('UTC', :z, cast(:x as timestamp_ntz))",
            z=name,
            x=operand.node,
        )
        return Operand(node, plain(t.TIMESTAMP))
    if name.name in ("UTC", "GMT"):
        node = spark(
            "cast(convert_timezone(:z, 'UTC', :x) as timestamp)", z=name, x=operand.node
        )
        return Operand(node, plain(t.TIMESTAMPTZ))
    return Operand(_instant(operand.node, name.name), plain(t.TIMESTAMPTZ))


def _instant(local: exp.Expression, zone: str) -> exp.Expression:
    """The instant of a local time: where the clock goes back over it, the later one.

    Spark has the earlier one (``u``). ``w`` is what the offset of a day later makes of the local
    time; it counts if that is what clocks showed then.
    """
    both = let(f"struct(:x as x, convert_timezone('{zone}', 'UTC', :x) as u)", x=local)
    shown = f"convert_timezone('UTC', '{zone}', :p.u + interval 1 day)"
    all_ = let(
        "struct(:p.x as x, :p.u as u,"
        f" :p.x - ({shown} - (:p.u + interval 1 day)) as w)",
        p=both,
    )
    return let(
        f"cast(if(convert_timezone('UTC', '{zone}', :q.w) = :q.x, :q.w, :q.u)"
        " as timestamp)",
        q=all_,
    )


def converted(operand: Operand, target: int, zone: str) -> Operand:
    """Between date, timestamp and timestamptz, in the session's zone."""
    kind, wanted = operand.type.oid, plain(target)
    if kind == target:
        return operand
    if kind == t.DATE:
        operand = Operand(cast(operand.node, "TIMESTAMP_NTZ"), plain(t.TIMESTAMP))
        return converted(operand, target, zone)
    if kind == t.TIMESTAMPTZ:
        operand = at_time_zone(operand, zone)
        return converted(operand, target, zone)
    if target == t.TIMESTAMPTZ:
        return at_time_zone(operand, zone)
    return Operand(cast(operand.node, t.spark_name(wanted)), wanted)


def zoned_text(operand: Operand, zone: str) -> exp.Expression:
    """A timestamptz as text, in the session's zone: with its offset behind it."""
    if zone == "UTC":
        return spark("concat(cast(:x as string), '+00')", x=operand.node)
    local = at_time_zone(operand, zone).node
    return let(
        "concat(cast(:l as string), if(:o < 0, '-', '+'), date_format("
        "timestamp_seconds(abs(:o)), case when :o % 60 <> 0 then 'HH:mm:ss'"
        " when :o % 3600 <> 0 then 'HH:mm' else 'HH' end))",
        l=local,
        o=spark(
            "((unix_micros(cast(:l as timestamp)) - unix_micros(:x)) div 1000000)",
            l=local,
            x=operand.node,
        ),
    )


_EPOCH_2000: Final = 946_684_800_000_000
"""PostgreSQL's zero: what lies before it is rounded the other way."""


def rounded(operand: Operand, kind: Type) -> Operand:
    """timestamp(p) and timestamptz(p): AdjustTimestampForTypmod."""
    places = kind.typmod - 6
    if places >= 0:
        return Operand(operand.node, kind)
    micros = f"unix_micros(cast(:x as timestamp)) - {_EPOCH_2000}"
    node = spark(
        f"timestamp_micros(cast(round({micros}, {places}) as bigint) + {_EPOCH_2000})",
        x=operand.node,
    )
    return Operand(cast(node, t.spark_name(kind)), kind)


def rounded_time(text: str, places: int) -> str:
    """time(p) of a constant: AdjustTimeForTypmod."""
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
    """``+`` and ``-`` where a date or time takes part (manual, table 9.33)."""
    a, b = left.type, right.type
    if operator == "+" and b.oid in t.MOMENTS and a.oid not in t.MOMENTS:
        left, right, a, b = right, left, b, a
    if a.oid == t.DATE and b.oid in (t.INT2, t.INT4):
        template = "date_add(:a, :b)" if operator == "+" else "date_sub(:a, :b)"
        return Operand(spark(template, a=left.node, b=right.node), plain(t.DATE))
    if a.oid in t.MOMENTS and b.oid == t.INTERVAL:
        return _shifted(operator, left, right, zone)
    if operator == "-" and a.oid in t.MOMENTS and b.oid in t.MOMENTS:
        if a.oid == b.oid == t.DATE:
            node = spark("datediff(:a, :b)", a=left.node, b=right.node)
            return Operand(node, plain(t.INT4))
        wide = t.TIMESTAMPTZ if t.TIMESTAMPTZ in (a.oid, b.oid) else t.TIMESTAMP
        ends = [converted(o, wide, zone).node for o in (left, right)]
        node = exp.Paren(this=exp.Sub(this=ends[0], expression=ends[1]))
        return Operand(node, Type(t.INTERVAL, duration=True))
    raise t.no_operator(a, operator, b)


def _shifted(operator: str, left: Operand, right: Operand, zone: str) -> Operand:
    """Months and days move the local time, what is less moves the instant."""
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
            # The local time may be that of two instants.
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


def interval_constant(text: str) -> Operand:
    """An interval literal in canonical form."""
    return Operand(exp.Literal.string(str(interval_of(text))), plain(t.INTERVAL))


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
    "YEAR": "year(:x)",
    "ISOYEAR": "extract(yearofweek from :x)",
    "DECADE": "(year(:x) div 10)",
    "CENTURY": "((year(:x) + 99) div 100)",
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
    """date_trunc(): the type is the argument's; a date becomes timestamptz."""
    unit = unit.upper().rstrip("S")
    if unit not in _TRUNCATIONS:
        raise t.refuse(f"date_trunc('{unit.lower()}', ...)")
    kind = t.TIMESTAMPTZ if operand.type.oid == t.DATE else operand.type.oid
    if kind not in (t.TIMESTAMP, t.TIMESTAMPTZ):
        raise t.refuse(f"date_trunc() of {operand.type.name}")
    # The offset stays, also where the local time is that of two instants.
    stays = kind == t.TIMESTAMPTZ and zone != "UTC" and unit in _WITHIN_HOURS
    if stays:
        operand = converted(operand, kind, zone)
    local = converted(operand, t.TIMESTAMP, zone)
    whole = f"cast(date_trunc('{unit}', cast(:x as timestamp)) as timestamp_ntz)"
    if stays:
        past = let(f"(:x - {whole})", x=local.node)
        return Operand(spark("(:i - :p)", i=operand.node, p=past), plain(kind))
    node = spark(whole, x=local.node)
    return converted(Operand(node, plain(t.TIMESTAMP)), kind, zone)


def extract(field: str, operand: Operand, zone: str) -> Operand:
    """EXTRACT: numeric, with six digits behind the point where there are fractions."""
    field = field.upper()
    if operand.type.oid == t.INTERVAL:
        return intervals.extract(field, operand)
    if operand.type.oid not in t.MOMENTS:
        raise t.refuse(f"EXTRACT from {operand.type.name}")
    if field == "EPOCH":
        instant = operand
        if operand.type.oid == t.TIMESTAMP:
            instant = Operand(cast(operand.node, "TIMESTAMP"), plain(t.TIMESTAMPTZ))
        if operand.type.oid == t.DATE:
            node = spark(
                "cast(unix_date(:x) * 86400L as decimal(20,0))", x=operand.node
            )
            return Operand(node, t.decimal(20, 0))
        node = spark(
            "cast(cast(unix_micros(:x) as decimal(20,0)) * 0.000001BD as decimal(26,6))",
            x=instant.node,
        )
        return Operand(node, t.decimal(26, 6))
    local = converted(operand, t.TIMESTAMP, zone)
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
