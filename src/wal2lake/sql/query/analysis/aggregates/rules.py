"""Translates aggregates and window functions by the type of their argument.

Comes in: the function's node, its operands, and ``around``, which adds FILTER and OVER to a call.
Goes out: an operand. An aggregate may become several: avg is a sum divided by a count.

Sources: PostgreSQL manual 9.21, 9.22; pg_aggregate.dat.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from wal2lake.sql.query.analysis.aggregates import arrange
from wal2lake.sql.query.analysis.aggregates.arrange import Around, Keys
from wal2lake.sql.query.analysis.functions.strings import no_function
from wal2lake.sql.query.values import casts, floats, intervals, numeric, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import spark
from wal2lake.sql.query.values.types import Operand

_RANKS: Final = (exp.RowNumber, exp.Rank, exp.DenseRank)
_RANK_FRACTIONS: Final = (exp.PercentRank, exp.CumeDist)
_ROW_PICKS: Final = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
_DEVIATIONS: Final = (
    exp.Stddev,
    exp.StddevPop,
    exp.StddevSamp,
    exp.Variance,
    exp.VariancePop,
)
_AGGREGATES: Final = (
    exp.Count,
    exp.Sum,
    exp.Avg,
    exp.Min,
    exp.Max,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.ArrayAgg,
    exp.GroupConcat,
    *_DEVIATIONS,
)


def is_aggregate(node: exp.Expression) -> bool:
    """Whether a node is an aggregate or a window function."""
    if isinstance(node, exp.Grouping):
        return False
    return isinstance(
        node,
        (
            exp.Window,
            exp.Filter,
            exp.WithinGroup,
            exp.AggFunc,
            *_AGGREGATES,
            *_RANKS,
            *_RANK_FRACTIONS,
            *_ROW_PICKS,
        ),
    ) or (isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME)


_BY_NAME: Final[dict[str, type[exp.Expression]]] = {
    "every": exp.LogicalAnd,
    "variance": exp.Variance,
    "var_samp": exp.Variance,
    "var_pop": exp.VariancePop,
}


def named(node: exp.Expression) -> exp.Expression:
    """Replace a call by name with sqlglot's node of the aggregate, if sqlglot has one."""
    if isinstance(node, exp.Anonymous) and node.name.lower() in _BY_NAME:
        if len(node.expressions) != 1:
            raise t.refuse(f"this form of {node.name.lower()}()")
        return _BY_NAME[node.name.lower()](this=node.expressions[0])
    return node


def ordered(
    node: exp.Expression, value: Operand, keys: Keys, around: Around, zone: str
) -> Operand:
    """Translate array_agg() and string_agg() with ORDER BY."""
    if isinstance(node, exp.ArrayAgg):
        return arrange.array(value, keys, around)
    if not isinstance(node, exp.GroupConcat):
        raise t.refuse(
            "ORDER BY in an aggregate other than array_agg() and string_agg()"
        )
    if not (value.type.string or value.type.oid == t.UNKNOWN):
        raise no_function("string_agg", value.type)
    value = casts.as_known(value, zone)
    if node.find(exp.Distinct):
        return arrange.joined(value, node.args.get("separator"), keys, around, zone)
    node.this.set("this", output.text_of(value, zone))
    for item, (key, _, _) in zip(node.this.expressions, keys, strict=True):
        item.set("this", key)
    return Operand(around(node), t.plain(t.TEXT))


def call(
    node: exp.Expression,
    arguments: dict[str, Any],
    distinct: bool,
    around: Around,
    zone: str,
) -> Operand:
    """Translate one call."""

    def with_distinct(value: exp.Expression) -> exp.Expression:
        return exp.Distinct(expressions=[value]) if distinct else value

    first = arguments.get("this")
    if isinstance(node, exp.Count):
        return _count(node, first, with_distinct, around, distinct)
    if isinstance(node, _RANKS):
        return Operand(t.cast(around(node), "BIGINT"), t.plain(t.INT8))
    if isinstance(node, _RANK_FRACTIONS):
        return Operand(around(node), t.plain(t.FLOAT8))
    if isinstance(node, exp.Ntile):
        return Operand(around(node), t.plain(t.INT4))
    if not isinstance(first, Operand):
        raise t.refuse(f"{node.sql_name().lower()}()")
    first = casts.as_known(first, zone)
    node.set("this", first.node)
    if not first.type.known:
        node.set("this", with_distinct(first.node))
        return Operand(around(node), t.NOTHING)
    if isinstance(node, _ROW_PICKS):
        return _pick(node, first, arguments, around)
    if isinstance(node, exp.Sum):
        return _sum(first, with_distinct, around, distinct)
    if isinstance(node, exp.Avg):
        return _average(first, with_distinct, around, distinct)
    if isinstance(node, (exp.Min, exp.Max)):
        return _extreme(node, first, around, zone)
    if isinstance(node, (exp.LogicalAnd, exp.LogicalOr)):
        if first.type.oid != t.BOOL:
            raise no_function(node.sql_name().lower(), first.type)
        return Operand(around(node), first.type)
    if isinstance(node, exp.ArrayAgg):
        if distinct:
            return arrange.distinct_array(first, around, zone)
        return arrange.array(first, (), around)
    if isinstance(node, exp.GroupConcat):
        return _concatenated(node, first, around, zone, distinct)
    if isinstance(node, _DEVIATIONS):
        return _deviation(node, first, with_distinct, around)
    raise t.refuse(f"{node.sql_name().lower()}()")


