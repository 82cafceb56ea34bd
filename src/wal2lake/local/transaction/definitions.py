"""The subscriptions and publications that one transaction block defines.

In: commands of a block. Out: one commit of the catalog, or nothing. A command runs on ``view``, the
node with the catalog as the block sees it (``catalog.uncommitted``), and finds what earlier ones of
the block have done. Others find nothing of it before COMMIT:

    stop the workers of subscriptions that are dropped     no lock
    capture what is committed                              DDL lock from here on
    look whether tables are as they were found
    make all changes                                       ONE catalog transaction
    tell the supervisor; remove what is left over          no lock

A failure, or a crash before the catalog's transaction, leaves nothing, but that a subscription
whose DISABLE and DROP are in one block may be disabled after a crash. A block either defines or
writes tables: the commit of tables has a durable step of its own.

Source: xact.c; PreventInTransactionBlock() says what a block may not do (``subscription.blocks``).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from wal2lake.catalog import UncommittedCatalog
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.local.concurrency.blocks import BlockMark, OpenBlock
from wal2lake.local.node import EngineParts
from wal2lake.observe import get_logger
from wal2lake.pg import Check


@dataclass(frozen=True, slots=True)
class _Mark:
    """A savepoint."""

    changes: int
    block: BlockMark


_BEGIN = _Mark(0, BlockMark(0, 0, 0, 0))


class TransactionDefinitions:
    """Definitions of one block, from the first command that defines something to the block's
    end."""

    def __init__(self, node: EngineParts) -> None:
        self._node = node
        self.catalog = UncommittedCatalog(node.catalog)
        self.view = replace(node, catalog=self.catalog, changed=lambda: None)
        self.block = OpenBlock()
        self._marks: dict[int, _Mark] = {}
        self.publishes = False
        """True if the definitions change what is published."""

    def commit(self, check: Check) -> None:
        """All of it, durably, or nothing. ``check`` ends a wait."""
        node, block = self._node, self.block
        with ExitStack() as held:
            for around in block.before:
                held.enter_context(around(node))
            with node.ddl_lock, ExitStack() as found:
                if self.publishes:
                    node.capture_before(check)
                for around in block.under_lock:
                    found.enter_context(around(node))
                self.catalog.commit()
                block.committed()
        node.changed()
        for step in block.afterwards:
            try:
                step(node)
            except Exception as error:
                # The transaction is committed: an error would say that it is not.
                get_logger().error(
                    "a step after a commit failed", error=error, exc_info=True
                )

    def end(self) -> None:
        """Nothing is left of what has not been committed; others may go on."""
        try:
            self.block.end()
        finally:
            self.catalog.close()

    # ---- savepoints -----------------------------------------------------------------

    def savepoint(self, depth: int) -> None:
        """Note where the block is."""
        self.release(depth)
        self._marks[depth] = _Mark(self.catalog.mark(), self.block.mark())

    def rollback_to(self, depth: int) -> None:
        """Take back what came later; a savepoint from before the first definition is its
        beginning."""
        mark = self._marks.get(depth, _BEGIN)
        self.release(depth + 1)
        self.catalog.back_to(mark.changes)
        self.block.back_to(mark.block)

    def release(self, depth: int) -> None:
        """Forget a mark, and later ones."""
        for one in [one for one in self._marks if one >= depth]:
            del self._marks[one]


def refuse_mixture() -> FeatureNotSupportedError:
    """Return the error for a block that writes tables and defines something: a crash might keep a
    half of it."""
    return FeatureNotSupportedError(
        "a transaction block cannot both write tables and define subscriptions or"
        " publications",
        hint="Use two transactions.",
    )
