"""Ends local transactions that a crash has interrupted: finishes or removes them.

Runs at the engine's start, before apply and before connections are accepted, so nobody reads or
writes.

A commit whose intent is in the catalog is rolled forward: its files were durable before the intent.
A prepared transaction stays prepared, unless its client got no confirmation. Branches belong to
uncommitted transactions and are removed, as are files of tables that only a block has known.

Only writers outside the node can have changed a table meanwhile. If such a writer has changed the
same files as the commit, the rest of the commit is impossible; the log reports that.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.apply.local.altering import finish_after_crash
from wal2lake.catalog import PreparedState, TableChange
from wal2lake.errors import UndefinedObjectError
from wal2lake.lake import CommitConflict
from wal2lake.local.commits.commit import (
    commit_one,
    make_visible,
    on_newest,
)
from wal2lake.local.commits.pendingdeletes import sweep
from wal2lake.local.concurrency.heldtables import name_of
from wal2lake.local.ports import LocalCommits
from wal2lake.local.transaction.local import scratch
from wal2lake.observe import get_logger


def recover(node: LocalCommits) -> None:
    """Finish commits, and remove uncommitted changes."""
    for commit in node.catalog.local_commits():
        if commit.altered:
            finish_after_crash(node.catalog, node.tables, commit)
        else:
            _finish(node, commit.tables, str(commit.number), commit.number)
    for transaction in node.catalog.prepared_commits():
        if transaction.state is PreparedState.COMMITTING and transaction.tables:
            _finish(node, transaction.tables, name_of(transaction))
            node.catalog.end_prepared(transaction.number)
        elif transaction.state is PreparedState.PREPARING:
            node.catalog.move_prepared(transaction.number, PreparedState.ROLLING_BACK)
        elif transaction.state is PreparedState.PREPARED:
            node.prepared.hold(transaction)
    node.branches.sweep(scratch(node))
    sweep(node)


def _finish(
    node: LocalCommits,
    changes: Sequence[TableChange],
    name: str,
    number: int | None = None,
) -> None:
    """Finish the commits of one transaction. ``number``: a ``LocalCommit``'s."""
    log = get_logger()
    log.info("recovering a local transaction", tables=len(changes))
    for change in changes:
        try:
            # Remove a version that a power failure has torn; its commit was not confirmed.
            node.tables.recover(change.location, change.read_version)
            commit_one(node, on_newest(node, change), name)
        except (CommitConflict, UndefinedObjectError) as error:
            log.error(
                "lost a part of a local transaction: a writer outside of the node has"
                " changed its table",
                location=change.location,
                error=error,
            )
    make_visible(node, changes, number)
