"""Translates aggregates that need their values in an order, or all of them at once.

Comes in: the value, the keys of ORDER BY, and ``around``, which adds FILTER and OVER to a call.
Goes out: an operand. Called by ``rules``.

Each aggregate collects the values of a group in an array, so a group must fit in memory. The
deviations of floats are computed value by value as in PostgreSQL, because the last digits of
Spark's results differ.

Sources: PostgreSQL manual 9.21; orderedsetaggs.c; float8_accum in float.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions.arrays import array_type
from wal2lake.sql.query.values import casts, floats, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type

Around = Callable[[exp.Expression], exp.Expression]
Key = tuple[exp.Expression, bool, bool]
"""A sort key: the expression, whether the order is descending, whether NULLs come first."""
Keys = Sequence[Key]


def own_key(value: Operand, zone: str) -> Keys:
    """The sort key of DISTINCT, which is the value itself."""
    return ((casts.order_operand(value, zone), False, False),)


def _collected(
    value: exp.Expression, keys: Keys, around: Around, distinct: bool
) -> exp.Expression:
    """An array<struct<x, k0 ...>> of the values, sorted by their keys."""
    named = [("x", value), *((f"k{i}", key) for i, (key, _, _) in enumerate(keys))]
    struct = exp.Anonymous(
        this="named_struct",
        expressions=[
            part
            for name, node in named
            for part in (exp.Literal.string(name), node.copy())
        ],
    )
    function = "collect_set" if distinct else "collect_list"
    rows = around(exp.Anonymous(this=function, expressions=[struct]))
    if not keys:
        return rows
    test = "0"
    for place in reversed(range(len(keys))):
        _, down, first = keys[place]
        a, b = f"l.k{place}", f"r.k{place}"
        low, high = (1, -1) if down else (-1, 1)
        before = -1 if first else 1
        test = (
            f"case when {a} is null and {b} is null then {test}"
            f" when {a} is null then {before} when {b} is null then {-before}"
            f" when {a} < {b} then {low} when {a} > {b} then {high} else {test} end"
        )
    return spark(f"array_sort(:l, (l, r) -> {test})", l=rows)


def _values(rows: exp.Expression) -> exp.Expression:
    return let("if(size(:l) = 0, null, transform(:l, v -> v.x))", l=rows)


def array(value: Operand, keys: Keys, around: Around) -> Operand:
    """Translate array_agg(); the result is NULL for no rows."""
    kind = array_type(value.type)
    return Operand(_values(_collected(value.node, keys, around, False)), kind)


def distinct_array(value: Operand, around: Around, zone: str) -> Operand:
    """Translate array_agg(DISTINCT)."""
    casts.group_operand(value, "DISTINCT")
    if value.type.oid in t.FLOATS:
        raise t.refuse(f"array_agg(DISTINCT) of {value.type.name}")
    rows = _collected(value.node, own_key(value, zone), around, True)
    return Operand(_values(rows), array_type(value.type))


def joined(
    value: Operand,
    separator: exp.Expression | None,
    keys: Keys,
    around: Around,
    zone: str,
) -> Operand:
    """Translate string_agg(DISTINCT)."""
    between = separator if separator is not None else exp.Literal.string("")
    if not isinstance(between, exp.Literal):
        raise t.refuse("string_agg(DISTINCT) with a separator that is not constant")
    text = output.text_of(value, zone)
    rows = _distinct_texts(text, keys, around)
    node = let(
        "if(forall(:l, v -> v.x is null), null,"
        f" array_join(transform(:l, v -> v.x), {between.sql(dialect='spark')}))",
        l=rows,
    )
    return Operand(node, t.plain(t.TEXT))


def _distinct_texts(text: exp.Expression, keys: Keys, around: Around) -> exp.Expression:
    """An array of the distinct texts, in order."""
    if len(keys) != 1:
        raise t.refuse("DISTINCT with several keys in an aggregate")
    return _collected(text, keys, around, True)


_SUM: Final = "(a.s + v.x)"
_STEP: Final = f"(v.x * (a.n + 1D) - {_SUM})"
_SQUARES: Final = f"(a.q + {_STEP} * {_STEP} / ((a.n + 1D) * a.n))"
_INFINITE: Final = "double('Infinity')"
_DEVIATION: Final = (
    "aggregate(filter(:l, v -> v.x is not null), named_struct('n', 0D, 's', 0D, 'q', 0D),"
    f" (a, v) -> named_struct('n', a.n + 1D, 's', {_SUM}, 'q',"
    f" case when a.n = 0D then if(isnan(v.x) or abs(v.x) = {_INFINITE}, double('NaN'), 0D)"
    f" when abs({_SUM}) <> {_INFINITE} and abs({_SQUARES}) <> {_INFINITE} then {_SQUARES}"
    f" when abs(a.s) <> {_INFINITE} and abs(v.x) <> {_INFINITE}"
    f" then cast({floats.OVERFLOW} as double) else double('NaN') end), a -> :f)"
)


def deviation(
    kind: type[exp.Expression], value: Operand, with_distinct: Around, around: Around
) -> Operand:
    """Translate stddev() and variance() of floats (the algorithm of Youngs and Cramer)."""
    if isinstance(with_distinct(value.node), exp.Distinct):
        raise t.refuse("DISTINCT in stddev() and variance()")
    population = kind in (exp.StddevPop, exp.VariancePop)
    formula = "a.q / a.n" if population else "a.q / (a.n - 1D)"
    if kind in (exp.Stddev, exp.StddevPop, exp.StddevSamp):
        formula = f"sqrt({formula})"
    formula = f"if(a.n < {1 if population else 2}D, null, {formula})"
    rows = _collected(t.cast(value.node, "DOUBLE"), (), around, False)
    return Operand(spark(_DEVIATION.replace(":f", formula), l=rows), t.plain(t.FLOAT8))


def within_group(
    node: exp.Expression,
    arguments: Sequence[Operand],
    value: Operand,
    downward: bool,
    around: Around,
    zone: str,
) -> Operand:
    """Translate percentile_cont(), percentile_disc() and mode(), which ignore NULLs."""
    value = casts.as_known(value, zone)
    key = casts.order_operand(value, zone)
    if isinstance(node, exp.Mode):
        if downward:
            raise t.refuse("mode() of values in descending order")
        return _mode(value, key, around)
    share = casts.settled(arguments[0], t.plain(t.FLOAT8), zone)
    if not share.type.number:
        raise t.refuse("percentiles of several fractions")
    share = casts.convert(share, t.plain(t.FLOAT8), zone)
    if not isinstance(share.node, exp.Cast):
        raise t.refuse("a percentile whose fraction is not constant")
    kind = value.type.computed()
    node_value = value.node
    if isinstance(node, exp.PercentileCont):
        if not value.type.number:
            raise t.refuse(f"percentile_cont() of {value.type.name}")
        kind = t.plain(t.FLOAT8)
        node_value = casts.convert(value, kind, zone).node
        key = node_value
    rows = _collected(node_value, ((key, downward, False),), around, False)
    error = t.failure(
        "22003",
        "percentile value ",
        "cast(:p as string)",
        " is not between 0 and 1",
    )
    ddl = t.spark_name(kind)
    place = "(:p * (size(:l) - 1))"
    low, high = f"get(:l, int(floor({place}))).x", f"get(:l, int(ceil({place}))).x"
    chosen = (
        f"if(floor({place}) = ceil({place}), {low},"
        f" {low} + ({place} - floor({place})) * ({high} - {low}))"
        if isinstance(node, exp.PercentileCont)
        else "get(:l, greatest(int(ceil(:p * size(:l))), 1) - 1).x"
    )
    body = (
        f"case when :p < 0 or :p > 1 then cast({error} as {ddl})"
        f" when size(:l) = 0 then null else {chosen} end"
    )
    values = spark("filter(:l, v -> v.x is not null)", l=rows)
    return Operand(let(body, l=values, p=share.node), kind)


def _mode(value: Operand, key: exp.Expression, around: Around) -> Operand:
    """The most frequent value; the first in order if several are equally frequent."""
    kind: Type = value.type
    if key is not value.node or kind.oid in t.FLOATS:
        raise t.refuse(f"mode() of {kind.name}")
    return Operand(around(spark("mode(:x, true)", x=value.node)), kind.computed())
