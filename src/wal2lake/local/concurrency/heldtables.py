"""Which tables prepared transactions hold: nobody of this node writes them until these end.

So COMMIT PREPARED finds them as PREPARE TRANSACTION has left them, as it does with PostgreSQL's
locks. Here they hold whole tables, and only against writers; readers see what was before. No
thread's lock could last that long, nor over a restart: whoever has taken a table's lock asks here,
and gives it back if the table is held.

Safe for all threads. Writers outside of the node know nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from wal2lake.catalog import PreparedCommit, TableDef
from wal2lake.errors import UsageError


def name_of(one: PreparedCommit) -> str:
    """Return the transaction's name in its tables' commits, for capture."""
    return f"prepared {one.number}"


class HeldTables:
    """Tables that prepared transactions of one node hold."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, PreparedCommit] = {}
        self._busy: set[str] = set()

    def hold(self, one: PreparedCommit) -> None:
        """Under the tables' locks, or before anybody writes."""
        with self._lock:
            for change in one.tables:
                self._holders[change.location] = one

    def let_go(self, number: int) -> None:
        """It has ended."""
        with self._lock:
            self._holders = {
                place: one
                for place, one in self._holders.items()
                if one.number != number
            }

    def are_free(self, tables: Iterable[TableDef], number: int | None = None) -> bool:
        """Whether nobody but ``number`` holds one. Asked under the tables' locks."""
        with self._lock:
            found = [self._holders.get(table.location) for table in tables]
        return all(one is None or one.number == number for one in found)

    def refuse_held(self, table: TableDef, what: str) -> None:
        """55006 if it is held; ``what`` cannot be done then: ``drop table "t"``."""
        with self._lock:
            one = self._holders.get(table.location)
        if one is not None:
            raise UsageError(
                f"cannot {what} because it is being used by a prepared transaction",
                sqlstate="55006",
                detail=f'Its identifier is "{one.gid}".',
                hint="COMMIT PREPARED or ROLLBACK PREPARED ends it.",
            )

    @contextmanager
    def busy(self, gid: str) -> Iterator[None]:
        """Around PREPARE TRANSACTION and what ends it; 55000 if somebody is at it."""
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
