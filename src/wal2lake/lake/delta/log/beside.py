"""Work on tables beside their commits: one table after the other, in one thread.

Comes in: locations of tables that something is to be done for. Goes out: calls of who does it.
Called by ``tables`` (checkpoints) and ``lake.compaction``.

Why this way. What no commit needs must not be what a commit waits for. A checkpoint costs a second
of Spark's, the first one of an engine several, and the tables of a subscription reach the version
at which it is due together: within the commit it stopped apply for that long (13 seconds of
three tables, on two cores).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal2lake.observe import get_logger


class Beside:
    """Runs work beside commits, for all tables that one process writes. Thread-safe."""

    def __init__(self, what: str, work: Callable[[str], None]) -> None:
        """``work`` is done for the table at a location; ``what`` says it in words, for the log."""
        self._what = what
        self._work = work
        self._changed = threading.Condition()
        self._wanted: list[str] = []
        self._running: str | None = None
        self._left: list[str] = []
        self._thread: threading.Thread | None = None

    def ask(self, location: str) -> None:
        """Some time from now; returns at once."""
        with self._changed:
            if location not in self._wanted:
                self._wanted.append(location)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._what, daemon=True
                )
                self._thread.start()

    def leave(self, location: str) -> None:
        """Not of this table, which goes: when it returns nothing is being done for it."""
        with self._changed:
            if location in self._wanted:
                self._wanted.remove(location)
            self._left.append(location)
            try:
                self._changed.wait_for(lambda: self._running != location)
            finally:
                self._left.remove(location)

    def is_left(self, location: str) -> bool:
        """Somebody waits in ``leave`` of this table: what takes long gives up."""
        with self._changed:
            return location in self._left

    def wait(self) -> None:
        """Until nothing is left to do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted and self._running is None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    return
                location = self._running = self._wanted.pop(0)
            try:
                self._work(location)
            except Exception as error:
                # An engine that stops takes the session away, too.
                get_logger().warning(
                    f"could not {self._what}", location=location, error=error
                )
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
