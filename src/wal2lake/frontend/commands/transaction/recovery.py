"""What a crash has left of local transactions: finished, or removed.

At the engine's start, before apply and the doors: nobody reads and nobody writes yet.

A commit whose intent is in the catalog is rolled forward: its files are durable since before the
intent. Branches belong to transactions that have not committed, and go.

Only writers outside the node can have changed a table meanwhile. If one has changed the very files
that the commit is about, the rest of it cannot be done: that is in the log.
"""

from __future__ import annotations

from dataclasses import replace

from wal2lake.apply.local.altering import finish_after_crash
from wal2lake.catalog import LocalCommit, TableChange
from wal2lake.errors import UndefinedObjectError
from wal2lake.frontend.commands.node import Node
from wal2lake.frontend.commands.transaction.commit import (
    commit_one,
    is_done,
    make_visible,
)
from wal2lake.frontend.commands.transaction.local import scratch
from wal2lake.lake import CommitConflict
from wal2lake.lake.branch.changes import others_rows
from wal2lake.observe import get_logger


def recover(node: Node) -> None:
    """Finish commits, and remove what was not committed."""
    for commit in node.catalog.local_commits():
        if commit.altered:
            finish_after_crash(node.catalog, node.tables, commit)
        else:
            _finish(node, commit)
    node.branches.sweep(scratch(node))


def _finish(node: Node, commit: LocalCommit) -> None:
    log = get_logger()
    log.info("recovery of a local transaction", tables=len(commit.tables))
    for change in commit.tables:
        try:
            # What a power loss tore is not there: its maker was told nothing.
            node.tables.recover(change.location, change.read_version)
            commit_one(node, _on_newest(node, change), commit.number)
        except (CommitConflict, UndefinedObjectError) as error:
            log.error(
                "a part of a local transaction is lost: its table has been changed by"
                " others since",
                location=change.location,
                error=error,
            )
    make_visible(node, commit.tables, commit.number)


def _on_newest(node: Node, change: TableChange) -> TableChange:
    """The change for the version that is there now."""
    state = node.tables.state(change.location)
    if state.version == change.read_version or is_done(node, change):
        return change
    touched = frozenset(a["remove"]["path"] for a in change.actions if "remove" in a)
    commits = node.tables.actions(
        change.location, change.read_version + 1, state.version
    )
    others = others_rows(commits, touched)
    if state.table_id != change.table_id or others is None:
        return change
    # Rows of others stay, so it is not a TRUNCATE any more.
    truncates = change.truncates and not others
    return replace(change, read_version=state.version, truncates=truncates)
