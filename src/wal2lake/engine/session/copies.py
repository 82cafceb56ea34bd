"""COPY ... TO STDOUT: the query that it stands for, and how its rows are to be sent.

Comes in: the statement, and what runs a query. Goes out: the query's outcome, with what a COPY says
beside it. Called by ``lakebackend``.

Source: DoCopy() in copy.c; BeginCopyTo() in copyto.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wal2lake.catalog import Catalog
from wal2lake.commands.tables.copying import copied_rows, forced_columns
from wal2lake.errors import SqlSyntaxError, UsageError, Wal2LakeError
from wal2lake.local.node import Caller, find_table, need_table
from wal2lake.sql.backend import CopyRows, Outcome
from wal2lake.sql.grammar.copying import CopyOptions, CopyTo, copy_options
from wal2lake.sql.grammar.lexer import parameter_count
from wal2lake.sql.grammar.statements import QualifiedName
from wal2lake.sql.parameters import canonical_encoding
from wal2lake.sql.sysviews.declarations.relations import system_relation


def copied(
    catalog: Catalog,
    caller: Caller,
    statement: CopyTo,
    run: Callable[[str, CopyOptions], Outcome],
) -> Outcome:
    """Return the rows of the query as CopyData."""
    name, columns, sql = None, None, statement.query
    if statement.table is not None:
        schema, name, columns, generated = _copied_table(
            catalog, caller, statement.table
        )
        sql = copied_rows(statement, schema, name, columns, generated)
    assert sql is not None
    options = copy_options(statement.options, canonical_encoding)
    if parameter_count(sql):
        raise UsageError("there is no parameter $1", sqlstate="42P02")
    try:
        found = run(sql, options)
    except SqlSyntaxError as error:
        if error.position:
            error.position += statement.query_start
        raise
    try:
        shown = [one.name for one in found.fields or ()]
        forced = forced_columns(options, shown, columns, name)
    except Wal2LakeError:
        found.close()
        raise
    return replace(found, tag="COPY", copy=CopyRows(options, forced))


def _copied_table(
    catalog: Catalog, caller: Caller, table: QualifiedName
) -> tuple[str, str, tuple[str, ...], set[str]]:
    """Schema, name and columns of a table, the lake's or a system's, and which of them are
    generated; 42809 of a system's view."""
    found = find_table(catalog, caller, table.schema, table.name)
    system = None if found else system_relation(table.schema, table.name)
    if system is None:
        found = need_table(catalog, caller, table.schema, table.name)
        names = tuple(c.name for c in found.columns)
        return found.namespace, found.name, names, {name for name, _ in found.generated}
    if system.kind != "r":
        raise UsageError(
            f'cannot copy from view "{system.name}"',
            sqlstate="42809",
            hint="Try the COPY (SELECT ...) TO variant.",
        )
    return system.schema, system.name, tuple(c.name for c in system.columns), set()
