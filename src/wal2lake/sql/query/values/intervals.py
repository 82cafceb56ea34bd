"""Translates operations on intervals: fields, order, text and arithmetic.

Comes in: operands of type interval, which are canonical text, as in the lake, or a duration that
Spark has computed. Goes out: Spark expressions. A computed interval is canonical text again.

An interval has months, days and microseconds, which are not converted into each other. In
comparisons a month has 30 days and a day has 24 hours.

Sources: PostgreSQL manual 8.5.4; interval_cmp_value in timestamp.c, EncodeInterval.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from wal2lake.pgtypes.encode.interval import declared_limits, interval_of
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, plain

_DAY: Final = "86400000000"
_EPOCH: Final = "timestamp_ntz '1970-01-01 00:00:00'"

_MICROS: Final = f"unix_micros(cast({_EPOCH} + :x as timestamp))"

_INFINITE: Final = t.failure(
    "0A000", "an infinite interval is not supported on lake tables"
)
_FINITE: Final = f"if(:v like '%infinity', cast({_INFINITE} as string), :v)"


def constant(text: str, typmod: int = -1) -> Operand:
    """Read an interval literal into canonical text."""
    shown = str(interval_of(text, typmod))
    return Operand(exp.Literal.string(shown), plain(t.INTERVAL))


def _number(v: str, unit: str) -> str:
    return f"cast(concat('0', regexp_extract({v}, '(\\\\d+) {unit}', 1)) as bigint)"


def _signed(v: str, unit: str) -> str:
    return f"if({v} rlike '-\\\\d+ {unit}', -1L, 1L) * {_number(v, unit)}"


def _clock(v: str) -> str:
    def part(group: int) -> str:
        digits = f"regexp_extract({v}, '(\\\\d+):(\\\\d\\\\d):(\\\\d\\\\d)', {group})"
        return f"cast(concat('0', {digits}) as bigint)"

    fraction = f"rpad(regexp_extract({v}, '\\\\.(\\\\d+)', 1), 6, '0')"
    return (
        f"if({v} rlike '-\\\\d+:', -1L, 1L) * ((({part(1)} * 60 + {part(2)}) * 60"
        f" + {part(3)}) * 1000000 + cast({fraction} as bigint))"
    )


def parts(operand: Operand) -> exp.Expression:
    """A struct<m, d, u> of months, days and microseconds; NULL for NULL."""
    if operand.type.duration:
        return let(
            "if(:u is null, null, named_struct('m', 0L,"
            f" 'd', :u div {_DAY}, 'u', :u % {_DAY}))",
            u=spark(_MICROS, x=operand.node),
        )
    v = ":v"
    return let(
        f"if({v} is null, null, named_struct("
        f"'m', 12 * {_signed(v, 'year')} + {_signed(v, 'mon')},"
        f" 'd', {_signed(v, 'day')}, 'u', {_clock(v)}))",
        v=let(_FINITE, v=operand.node),
    )


def order_key(operand: Operand) -> exp.Expression:
    """A number that has the order of the intervals."""
    if operand.type.duration:
        return spark(f"cast({_MICROS} as decimal(38,0))", x=operand.node)
    v = ":v"
    count = (
        f"cast((12 * ({_signed(v, 'year')}) + ({_signed(v, 'mon')})) * 30"
        f" + ({_signed(v, 'day')}) as decimal(18,0)) * {_DAY}BD + ({_clock(v)})"
    )
    far = "cast(repeat('9', 37) as decimal(38,0))"
    return let(
        f"case when :v = 'infinity' then {far} when :v = '-infinity' then -{far}"
        f" else cast({count} as decimal(38,0)) end",
        v=operand.node,
    )


def of_parts(struct: exp.Expression) -> Operand:
    """The interval of struct<m, d, u>, as text."""
    return Operand(let(_TEXT, s=struct), plain(t.INTERVAL))


def text(operand: Operand) -> exp.Expression:
    """The text that the output function prints."""
    if not operand.type.duration:
        return operand.node
    return of_parts(parts(operand)).node


def _word(number: str, unit: str, before: str) -> str:
    plus = f"if({before} and {number} > 0, '+', '')"
    ending = f"if({number} = 1, '{unit}', '{unit}s')"
    field = f"concat({plus}, cast({number} as string), ' ', {ending})"
    return f"if({number} = 0, null, {field})"


_YEARS, _MONTHS = ":s.m div 12", ":s.m % 12"
_NEGATIVE: Final = (
    "false",
    ":s.m div 12 < 0",
    "(:s.m % 12 < 0 or (:s.m % 12 = 0 and :s.m < 0))",
    "(:s.d < 0 or (:s.d = 0 and :s.m < 0))",
)
"""For each field, whether the last nonzero field before it is negative.

