"""COPY of a table: the query that it stands for."""

from __future__ import annotations

from wal2lake.catalog import Catalog
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.commands.node import Caller, need_table
from wal2lake.frontend.grammar.copying import CopyTo
from wal2lake.frontend.grammar.quoting import quote_identifier


def copied_rows(catalog: Catalog, caller: Caller, statement: CopyTo) -> str:
    """A SELECT of the columns that are asked for; 42P01, 42703, 42701 as PostgreSQL."""
    assert statement.table is not None
    table = need_table(catalog, caller, statement.table.schema, statement.table.name)
    columns = statement.columns
    if columns is None:
        columns = tuple(column.name for column in table.columns)
    for number, name in enumerate(columns):
        if table.column(name) is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        if name in columns[:number]:
            raise UsageError(
                f'column "{name}" specified more than once', sqlstate="42701"
            )
    chosen = ", ".join(map(quote_identifier, columns))
    place = f"{quote_identifier(table.namespace)}.{quote_identifier(table.name)}"
    return f"SELECT {chosen} FROM {place}"
