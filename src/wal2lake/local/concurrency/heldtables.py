"""Tables that prepared transactions hold: nobody of this node writes them until these end.

COMMIT PREPARED therefore finds the tables as PREPARE TRANSACTION has left them, like with
PostgreSQL's locks. Here whole tables are held, and only against writers; readers see the state
before. A thread's lock cannot last that long, nor survive a restart. A writer that has taken a
table's lock therefore asks here, and releases the lock if the table is held.

Thread-safe. Writers outside of the node are not kept away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from wal2lake.catalog import PreparedCommit, TableDef
from wal2lake.errors import UsageError


def name_of(transaction: PreparedCommit) -> str:
    """Return the transaction's name in its tables' commits, for capture."""
    return f"prepared {transaction.number}"


class HeldTables:
    """Tables that prepared transactions of one node hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, PreparedCommit] = {}
        self._busy: set[str] = set()

    def hold(self, transaction: PreparedCommit) -> None:
        """Hold the transaction's tables. Needs their locks, or is called before any writer."""
        with self._lock:
            for change in transaction.tables:
                self._holders[change.location] = transaction

    def release(self, number: int) -> None:
        """Release the tables of a transaction that has ended."""
        with self._lock:
            self._holders = {
                place: transaction
                for place, transaction in self._holders.items()
                if transaction.number != number
            }

    def are_free(self, tables: Iterable[TableDef], number: int | None = None) -> bool:
        """True if only ``number`` holds any of the tables. Needs the tables' locks."""
        with self._lock:
            holders = [self._holders.get(table.location) for table in tables]
        return all(holder is None or holder.number == number for holder in holders)

    def refuse_held(self, table: TableDef, action: str) -> None:
        """Raise 55006 if the table is held; ``action``, such as ``drop table "t"``, fails then."""
        with self._lock:
            holder = self._holders.get(table.location)
        if holder is not None:
            raise UsageError(
                f"cannot {action} because it is being used by a prepared transaction",
                sqlstate="55006",
                detail=f'Its identifier is "{holder.gid}".',
                hint="COMMIT PREPARED or ROLLBACK PREPARED ends it.",
            )

    @contextmanager
    def busy(self, gid: str) -> Iterator[None]:
        """Mark the transaction as busy during PREPARE and its end; 55000 if it already is."""
        with self._lock:
            if gid in self._busy:
                raise UsageError(
                    f'prepared transaction with identifier "{gid}" is busy',
                    sqlstate="55000",
                )
            self._busy.add(gid)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(gid)
