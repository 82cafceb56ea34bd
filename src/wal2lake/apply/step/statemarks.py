"""Positions at which a batch shall end, so that the state of exactly this LSN is published.

Comes in: positions from sessions that compare tables with their source. Goes out: for each mark the
vector that is the state of its position. The worker asks for the next mark before each batch and
settles marks after each step. A mark that the published state has passed already, or whose worker
has ended, is *missed*: the session takes a later position, which the next worker gets.

The vector's LSN may be below the mark: then nothing between them has changed a table.

Thread-safe. Called by ``nextbatch`` and, through the launcher, by sessions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wal2lake.catalog import SnapshotVector
from wal2lake.model import Lsn

_POLL_SECONDS = 0.2
"""Interval at which a waiting session looks for a cancel."""


class StateMark:
    """A position whose state a session waits for."""

    def __init__(self, lsn: Lsn) -> None:
        """``lsn``: the state has every transaction whose commit is below."""
        self.lsn = lsn
        self.vector: SnapshotVector | None = None
        """The state; None if the mark was missed."""
        self._settled = threading.Event()

    def settle(self, vector: SnapshotVector | None) -> None:
        """End the wait."""
        self.vector = vector
        self._settled.set()

    def wait(self, seconds: float, check: Callable[[], None]) -> bool:
        """Wait until the worker has settled the mark; False after the time limit. ``check`` raises
        if the statement shall end."""
        deadline = time.monotonic() + seconds
        while not self._settled.wait(_POLL_SECONDS):
            check()
            if time.monotonic() > deadline:
                return False
        return True


class StateMarks:
    """The marks of one worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: list[StateMark] = []
        self._ended = False

    def add(self, mark: StateMark) -> None:
        """Add a mark. It is missed if the worker has ended."""
        with self._lock:
            if self._ended:
                mark.settle(None)
            else:
                self._marks.append(mark)

    def end(self) -> None:
        """Settle all marks as missed, because the worker has ended."""
        with self._lock:
            self._ended = True
            for mark in self._marks:
                mark.settle(None)
            self._marks = []

    def remove(self, mark: StateMark) -> None:
        """Forget a mark that nobody waits for any more."""
        with self._lock:
            self._marks = [m for m in self._marks if m is not mark]

    def __bool__(self) -> bool:
        """Whether there are marks."""
        return bool(self._marks)

    def next_between(self, start: Lsn, end: Lsn) -> Lsn | None:
        """Return the first position above ``start`` and below ``end``."""
        with self._lock:
            inside = [mark.lsn for mark in self._marks if start < mark.lsn < end]
        return min(inside, default=None)

    def settle(self, decided: Lsn, newest: Callable[[], SnapshotVector | None]) -> None:
        """Settle the marks up to ``decided``, below which everything is published. ``newest``
        returns the newest vector, which readers see."""
        with self._lock:
            if all(mark.lsn > decided for mark in self._marks):
                return
            vector = newest()
            left: list[StateMark] = []
            for mark in self._marks:
                if mark.lsn > decided:
                    left.append(mark)
                elif vector is None or vector.lsn > mark.lsn:
                    mark.settle(None)
                else:
                    mark.settle(vector)
            self._marks = left
