"""Names the result columns that the query does not name.

Comes in: an item of a select list. Goes out: the name that PostgreSQL gives it. Called by
``queries`` before the item is rewritten, and for queries on system views.

Source: FigureColname in src/backend/parser/parse_target.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions.arithmetic import OPERATOR


def result_names(tree: exp.Expression) -> tuple[str | None, ...] | None:
    """The names of a query's result columns; None if the select list has a ``*``."""
    node: exp.Expression = tree
    while isinstance(node, (exp.SetOperation, exp.Subquery)):
        node = node.this
    if isinstance(node, exp.Values):
        first = node.expressions[0]
        return tuple(f"column{i + 1}" for i in range(len(first.expressions)))
    if not isinstance(node, exp.Select):
        return None
    names: list[str | None] = []
    for item in node.expressions:
        if item.is_star:
            return None
        names.append(figure_name(item) or "?column?")
    return tuple(names)


def figure_name(item: exp.Expression) -> str | None:
    """The name of an item of a select list; None for ``?column?``."""
    if isinstance(item, exp.Alias):
        return str(item.alias)
    if isinstance(item, exp.Column):
        return str(item.name)
    if isinstance(item, (exp.Paren, exp.Bracket)):
        return figure_name(item.this)
    if isinstance(item, exp.Cast):
        return _strong_name(item.this) or _type_name(item.to)
    if isinstance(item, exp.Case):
        default = item.args.get("default")
        return (_strong_name(default) if default is not None else None) or "case"
    if isinstance(item, exp.Subquery):
        names = result_names(item)
        return names[0] if names else None
    if isinstance(item, exp.Exists):
        return "exists"
    if isinstance(item, exp.WithinGroup):
        return figure_name(item.this)
    if isinstance(item, (exp.Window, exp.Filter)):
        return figure_name(item.this)
    if isinstance(item, exp.AtTimeZone):
        return "timezone"
    if isinstance(item, exp.Interval):
        return "interval"
    if isinstance(item, exp.Array):
        return "array"
    if isinstance(item, exp.Tuple):
        return "row"
    if isinstance(item, exp.Anonymous):
        return str(item.name).lower()
    if isinstance(item, exp.Pad):
        return "lpad" if item.args.get("is_left") else "rpad"
    if isinstance(item, exp.Trim):
        side = str(item.args.get("position") or "")
        return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "btrim")
    if isinstance(item, _OPERATORS) or OPERATOR in item.meta:
        return None
    if isinstance(item, exp.Func) and not isinstance(item, (exp.And, exp.Or)):
        return _FUNCTION_NAMES.get(type(item), str(item.sql_name()).lower())
    return None


def _strong_name(item: exp.Expression) -> str | None:
    """A name that a cast around the item does not replace: not that of a cast or a CASE."""
    inner = item
    while isinstance(inner, (exp.Paren, exp.Bracket)):
        inner = inner.this
    if isinstance(inner, exp.Cast):
        return _strong_name(inner.this)
    if isinstance(inner, exp.Case):
        default = inner.args.get("default")
        return _strong_name(default) if default is not None else None
    return figure_name(inner)


def _type_name(kind: exp.DataType) -> str:
    name = kind.sql(dialect="postgres").lower().split("(")[0].split("[")[0]
    return _TYPE_NAMES.get(name, str(name))


_TYPE_NAMES: Final = {
    "bigint": "int8",
    "int": "int4",
    "integer": "int4",
    "smallint": "int2",
    "double precision": "float8",
    "real": "float4",
    "decimal": "numeric",
    "boolean": "bool",
    "char": "bpchar",
}

_OPERATORS: Final = (
    exp.JSONExtract,
    exp.JSONExtractScalar,
    exp.JSONBExtract,
    exp.JSONBExtractScalar,
    exp.JSONBContainsTopKey,
    exp.RegexpLike,
    exp.RegexpILike,
    exp.ArrayContainsAll,
    exp.ArrayOverlaps,
)
"""Nodes that are functions to sqlglot and operators to PostgreSQL, which give no name."""

_FUNCTION_NAMES: Final[dict[type[exp.Expression], str]] = {
    exp.CurrentTimestamp: "now",
    exp.StrPosition: "position",
    exp.Substring: "substring",
    exp.ArrayAgg: "array_agg",
    exp.ExplodingGenerateSeries: "generate_series",
    exp.GroupConcat: "string_agg",
    exp.Pow: "power",
    exp.TimestampTrunc: "date_trunc",
    exp.StddevPop: "stddev_pop",
    exp.StddevSamp: "stddev_samp",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.Rand: "random",
}
