"""Errors that PostgreSQL raises before a query runs, and the embedded engine words differently.

Comes in: a typed tree. Goes out: nothing, or an error about a position of ORDER BY, GROUP BY or
DISTINCT ON that is not in the select list, about FILTER or OVER behind a function that is no
aggregate, or about DISTINCT in a window function.

Sources: src/backend/parser/parse_clause.c and parse_func.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, SqlSyntaxError, UsageError
from wal2lake.sql.query.dialect import BY_SYNTAX, KEYWORD
from wal2lake.sql.sysviews.query import limits
from wal2lake.sql.sysviews.query.names.scopes import COLUMNS_META
from wal2lake.sql.sysviews.query.signatures import written_name

_AGGREGATES: Final = frozenset(
    (
        *("any_value", "array_agg", "avg", "bit_and", "bit_or", "bit_xor", "bool_and"),
        *("bool_or", "corr", "count", "covar_pop", "covar_samp", "cume_dist"),
        *("dense_rank", "every", "json_agg", "json_agg_strict", "json_object_agg"),
        *("json_object_agg_strict", "json_object_agg_unique"),
        *("json_object_agg_unique_strict", "jsonb_agg", "jsonb_agg_strict"),
        *("jsonb_object_agg", "jsonb_object_agg_strict", "jsonb_object_agg_unique"),
        *("jsonb_object_agg_unique_strict", "json_arrayagg", "json_objectagg"),
        *("max", "min", "mode", "percent_rank", "percentile_cont", "percentile_disc"),
        *("range_agg", "range_intersect_agg", "rank", "regr_avgx", "regr_avgy"),
        *("regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx"),
        *("regr_sxy", "regr_syy", "stddev", "stddev_pop", "stddev_samp"),
        *("string_agg", "sum", "var_pop", "var_samp", "variance", "xmlagg"),
    )
)
"""pg_proc's functions with prokind a, and the grammar's."""

_WINDOWS: Final = frozenset(
    (
        *("cume_dist", "dense_rank", "first_value", "lag", "last_value", "lead"),
        *("nth_value", "ntile", "percent_rank", "rank", "row_number"),
    )
)
"""pg_proc's functions with prokind w."""

_GRAMMAR: Final = frozenset(
    ("coalesce", "greatest", "least", "nullif", "extract", "substring", "overlay")
)
"""Calls of the grammar, behind which OVER and FILTER are syntax errors."""


def check(tree: exp.Expression) -> str | None:
    """Raise the first of these errors that a query has.

    Returns what is wrong with OVER or FILTER behind a call of a function of one row: PostgreSQL
    first looks for the function, which the engine does.
    """
    misplaced = None
    for node in list(tree.walk()):
        if isinstance(node, (exp.Query, exp.Values)):
            _check_positions(node)
        elif isinstance(node, (exp.Filter, exp.Window)):
            wrong = _check_call(node)
            misplaced = misplaced or wrong
        elif isinstance(node, (exp.Limit, exp.Offset)):
            limits.check(node)
        elif written_name(node) in _WINDOWS:
            _check_has_window(node)
    return misplaced


def _check_positions(query: exp.Expression) -> None:
    """ORDER BY, GROUP BY and DISTINCT ON name columns of the select list by their numbers."""
    count = query.meta.get(COLUMNS_META)
    order = query.args.get("order")
    ordered = [] if order is None else [item.this for item in order.expressions]
    distinct = query.args.get("distinct")
    on = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    distinct_on = [] if on is None else _items([on])
    for clause, items in (
        ("ORDER BY", ordered),
        ("GROUP BY", _items(_group_items(query.args.get("group")))),
        ("DISTINCT ON", distinct_on),
    ):
        for item in items:
            _check_position(clause, item, count)
    if ordered and distinct_on and isinstance(query, exp.Select):
        _check_distinct(query, ordered, distinct_on)


