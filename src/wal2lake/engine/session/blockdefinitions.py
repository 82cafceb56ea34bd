"""Keeps the definitions of a session's open block, and the system views that show them.

Takes the commands of a block; returns their tags, and the ``SystemCatalog`` as the session sees it.
Empty outside of a block, and until the block defines something. Called by ``lakebackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.local.commits.commit import CommittedDefinitions
from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.transaction.definitions import (
    TransactionDefinitions,
    refuse_mixture,
)
from wal2lake.local.transaction.emittedmessages import empty_transaction
from wal2lake.pg import Check
from wal2lake.sql.sysviews import SystemCatalog


class BlockDefinitions:
    """The definitions of one session's block."""

    def __init__(self, node: EngineParts, system: SystemCatalog) -> None:
        self._node = node
        self._system = system
        self._definitions: TransactionDefinitions | None = None
        self._views: SystemCatalog | None = None

    @property
    def has_definitions(self) -> bool:
        """True if the block has defined something, or has tried to."""
        return self._definitions is not None

    @property
    def block(self) -> OpenBlock | None:
        """The block's turns and steps, if it has defined something."""
        return None if self._definitions is None else self._definitions.block

    @property
    def view(self) -> EngineParts:
        """The node with what the block has defined."""
        return self._node if self._definitions is None else self._definitions.view

    def refuse_writes(self) -> None:
        """Raise 0A000 if the block has defined subscriptions or publications."""
        if self._definitions is not None and self._definitions.replicates:
            raise refuse_mixture()

    def refuse_prepare(self) -> None:
        """Raise 0A000 if the block has defined something."""
        if self.has_definitions:
            raise FeatureNotSupportedError(
                "cannot PREPARE a transaction that has defined tables, subscriptions or"
                " publications",
                hint="Use COMMIT, or define them in a transaction of their own before.",
            )

    def run(
        self,
        caller: Caller,
        command: Callable[[EngineParts, Caller, Any], str],
        statement: Any,
        *,
        publishes: bool,
        replicates: bool,
    ) -> str:
        """Run a command and return its tag; its effect waits for the commit.

        ``publishes``: the command may change what is published, or end tables. ``replicates``: it
        is one about subscriptions or publications."""
        definitions = self._definitions
        if definitions is None:
            definitions = self._definitions = TransactionDefinitions(self._node)
        definitions.publishes |= publishes
        definitions.replicates |= replicates
        return command(
            definitions.view, replace(caller, block=definitions.block), statement
        )

    def seen(self) -> SystemCatalog:
        """Return the system views, including what the block has defined."""
        if self._definitions is None:
            return self._system
        if self._views is None:
            self._views = self._system.over(self._definitions.catalog)
        return self._views

    def commit(
        self,
        check: Check,
        xid: Callable[[], int],
        write: Callable[[CommittedDefinitions], None] | None,
    ) -> None:
        """Commit the definitions in the steps of ``TransactionDefinitions``.

        ``write``: commits what the transaction has written with them; None if it has written
        nothing: output plugins see an empty transaction then, numbered ``xid``."""
        assert self._definitions is not None
        if write is not None:
            self._definitions.commit(check, write)
            return
        with empty_transaction(self._node, check, xid):
            self._definitions.commit(check, None)

    def end(self) -> None:
        """Discard what has not been committed."""
        definitions, self._definitions = self._definitions, None
        self._forget_views()
        if definitions is not None:
            definitions.end()

    def savepoint(self, depth: int) -> None:
        """Set a savepoint, as ``TransactionDefinitions`` does."""
        if self._definitions is not None:
            self._definitions.savepoint(depth)

    def rollback_to(self, depth: int) -> None:
        """Return to a savepoint, as ``TransactionDefinitions`` does.

        The views are recreated: they could take later definitions for the discarded ones."""
        if self._definitions is not None:
            self._definitions.rollback_to(depth)
            self._forget_views()

    def release(self, depth: int) -> None:
        """Forget a savepoint, as ``TransactionDefinitions`` does."""
        if self._definitions is not None:
            self._definitions.release(depth)

    def cancel(self, pid: int) -> None:
        """End the running query of the views; called from another thread."""
        for views in (self._system, self._views):
            if views is not None:
                views.cancel(pid)

    def _forget_views(self) -> None:
        views, self._views = self._views, None
        if views is not None:
            views.close()
