"""Ends local transactions that a crash has interrupted: finishes or removes them.

At the engine's start, before apply and the doors: nobody reads and nobody writes yet.

A commit whose intent is in the catalog is rolled forward: its files are durable since before the
intent. What is prepared stays so, unless its client was told nothing. Branches belong to
transactions that have not committed, and go.

Only writers outside the node can have changed a table meanwhile. If one has changed the very files
that the commit is about, the rest of it cannot be done: that is in the log.
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
from wal2lake.local.concurrency.heldtables import name_of
from wal2lake.local.node import EngineParts
from wal2lake.local.transaction.local import scratch
from wal2lake.observe import get_logger


def recover(node: EngineParts) -> None:
    """Finish commits, and remove what was not committed."""
    for commit in node.catalog.local_commits():
        if commit.altered:
            finish_after_crash(node.catalog, node.tables, commit)
        else:
            _finish(node, commit.tables, str(commit.number), commit.number)
    for one in node.catalog.prepared_commits():
        if one.state is PreparedState.COMMITTING and one.tables:
            _finish(node, one.tables, name_of(one))
            node.catalog.end_prepared(one.number)
        elif one.state is PreparedState.PREPARING:
            node.catalog.move_prepared(one.number, PreparedState.ROLLING_BACK)
        elif one.state is PreparedState.PREPARED:
            node.prepared.hold(one)
    node.branches.sweep(scratch(node))


def _finish(
    node: EngineParts,
    changes: Sequence[TableChange],
    name: str,
    number: int | None = None,
) -> None:
    """``number``: of a ``LocalCommit``."""
    log = get_logger()
    log.info("recovery of a local transaction", tables=len(changes))
    for change in changes:
        try:
            # What a power loss tore is not there: its maker was told nothing.
            node.tables.recover(change.location, change.read_version)
            commit_one(node, on_newest(node, change), name)
        except (CommitConflict, UndefinedObjectError) as error:
            log.error(
                "a part of a local transaction is lost: its table has been changed by"
                " others since",
                location=change.location,
                error=error,
            )
    make_visible(node, changes, number)
