"""INSERT, UPDATE, DELETE and TRUNCATE on one lake table, through Spark SQL.

``query.writes`` has the statement in Spark's terms; Spark and Delta execute it in one commit,
which is made durable before the command answers.

A table of a subscription is written under that subscription's lock, and its new version
is published under it, so a SELECT sees the write and never a torn vector. A table that holds
what readers must not see yet (the half of a batch, a copy that has not joined) is published
by the apply worker, with the others. From then on the
table's inserts are checked against its rows (``trusted`` is off): somebody else writes it.

Source: PostgreSQL manual, INSERT, UPDATE, DELETE, TRUNCATE; 5.5 (constraints).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from wal2lake.catalog import TableDef
from wal2lake.errors import UsageError
from wal2lake.frontend.commands.access import check_tables
from wal2lake.frontend.commands.node import Caller, Node, need_table
from wal2lake.frontend.grammar.statements import Truncate
from wal2lake.frontend.query.writes import SparkWrite, path_sql, truncate_sql
from wal2lake.lake import TableState
from wal2lake.model import Oid, SyncState


def run_dml(node: Node, write: SparkWrite, job_group: str) -> str:
    """Execute one statement; returns its command tag."""
    table = write.table
    partitioned = table.partition_key is not None
    if write.verb == "INSERT" and partitioned and len(node.catalog.sharing(table)) == 1:
        raise UsageError(
            f'no partition of relation "{table.name}" found for row', sqlstate="23514"
        )
    count = _execute(node, write, job_group)
    return f"INSERT 0 {count}" if write.verb == "INSERT" else f"{write.verb} {count}"


def truncate(node: Node, caller: Caller, statement: Truncate, job_group: str) -> str:
    """TRUNCATE: each table in a commit of its own."""
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
    for table in tables:
        _execute(node, truncate_sql(table), job_group)
    return "TRUNCATE TABLE"


# ---- execution -------------------------------------------------------------------------


def _execute(node: Node, write: SparkWrite, job_group: str) -> int:
    while True:
        subids = _subscribers(node, write.table)
        with ExitStack() as stack:
            for subid in subids:
                stack.enter_context(node.locks.of(subid))
            stack.enter_context(node.tables.writing(write.table.location))
            # A subscription that has taken the table meanwhile has to hear of the write;
            # from here on none can (``targets.held_still``).
            if _subscribers(node, write.table) == subids:
                return _write(node, write, subids, job_group)


def _subscribers(node: Node, table: TableDef) -> list[Oid]:
    """The subscriptions that the table, or its other name, is in."""
    names = node.catalog.sharing(table)
    return sorted({r.subid for r in node.catalog.rels() if r.relid in names})


def _write(node: Node, write: SparkWrite, subids: Sequence[Oid], job_group: str) -> int:
    """Under the locks of all these subscriptions, and of the table."""
    table = write.table
    names = node.catalog.sharing(table)
    before = node.tables.state(table.location).version
    result = node.queries.run(write.sql, job_group=job_group)
    rows = [batch for batch in result.batches if batch.num_rows]
    state = node.tables.state(table.location)
    after = state.version
    if after != before:
        node.tables.sync(table.location, after)
        for subid in subids:
            _publish(node, subid, names, state)
    if rows and "num_affected_rows" in rows[0].schema.names:
        return int(rows[0].column("num_affected_rows")[0].as_py())
    return _rows_written(node, table) if after != before else 0


def _publish(node: Node, subid: Oid, names: tuple[Oid, ...], state: TableState) -> None:
    """Let readers see ``state`` of a table, unless the apply worker must.

    Decided by the table's cursor, not by its version: a version that nobody has published
    may be anybody's, and would keep each later write from being seen.
    """
    rel = next((r for r in node.catalog.rels(subid) if r.relid in names), None)
    if rel is None:
        return
    # First: once the version is published nothing else tells that others wrote it.
    node.catalog.update_rel(subid, rel.relid, trusted=False)
    newest = node.catalog.newest_vector(subid)
    if newest is None:
        return
    cursor = state.cursor(rel.cursor_name(node.catalog.system_identifier))
    joined = rel.state in (SyncState.SYNCDONE, SyncState.READY)
    # The vector's LSN, not the floor: a running copy holds that one below it.
    if cursor is None or (joined and cursor <= newest.lsn):
        node.catalog.publish(subid, newest.lsn, {int(rel.relid): state.version})


def _rows_written(node: Node, table: TableDef) -> int:
    """Rows that the newest commit wrote, from the table's own history."""
    result = node.queries.run(
        f"DESCRIBE HISTORY {path_sql(table)} LIMIT 1", job_group=f"history-{table.oid}"
    )
    for batch in result.batches:
        if batch.num_rows:
            metrics = dict(batch.column("operationMetrics")[0].as_py() or {})
            return int(metrics.get("numOutputRows", 0))
    return 0
