"""The row counts of LIMIT and OFFSET.

Comes in: a typed tree, and later the same tree rewritten for the embedded engine. Goes out: an
error for a count of a wrong type (``check``); queries that compute the counts (``counts``), which
run before the query itself. PostgreSQL computes the counts first, and refuses a negative one even
if the query has no rows; the engine looks at them when rows come.

Source: transformLimitClause() in src/backend/parser/parse_clause.c; recompute_limits() in
src/backend/executor/nodeLimit.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.sql.query.dialect import EngineDialect
from wal2lake.sql.sysviews.query.casts import as_type
from wal2lake.sql.sysviews.query.inference import (
    FLOAT8,
    INTEGERS,
    NUMERIC,
    OID,
    TEXT,
    UNKNOWN,
    get_type,
)

_NUMBERS: Final = frozenset((*INTEGERS, OID, 700, FLOAT8, NUMERIC, UNKNOWN))
"""Types that are assigned to bigint; a constant without a type becomes one."""

_SQLSTATES: Final = {"OFFSET": "2201X", "LIMIT": "2201W"}


def check(node: exp.Limit | exp.Offset) -> None:
    """Raise 42804, 42803 or 42P10 if an expression cannot be a row count."""
    count, clause = node.expression, _clause(node)
    if not isinstance(count, exp.Expression):
        return
    if any(
        isinstance(part, exp.AggFunc) and _is_own(part, node) for part in count.walk()
    ):
        raise UsageError(
            f"aggregate functions are not allowed in {clause}", sqlstate="42803"
        )
    kind = get_type(count)
    if kind == UNKNOWN and isinstance(count.unnest(), exp.Query):
        kind = TEXT
    if kind is not None and kind not in _NUMBERS:
        raise UsageError(
            f"argument of {clause} must be type bigint, not type {format_type(kind)}",
            sqlstate="42804",
        )
    if any(
        isinstance(part, exp.Column) and _is_own(part, node) for part in count.walk()
    ):
        raise UsageError(
            f"argument of {clause} must not contain variables", sqlstate="42P10"
        )


def _is_own(part: exp.Expression, node: exp.Expression) -> bool:
    """Whether a part of a count is not inside a subquery."""
    around = part.parent
    while around is not None and around is not node:
        if isinstance(around, exp.Query):
            return False
        around = around.parent
    return True


def _clause(node: exp.Expression) -> str:
    return "OFFSET" if isinstance(node, exp.Offset) else "LIMIT"


def as_count(node: exp.Limit | exp.Offset) -> None:
    """Make the count of a rewritten tree a bigint, which is not negative for the engine."""
    count = node.expression
    if not isinstance(count, exp.Expression) or _is_plain(count):
        return
    # PostgreSQL rounds the count before it looks at the sign.
    whole = as_type(count, "BIGINT")
    node.meta[_COUNT] = whole
    if not whole.find(exp.Query):
        negative = exp.LT(this=whole.copy(), expression=exp.Literal.number(0))
        zero = exp.If(this=negative, true=exp.Literal.number(0))
        node.set("expression", exp.Case(ifs=[zero], default=whole.copy()))


_COUNT: Final = "count"
"""On LIMIT and OFFSET: the count as the client wrote it."""


def _is_plain(count: exp.Expression) -> bool:
    if isinstance(count, (exp.Var, exp.Null)):
        # LIMIT ALL is a word.
        return True
    return isinstance(count, exp.Literal) and not count.is_string


def counts(tree: exp.Expression) -> tuple[tuple[str, str], ...]:
    """Clauses of a rewritten tree with the engine's query for each count, OFFSET first."""
    queries = []
    for kind in (exp.Offset, exp.Limit):
        for node in tree.find_all(kind):
            count = node.meta.get(_COUNT)
            if count is not None and not count.find(exp.Column):
                query = exp.Select(expressions=[count])
                queries.append((_clause(node), query.sql(dialect=EngineDialect)))
    return tuple(queries)


def refuse_negative(clause: str, count: object) -> None:
    """Raise 2201X or 2201W."""
    if isinstance(count, int) and count < 0:
        raise UsageError(f"{clause} must not be negative", sqlstate=_SQLSTATES[clause])
