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


class Share:
    """What one batch holds."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self.size = size

    def grow(self, size: int) -> None:
        """Take more; TooLarge if there is no room now."""
        self._memory.take_now(size)
        self.size += size


class Memory:
    """One for the process; safe for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def share(self, size: int) -> Iterator[Share]:
        """Hold ``size`` bytes, and what the share grows to; TooLarge if it never fits."""
        if size > self._limit:
            raise TooLarge
        with self._changed:
            self._changed.wait_for(lambda: self._used + size <= self._limit)
            self._used += size
        share = Share(self, size)
        try:
            yield share
        finally:
            with self._changed:
                self._used -= share.size
                self._changed.notify_all()

    def take_now(self, size: int) -> None:
        """Of a share: more, or TooLarge."""
        with self._changed:
            if self._used + size > self._limit:
                raise TooLarge
            self._used += size
