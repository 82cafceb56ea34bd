"""Compacts a table's small files after a local commit.

Takes a written table, under its locks. Now and then adds a version with the same rows in fewer
files. Tables of subscriptions are left to their batches.

Called by ``commit`` and ``local``.
"""

from __future__ import annotations

from wal2lake.apply.local import visible
from wal2lake.catalog import TableDef, local_writer
from wal2lake.lake import Cursor
from wal2lake.local.ports import LocalCommits
from wal2lake.observe import get_logger


def compact_if_due(node: LocalCommits, table: TableDef, own: int = 0) -> None:
    """Compact the table if needed. ``own``: the caller's finished branches of the table."""
    try:
        if visible.rels_of(node.catalog, table.oid):
            return
        state = node.tables.state(table.location)
        names = [field.name for field in state.fields]
        writer = local_writer(node.catalog.system_identifier)
        node.compactor.behind(
            state,
            [names.index(name) for name in table.key],
            Cursor(writer, state.cursor(writer) or 0),
            others=node.branches.of(table.location) > own,
        )
    except Exception as error:
        # The caller's commit stands, so an error must not reach its client.
        get_logger().warning("could not compact a table", error=error)
