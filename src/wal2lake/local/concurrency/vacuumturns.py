"""Turns of vacuuming: one table at a time, and none that is being dropped.

Takes a table's location; gives the turn for the duration of a block. DROP TABLE waits until the
table is left (``leave``), and a vacuum that is asked to leave ends before its next file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from wal2lake.local.concurrency.leaving import LeftTables

_WAIT_SECONDS: Final = 0.05
"""How soon a wait notices its end."""


class VacuumTurns:
    """The turns of one node. Safe for all threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._tables = LeftTables()
        self.leave = self._tables.leave
        self.is_left = self._tables.is_left

    @contextmanager
    def hold(self, location: str, check: Callable[[], None]) -> Iterator[None]:
        """Wait for the turn and hold it. ``check`` ends the wait by raising."""
        while not self._turn.acquire(timeout=_WAIT_SECONDS):
            check()
        try:
            with self._tables.at(location):
                yield
        finally:
            self._turn.release()
