"""Applies ALTER TABLE to a table's columns. Pure: definitions in, definitions out. Pure:
definitions in, definitions out.

Comes in: a table and changes, in the order in which they happen. Goes out: a ``ColumnPlan``: the
table afterwards and, for each of its columns, where its values come from. The lake makes of
that a version (``lake.delta.schemachange``), ``apply.altering`` both of them one.

Source: tablecmds.c (ATExecAddColumn, ATExecDropColumn, renameatt_internal, ATExecAlterColumnType,
ATExecSetNotNull, ATExecDropNotNull, ATExecColumnDefault), whose texts these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from wal2lake.catalog.records import ColumnDef, TableDef
from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.model import SYSTEM_COLUMNS, CheckConstraint, Deferral, Generation

_MOST_COLUMNS: Final = 1600
"""MaxHeapAttributeNumber."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new last column."""

    column: ColumnDef
    """Rows that are there get its default: a SetDefault behind it changes that of later ones."""


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column and what it holds go. A primary key that has it goes, too."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Renames a column; its values stay."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ChangeType:
    """Changes a column's type; its values are converted."""

    name: str
    column: ColumnDef
    """The type is taken of it: ``type_oid``, ``typmod``, ``type_name``, ``domain``."""
    anew: bool = False
    """True if the values change, even if the type does not."""


@dataclass(frozen=True, slots=True)
class SetNotNull:
    """SET NOT NULL and DROP NOT NULL. Rows are looked at by the caller."""

    name: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class SetDefault:
    """SET DEFAULT; None: DROP DEFAULT."""

    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class SetGeneration:
    """SET EXPRESSION, with which rows that are there are computed anew; None: DROP EXPRESSION."""

    name: str
    generation: Generation | None


@dataclass(frozen=True, slots=True)
class SetKey:
    """The table's key is another one. Rows are looked at by the caller."""

    columns: tuple[str, ...]
    """Empty: it has none any more."""
    name: str | None = None
    """Name of the constraint; None: PostgreSQL's default name, or the present one."""
    deferral: Deferral = Deferral.NO


@dataclass(frozen=True, slots=True)
class AddCheck:
    """One more CHECK. Rows are looked at by the caller."""

    check: CheckConstraint


@dataclass(frozen=True, slots=True)
class DropCheck:
    """A CHECK goes."""

    name: str


ColumnChange = (
    AddCheck
    | AddColumn
    | DropCheck
    | DropColumn
    | RenameColumn
    | ChangeType
    | SetNotNull
    | SetDefault
    | SetGeneration
    | SetKey
)


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of the table afterwards."""

    column: ColumnDef
    source: str | None
    """The column's name before; None: the column is new."""
    retyped: bool = False
    """True if the type is another one."""
    default: str | None = None
    """Default that a new column came with; the column may have lost it since."""
    computed: Generation | None = None
    """Expression that computes values for existing rows; None: the rows have values."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """A table after its changes, with the source of each column's values."""

    before: TableDef
    after: TableDef
    columns: tuple[PlannedColumn, ...]
    """Columns of ``after``, in its order."""


def plan_changes(table: TableDef, changes: Sequence[ColumnChange]) -> ColumnPlan:
    """All of them, one after the other; PostgreSQL's error if one cannot be."""
    plan = _Plan(table)
    for change in changes:
        plan.change(change)
    if table.columns and not plan.columns:
        raise FeatureNotSupportedError(
            f'cannot drop the last column of table "{table.name}"',
            detail="A lake table must have a column.",
        )
    after = replace(
        table,
        columns=tuple(one.column for one in plan.columns),
        key=plan.key,
        key_name=plan.key_name if plan.key else None,
        key_deferral=plan.deferral if plan.key else Deferral.NO,
        checks=plan.checks,
    )
    return ColumnPlan(table, after, tuple(plan.columns))


def _renamed(generation: Generation | None, names: dict[str, str]) -> Generation | None:
    return None if generation is None else generation.renamed(names)


def _refuse_default(table: TableDef, column: ColumnDef, change: SetDefault) -> None:
    if column.generated is None:
        return
    verb = "DROP" if change.default is None else "SET"
    raise UsageError(
        f'column "{column.name}" of relation "{table.name}" is a generated column',
        sqlstate="42601",
        hint=f"Use ALTER TABLE ... ALTER COLUMN ... {verb} EXPRESSION instead.",
    )


