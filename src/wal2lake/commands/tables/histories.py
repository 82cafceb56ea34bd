"""History tables of a subscription's tables: checked and created.

Takes the tables of a subscription and the schema of its histories; returns a history table for each
of them. A history table has the name of its table. One that an earlier subscription has filled goes
on; its columns are fitted by the workers. Called by CREATE, ALTER and REFRESH of subscriptions,
under the DDL lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.apply.local.histories import history_columns
from wal2lake.catalog import HISTORY_OF, Catalog, TableDef, is_history
from wal2lake.commands.constraints.keyconstraints import is_taken
from wal2lake.commands.tables.table import NewTable, make_tables
from wal2lake.errors import DuplicateObjectError, UsageError
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasTables, TableDefinitions
from wal2lake.model import Oid

_FACTS = 6
"""Number of columns before those of the table."""


def check_histories(
    catalog: Catalog,
    schema: str,
    subid: Oid | None,
    tables: Sequence[TableDef | NewTable],
) -> list[TableDef | None]:
    """Return the existing history table of each table; None where it is to be created.

    Raises 42P07 if its name is taken, 55000 if another table's changes go to it."""
    names: dict[str, str] = {}
    feeds = catalog.histories()
    histories: list[TableDef | None] = []
    for table in tables:
        namesake = names.setdefault(table.name, table.qualified)
        if namesake != table.qualified:
            raise DuplicateObjectError(
                f'tables "{namesake}" and "{table.qualified}" would have the same history'
                f' table "{schema}.{table.name}"',
                sqlstate="42P07",
                hint="Publish one of them to another subscription, with histories in"
                " another schema.",
            )
        history = _existing(catalog, schema, table)
        if history is not None:
            feed = feeds.get(history.oid)
            oid = table.oid if isinstance(table, TableDef) else None
            if feed is not None and (feed.subid, feed.relid) != (subid, oid):
                raise UsageError(
                    f'"{history.qualified}" is the history of another table',
                    sqlstate="55000",
                    hint="Name another schema for the histories.",
                )
        elif is_taken(catalog, schema, table.name):
            raise DuplicateObjectError(
                f'relation "{schema}.{table.name}" already exists',
                sqlstate="42P07",
                detail=f'The history of table "{table.qualified}" would have this name.',
                hint="Name another schema for the histories, or rename the relation.",
            )
        histories.append(history)
    return histories


def _existing(
    catalog: Catalog, schema: str, table: TableDef | NewTable
) -> TableDef | None:
    """Return the history table that a table has, or had under an earlier subscription."""
    named = catalog.table(schema, table.name)
    if isinstance(table, TableDef):
        mark = (HISTORY_OF, str(int(table.oid)))
        for candidate in catalog.tables():
            if candidate.namespace == schema and mark in candidate.parameters:
                return candidate
    return named if named is not None and is_history(named) else None


def make_histories(
    node: TableDefinitions,
    maker: Caller,
    schema: str,
    subid: Oid | None,
    tables: Sequence[TableDef],
) -> tuple[list[TableDef], list[TableDef]]:
    """Return the history table of each table, and those that were created."""
    existing = check_histories(node.catalog, schema, subid, tables)
    missing = [
        _history_like(node, schema, table)
        for table, history in zip(tables, existing, strict=True)
        if history is None
    ]
    if missing and schema not in {n.name for n in node.catalog.namespaces()}:
        node.catalog.create_namespace(schema, maker.role.oid)
    made = make_tables(node, maker, missing)
    rest = iter(made)
    histories = [next(rest) if history is None else history for history in existing]
    for table, history in zip(tables, existing, strict=True):
        mark = (HISTORY_OF, str(int(table.oid)))
        if history is not None and mark not in history.parameters:
            node.catalog.link_history(history.oid, table.oid)
    return histories, made


def new_history(schema: str, table: TableDef | NewTable) -> NewTable:
    """Return the history table to create for a table, not linked with it yet."""
    return NewTable(schema, table.name, history_columns(table.columns), ())


def _history_like(node: HasTables, schema: str, table: TableDef) -> NewTable:
    kinds = {
        field.name: field.spark_ddl
        for field in node.tables.state(table.location).fields
    }
    dimensions = tuple(kinds.get(c.name, "").count("array<") for c in table.columns)
    return NewTable(
        schema,
        table.name,
        history_columns(table.columns),
        (),
        dimensions=(*(0,) * _FACTS, *dimensions, *dimensions),
        parameters=((HISTORY_OF, str(int(table.oid))),),
    )
