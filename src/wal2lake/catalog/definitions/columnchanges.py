"""Applies ALTER TABLE to a table's columns. Pure: definitions in, definitions out.

In: a table and changes, in their order. Out: a ``ColumnPlan``: the new definition and, for each
column, the source of its values. ``lake.delta.schemachange`` makes a version of the lake table from
it; ``apply.local.altering`` changes definition and version as one.

Source: tablecmds.c (ATExecAddColumn, ATExecDropColumn, renameatt_internal, ATExecAlterColumnType,
ATExecSetNotNull, ATExecDropNotNull, ATExecColumnDefault), with the same error texts.
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
    """Adds a column at the end."""

    column: ColumnDef
    """The new column. Existing rows get its default; a following SetDefault applies to later
    rows."""


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drops a column with its values, and a primary key that contains the column."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Renames a column. Its values stay."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class ChangeType:
    """Changes a column's type. Its values are converted."""

    name: str
    column: ColumnDef
    """Column with the new type: ``type_oid``, ``typmod``, ``type_name``, ``domain``."""
    anew: bool = False
    """Whether the values change even if the type does not."""


@dataclass(frozen=True, slots=True)
class SetNotNull:
    """SET NOT NULL or DROP NOT NULL. The caller checks the rows."""

    name: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class SetDefault:
    """SET DEFAULT, or DROP DEFAULT if ``default`` is None."""

    name: str
    default: str | None


@dataclass(frozen=True, slots=True)
class SetGeneration:
    """SET EXPRESSION, which recomputes existing rows, or DROP EXPRESSION if ``generation`` is
    None."""

    name: str
    generation: Generation | None


@dataclass(frozen=True, slots=True)
class SetKey:
    """Sets the table's key. The caller checks the rows."""

    columns: tuple[str, ...]
    """Columns of the key; empty to drop the key."""
    name: str | None = None
    """Name of the constraint. None for PostgreSQL's default name, or the present name."""
    deferral: Deferral = Deferral.NO


@dataclass(frozen=True, slots=True)
class AddCheck:
    """Adds a CHECK constraint. The caller checks the rows."""

    check: CheckConstraint


@dataclass(frozen=True, slots=True)
class DropCheck:
    """Drops a CHECK constraint."""

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
    """A column of the altered table."""

    column: ColumnDef
    source: str | None
    """Previous name of the column. None if the column is new."""
    retyped: bool = False
    """Whether the type has changed."""
    default: str | None = None
    """Default for existing rows of a new column. The column itself may have another default."""
    computed: Generation | None = None
    """Expression that computes values for existing rows. None if the rows have values."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """A table after its changes, with the source of each column's values."""

    before: TableDef
    after: TableDef
    columns: tuple[PlannedColumn, ...]
    """Columns of ``after``, in order."""


