"""Analyses the list of RETURNING.

Comes in: the items, and the columns of the table and of the tables of FROM or USING. Goes out: a
SELECT whose list is in Spark's terms, and the names and types of its columns. Called by
``query.changes.returning``.

Names of the table and of FROM are looked up first, as in the statement itself. Around them are
``old`` and ``new``, whose columns can only be named with their qualifier, because the table has
columns of the same names.

Source: PostgreSQL manual, 6.4 (Returning Data from Modified Rows); transformReturningClause and
addNSItemForReturning in analyze.c and parse_relation.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.query.analysis.queries import QueryAnalysis
from wal2lake.sql.query.analysis.scopes import Columns, FromItem, Scope
from wal2lake.sql.query.values import types as t

_REFUSED: Final = (
    (exp.Window, "window functions", "42P20"),
    (exp.AggFunc, "aggregate functions", "42803"),
    (exp.UDTF, "set-returning functions", "0A000"),
    (exp.ExplodingGenerateSeries, "set-returning functions", "0A000"),
)
"""Functions that RETURNING may not have, apart from its subqueries."""


def returned_columns(
    select: exp.Select,
    sources: Sequence[FromItem],
    images: Sequence[FromItem],
    zone: str,
) -> Columns:
    """Rewrite the list of ``select`` in place; return the names and types of its columns.

    ``sources`` are the table and the tables of FROM, ``images`` the old and the new row.
    """
    scope = Scope(sources=list(sources), outer=Scope(sources=list(images)))
    items: list[exp.Expression] = []
    for item in select.expressions:
        items += _expanded(item, sources, images, scope)
    for item in items:
        _check(item, [*sources, *images])
    select.set("expressions", items)
    columns, _ = QueryAnalysis(zone, select).select_list(select, scope)
    if columns is None:
        raise t.refuse("RETURNING of columns that are not known")
    return [
        (name, t.plain(t.TEXT) if kind.oid == t.UNKNOWN else kind)
        for name, kind in columns
    ]


def _expanded(
    item: exp.Expression,
    sources: Sequence[FromItem],
    images: Sequence[FromItem],
    scope: Scope,
) -> list[exp.Expression]:
    """The columns of ``*`` or ``table.*``; any other item as it is."""
    is_star = isinstance(item, exp.Star)
    if not is_star and not (
        isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
    ):
        return [item]
    name = "" if is_star else item.table
    chosen = [source for source in sources if not name or source.name == name]
    if not chosen:
        chosen = [image for image in images if image.name == name]
    if not chosen:
        scope.star(name)
    if any(source.columns is None for source in chosen):
        raise t.refuse("RETURNING of * with a subquery or a join in FROM")
    return [
        exp.Column(
            this=exp.to_identifier(column, quoted=True),
            table=exp.to_identifier(source.name, quoted=True),
        )
        for source in chosen
        for column, _ in source.columns or ()
    ]


def _check(item: exp.Expression, sources: Sequence[FromItem]) -> None:
    names = {source.name for source in sources}
    columns = {name for source in sources for name, _ in source.columns or ()}
    for node in item.walk():
        if node.find_ancestor(exp.Query) not in (None, item.find_ancestor(exp.Query)):
            continue
        for kind, words, sqlstate in _REFUSED:
            if isinstance(node, kind):
                raise UsageError(
                    f"{words} are not allowed in RETURNING", sqlstate=sqlstate
                )
        if (
            isinstance(node, exp.Column)
            and not node.table
            and node.name in names - columns
        ):
            raise FeatureNotSupportedError(
                f'the whole row "{node.name}" is not supported in RETURNING'
            )