Years and months have the same sign.
"""
_ABS: Final = "abs(:s.u)"
_TIME: Final = (
    "if(:s.u = 0 and not (:s.m = 0 and :s.d = 0), null, concat("
    f"case when :s.u < 0 then '-' when {_NEGATIVE[3]} then '+' else '' end,"
    f" lpad(cast({_ABS} div 3600000000 as string), greatest(2,"
    f" length(cast({_ABS} div 3600000000 as string))), '0'), ':',"
    f" lpad(cast({_ABS} div 60000000 % 60 as string), 2, '0'), ':',"
    f" lpad(cast({_ABS} div 1000000 % 60 as string), 2, '0'),"
    f" if({_ABS} % 1000000 = 0, '', concat('.', trim(trailing '0' from"
    f" lpad(cast({_ABS} % 1000000 as string), 6, '0'))))))"
)
_TEXT: Final = (
    "if(:s is null, null, concat_ws(' ', "
    + _word(f"({_YEARS})", "year", _NEGATIVE[0])
    + ", "
    + _word(f"({_MONTHS})", "mon", _NEGATIVE[1])
    + ", "
    + _word(":s.d", "day", _NEGATIVE[2])
    + f", {_TIME}))"
)


_UNITS: Final = {"hour": 3_600_000_000, "minute": 60_000_000}


def adjusted(operand: Operand, kind: Type) -> Operand:
    """Keep the declared fields and round to the declared precision: AdjustIntervalForTypmod()."""
    if kind.typmod in (-1, operand.type.typmod):
        return Operand(operand.node, replace(kind, duration=operand.type.duration))
    last, digits = declared_limits(kind.typmod)
    months = ":s.m div 12 * 12" if last == "year" else ":s.m"
    days = "0L" if last in ("year", "month") else ":s.d"
    clock, step = ":s.u", 10 ** (6 - digits)
    if last in ("year", "month", "day"):
        clock = "0L"
    elif last in _UNITS:
        clock = f":s.u div {_UNITS[last]} * {_UNITS[last]}L"
    elif digits < 6:
        half = f"if(:s.u < 0, {-step // 2}, {step // 2})"
        clock = f"(:s.u + {half}) div {step} * {step}L"
    fields = let(
        f"if(:s is null, null, named_struct('m', {months}, 'd', {days}, 'u', {clock}))",
        s=parts(operand),
    )
    node = of_parts(fields).node
    if not operand.type.duration:
        node = spark("if(:v like '%infinity', :v, :n)", v=operand.node, n=node)
    return Operand(node, kind)


# ---- arithmetic --------------------------------------------------------------------------


def add(sign: str, left: Operand, right: Operand) -> Operand:
    """Add or subtract intervals field by field."""
    node = let(
        "if(:a is null or :b is null, null, named_struct("
        f"'m', :a.m {sign} :b.m, 'd', :a.d {sign} :b.d, 'u', :a.u {sign} :b.u))",
        a=parts(left),
        b=parts(right),
    )
    return of_parts(node)


def scaled(operand: Operand, factor: exp.Expression) -> Operand:
    """Multiply an interval by an integer, without carrying between fields."""
    node = let(
        "if(:a is null or :n is null, null,"
        " named_struct('m', :a.m * :n, 'd', :a.d * :n, 'u', :a.u * :n))",
        a=parts(operand),
        n=factor,
    )
    return of_parts(node)


def total(struct: exp.Expression) -> dict[str, exp.Expression]:
    """The three fields as expressions, for sum()."""
    return {name: spark(f"(:s).{name}", s=struct) for name in "mdu"}


_FIELDS: Final = {
    "YEAR": (":s.m div 12", 0),
    "MONTH": (":s.m % 12", 0),
    "DAY": (":s.d", 0),
    "HOUR": (":s.u div 3600000000", 0),
    "MINUTE": (":s.u div 60000000 % 60", 0),
    "SECOND": (":s.u % 60000000 * 0.000001BD", 6),
    "EPOCH": (
        "((:s.m div 12) * 31557600BD + (:s.m % 12) * 2592000BD + :s.d * 86400BD)"
        " + :s.u * 0.000001BD",
        6,
    ),
}
"""The expressions and scales of fields. For EPOCH a year has 365.25 days, a month 30."""


def extract(field: str, operand: Operand) -> Operand:
    """Translate EXTRACT from an interval."""
    if field not in _FIELDS:
        raise t.refuse(f"EXTRACT({field.lower()} from interval)")
    text_, scale = _FIELDS[field]
    kind = t.decimal(26, scale)
    node = let(f"cast({text_} as {t.spark_name(kind)})", s=parts(operand))
    return Operand(node, kind)
