"""428C9: a statement gives a value to a column whose values are never given.

In: columns that a statement has values for. Out: nothing, or PostgreSQL's refusal. Source:
rewriteTargetListIU() and rewriteValuesRTE() in rewriteHandler.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.catalog import ColumnDef
from wal2lake.errors import UsageError

_GENERATED_ALWAYS: Final = "428C9"

_ALWAYS: Final = "a"
"""Of ``ColumnDef.identity``."""


def refuse_values(given: Sequence[ColumnDef], overriding: str) -> None:
    """Of INSERT, for columns that get other values than DEFAULT; ``overriding``: its clause."""
    for column in given:
        generated = column.generated is not None
        if generated or (column.identity == _ALWAYS and not overriding):
            raise UsageError(
                f'cannot insert a non-DEFAULT value into column "{column.name}"',
                sqlstate=_GENERATED_ALWAYS,
                detail=_what(column),
                hint=None if generated else "Use OVERRIDING SYSTEM VALUE to override.",
            )


def refuse_update(column: ColumnDef) -> None:
    """Of UPDATE, to another value than DEFAULT."""
    if column.generated is not None or column.identity == _ALWAYS:
        raise UsageError(
            f'column "{column.name}" can only be updated to DEFAULT',
            sqlstate=_GENERATED_ALWAYS,
            detail=_what(column),
        )


def _what(column: ColumnDef) -> str:
    if column.generated is not None:
        return f'Column "{column.name}" is a generated column.'
    return f'Column "{column.name}" is an identity column defined as GENERATED ALWAYS.'
