"""Translates operations on times of day.

Comes in: operands of type time, which are canonical text, as in the lake (``24:00:00`` is the
greatest). Goes out: operands. Called by ``casts``, ``assign`` and ``arithmetic``.

Sources: PostgreSQL manual 8.5.1, 9.9; AdjustTimeForTypmod, time_pl_interval, time_interval,
interval_time and datetime_timestamp in date.c and timestamp.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.pgtypes.moments import LAST_MICROSECOND
from wal2lake.sql.query.values import intervals
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments.constants import rounded_clock
from wal2lake.sql.query.values.moments.operators import add as add_to_moment
from wal2lake.sql.query.values.moments.zones import carried, converted
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, plain

_DAY: Final = "86400000000L"

_MICROSECONDS: Final = (
    "(cast(substring(:v, 1, 2) as bigint) * 3600000000L"
    " + cast(substring(:v, 4, 2) as bigint) * 60000000L"
    " + cast(rpad(replace(substring(:v, 7), '.', ''), 8, '0') as bigint))"
)
"""The microseconds since midnight of a time, which is canonical text."""

_TEXT: Final = (
    "concat(lpad(cast(:u div 3600000000 as string), 2, '0'), ':',"
    " lpad(cast(:u div 60000000 % 60 as string), 2, '0'), ':',"
    " lpad(cast(:u div 1000000 % 60 as string), 2, '0'),"
    " if(:u % 1000000 = 0, '', concat('.', trim(trailing '0' from"
    " lpad(cast(:u % 1000000 as string), 6, '0')))))"
)


def _microseconds(operand: Operand) -> exp.Expression:
    return let(_MICROSECONDS, v=operand.node)


def _of_microseconds(node: exp.Expression) -> Operand:
    return Operand(let(f"if(:u is null, null, {_TEXT})", u=node), plain(t.TIME))


def rounded(operand: Operand, kind: Type) -> Operand:
    """Round to time(p)."""
    if kind.typmod in (-1, operand.type.typmod):
        return Operand(operand.node, kind)
    if isinstance(operand.node, exp.Literal):
        text = rounded_clock(operand.node.name, kind.typmod)
        return Operand(exp.Literal.string(text), kind)
    unit = 10 ** max(6 - kind.typmod, 0)
    whole = let(f"(:u + {unit // 2}) div {unit} * {unit}L", u=_microseconds(operand))
    return Operand(_of_microseconds(whole).node, kind)


def to_interval(operand: Operand) -> Operand:
    """Convert a time to an interval."""
    node = let(
        "if(:u is null, null, named_struct('m', 0L, 'd', 0L, 'u', :u))",
        u=_microseconds(operand),
    )
    return intervals.of_parts(node)


def of_interval(operand: Operand) -> Operand:
    """Convert an interval to a time: what is left of its time without whole days."""
    return _of_microseconds(let(f"pmod(:s.u, {_DAY})", s=intervals.parts(operand)))


def add(sign: str, left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``+`` and ``-`` with a time (manual, table 9.33).

    Where PostgreSQL has no such operator of times, a time counts as an interval.
    """
    a, b = left.type.oid, right.type.oid
    if sign == "+" and {a, b} == {t.DATE, t.TIME}:
        day, clock = (left, right) if a == t.DATE else (right, left)
        return _at(day, clock, zone)
    if sign == "-" and a == b == t.TIME:
        node = let(
            "if(:a is null or :b is null, null,"
            " named_struct('m', 0L, 'd', 0L, 'u', :a - :b))",
            a=_microseconds(left),
            b=_microseconds(right),
        )
        return intervals.of_parts(node)
    if t.INTERVAL in (a, b) and (sign == "+" or a == t.TIME):
        clock, span = (left, right) if a == t.TIME else (right, left)
        return _shifted(sign, clock, span)
    if sign == "-" and (a, b) == (t.INTERVAL, t.TIME):
        return intervals.add(sign, left, to_interval(right))
    if b == t.TIME and a in t.MOMENTS:
        return add_to_moment(sign, left, to_interval(right), zone)
    if sign == "+" and a == t.TIME and b in t.MOMENTS:
        return add_to_moment(sign, to_interval(left), right, zone)
    if sign == "+" and a == b == t.TIME:
        raise t.not_unique(left.type, sign, right.type)
    raise t.no_operator(left.type, sign, right.type)


def _shifted(sign: str, clock: Operand, span: Operand) -> Operand:
    """Add the time of an interval to a time, around midnight."""
    node = let(
        f"pmod(:t {sign} :s.u, {_DAY})",
        t=_microseconds(clock),
        s=intervals.parts(span),
    )
    return _of_microseconds(node)


def _at(day: Operand, clock: Operand, zone: str) -> Operand:
    """The timestamp of a time on a day."""
    error = t.failure("22008", "timestamp out of range")
    midnight = converted(day, t.TIMESTAMP, zone)
    node = let(
        f"if(:n > {LAST_MICROSECOND}L, cast({error} as timestamp_ntz),"
        " cast(timestamp_micros(:n) as timestamp_ntz))",
        n=spark(
            "(unix_micros(cast(:d as timestamp)) + :t)",
            d=midnight.node,
            t=_microseconds(clock),
        ),
    )
    node = carried(day, node, t.TIMESTAMP)
    if not isinstance(clock.node, exp.Literal):
        # Infinity plus NULL is NULL.
        node = spark("if(:t is null, null, :n)", t=clock.node, n=node)
    return Operand(node, plain(t.TIMESTAMP))
