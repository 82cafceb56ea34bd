"""COPY of a table: the query to run, and the columns whose values are quoted.

Source: DoCopy() in copy.c; BeginCopyTo() in copyto.c; CopyGetAttnums().
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.grammar.copying import AllColumns, CopyOptions, CopyTo


def copied_rows(
    statement: CopyTo,
    schema: str,
    name: str,
    columns: Sequence[str],
    generated: Collection[str] = (),
) -> str:
    """Return a SELECT of the columns to copy; 42703 and 42701 as PostgreSQL.

    ``generated`` columns are left out. Naming one of them is 42P10."""
    wanted = filled_columns(statement.columns, columns, generated, name)
    chosen = ", ".join(map(quote_identifier, wanted))
    return f"SELECT {chosen} FROM {quote_identifier(schema)}.{quote_identifier(name)}"


def filled_columns(
    wanted: Sequence[str] | None,
    columns: Sequence[str],
    generated: Collection[str],
    name: str,
) -> Sequence[str]:
    """Return the columns that a COPY has. None: all but ``generated`` ones."""
    if wanted is None:
        return tuple(column for column in columns if column not in generated)
    _check(wanted, columns, f' of relation "{name}"')
    for column in wanted:
        if column in generated:
            raise UsageError(
                f'column "{column}" is a generated column',
                sqlstate="42P10",
                detail="Generated columns cannot be used in COPY.",
            )
    return wanted


def forced_columns(
    options: CopyOptions,
    copied: Sequence[str],
    columns: Sequence[str] | None,
    name: str | None,
) -> tuple[bool, ...]:
    """Return FORCE_QUOTE for each of the ``copied`` columns.

    ``columns`` and ``name`` are the table's; both are None for a query."""
    forced = options.force_quote
    if isinstance(forced, AllColumns):
        return (True,) * len(copied)
    where = "" if columns is None else f' of relation "{name}"'
    _check(forced, copied if columns is None else columns, where)
    for column in forced:
        if column not in copied:
            raise UsageError(
                f'FORCE_QUOTE column "{column}" not referenced by COPY',
                sqlstate="42P10",
            )
    return tuple(column in forced for column in copied)


def _check(wanted: Sequence[str], columns: Sequence[str], where: str) -> None:
    for number, name in enumerate(wanted):
        if name not in columns:
            raise UndefinedObjectError(
                f'column "{name}"{where} does not exist', sqlstate="42703"
            )
        if name in wanted[:number]:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
