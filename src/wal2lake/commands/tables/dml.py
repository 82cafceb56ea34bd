"""INSERT, UPDATE, DELETE and TRUNCATE on lake tables, through Spark SQL.

``query.writes`` translates the statement into Spark SQL on the branches of the session's
transaction; ``transaction`` executes and commits it.

Source: PostgreSQL manual, INSERT, UPDATE, DELETE, TRUNCATE; 5.5 (constraints).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from wal2lake.catalog import TableDef
from wal2lake.errors import UsageError
from wal2lake.local.access import check_tables
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.node import Caller, need_table
from wal2lake.local.ports import HasCatalog
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.sql.grammar.statements import TruncateTable
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.results import Rendering
from wal2lake.sql.query.writes import truncate_sql

Run = Callable[[SparkWrite], int]
"""Executes one write; returns the number of rows."""


def run_dml(node: HasCatalog, write: SparkWrite, run: Run) -> str:
    """Execute one statement; returns its command tag."""
    table = write.table
    partitioned = table.partition_key is not None
    if write.verb == "INSERT" and partitioned and len(node.catalog.sharing(table)) == 1:
        raise UsageError(
            f'no partition of relation "{table.name}" found for row', sqlstate="23514"
        )
    count = run(write)
    return f"INSERT 0 {count}" if write.verb == "INSERT" else f"{write.verb} {count}"


def truncate(
    node: HasCatalog,
    caller: Caller,
    statement: TruncateTable,
    transaction: LocalTransaction,
    snapshot: Snapshot,
    job: AbstractContextManager[str],
    rendering: Rendering,
) -> str:
    """Empty tables on the branches of the session's transaction; returns the command tag."""
    tables = _truncated_tables(node, caller, statement)
    options = statement.cascade | statement.restart_identity << 1
    with job as group:
        targets = transaction.targets(tables, snapshot, group)
        if statement.restart_identity:
            transaction.restart_identity(tables)
        for table in targets:
            transaction.run(truncate_sql(table, options), rendering, group)
    return "TRUNCATE TABLE"


def _truncated_tables(
    node: HasCatalog, caller: Caller, statement: TruncateTable
) -> list[TableDef]:
    """Return the tables of a TRUNCATE; 42501 if the caller may not truncate one of them."""
    tables = [
        need_table(node.catalog, caller, name.schema, name.name)
        for name in statement.tables
    ]
    for name, table in zip(statement.tables, tables, strict=True):
        if name in statement.only and table.partition_key is not None:
            raise UsageError(
                "cannot truncate only a partitioned table",
                sqlstate="42809",
                hint="Do not specify the ONLY keyword, or use TRUNCATE ONLY on the"
                " partitions directly.",
            )
    check_tables(node.catalog, caller, {t.oid: (t, "D") for t in tables})
    return tables
