"""Decides from a query's text which part of the node answers it.

Comes in: the text of a query. Goes out: its ``QueryRoute``. The backend of a session asks for each
statement that it prepares. The decision depends on the text alone: an unqualified name that begins
with ``pg_`` means a catalog, whatever the search path is.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from sqlglot import exp

from wal2lake.sql.grammar.remembered import by_text
from wal2lake.sql.query.translate import computes
from wal2lake.sql.sysviews.functions.pg_proc import SYSTEM_SCHEMA_NAMES
from wal2lake.sql.sysviews.query.rewrite import parsed


class QueryRoute(Enum):
    """The part of the node that answers a query."""

    LAKE = "lake"
    """The query reads lake tables, or is no query that the catalogs' parser knows."""
    CATALOGS = "catalogs"
    """The query reads system relations only, or nothing."""
    EITHER = "either"
    """The query has no relations and computes something. The lake's analysis has PostgreSQL's rules
    for most computations; the embedded engine answers the others."""


@by_text
def route_of(sql: str) -> QueryRoute:
    """Return the route of a query."""
    # A long text is parsed at each call of ``parsed``.
    tree = parsed(sql)
    if tree is None or not _is_system_query(tree):
        return QueryRoute.LAKE
    if not _has_relations(tree) and (_only_computes(tree) or computes(sql)):
        return QueryRoute.EITHER
    return QueryRoute.CATALOGS


def is_system_query(sql: str) -> bool:
    """Whether a query reads only system relations, or no relation at all."""
    tree = parsed(sql)
    return tree is not None and _is_system_query(tree)


def _has_relations(tree: exp.Expression) -> bool:
    """Whether a query reads a relation, and not only functions and values."""
    return any(isinstance(x.this, exp.Identifier) for x in tree.find_all(exp.Table))


def _is_system_query(tree: exp.Expression) -> bool:
    if tree.find(exp.Into, exp.Lock, exp.Insert, exp.Update, exp.Delete):
        return False
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            continue
        if table.db in SYSTEM_SCHEMA_NAMES:
            continue
        if table.db or not (table.name in ctes or table.name.startswith("pg_")):
            return False
    return True


_COMPUTATIONS: Final = (
    exp.Values,
    exp.SetOperation,
    exp.Binary,
    exp.Unary,
    exp.Case,
    exp.Array,
    exp.Interval,
    exp.BitString,
    exp.HexString,
    exp.ExplodingGenerateSeries,
)


def _only_computes(tree: exp.Expression) -> bool:
    """Whether a query without relations has more in it than constants and functions.

    The embedded engine's numbers, dates and unions are not PostgreSQL's.
    """
    return any(
        isinstance(node, _COMPUTATIONS)
        or (isinstance(node, exp.Literal) and not node.is_string and not node.is_int)
        or (
            isinstance(node, exp.Cast)
            and (
                node.to.expressions
                or node.to.this
                in exp.DataType.NUMERIC_TYPES | exp.DataType.TEMPORAL_TYPES
            )
        )
        for node in tree.walk()
        if not isinstance(node, exp.Paren)
    )


@by_text
def calls_functions(sql: str) -> bool:
    """Whether a query has a call that only the embedded engine may know, or a WAL position."""
    tree = parsed(sql)
    syntax = (exp.Case, exp.Array, exp.Connector)
    return tree is not None and any(
        call.to.sql("postgres").lower() == "pg_lsn"
        if isinstance(call, exp.Cast)
        else not isinstance(call, syntax)
        for call in tree.find_all(exp.Func)
    )
