"""The column that marks deleted rows (``delete_mode = soft``): what it must be like. Pure.

In: a table, the names of columns that a publisher sends. Out: errors. Called by the workers for
each batch, when a publisher's ALTER TABLE is followed, and by the commands that make, take over or
alter tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import ApplyError, UsageError
from wal2lake.model import DELETED_AT, Oid
from wal2lake.pgtypes import COPIED_ANEW
from wal2lake.pgtypes.keywords import quote_identifier

_PREREQUISITE: Final = "55000"

_TIMESTAMPTZ: Final = Oid(1184)

MARK_COLUMN: Final = ColumnDef(DELETED_AT, _TIMESTAMPTZ)


def unfit_column(table: TableDef) -> str | None:
    """Say in a sentence why deleted rows of the table cannot be marked; None if they can."""
    column = table.column(DELETED_AT)
    name = f'"{DELETED_AT}" of table "{table.qualified}"'
    if column is None:
        return f'table "{table.qualified}" has no column "{DELETED_AT}"'
    if column.type_oid != _TIMESTAMPTZ or column.type_name is not None:
        return f"column {name} is not of type timestamp with time zone"
    if column.typmod not in (-1, 6):
        return f"column {name} has no microseconds"
    if column.not_null or DELETED_AT in table.key:
        return f"column {name} may not be null"
    if column.default is not None or column.generated is not None:
        return f"column {name} has values of its own"
    if table.key_deferral.deferrable:
        return f'the primary key of table "{table.qualified}" is deferrable'
    return None


def unfit_table(table: TableDef) -> UsageError | None:
    """Return the error for a table whose deleted rows cannot be marked; None if they can."""
    why = unfit_column(table)
    if why is None:
        return None
    return UsageError(
        f"delete_mode = soft is not possible: {why}",
        sqlstate=_PREREQUISITE,
        hint=remedy_of(table),
    )


def remedy_of(table: TableDef) -> str:
    """Return the statement that makes the table fit."""
    name = f"{quote_identifier(table.namespace)}.{quote_identifier(table.name)}"
    if table.column(DELETED_AT) is None:
        return f"ALTER TABLE {name} ADD COLUMN {DELETED_AT} timestamptz."
    if table.key_deferral.deferrable and DELETED_AT not in table.key:
        return "Give the table a primary key that is not deferrable."
    return (
        f"The column must be timestamptz, without NOT NULL, default and expression: ALTER"
        f" TABLE {name} ALTER COLUMN {DELETED_AT} ... changes it."
    )


def check_sent(qualified: str, names: Iterable[str]) -> None:
    """Raise 55000 if a publisher sends a column of the name, in whatever case: Delta Lake cannot
    store columns that differ in case only."""
    sent = next((name for name in names if name.lower() == DELETED_AT), None)
    if sent is not None:
        raise ApplyError(
            f'column "{sent}" of table "{qualified}" is published, and delete_mode = soft'
            " has a column of this name here",
            sqlstate=_PREREQUISITE,
            hint="Rename the column at the source, or leave it out with a column list of the"
            f" publication. If changes with it have been received: {COPIED_ANEW}.",
        )


def check_table(table: TableDef) -> None:
    """Raise 55000 if a worker cannot mark deleted rows of the table."""
    why = unfit_column(table)
    if why is not None:
        raise ApplyError(
            f"cannot mark deleted rows: {why}",
            sqlstate=_PREREQUISITE,
            hint=remedy_of(table),
        )
