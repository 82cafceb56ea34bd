"""Transaction numbers in memory, for writers of a log without a catalog."""


class Numbers:
    """As ``catalog.xids.TransactionNumbers``, for one process."""

    def __init__(self) -> None:
        self._next = 1001

    def take(self, count: int = 1) -> int:
        first = self._next
        self._next += count
        return first

    def begin_above(self, number: int) -> None:
        self._next = max(self._next, number + 1)
