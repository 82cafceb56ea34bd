"""The snapshots of a session's statements, and those that it exports and imports.

Takes the session's parameters and its present transaction; returns the snapshot for a statement.
Called by ``lakebackend``. Source: snapmgr.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wal2lake.errors import UsageError
from wal2lake.local.concurrency.snapshots import Modes, Snapshot
from wal2lake.local.ports import HasSnapshots
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.sql.backend import SessionContext


class SessionSnapshots:
    """The snapshots of one session. Used by its thread only."""

    def __init__(
        self,
        node: HasSnapshots,
        context: SessionContext,
        transaction: Callable[[], LocalTransaction],
    ) -> None:
        """``transaction``: returns the session's present transaction."""
        self._node = node
        self._context = context
        self._transaction = transaction

    def of_statement(self) -> Snapshot:
        """Return the snapshot for a statement that begins."""
        return self._transaction().statement(repeatable=self._is_repeatable)

    @property
    def is_kept(self) -> bool:
        """True if later statements of the transaction see the state of an earlier one."""
        return self._is_repeatable and self._transaction().has_snapshot

    def use_versions(self, versions: Mapping[str, int]) -> None:
        """Let the transaction read these versions of tables, by location."""
        node = self._node
        taken = node.snapshots.take(node.catalog, node.tables, versions)
        self._transaction().use(taken)

    def export(self) -> str:
        """Export the snapshot of a statement and return its name; 25001 in a subtransaction."""
        if self._transaction().is_nested:
            raise UsageError(
                "cannot export a snapshot from a subtransaction", sqlstate="25001"
            )
        pid = self._context.pid
        return self._node.snapshots.export(self.of_statement(), self._modes(), pid)

    def use_exported(self, name: str) -> None:
        """Let the transaction's later statements read an exported snapshot."""
        self._transaction().use(self._node.snapshots.imported(name, self._modes()))

    def withdraw(self) -> None:
        """End the session's exports."""
        self._node.snapshots.withdraw(self._context.pid)

    def _modes(self) -> Modes:
        parameters = self._context.parameters
        read_only = parameters["transaction_read_only"] == "on"
        return Modes(parameters["transaction_isolation"], read_only)

    @property
    def _is_repeatable(self) -> bool:
        return self._modes().isolation in ("repeatable read", "serializable")
