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
class Returning:
    """What a statement returns of each of its rows."""

    table: TableDef
    """The table as the statement names it."""
    columns: tuple[ResultColumn, ...]
    reads: tuple[str, ...]
    """The columns of the rows' relation that are read."""
    choice: tuple[str, ...] | None
    """The result as columns of the relation; None if a query computes the result."""
    items: str
    """The list of the query for the result, in Spark SQL."""


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
        return self._returning(select, described, _places(table, others))

    def _returning(
        self,
        select: exp.Select,
        described: Columns,
        places: Mapping[tuple[str, str], str],
    ) -> Returning:
        items = [item.unalias() for item in select.expressions]
        reads: list[str] = []
        for node in list(select.find_all(exp.Column)):
            place = places.get((node.table, node.name))
            if place is not None:
                reads.append(place)
                node.set("this", exp.to_identifier(place))
                node.set("table", exp.to_identifier(ROWS))
        choice = None
        if all(isinstance(item, exp.Column) and item.table == ROWS for item in items):
            choice = tuple(item.name for item in items)
        return Returning(
            self.table,
            tuple(ResultColumn(name, kind) for name, kind in described),
            tuple(dict.fromkeys(reads)),
            choice,
            ", ".join(f"{generate(item)} AS v{n}" for n, item in enumerate(items)),
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
