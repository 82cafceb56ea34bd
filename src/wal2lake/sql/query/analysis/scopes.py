"""Finds the column that a name refers to, and its type.

Comes in: the FROM items of a query. Goes out: columns with types, qualified by their table, so that
Spark does not take an output column of the same name instead.

Source: PostgreSQL manual, 4.2.1, 7.2.1; parse_relation.c (colNameToVar).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.sql.query.values.output import row
from wal2lake.sql.query.values.types import NOTHING, Operand, Type, refuse

Columns = list[tuple[str, Type]]


@dataclass(frozen=True, slots=True)
class FromItem:
    """One FROM item."""

    name: str
    columns: Columns | None
    """The columns. None: a table whose columns only Spark knows."""
    spark_name: str
    """The name of the item in Spark's statement."""
    key: tuple[str, ...] = ()
    """The columns of the table's primary key, which are never NULL."""


@dataclass(slots=True)
class Scope:
    """The names that an expression may use."""

    outer: Scope | None = None
    sources: list[FromItem] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    """The columns of JOIN ... USING, which belong to both sides."""
    ctes: dict[str, Columns | None] = field(default_factory=dict)
    outer_join: bool = False
    """True if the query has an outer join, so that a row of some source may be missing."""

    def cte(self, name: str) -> tuple[bool, Columns | None]:
        """Whether WITH defines this name, and the columns of its query."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.ctes:
                return True, scope.ctes[name]
            scope = scope.outer
        return False, None

    def column(self, node: exp.Column) -> Operand:
        """Resolve a reference; raises 42703, 42702 or 42P01."""
        name, table = node.name, node.table
        if isinstance(node.this, exp.Star):
            whole = self._row(table)
            if whole is None:
                raise refuse(f"{table}.* in an expression")
            return whole
        scope: Scope | None = self
        opaque = False
        while scope is not None:
            match = scope._find(name, table)
            if match is not None:
                source, kind = match
                if source is not None:
                    node.set("table", exp.to_identifier(source, quoted=True))
                return Operand(node, kind)
            opaque = opaque or any(s.columns is None for s in scope.sources)
            scope = scope.outer
        if opaque:
            return Operand(node, NOTHING)
        row = None if table else self._row(name)
        if row is not None:
            return row
        if not table:
            raise UndefinedObjectError(
                f'column "{name}" does not exist', sqlstate="42703"
            )
        if self._has_table(table):
            raise UndefinedObjectError(
                f"column {table}.{name} does not exist", sqlstate="42703"
            )
        raise UndefinedObjectError(
            f'missing FROM-clause entry for table "{table}"', sqlstate="42P01"
        )

    def _find(self, name: str, table: str) -> tuple[str | None, Type] | None:
        matches = [
            (source.spark_name, kind)
            for source in self.sources
            if not table or source.name == table
            for column, kind in source.columns or ()
            if column == name
        ]
        if not matches:
            return None
        if not table and name in self.merged:
            return None, matches[0][1]
        if len(matches) > 1:
            raise UsageError(
                f'column reference "{name}" is ambiguous', sqlstate="42702"
            )
        return matches[0]

    def _row(self, name: str) -> Operand | None:
        """A table's whole row, or None if no FROM item has this name."""
        scope: Scope | None = self
        while scope is not None:
            for source in scope.sources:
                if source.name == name:
                    return scope._row_of(source)
            scope = scope.outer
        return None

    def _row_of(self, source: FromItem) -> Operand:
        columns = source.columns or []
        table = exp.to_identifier(source.spark_name, quoted=True)
        fields = [
            Operand(
                exp.Column(this=exp.to_identifier(name, quoted=True), table=table), kind
            )
            for name, kind in columns
        ]
        if len({name for name, _ in columns}) < len(columns):
            raise refuse("a row with two columns of one name")
        if not self.outer_join:
            return row(fields)
        # A row that an outer join did not find is NULL as a whole.
        keys = [
            f
            for f, (name, _) in zip(fields, columns, strict=True)
            if name in source.key
        ]
        if not keys:
            raise refuse("a whole row in an outer join, of a table without a key")
        whole = row(fields)
        node = exp.Case(
            ifs=[
                exp.If(
                    this=exp.Is(this=keys[0].node.copy(), expression=exp.Null()),
                    true=exp.Null(),
                )
            ],
            default=whole.node,
        )
        return Operand(node, whole.type)

    def _has_table(self, name: str) -> bool:
        return any(s.name == name for s in self.sources) or (
            self.outer is not None and self.outer._has_table(name)
        )

    def spark_name(self, table: str) -> exp.Identifier:
        """The name of a table in Spark's statement."""
        names = [s.spark_name for s in self.sources if s.name == table]
        return exp.to_identifier(names[0] if names else table, quoted=True)

    def star(self, table: str = "") -> Columns | None:
        """The columns of ``*`` or ``table.*``; None if a table's columns are not known."""
        if table and not self._has_table(table):
            raise UndefinedObjectError(
                f'missing FROM-clause entry for table "{table}"', sqlstate="42P01"
            )
        items: Sequence[FromItem] = [
            s for s in self.sources if not table or s.name == table
        ]
        columns: Columns = []
        merged_names: set[str] = set()
        if not table:
            for name in self.merged:
                match = self._find(name, "")
                if match is not None:
                    columns.append((name, match[1]))
                    merged_names.add(name)
        for source in items:
            if source.columns is None:
                return None
            columns.extend(c for c in source.columns if c[0] not in merged_names)
        return columns
