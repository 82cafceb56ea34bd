"""The tables, schemas, subscriptions and publications that one transaction block defines.

Takes the commands of a block; gives one commit of the catalog, or nothing. A command runs on
``view``, the node with the catalog as the block sees it (``catalog.uncommitted``), and finds what
earlier commands of the block have done. Other sessions see nothing before COMMIT:

    stop the workers of dropped subscriptions              no lock
    capture all earlier commits                            DDL lock from here on
    check that tables are still as the block found them
    commit rows to the tables that the block has made      nobody else knows these tables
    make all changes, and decide to commit other tables    ONE catalog transaction
    commit other tables, show all                          (``commits.commit``)
    notify the supervisor; remove left-overs               no lock

A failure, or a crash before the catalog's transaction, leaves nothing, with one exception: a
subscription whose DISABLE and DROP are in one block may be disabled after a crash. Files of tables
made for nothing, or dropped, are removed at the next start (``commits.pendingdeletes``).

A block that defines subscriptions or publications writes no tables: its rows would have to be
published as of each statement.

Source: xact.c; PreventInTransactionBlock() for what a block may not do (``subscription.blocks``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from wal2lake.catalog import TableChange, UncommittedCatalog
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.local.commits.commit import CommittedDefinitions
from wal2lake.local.concurrency.blocks import BlockMark, OpenBlock
from wal2lake.local.node import EngineParts
from wal2lake.observe import get_logger
from wal2lake.pg import Check


@dataclass(frozen=True, slots=True)
class _Mark:
    """A savepoint."""

    changes: int
    block: BlockMark


_BEGIN = _Mark(0, BlockMark())


class _Deciding:
    """The commit of the definitions, together with the transaction's tables."""

    def __init__(self, catalog: UncommittedCatalog, block: OpenBlock) -> None:
        self._catalog = catalog
        self._block = block
        self.committed = False

    def makes(self, location: str) -> bool:
        return location in self._block.made

    def drops(self, location: str) -> bool:
        return location in self._block.dropped

    def commit(self, number: int | None, tables: Sequence[TableChange]) -> None:
        self._catalog.commit(number, tables)
        self.committed = True
        self._block.committed()


class TransactionDefinitions:
    """The definitions of one block, from the first defining command to the block's end."""

    def __init__(self, node: EngineParts) -> None:
        self._node = node
        self.catalog = UncommittedCatalog(node.catalog)
        self.view = replace(node, catalog=self.catalog, changed=lambda: None)
        self.block = OpenBlock()
        self._marks: dict[int, _Mark] = {}
        self.publishes = False
        """True if the definitions change what is published, or end tables."""
        self.replicates = False
        """True if there are subscriptions or publications among the definitions."""

    def commit(
        self, check: Check, write: Callable[[CommittedDefinitions], None] | None
    ) -> None:
        """Commit all definitions durably, or none. ``check`` ends a wait by raising.

        ``write``: commits the tables that the transaction has written, and the definitions."""
        node, block = self._node, self.block
        with ExitStack() as held:
            for around in block.before:
                held.enter_context(around(node))
            with node.ddl_lock, ExitStack() as checked:
                if self.publishes:
                    node.capture_before(check)
                for around in block.under_lock:
                    checked.enter_context(around(node))
                deciding = _Deciding(self.catalog, block)
                if write is None:
                    deciding.commit(None, ())
                else:
                    write(deciding)
        node.changed()
        for step in block.afterwards:
            try:
                step(node)
            except Exception as error:
                # The transaction is committed, and an error would tell the client otherwise.
                get_logger().error(
                    "a step after a commit failed", error=error, exc_info=True
                )

    def end(self) -> None:
        """Discard what has not been committed, and let others continue."""
        try:
            self.block.end()
        finally:
            self.catalog.close()

    # ---- savepoints -----------------------------------------------------------------

    def savepoint(self, depth: int) -> None:
        """Set the savepoint of this depth."""
        self.release(depth)
        self._marks[depth] = _Mark(self.catalog.mark(), self.block.mark())

    def rollback_to(self, depth: int) -> None:
        """Undo everything after a savepoint; one from before the first definition undoes all."""
        mark = self._marks.get(depth, _BEGIN)
        self.release(depth + 1)
        self.catalog.back_to(mark.changes)
        self.block.back_to(mark.block)

    def release(self, depth: int) -> None:
        """Forget the savepoint of this depth and deeper ones."""
        for level in [level for level in self._marks if level >= depth]:
            del self._marks[level]


def refuse_mixture() -> FeatureNotSupportedError:
    """Return the error for a block that writes tables and defines what is replicated."""
    return FeatureNotSupportedError(
        "a transaction block cannot both write tables and define subscriptions or"
        " publications",
        hint="Use two transactions.",
    )
