"""Translates ``+`` and ``-`` with dates and timestamps, and the rounding of timestamps.

Comes in: operands. Goes out: an operand. Called by ``arithmetic``, ``casts`` and ``assign``.

Sources: PostgreSQL manual, table 9.33; timestamp_pl_interval, AdjustTimestampForTypmod in
timestamp.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.moments import FIRST_DAY, LAST_DAY
from wal2lake.sql.query.values import intervals
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments.zones import (
    DAYS,
    carried,
    converted,
    unless_infinite,
)
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, cast, plain

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


def add(operator: str, left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``+`` and ``-`` with a date or timestamp (manual, table 9.33)."""
    a, b = left.type, right.type
    if operator == "+" and b.oid in t.MOMENTS and a.oid not in t.MOMENTS:
        left, right, a, b = right, left, b, a
    if a.oid == t.DATE and b.oid in (t.INT2, t.INT4):
        error = t.failure("22008", "date out of range")
        days = DAYS.replace(":x", ":a")
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
        node = carried(left, moved_.node, moved_.type.oid)
        if not isinstance(right.node, exp.Literal):
            # Infinity plus NULL is NULL.
            node = spark("if(:b is null, null, :n)", b=right.node, n=node)
        return Operand(node, moved_.type)
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
