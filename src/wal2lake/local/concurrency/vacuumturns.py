"""Turns of vacuuming: one table at a time, and none that is being dropped.

Takes a table's location; gives the turn for the duration of a block. DROP TABLE waits until the
table is left (``leave``), and a vacuum that is asked to leave ends before its next file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_WAIT_SECONDS: Final = 0.05
"""How soon a wait notices its end."""


class VacuumTurns:
    """The turns of one node. Safe for all threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._running: str | None = None
        self._left: list[str] = []

    @contextmanager
    def hold(self, location: str, check: Callable[[], None]) -> Iterator[None]:
        """Wait for the turn and hold it. ``check`` ends the wait by raising."""
        while not self._turn.acquire(timeout=_WAIT_SECONDS):
            check()
        try:
            with self._changed:
                self._running = location
            yield
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()
            self._turn.release()

    def leave(self, location: str) -> None:
        """Stop work on a table that is being dropped; none is running for it on return."""
        with self._changed:
            self._left.append(location)
            try:
                self._changed.wait_for(lambda: self._running != location)
            finally:
                self._left.remove(location)

    def is_left(self, location: str) -> bool:
        """Whether a caller of ``leave`` waits for the table."""
        with self._changed:
            return location in self._left
