"""Limits the memory of batches that are applied here, all tables together.

Sizes are bytes of values as Arrow holds them. A run of a batch first takes its staged size, and
waits for it; a run that holds memory releases it without waiting for another. Runs that wait get
memory in the order in which they came, so small ones do not overtake a large one again and again.
Memory that turns out to be needed later is granted at once or not at all; if it is not, the batch
is cut into smaller runs (``runs.whole``).

A smaller run needs fewer rows, but the same row groups of the files, which are read whole. So a run
that holds all memory reads a row group that is larger: a smaller run would have to read it, too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class TooLarge(Exception):
    """The changes do not fit: apply fewer at once, or apply them another way."""


class Share:
    """Memory that one run holds."""

    def __init__(
        self,
        memory: UpsertMemory,
        size: int,
        held: int,
        *,
        alone: bool = False,
        exceeds: bool = False,
    ) -> None:
        self._memory = memory
        self._used = size
        self._alone = alone
        self._exceeds = exceeds
        self.held = held

    def grow(self, size: int, briefly: int = 0) -> None:
        """Take more; TooLarge if there is no room now.

        ``briefly``: bytes that are free again before the next call, and that fewer changes would
        need, too. A share that is alone has them in any case.
        """
        missing = self._used + size + (0 if self._alone else briefly) - self.held
        if missing > 0 and not self._exceeds:
            self._memory.take_now(missing)
            self.held += missing
        self._used += size


class UpsertMemory:
    """Memory of all batches; one per process, safe for many threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()
        self._turns: deque[object] = deque()
        """Shares that wait, first come, first served."""

    @property
    def limit(self) -> int:
        """All bytes that there are."""
        return self._limit

    def fits(self, size: int) -> bool:
        """Whether so many bytes can ever fit."""
        return size <= self._limit

    @contextmanager
    def share(
        self, size: int, *, alone: bool = False, exceeds: bool = False
    ) -> Iterator[Share]:
        """Hold ``size`` bytes, and what the share grows to; TooLarge if they can never fit.

        ``alone``: hold all memory, so that what does not fit then never will. ``exceeds``: grow
        beyond it, for a change that cannot be divided.
        """
        if not self.fits(size):
            raise TooLarge
        held = self._limit if alone else size
        self._wait(held)
        share = Share(self, size, held, alone=alone, exceeds=exceeds)
        try:
            yield share
        finally:
            with self._changed:
                self._used -= share.held
                self._changed.notify_all()

    def _wait(self, size: int) -> None:
        """Take memory as soon as all earlier runs have theirs, and there is room."""
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                self._changed.wait_for(
                    lambda: self._turns[0] is turn and self._used + size <= self._limit
                )
                self._used += size
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def take_now(self, size: int) -> None:
        """Take more memory for a share, or raise TooLarge."""
        with self._changed:
            if self._used + size > self._limit:
                raise TooLarge
            self._used += size