class _Plan:
    def __init__(self, table: TableDef) -> None:
        self.table = table
        self.columns = [PlannedColumn(c, c.name) for c in table.columns]
        self.key = table.key
        self.key_name = table.key_name
        self.deferral = table.key_deferral
        self.checks = table.checks

    def change(self, change: ColumnChange) -> None:
        match change:
            case AddCheck():
                self.checks = (*self.checks, change.check)
            case DropCheck():
                self.checks = tuple(c for c in self.checks if c.name != change.name)
            case AddColumn():
                self._add(change)
            case DropColumn():
                self._drop(change.name)
            case RenameColumn():
                self._rename(change)
            case ChangeType():
                self._retype(change)
            case SetNotNull():
                self._set_not_null(change)
            case SetKey():
                for name in change.columns:
                    at, one = self._find(name, "alter")
                    self._put(at, replace(one.column, not_null=True))
                self.key_name = change.name if not self.key else self.key_name
                self.key, self.deferral = change.columns, change.deferral
            case SetGeneration():
                self._set_generation(change)
            case SetDefault():
                at, one = self._find(change.name, "alter")
                _refuse_default(self.table, one.column, change)
                column = replace(one.column, default=change.default, sequence=None)
                self._put(at, column)

    def _add(self, change: AddColumn) -> None:
        name = change.column.name
        if len(self.columns) >= _MOST_COLUMNS:
            raise UsageError(
                f"tables can have at most {_MOST_COLUMNS} columns", sqlstate="54011"
            )
        self._refuse_taken(name)
        column = change.column
        planned = PlannedColumn(
            column, None, default=column.default, computed=column.generated
        )
        self.columns.append(planned)

    def _drop(self, name: str) -> None:
        at, _ = self._find(name, "drop")
        self._refuse_in_partition_key(name, "drop")
        if name in self.key:
            self.key = ()
        self.checks = tuple(c for c in self.checks if name not in c.columns)
        del self.columns[at]
        for one in list(self.columns):
            if one.column.generated and name in one.column.generated.columns:
                # Whether it may go with it is the command's to say.
                self._drop(one.column.name)

    def _rename(self, change: RenameColumn) -> None:
        name = change.name
        if name in SYSTEM_COLUMNS:
            raise FeatureNotSupportedError(f'cannot rename system column "{name}"')
        if all(one.column.name != name for one in self.columns):
            raise UndefinedObjectError(
                f'column "{name}" does not exist', sqlstate="42703"
            )
        at, one = self._find(name, "rename")
        self._refuse_taken(change.new_name)
        self._refuse_in_partition_key(name, "rename")
        self._put(at, replace(one.column, name=change.new_name))
        self.key = tuple(change.new_name if k == name else k for k in self.key)
        renamed = {name: change.new_name}
        self.checks = tuple(c.renamed(renamed) for c in self.checks)
        self.columns = [
            replace(
                one,
                column=replace(
                    one.column, generated=_renamed(one.column.generated, renamed)
                ),
                computed=_renamed(one.computed, renamed),
            )
            for one in self.columns
        ]

    def _retype(self, change: ChangeType) -> None:
        at, one = self._find(change.name, "alter")
        self._refuse_in_partition_key(change.name, "alter")
        for check in self.checks:
            if change.name in check.columns:
                raise FeatureNotSupportedError(
                    f'cannot alter type of column "{change.name}" because check'
                    f' constraint "{check.name}" of relation "{self.table.name}" reads it',
                    hint="Drop the constraint, alter the type and add the constraint"
                    " again: ALTER TABLE ... DROP CONSTRAINT, ADD CONSTRAINT.",
                )
        for other in self.columns:
            generation = other.column.generated
            if generation is not None and change.name in generation.columns:
                raise FeatureNotSupportedError(
                    "cannot alter type of a column used by a generated column",
                    detail=f'Column "{change.name}" is used by generated column'
                    f' "{other.column.name}".',
                )
        kind = change.column
        column = replace(
            one.column,
            type_oid=kind.type_oid,
            typmod=kind.typmod,
            type_name=kind.type_name,
            domain=kind.domain,
        )
        self.columns[at] = replace(
            one,
            column=column,
            retyped=one.retyped or change.anew or column != one.column,
            computed=column.generated if column != one.column else one.computed,
        )

    def _set_generation(self, change: SetGeneration) -> None:
        at, one = self._find(change.name, "alter")
        if one.column.generated is None:
            raise UsageError(
                f'column "{change.name}" of relation "{self.table.name}" is not a'
                " generated column",
                sqlstate="55000",
            )
        column = replace(one.column, generated=change.generation)
        computed = change.generation or one.computed
        self.columns[at] = replace(one, column=column, computed=computed)

    def _set_not_null(self, change: SetNotNull) -> None:
        at, one = self._find(change.name, "alter")
        if not change.not_null and change.name in self.key:
            raise UsageError(
                f'column "{change.name}" is in a primary key', sqlstate="42P16"
            )
        self._put(at, replace(one.column, not_null=change.not_null))

    def _put(self, at: int, column: ColumnDef) -> None:
        self.columns[at] = replace(self.columns[at], column=column)

    def _find(self, name: str, verb: str) -> tuple[int, PlannedColumn]:
        if name in SYSTEM_COLUMNS:
            raise FeatureNotSupportedError(f'cannot {verb} system column "{name}"')
        for at, one in enumerate(self.columns):
            if one.column.name == name:
                return at, one
        raise UndefinedObjectError(
            f'column "{name}" of relation "{self.table.name}" does not exist',
            sqlstate="42703",
        )

    def _refuse_taken(self, name: str) -> None:
        if name in SYSTEM_COLUMNS:
            raise UsageError(
                f'column name "{name}" conflicts with a system column name',
                sqlstate="42701",
            )
        if any(one.column.name == name for one in self.columns):
            raise UsageError(
                f'column "{name}" of relation "{self.table.name}" already exists',
                sqlstate="42701",
            )

    def _refuse_in_partition_key(self, name: str, verb: str) -> None:
        partitioned = self.table.partition_key
        if partitioned is None or name not in partitioned.columns:
            return
        if verb == "rename":
            # The partition key's text in the catalog has the name.
            raise FeatureNotSupportedError(
                f'cannot rename column "{name}" because it is part of the partition'
                f' key of relation "{self.table.name}"'
            )
        raise UsageError(
            f'cannot {verb} column "{name}" because it is part of the partition key of'
            f' relation "{self.table.name}"',
            sqlstate="42P16",
        )
