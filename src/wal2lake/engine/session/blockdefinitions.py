"""Keeps the definitions of a session's open block, and the system views that show them.

In: commands of a block. Out: their tags; ``SystemCatalog`` as the session sees it. Outside of a
block, and in one that has defined nothing, there is nothing here. Called by ``lakebackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.transaction.definitions import (
    TransactionDefinitions,
    refuse_mixture,
)
from wal2lake.local.transaction.messages import empty_transaction
from wal2lake.pg import Check
from wal2lake.sql.sysviews import SystemCatalog


class BlockDefinitions:
    """One session's."""

    def __init__(self, node: EngineParts, system: SystemCatalog) -> None:
        self._node = node
        self._system = system
        self._definitions: TransactionDefinitions | None = None
        self._views: SystemCatalog | None = None

    @property
    def there(self) -> bool:
        """The block has defined something, or has tried to."""
        return self._definitions is not None

    @property
    def block(self) -> OpenBlock | None:
        """Turns that the block holds, if it has defined something."""
        return None if self._definitions is None else self._definitions.block

    def refuse_writes(self) -> None:
        """0A000 if the block has defined something."""
        if self.there:
            raise refuse_mixture()

    def run(
        self,
        caller: Caller,
        command: Callable[[EngineParts, Caller, Any], str],
        statement: Any,
        *,
        publishes: bool,
    ) -> str:
        """A command's tag; its effect waits for the commit. ``publishes``: it may change what is
        published."""
        found = self._definitions
        if found is None:
            found = self._definitions = TransactionDefinitions(self._node)
        found.publishes |= publishes
        return command(found.view, replace(caller, block=found.block), statement)

    def seen(self) -> SystemCatalog:
        """The system views, with what the block has defined."""
        if self._definitions is None:
            return self._system
        if self._views is None:
            self._views = self._system.over(self._definitions.catalog)
        return self._views

    def commit(self, check: Check, xid: Callable[[], int]) -> None:
        """Commit the definitions; ``TransactionDefinitions`` has the steps. All of them are one
        transaction to decoders, the one numbered ``xid``."""
        if self._definitions is not None:
            with empty_transaction(self._node, check, xid):
                self._definitions.commit(check)

    def end(self) -> None:
        """Nothing is left of what has not been committed."""
        definitions, self._definitions = self._definitions, None
        self._forget_views()
        if definitions is not None:
            definitions.end()

    def savepoint(self, depth: int) -> None:
        """Note where the block is; see ``TransactionDefinitions``."""
        if self._definitions is not None:
            self._definitions.savepoint(depth)

    def rollback_to(self, depth: int) -> None:
        """Return to a savepoint, as ``TransactionDefinitions`` does. The views are made anew: they
        could take later definitions for those that have gone."""
        if self._definitions is not None:
            self._definitions.rollback_to(depth)
            self._forget_views()

    def release(self, depth: int) -> None:
        """Forget a savepoint, as ``TransactionDefinitions`` does."""
        if self._definitions is not None:
            self._definitions.release(depth)

    def cancel(self, pid: int) -> None:
        """From another thread: end the running query of the views."""
        for views in (self._system, self._views):
            if views is not None:
                views.cancel(pid)

    def _forget_views(self) -> None:
        views, self._views = self._views, None
        if views is not None:
            views.close()
