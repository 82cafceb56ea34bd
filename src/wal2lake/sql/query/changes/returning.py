"""Translates RETURNING. Pure.

Comes in: the clause of an INSERT, UPDATE or DELETE, and the table. Goes out: a ``Returning``, which
computes a result from the rows that the statement has written or removed. Called by ``inserts`` and
``updates``.

A row of the statement is one row of a relation with the columns ``n0``.. of the new row, ``o0``..
of the old row, both in the table's order, and ``x0``.. for what the list reads of the tables of
FROM or USING. Most lists name only columns of the table; then the result is a choice of these
columns, and no query.

Source: PostgreSQL manual, 6.4 (Returning Data from Modified Rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from wal2lake.catalog import TableDef
from wal2lake.errors import SqlSyntaxError
from wal2lake.sql.query.analysis.returning import returned_columns
from wal2lake.sql.query.analysis.scopes import Columns, FromItem
from wal2lake.sql.query.analysis.writes import SUBQUERIES
from wal2lake.sql.query.qualified import cut_schemas
from wal2lake.sql.query.translate import (
    Resolver,
    ResultColumn,
    generate,
    place_tables,
    settle,
)
from wal2lake.sql.query.values import types as t

ROWS: Final = "wal2lake_rows"
"""The alias of the relation of the statement's rows."""

_NEW: Final = "wal2lake new"
_OLD: Final = "wal2lake old"
_OTHER: Final = "wal2lake other "


@dataclass(frozen=True, slots=True)
class ValuesOfRows:
    """Values that are computed from the rows' relation."""

    reads: tuple[str, ...]
    """The columns of the relation that are read."""
    choice: tuple[str, ...] | None
    """The values as columns of the relation; None if a query computes them."""
    items: str
    """The list of the query for the values ``v0``.., in Spark SQL."""
    subqueries: str = ""
    """The list of a query for values that the relation must have before, if there are any."""


def values_of_rows(
    select: exp.Select,
    places: Mapping[tuple[str, str], str],
    subqueries: Sequence[exp.Expression] = (),
) -> ValuesOfRows:
    """Print a list whose columns are analysed. ``places`` are the columns of the relation, by the
    qualifier and the name that the analysis gives them; ``subqueries`` are values that the list has
    as columns of ``SUBQUERIES``."""
    items = [item.unalias() for item in select.expressions]
    # As a list, so that a value that is a column can be replaced.
    before = exp.Select(expressions=list(subqueries))
    reads: list[str] = []
    for node in [*select.find_all(exp.Column), *before.find_all(exp.Column)]:
        place = places.get((node.table, node.name))
        if node.table == SUBQUERIES:
            node.set("table", exp.to_identifier(ROWS))
        elif place is not None:
            reads.append(place)
            node.set("this", exp.to_identifier(place))
            node.set("table", exp.to_identifier(ROWS))
    choice = None
    plain = (isinstance(item, exp.Column) and item.table == ROWS for item in items)
    if not subqueries and all(plain):
        choice = tuple(item.name for item in items)
    return ValuesOfRows(
        tuple(dict.fromkeys(reads)),
        choice,
        _listed(items, "v"),
        _listed(before.expressions, "g"),
    )


def _listed(items: Sequence[exp.Expression], letter: str) -> str:
    return ", ".join(f"{generate(item)} AS {letter}{n}" for n, item in enumerate(items))


@dataclass(frozen=True, slots=True)
class Returning:
    """The result of a clause RETURNING: one row for each row of its statement."""

    table: TableDef
    """The table as the statement names it."""
    columns: tuple[ResultColumn, ...]
    values: ValuesOfRows


@dataclass(frozen=True, slots=True)
class ReturningNames:
    """The names of the old and of the new row in a list of RETURNING."""

    old: str = "old"
    new: str = "new"


@dataclass(frozen=True, slots=True)
class OtherTable:
    """A table of FROM or USING whose columns the list reads."""

    name: str
    columns: Columns | None
    """The columns with types; None if they cannot be listed."""


def clause_of(tree: exp.Expression) -> exp.Returning | None:
    """Take the clause off a statement's tree. Raises 42601 for INTO."""
    clause = tree.args.get("returning")
    tree.set("returning", None)
    if clause is None:
        return None
    if clause.args.get("into"):
        raise SqlSyntaxError('syntax error at or near "into"')
    assert isinstance(clause, exp.Returning)
    return clause


@dataclass(frozen=True, slots=True)
class ReturningClause:
    """A clause RETURNING that is not translated yet."""

    clause: exp.Returning
    table: TableDef
    alias: str
    """The table's name in the statement."""
    verb: str
    names: ReturningNames
    zone: str

    def read(self) -> list[exp.Column]:
        """Return the columns that the list names, also as ``*``."""
        columns = [
            exp.Column(this=exp.Star())
            for item in self.clause.expressions
            if isinstance(item, exp.Star)
        ]
        return [*columns, *self.clause.find_all(exp.Column)]

    def translate(
        self, resolve: Resolver, others: Sequence[OtherTable] = ()
    ) -> Returning:
        """Translate the list; ``others`` have the columns that the list reads, or more."""
        table, alias = self.table, self.alias
        select = exp.Select(expressions=[x.copy() for x in self.clause.expressions])
        schema = table.namespace if alias == table.name else None
        cut_schemas(select, {alias: {schema}})
        place_tables(select, resolve)
        columns = [(c.name, t.of_column(c)) for c in table.columns]
        # The table's name means the row that was written, or that a DELETE has removed.
        target = _OLD if self.verb == "DELETE" else _NEW
        sources = [FromItem(alias, list(columns), target)]
        for number, other in enumerate(others):
            sources.append(FromItem(other.name, other.columns, f"{_OTHER}{number}"))
        images = [
            FromItem(self.names.old, list(columns), _OLD),
            FromItem(self.names.new, list(columns), _NEW),
        ]
        described = returned_columns(select, sources, images, self.zone)
        settle(select)
        return Returning(
            table,
            tuple(ResultColumn(name, kind) for name, kind in described),
            values_of_rows(select, _places(table, others)),
        )


def _places(
    table: TableDef, others: Sequence[OtherTable]
) -> dict[tuple[str, str], str]:
    """The columns of the rows' relation, by the qualifier and the name in the analysed list."""
    places = {}
    for n, column in enumerate(table.columns):
        places[_NEW, column.name] = f"n{n}"
        places[_OLD, column.name] = f"o{n}"
    number = 0
    for n, other in enumerate(others):
        for name, _ in other.columns or ():
            places[f"{_OTHER}{n}", name] = f"x{number}"
            number += 1
    return places
