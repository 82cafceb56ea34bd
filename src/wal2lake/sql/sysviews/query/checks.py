"""Errors that PostgreSQL finds in a query before it runs, and the embedded engine tells otherwise.

Comes in: a typed tree. Goes out: nothing, or an error: a position that ORDER BY or GROUP BY
names beyond the select list; FILTER or OVER behind a function that is no aggregate; DISTINCT in a
window function. ``offset`` makes a negative OFFSET fail with its own text when the query runs.

Sources: src/backend/parser/parse_clause.c and parse_func.c; src/backend/executor/nodeLimit.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.sysviews.functions.pg_proc import FUNCTIONS
from wal2lake.sql.sysviews.query.failures import NEGATIVE_OFFSET
from wal2lake.sql.sysviews.query.inference import function_name

_SCALARS: Final = (
    exp.Ceil,
    exp.Floor,
    exp.Length,
    exp.Lower,
    exp.Round,
    exp.Substring,
    exp.Trunc,
    exp.Upper,
)
"""sqlglot's own classes for functions of one row."""

_SCALAR_NAMES: Final = frozenset(name for name, _ in FUNCTIONS)


def check(tree: exp.Expression) -> None:
    """Raise the first of these errors that a query has."""
    for node in tree.walk():
        if isinstance(node, exp.Query):
            _check_positions(node)
        elif isinstance(node, (exp.Filter, exp.Window)):
            _check_call(node)


def _check_positions(query: exp.Query) -> None:
    if query.is_star:
        return
    count = len(query.selects)
    order, group = query.args.get("order"), query.args.get("group")
    for ordered in order.expressions if order is not None else ():
        _check_position("ORDER BY", ordered.this, count)
    for item in group.expressions if group is not None else ():
        _check_position("GROUP BY", item, count)


def _check_position(clause: str, item: exp.Expression, count: int) -> None:
    negative = isinstance(item, exp.Neg)
    literal = item.this if negative else item
    if not isinstance(literal, exp.Literal) or not literal.is_int:
        return
    position = -int(literal.name) if negative else int(literal.name)
    if not 1 <= position <= count:
        raise UsageError(
            f"{clause} position {position} is not in select list", sqlstate="42P10"
        )


def _check_call(node: exp.Filter | exp.Window) -> None:
    called = node.this
    if isinstance(called, exp.Filter):
        called = called.this
    name = function_name(called) or (
        called.sql_name().lower() if isinstance(called, exp.Func) else ""
    )
    if isinstance(called, _SCALARS) or name in _SCALAR_NAMES:
        raise UsageError(
            f"FILTER specified, but {name} is not an aggregate function"
            if isinstance(node, exp.Filter)
            else f"OVER specified, but {name} is not a window function nor an aggregate"
            " function",
            sqlstate="42809",
        )
    if isinstance(node, exp.Window) and isinstance(called.this, exp.Distinct):
        raise FeatureNotSupportedError(
            "DISTINCT is not implemented for window functions"
        )


def offset(node: exp.Offset) -> None:
    """Replace a count that may be negative by one that fails with PostgreSQL's text."""
    count = node.expression
    if isinstance(count, (exp.Literal, exp.Null, exp.Query)):
        return
    if not isinstance(count, (exp.Placeholder, exp.Parameter, exp.Cast)):
        # PostgreSQL rounds the count before it looks at the sign.
        count = exp.Cast(this=count, to=exp.DataType.build("BIGINT", dialect="duckdb"))
    failure = exp.Anonymous(
        this="error", expressions=[exp.Literal.string(NEGATIVE_OFFSET)]
    )
    negative = exp.LT(this=count.copy(), expression=exp.Literal.number(0))
    failing = exp.If(this=negative, true=failure)
    node.set("expression", exp.Case(ifs=[failing], default=count))
    limit = None if node.parent is None else node.parent.args.get("limit")
    if isinstance(limit, exp.Limit) and isinstance(limit.expression, exp.Neg):
        # PostgreSQL looks at OFFSET first, the engine at LIMIT.
        limited = exp.Case(ifs=[failing.copy()], default=limit.expression)
        limit.set("expression", limited)