def _count(
    node: exp.Count, first: Any, with_distinct: Around, around: Around, distinct: bool
) -> Operand:
    """Translate count(). ``first`` is no operand in count(*)."""
    if isinstance(first, Operand):
        if distinct and first.type.fields is not None:
            row = exp.Anonymous(
                this="struct",
                expressions=[_counted(f) for f in output.fields_of(first)],
            )
            node = exp.Count(this=with_distinct(row))
        else:
            value = _counted(first) if distinct else first.node
            node.set("this", with_distinct(value))
    return Operand(around(node), t.plain(t.INT8))


def _counted(operand: Operand) -> exp.Expression:
    if operand.type.exact_text:
        return numeric.order_key(operand)
    if operand.type.oid == t.INTERVAL:
        return intervals.order_key(operand)
    if operand.type.oid != t.UNKNOWN:
        casts.group_operand(operand, "DISTINCT")
    return operand.node


def _pick(
    node: exp.Expression, first: Operand, arguments: dict[str, Any], around: Around
) -> Operand:
    default = arguments.get("default")
    if (
        isinstance(default, Operand)
        and default.type.computed() != first.type.computed()
    ):
        settled = casts.settled(default, first.type, "UTC")
        if settled.type.computed() != first.type.computed():
            raise t.refuse("a default of another type in lag() and lead()")
        node.set("default", settled.node)
    return Operand(around(node), first.type.computed())


def _sum(
    first: Operand, with_distinct: Around, around: Around, distinct: bool
) -> Operand:
    kind = first.type
    if kind.oid in (t.INT2, t.INT4):
        return Operand(around(exp.Sum(this=with_distinct(first.node))), t.plain(t.INT8))
    if kind.oid in t.FLOATS:
        total = around(exp.Sum(this=with_distinct(first.node)))
        node = floats.checked(total, _greatest(first, around), t.spark_name(kind))
        return Operand(node, kind)
    if kind.exact_text:
        if distinct:
            raise t.refuse(
                "sum(DISTINCT) of numeric without precision", numeric.ROUND_HINT
            )
        return numeric.text_sum(
            around(exp.Sum(this=numeric.summand(first.node))),
            around(exp.Max(this=numeric.scale_of(first.node))),
        )
    if kind.oid == t.INT8 or kind.oid == t.NUMERIC:
        total = around(exp.Sum(this=with_distinct(numeric.as_decimal(first))))
        precision, scale = t.digits_of(kind)
        return Operand(total, t.decimal(precision + 10, scale))
    if kind.oid == t.INTERVAL:
        fields = intervals.total(intervals.parts(first))
        sums = {k: around(exp.Sum(this=with_distinct(v))) for k, v in fields.items()}
        if distinct:
            raise t.refuse("sum(DISTINCT interval)")
        return intervals.of_parts(
            spark(
                "if(:m is null, null, named_struct('m', :m, 'd', :d, 'u', :u))", **sums
            )
        )
    raise no_function("sum", kind)


def _average(
    first: Operand, with_distinct: Around, around: Around, distinct: bool
) -> Operand:
    kind = first.type
    if kind.oid in t.FLOATS:
        value = t.cast(first.node, "DOUBLE")
        mean = around(exp.Avg(this=with_distinct(value)))
        squares = None
        if kind.oid == t.FLOAT8:
            count = exp.Count(this=with_distinct(value.copy()))
            squares = floats.squares(
                around(exp.Max(this=value.copy())),
                around(exp.Min(this=value.copy())),
                around(count),
            )
        greatest = _greatest(first, around)
        node = floats.checked(mean, greatest, "DOUBLE", squares)
        return Operand(node, t.plain(t.FLOAT8))
    if kind.exact_text:
        raise t.refuse("avg() of numeric without precision", numeric.ROUND_HINT)
    if kind.oid not in t.INTEGERS and kind.oid != t.NUMERIC:
        raise (
            t.refuse("avg(interval)")
            if kind.oid == t.INTERVAL
            else no_function("avg", kind)
        )
    total = around(exp.Sum(this=with_distinct(numeric.as_decimal(first))))
    count = around(exp.Count(this=with_distinct(first.node.copy())))
    return numeric.average(total, count, t.digits_of(kind)[1])


def _greatest(value: Operand, around: Around) -> exp.Expression:
    """The greatest magnitude of the values of a float type."""
    magnitude = t.cast(spark("abs(:x)", x=value.node), "DOUBLE")
    return around(exp.Max(this=magnitude))


def _concatenated(
    node: exp.GroupConcat, first: Operand, around: Around, zone: str, distinct: bool
) -> Operand:
    if not first.type.string:
        raise no_function("string_agg", first.type)
    if distinct:
        keys = arrange.own_key(first, zone)
        return arrange.joined(first, node.args.get("separator"), keys, around, zone)
    node.set("this", output.text_of(first, zone))
    return Operand(around(node), t.plain(t.TEXT))


def _deviation(
    node: exp.Expression, first: Operand, with_distinct: Around, around: Around
) -> Operand:
    if first.type.oid not in t.FLOATS:
        raise t.refuse(
            f"{node.sql_name().lower()}() of {first.type.name}",
            "Cast it to double precision.",
        )
    return arrange.deviation(type(node), first, with_distinct, around)


def _extreme(
    node: exp.Expression, first: Operand, around: Around, zone: str
) -> Operand:
    if first.type.oid in (t.BOOL, t.UUID):
        raise no_function(node.sql_name().lower(), first.type)
    key = casts.order_operand(first, zone)
    kind = first.type.computed()
    if key is first.node:
        return Operand(around(node), kind)
    name = "max_by" if isinstance(node, exp.Max) else "min_by"
    return Operand(around(spark(f"{name}(:x, :k)", x=first.node, k=key)), kind)
