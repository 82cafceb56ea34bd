"""Selects the changes of a publisher's table that can be made here.

Takes the changes and returns those that are possible. Called by ``altertable.follow``.
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
    """Return the changes without NOT NULL for any column."""
    return [
        replace(change, column=replace(change.column, not_null=False))
        if isinstance(change, AddColumn)
        else change
        for change in changes
        if not (isinstance(change, SetNotNull) and change.not_null)
    ]


def without_foreign_defaults(
    table: TableDef, changes: Sequence[ColumnChange]
) -> list[ColumnChange]:
    """Return the changes without defaults that only the publisher can compute."""
    kept: list[ColumnChange] = []
    for change in changes:
        kept.append(change)
        if isinstance(change, SetDefault):
            column = plan_changes(table, kept).after.column(change.name)
            try:
                if column is not None:
                    check_default(column, "UTC")
            except Wal2LakeError:
                kept.pop()
    return kept
