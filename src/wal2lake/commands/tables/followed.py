"""Selects the changes of a publisher's table that can be made here.

In: changes. Out: those that can be made here. Called by ``altertable.follow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wal2lake.catalog import (
    AddColumn,
    ColumnChange,
    SetDefault,
    SetNotNull,
    TableDef,
    plan_changes,
)
from wal2lake.errors import Wal2LakeError
from wal2lake.sql.query.writes import check_default


def nullable(changes: Sequence[ColumnChange]) -> list[ColumnChange]:
    """Without NOT NULL for any column."""
    return [
        replace(one, column=replace(one.column, not_null=False))
        if isinstance(one, AddColumn)
        else one
        for one in changes
        if not (isinstance(one, SetNotNull) and one.not_null)
    ]


def without_foreign_defaults(
    table: TableDef, changes: Sequence[ColumnChange]
) -> list[ColumnChange]:
    """A default that only the publisher can compute stays there."""
    found: list[ColumnChange] = []
    for change in changes:
        found.append(change)
        if isinstance(change, SetDefault):
            column = plan_changes(table, found).after.column(change.name)
            try:
                if column is not None:
                    check_default(column, "UTC")
            except Wal2LakeError:
                found.pop()
    return found
