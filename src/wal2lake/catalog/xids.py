"""Assigns numbers to local transactions: PostgreSQL's transaction IDs.

Takes: the catalog's file. Gives: numbers, each once in the life of a node. A process reserves a
block of numbers in one durable transaction and assigns them from memory. The rest of a block stays
unused when the process ends: numbers grow, with gaps. Any thread may call.

A transaction has the same number everywhere: txid_current(), conflict reports, pg_prepared_xacts,
decoded changes (decision 0020).

Source: GetNewTransactionId() in varsup.c; manual, section 67.1.
"""

from __future__ import annotations

import threading
from typing import Final

from wal2lake.catalog.database import Database

FIRST_XID: Final = 1001
"""First number. Lower numbers are not used, so no number is one of PostgreSQL's special IDs."""

_EPOCH: Final = 1 << 32

_BLOCK: Final = 1024
"""Numbers that one write of the catalog reserves. Chosen arbitrarily: one write for a thousand
commits."""


def xid_of(number: int) -> int:
    """Return the 32-bit transaction ID of a number. The higher bits are PostgreSQL's epoch."""
    return number % _EPOCH


class TransactionNumbers:
    """Assigns numbers for one process of a node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._next = self._end = 0

    def take(self, count: int = 1) -> int:
        """Take ``count`` consecutive numbers and return the first."""
        with self._guard:
            if self._end - self._next < count:
                self._reserve(max(count, _BLOCK), above=0)
            first = self._next
            self._next += count
            return first

    def begin_above(self, number: int) -> None:
        """Assign only higher numbers from now on, because ``number`` is in use."""
        with self._guard:
            if number >= self._next and number >= self._reserved() - 1:
                self._reserve(_BLOCK, above=number)
            elif number >= self._next:
                self._next = min(number + 1, self._end)

    def _reserved(self) -> int:
        """Return the first number that no process has reserved."""
        return int(self._database.meta("next_xid"))

    def _reserve(self, count: int, *, above: int) -> None:
        with self._database.transaction() as transaction:
            (reserved,) = transaction.execute(
                "select value from meta where key = 'next_xid'"
            ).fetchone()
            first = max(int(reserved), above + 1)
            if xid_of(first) < FIRST_XID or xid_of(first + count) < count:
                # Skip the special IDs of the next epoch. No block crosses epochs.
                first += FIRST_XID + count
                first -= xid_of(first) - FIRST_XID
            transaction.execute(
                "update meta set value = ? where key = 'next_xid'",
                (str(first + count),),
            )
        self._next, self._end = first, first + count
