"""Transaction numbers in memory, for writers of a log without a catalog."""

from __future__ import annotations

from wal2lake.catalog.xids import FIRST_XID, TransactionNumbers


class Numbers(TransactionNumbers):
    """Those of one process, without the file; nothing of its base is left."""

    def __init__(self) -> None:
        self._next = FIRST_XID

    def take(self, count: int = 1) -> int:
        first = self._next
        self._next += count
        return first

    def begin_above(self, number: int) -> None:
        self._next = max(self._next, number + 1)
