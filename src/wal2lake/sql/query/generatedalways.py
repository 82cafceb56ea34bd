"""Refuses values for generated columns and GENERATED ALWAYS identity columns (428C9).

Comes in: the columns for which a statement has values other than DEFAULT. Goes out: nothing, or
PostgreSQL's error. Called by ``writes``. Source: rewriteTargetListIU() and rewriteValuesRTE() in
rewriteHandler.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.catalog import ColumnDef
from wal2lake.errors import UsageError

_GENERATED_ALWAYS: Final = "428C9"

_ALWAYS: Final = "a"
"""The value of ``ColumnDef.identity`` for GENERATED ALWAYS."""


def refuse_values(columns: Sequence[ColumnDef], overriding: str) -> None:
    """Refuse an INSERT that gives these columns values other than DEFAULT.

    ``overriding`` is the word of the OVERRIDING clause, system or user, or empty.
    """
    for column in columns:
        generated = column.generated is not None
        if generated or (column.identity == _ALWAYS and not overriding):
            raise UsageError(
                f'cannot insert a non-DEFAULT value into column "{column.name}"',
                sqlstate=_GENERATED_ALWAYS,
                detail=_kind_of_column(column),
                hint=None if generated else "Use OVERRIDING SYSTEM VALUE to override.",
            )


def refuse_update(column: ColumnDef) -> None:
    """Refuse an UPDATE that sets this column to a value other than DEFAULT."""
    if column.generated is not None or column.identity == _ALWAYS:
        raise UsageError(
            f'column "{column.name}" can only be updated to DEFAULT',
            sqlstate=_GENERATED_ALWAYS,
            detail=_kind_of_column(column),
        )


def _kind_of_column(column: ColumnDef) -> str:
    if column.generated is not None:
        return f'Column "{column.name}" is a generated column.'
    return f'Column "{column.name}" is an identity column defined as GENERATED ALWAYS.'