def plan_changes(table: TableDef, changes: Sequence[ColumnChange]) -> ColumnPlan:
    """Apply changes one after the other. Raises PostgreSQL's error for an impossible change."""
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
        columns=tuple(planned.column for planned in plan.columns),
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
                    index, planned = self._find(name, "alter")
                    self._put(index, replace(planned.column, not_null=True))
                self.key_name = change.name if not self.key else self.key_name
                self.key, self.deferral = change.columns, change.deferral
            case SetGeneration():
                self._set_generation(change)
            case SetDefault():
                index, planned = self._find(change.name, "alter")
                _refuse_default(self.table, planned.column, change)
                column = replace(planned.column, default=change.default, sequence=None)
                self._put(index, column)

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
        index, _ = self._find(name, "drop")
        self._refuse_in_partition_key(name, "drop")
        if name in self.key:
            self.key = ()
        self.checks = tuple(c for c in self.checks if name not in c.columns)
        del self.columns[index]
        for planned in list(self.columns):
            if planned.column.generated and name in planned.column.generated.columns:
                # The command has checked that the generated column may be dropped, too.
                self._drop(planned.column.name)

    def _rename(self, change: RenameColumn) -> None:
        name = change.name
        if name in SYSTEM_COLUMNS:
            raise FeatureNotSupportedError(f'cannot rename system column "{name}"')
        if all(planned.column.name != name for planned in self.columns):
            raise UndefinedObjectError(
                f'column "{name}" does not exist', sqlstate="42703"
            )
        index, planned = self._find(name, "rename")
        self._refuse_taken(change.new_name)
        self._refuse_in_partition_key(name, "rename")
        self._put(index, replace(planned.column, name=change.new_name))
        self.key = tuple(change.new_name if k == name else k for k in self.key)
        renamed = {name: change.new_name}
        self.checks = tuple(c.renamed(renamed) for c in self.checks)
        self.columns = [
            replace(
                planned,
                column=replace(
                    planned.column,
                    generated=_renamed(planned.column.generated, renamed),
                ),
                computed=_renamed(planned.computed, renamed),
            )
            for planned in self.columns
        ]

    def _retype(self, change: ChangeType) -> None:
        index, planned = self._find(change.name, "alter")
        self._refuse_in_partition_key(change.name, "alter")
        for check in self.checks:
            if change.name in check.columns:
                raise FeatureNotSupportedError(
                    f'cannot alter type of column "{change.name}" because check'
                    f' constraint "{check.name}" of relation "{self.table.name}" reads it',
                    hint="Drop the constraint, alter the type and add the constraint"
                    " again: ALTER TABLE ... DROP CONSTRAINT, ADD CONSTRAINT.",
                )
        for candidate in self.columns:
            generation = candidate.column.generated
            if generation is not None and change.name in generation.columns:
                raise FeatureNotSupportedError(
                    "cannot alter type of a column used by a generated column",
                    detail=f'Column "{change.name}" is used by generated column'
                    f' "{candidate.column.name}".',
                )
        kind = change.column
        column = replace(
            planned.column,
            type_oid=kind.type_oid,
            typmod=kind.typmod,
            type_name=kind.type_name,
            domain=kind.domain,
        )
        self.columns[index] = replace(
            planned,
            column=column,
            retyped=planned.retyped or change.anew or column != planned.column,
            computed=column.generated if column != planned.column else planned.computed,
        )

    def _set_generation(self, change: SetGeneration) -> None:
        index, planned = self._find(change.name, "alter")
        if planned.column.generated is None:
            raise UsageError(
                f'column "{change.name}" of relation "{self.table.name}" is not a'
                " generated column",
                sqlstate="55000",
            )
        column = replace(planned.column, generated=change.generation)
        computed = change.generation or planned.computed
        self.columns[index] = replace(planned, column=column, computed=computed)

    def _set_not_null(self, change: SetNotNull) -> None:
        index, planned = self._find(change.name, "alter")
        if not change.not_null and change.name in self.key:
            raise UsageError(
                f'column "{change.name}" is in a primary key', sqlstate="42P16"
            )
        self._put(index, replace(planned.column, not_null=change.not_null))

    def _put(self, index: int, column: ColumnDef) -> None:
        self.columns[index] = replace(self.columns[index], column=column)

    def _find(self, name: str, verb: str) -> tuple[int, PlannedColumn]:
        if name in SYSTEM_COLUMNS:
            raise FeatureNotSupportedError(f'cannot {verb} system column "{name}"')
        for index, planned in enumerate(self.columns):
            if planned.column.name == name:
                return index, planned
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
        if any(planned.column.name == name for planned in self.columns):
            raise UsageError(
                f'column "{name}" of relation "{self.table.name}" already exists',
                sqlstate="42701",
            )

    def _refuse_in_partition_key(self, name: str, verb: str) -> None:
        partitioned = self.table.partition_key
        if partitioned is None or name not in partitioned.columns:
            return
        if verb == "rename":
            # The catalog stores the partition key by column name.
            raise FeatureNotSupportedError(
                f'cannot rename column "{name}" because it is part of the partition'
                f' key of relation "{self.table.name}"'
            )
        raise UsageError(
            f'cannot {verb} column "{name}" because it is part of the partition key of'
            f' relation "{self.table.name}"',
            sqlstate="42P16",
        )
