"""Converts between date, timestamp and timestamptz, and carries infinities over.

Comes in: operands of these types, and the session's zone. Goes out: operands. Called by ``casts``
and by all operations on dates and times.

An infinity is stored as the greatest or least number (``pgtypes.moments``). An expression that
computes with a date or time checks for infinities first, unless its operand is a finite constant.

Sources: PostgreSQL manual 9.9.4; src/backend/utils/adt/timestamp.c.
"""

from __future__ import annotations

import re
from datetime import UTC, timezone, tzinfo
from typing import Final

from sqlglot import exp

from wal2lake.pgtypes.moments import (
    DAY_MICROSECONDS,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
    LAST_MICROSECOND,
)
from wal2lake.pgtypes.timezone import zone_for
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, cast, plain

DAYS: Final = "datediff(:x, date '1970-01-01')"
"""The number of a date. sqlglot turns UNIX_DATE into a timestamp difference, which overflows."""


def number_of(oid: int) -> str:
    """Spark SQL of the number that a date or timestamp ``:x`` is stored as."""
    return DAYS if oid == t.DATE else "unix_micros(cast(:x as timestamp))"


def _infinity(oid: int, sign: int = 1) -> str:
    if oid == t.DATE:
        return f"date_from_unix_date({sign * INFINITE_DAY})"
    moment = f"timestamp_micros({sign * INFINITE_MICROSECOND}L)"
    return moment if oid == t.TIMESTAMPTZ else f"cast({moment} as timestamp_ntz)"


def is_infinite(operand: Operand) -> exp.Expression:
    """Whether a date or timestamp is one of the infinities."""
    end = INFINITE_DAY if operand.type.oid == t.DATE else INFINITE_MICROSECOND
    number = number_of(operand.type.oid)
    return spark(f"({number} = {end}L or {number} = {-end}L)", x=operand.node)


def is_finite_constant(node: exp.Expression) -> bool:
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
    if is_finite_constant(operand.node):
        return finite
    return spark(
        "if(:i, :e, :f)",
        i=is_infinite(operand),
        e=spark(infinite_) if isinstance(infinite_, str) else infinite_,
        f=finite,
    )


def carried(operand: Operand, finite: exp.Expression, target: int) -> exp.Expression:
    """``finite``, of type ``target``, or the operand's infinity in that type."""
    if is_finite_constant(operand.node):
        return finite
    oid = operand.type.oid
    end = INFINITE_DAY if oid == t.DATE else INFINITE_MICROSECOND
    return spark(
        f"case {number_of(oid)} when {end}L then {_infinity(target)}"
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
    if is_finite_constant(operand.node):
        return node
    error = t.failure("22008", "date out of range for timestamp")
    node = spark(
        f"if({DAYS} > {_LAST_DAY_OF_TIMES}, cast({error} as timestamp_ntz), :n)",
        x=operand.node,
        n=node,
    )
    return carried(operand, node, t.TIMESTAMP)
