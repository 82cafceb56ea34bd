"""COPY ... TO STDOUT: the query to run, and the format of its rows.

Takes the statement and a function that runs a query; returns the query's outcome with COPY's
options. Called by ``lakebackend``.

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


def copy_outcome(
    catalog: Catalog,
    caller: Caller,
    statement: CopyTo,
    run: Callable[[str, CopyOptions], Outcome],
) -> Outcome:
    """Return the outcome of the query, to be sent as CopyData."""
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
        outcome = run(sql, options)
    except SqlSyntaxError as error:
        if error.position:
            error.position += statement.query_start
        raise
    try:
        shown = [field.name for field in outcome.fields or ()]
        forced = forced_columns(options, shown, columns, name)
    except Wal2LakeError:
        outcome.close()
        raise
    return replace(outcome, tag="COPY", copy=CopyRows(options, forced))


def _copied_table(
    catalog: Catalog, caller: Caller, table: QualifiedName
) -> tuple[str, str, tuple[str, ...], set[str]]:
    """Return schema, name, columns, and generated columns of a lake or system table.

    42809 for a system view."""
    relation = find_table(catalog, caller, table.schema, table.name)
    system = None if relation else system_relation(table.schema, table.name)
    if system is None:
        relation = need_table(catalog, caller, table.schema, table.name)
        names = tuple(c.name for c in relation.columns)
        return (
            relation.namespace,
            relation.name,
            names,
            {name for name, _ in relation.generated},
        )
    if system.kind != "r":
        raise UsageError(
            f'cannot copy from view "{system.name}"',
            sqlstate="42809",
            hint="Try the COPY (SELECT ...) TO variant.",
        )
    return system.schema, system.name, tuple(c.name for c in system.columns), set()
