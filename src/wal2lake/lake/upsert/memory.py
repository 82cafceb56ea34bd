"""How much memory batches that are applied here may take, all tables together.

Sizes are bytes of values as Arrow holds them. A batch takes its staged size first, and waits
for it: whoever holds some lets it go without waiting for anybody. What it finds that it needs
besides, it is given at once or not at all, and then it is Spark's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooLarge(Exception):
    """This batch does not fit: apply it another way."""


class NotForUs(TooLarge):
    """Nor would a smaller one: only Spark may write this table. The argument says why."""


class Share:
    """Memory that one batch holds."""

    def __init__(self, memory: UpsertMemory, size: int, held: int) -> None:
        self._memory = memory
        self._used = size
        self.held = held

    def grow(self, size: int) -> None:
        """Take more; TooLarge if there is no room now."""
        missing = self._used + size - self.held
        if missing > 0:
            self._memory.take_now(missing)
            self.held += missing
        self._used += size


class UpsertMemory:
    """One for the process; safe for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def fits(self, size: int) -> bool:
        """Whether there can ever be room."""
        return size <= self._limit

    @contextmanager
    def share(self, size: int, *, alone: bool = False) -> Iterator[Share]:
        """Hold ``size`` bytes, and what the share grows to; TooLarge if it never fits.

        ``alone``: hold all the memory there is, so that what does not fit then never will."""
        if not self.fits(size):
            raise TooLarge
        held = self._limit if alone else size
        with self._changed:
            self._changed.wait_for(lambda: self._used + held <= self._limit)
            self._used += held
        share = Share(self, size, held)
        try:
            yield share
        finally:
            with self._changed:
                self._used -= share.held
                self._changed.notify_all()

    def take_now(self, size: int) -> None:
        """Take more memory for a share, or raise TooLarge."""
        with self._changed:
            if self._used + size > self._limit:
                raise TooLarge
            self._used += size
