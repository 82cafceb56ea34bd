"""Translates functions of dates and times.

Comes in: operands. Goes out: an operand. Called by ``rules`` and ``calls``; ``values.moments`` has
the arithmetic.

Source: PostgreSQL manual 9.9; timestamp_age and float8_timestamptz in timestamp.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.sql.query.analysis.functions.strings import (
    constant_text,
    no_function,
)
from wal2lake.sql.query.values import casts, intervals, moments
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, plain


def of_seconds(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate to_timestamp() of seconds since 1970, which are rounded as seconds since 2000."""
    operand = casts.settled(operands[0], plain(t.FLOAT8), zone)
    if not operand.type.number:
        raise no_function(name, operand.type)
    operand = casts.convert(operand, plain(t.FLOAT8), zone)
    node = spark(
        "timestamp_micros(cast(rint((:x - 946684800D) * 1000000D) as bigint)"
        " + 946684800000000L)",
        x=operand.node,
    )
    return Operand(node, plain(t.TIMESTAMPTZ))


_MICROS_OF_DAY: Final = "pmod(unix_micros(cast({x} as timestamp)), 86400000000L)"
_AGE: Final = (
    "if(:l is null or :h is null, null, named_struct("
    "'m', 12L * (year(:h) - year(:l)) + (month(:h) - month(:l)),"
    " 'd', cast(day(:h) - day(:l) as bigint),"
    f" 'u', {_MICROS_OF_DAY.format(x=':h')} - {_MICROS_OF_DAY.format(x=':l')},"
    " 'n', day(last_day(:l))))"
)
_TIME_BORROWED: Final = (
    "if(:s.u < 0, named_struct('m', :s.m, 'd', :s.d - 1, 'u',"
    " :s.u + 86400000000L, 'n', :s.n), :s)"
)
_DAYS_BORROWED: Final = (
    "if(:s.d < 0, named_struct('m', :s.m - 1, 'd', :s.d + :s.n, 'u', :s.u,"
    " 'n', :s.n), :s)"
)


def age(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate age(): years, months and days between two local times."""
    operands = [casts.settled(o, plain(t.TIMESTAMPTZ), zone) for o in operands]
    for operand in operands:
        if operand.type.oid not in t.MOMENTS:
            raise no_function(name, operand.type)
    if len(operands) == 1:
        now = Operand(exp.CurrentTimestamp(), plain(t.TIMESTAMPTZ))
        today = moments.converted(now, t.DATE, zone)
        operands = [today, operands[0]]
    first, second = (moments.converted(o, t.TIMESTAMP, zone) for o in operands)
    a, b = first.node, second.node
    fields = let(
        _AGE, l=spark("least(:a, :b)", a=a, b=b), h=spark("greatest(:a, :b)", a=a, b=b)
    )
    fields = let(_TIME_BORROWED, s=fields)
    # Borrowing twice suffices: a month has at least 28 days, and no difference is below -31.
    fields = let(_DAYS_BORROWED, s=let(_DAYS_BORROWED, s=fields))
    signed = spark(
        "if(:a is null or :b is null, null, transform(array(:f), f -> if(:a < :b,"
        " named_struct('m', -f.m, 'd', -f.d, 'u', -f.u),"
        " named_struct('m', f.m, 'd', f.d, 'u', f.u)))[0])",
        a=a,
        b=b,
        f=fields,
    )
    error = t.failure("0A000", "an infinite interval is not supported on lake tables")
    for moment in (first, second):
        signed = moments.unless_infinite(moment, error, signed)
    return intervals.of_parts(signed)


def make_date(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate make_date()."""
    operands = [casts.settled(o, plain(t.INT4), zone) for o in operands]
    for operand in operands:
        if operand.type.oid not in (t.INT2, t.INT4):
            raise no_function(name, operand.type)
    a, b, c = (o.node for o in operands)
    error = t.failure("22008", "date field value out of range")
    node = let(
        "if(:y is null or :m is null or :d is null, null, if(:y between 1 and 9999 and"
        " :m between 1 and 12 and :d between 1 and 31 and"
        " :d <= day(last_day(make_date(if(:y between 1 and 9999, :y, 1),"
        " if(:m between 1 and 12, :m, 1), 1))),"
        f" make_date(:y, :m, :d), cast({error} as date)))",
        y=a,
        m=b,
        d=c,
    )
    return Operand(node, plain(t.DATE))


def date_part(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate date_part(), which is EXTRACT in double precision."""
    field = constant_text(name, operands[0])
    extracted = moments.extract(field, operands[1], zone)
    return Operand(t.cast(extracted.node, "DOUBLE"), plain(t.FLOAT8))


def series(operands: Sequence[Operand], zone: str) -> Operand:
    """Translate generate_series() of timestamps with a constant step in months or in time."""
    if len(operands) != 3 or not isinstance(operands[2].node, exp.Literal):
        raise t.refuse("generate_series() of times without a constant step")
    span = interval_of(operands[2].node.name)
    kinds = {o.type.oid for o in operands[:2] if o.type.oid != t.UNKNOWN}
    kind = t.TIMESTAMP if kinds == {t.TIMESTAMP} else t.TIMESTAMPTZ
    if kind == t.TIMESTAMPTZ and zone != "UTC" and (span.months or span.days):
        raise t.refuse("generate_series() by days in a time zone with its own days")
    if bool(span.months) + bool(span.days or span.microseconds) > 1:
        raise t.refuse("generate_series() by months and days")
    ends = [
        moments.converted(casts.settled(o, plain(kind), zone), kind, zone).node
        for o in operands[:2]
    ]
    ddl = t.spark_name(plain(kind))
    total = span.days * 86_400_000_000 + span.microseconds
    forward = (span.months or total) > 0
    if not span.months and not total:
        raise UsageError("step size cannot equal zero", sqlstate="22023")
    step = (
        f"make_ym_interval(0, {span.months})"
        if span.months
        else f"make_dt_interval(0, 0, 0, {total / 1_000_000:.6f})"
    )
    # From the 29th on, PostgreSQL adds months to the previous day, which may have been cut.
    error = t.failure("0A000", "generate_series() by months from the 29th or later")
    check = f"when day(:a) > 28 then {error}" if span.months else ""
    order = "<=" if forward else ">="
    node = spark(
        f"explode(case when :a {order} :b then case {check} when true then"
        f" sequence(:a, :b, {step}) end else cast(array() as array<{ddl}>) end)",
        a=ends[0],
        b=ends[1],
    )
    return Operand(node, plain(kind))
