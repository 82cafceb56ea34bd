"""Numbers of local transactions: PostgreSQL's transaction IDs.

Takes: the catalog's file. Gives: numbers, each once in the life of a node. A process takes a block
of them in one durable transaction and hands them out from memory. A process that ends leaves the
rest of its block unused: numbers grow, with gaps. Any thread may call.

A transaction has one number wherever it is shown: txid_current(), conflict reports,
pg_prepared_xacts, decoded changes (decision 0020).

Source: GetNewTransactionId() in varsup.c; manual, section 67.1.
"""

from __future__ import annotations

import threading
from typing import Final

from wal2lake.catalog.database import Database

FIRST_XID: Final = 1001
"""Below it nothing is numbered, so a number is never one of PostgreSQL's special IDs."""

_EPOCH: Final = 1 << 32

_BLOCK: Final = 1024
"""Numbers that one write of the catalog reserves; a guess: a write for a thousand commits."""


def xid_of(number: int) -> int:
    """The 32-bit transaction ID of a number; the bits above are PostgreSQL's epoch."""
    return number % _EPOCH


class TransactionNumbers:
    """Numbers for one process of a node."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._next = self._end = 0

    def take(self, count: int = 1) -> int:
        """The first of ``count`` numbers that follow one another."""
        with self._guard:
            if self._end - self._next < count:
                self._reserve(max(count, _BLOCK), above=0)
            first = self._next
            self._next += count
            return first

    def begin_above(self, number: int) -> None:
        """Hand out only higher numbers from now on: ``number`` is in use somewhere."""
        with self._guard:
            if number >= self._next and number >= self._reserved() - 1:
                self._reserve(_BLOCK, above=number)
            elif number >= self._next:
                self._next = min(number + 1, self._end)

    def _reserved(self) -> int:
        """The first number that no process has reserved."""
        return int(self._database.meta("next_xid"))

    def _reserve(self, count: int, *, above: int) -> None:
        with self._database.transaction() as transaction:
            (known,) = transaction.execute(
                "select value from meta where key = 'next_xid'"
            ).fetchone()
            first = max(int(known), above + 1)
            if xid_of(first) < FIRST_XID or xid_of(first + count) < count:
                # In the next epoch, too, no ID is a special one; no block is in two epochs.
                first += FIRST_XID + count
                first -= xid_of(first) - FIRST_XID
            transaction.execute(
                "update meta set value = ? where key = 'next_xid'",
                (str(first + count),),
            )
        self._next, self._end = first, first + count
