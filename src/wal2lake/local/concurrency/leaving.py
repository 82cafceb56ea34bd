"""Tables that background work is at, and that it leaves when they are dropped.

Takes a table's location for the duration of a block. DROP TABLE removes the catalog's row and then
calls ``leave``, which returns when no work on the table is running. Work that takes long asks
``must_leave`` between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LeftTables:
    """The table that one worker is at, and those that it must leave. Safe for all threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: str | None = None
        self._left: list[str] = []

    @contextmanager
    def at(self, location: str) -> Iterator[None]:
        """Work on a table. From here on ``leave`` waits, so the worker looks now whether the
        catalog still has the table."""
        with self._changed:
            self._running = location
        try:
            yield
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()

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

    @property
    def must_leave(self) -> bool:
        """Whether a caller of ``leave`` waits for the table that the worker is at."""
        with self._changed:
            return self._running in self._left