def _group_items(group: exp.Group | None) -> Iterator[exp.Expression]:
    if group is None:
        return
    for key in ("expressions", "rollup", "cube", "grouping_sets"):
        for item in group.args.get(key) or ():
            nested = isinstance(item, (exp.Rollup, exp.Cube, exp.GroupingSets))
            yield from item.expressions if nested else [item]


def _items(expressions: Iterable[exp.Expression]) -> list[exp.Expression]:
    """Expressions, and those of lists in parentheses."""
    items: list[exp.Expression] = []
    for expression in expressions:
        bare = expression.unnest()
        items += _items(bare.expressions) if isinstance(bare, exp.Tuple) else [bare]
    return items


def _position(item: exp.Expression) -> int | None:
    """The number of a column that an integer constant means."""
    bare = item.unnest()
    literal = bare.this if isinstance(bare, exp.Neg) else bare
    if not isinstance(literal, exp.Literal) or not literal.is_int:
        return None
    return -int(literal.name) if literal is not bare else int(literal.name)


def _check_position(clause: str, item: exp.Expression, count: int | None) -> None:
    position = _position(item)
    if position is None or abs(position) >= 1 << 31:
        bare = item.unnest()
        if isinstance(bare, (exp.Literal, exp.Null, exp.Boolean)):
            raise SqlSyntaxError(f"non-integer constant in {clause}")
        return
    if count is not None and not 1 <= position <= count:
        raise UsageError(
            f"{clause} position {position} is not in select list", sqlstate="42P10"
        )


def _check_distinct(
    select: exp.Select, ordered: list[exp.Expression], distinct: list[exp.Expression]
) -> None:
    """ORDER BY begins with the expressions of DISTINCT ON, in any order."""
    wanted = {_target(select, item) for item in distinct}
    keys = [_target(select, item) for item in ordered]
    first = keys[: len(wanted)]
    if not (set(first) <= wanted or wanted <= set(first)):
        raise UsageError(
            "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
            sqlstate="42P10",
        )


def _target(select: exp.Select, item: exp.Expression) -> str:
    """The expression that an item of a clause means, as text."""
    position = _position(item)
    if position is not None and not select.is_star:
        return str(select.selects[position - 1].unalias())
    if isinstance(item, exp.Column) and not item.table:
        for projection in select.selects:
            if item.name == projection.alias_or_name:
                return str(projection.unalias())
    return str(item.unnest())


def _check_has_window(call: exp.Expression) -> None:
    around = call.parent
    if not isinstance(around, (exp.Filter, exp.Window, exp.WithinGroup)):
        raise UsageError(
            f"window function {written_name(call)} requires an OVER clause",
            sqlstate="42809",
        )


def _check_call(node: exp.Filter | exp.Window) -> str | None:
    """The error about a function of one row, which loses its OVER or FILTER."""
    called = node.this
    while isinstance(called, (exp.Filter, exp.WithinGroup, exp.IgnoreNulls)):
        called = called.this
    if not isinstance(called, (exp.Func, exp.Mod)):
        return None
    name = written_name(called) or ""
    bare = name.removeprefix("pg_catalog.")
    if called.meta.get(BY_SYNTAX) or bare in _GRAMMAR:
        near = node.meta.get(KEYWORD, "")
        raise SqlSyntaxError(f'syntax error at or near "{near}"')
    if bare in _AGGREGATES or bare in _WINDOWS:
        if isinstance(node, exp.Window) and isinstance(called.this, exp.Distinct):
            raise FeatureNotSupportedError(
                "DISTINCT is not implemented for window functions"
            )
        if isinstance(node, exp.Filter) and bare not in _AGGREGATES:
            raise FeatureNotSupportedError(
                "FILTER is not implemented for non-aggregate window functions"
            )
        return None
    if not isinstance(node.parent, exp.Window):
        node.replace(called)
    return (
        f"FILTER specified, but {name} is not an aggregate function"
        if isinstance(node, exp.Filter)
        else f"OVER specified, but {name} is not a window function nor an aggregate"
        " function"
    )
