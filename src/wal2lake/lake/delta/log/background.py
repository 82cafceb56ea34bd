"""Runs work on tables outside their commits: one table after the other, in one thread.

Comes in: locations of tables that need the work. Goes out: calls of the work's function. Called
by ``deltatables`` (checkpoints, manifests) and ``lake.compaction``.

Why this way. A commit must not wait for work that it does not need. A checkpoint reads and writes
the actions of all files of a table, a manifest is a job of Spark, and the tables of a subscription
reach the version at which a checkpoint is due together: within their commits, this work would stop
apply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from wal2lake.observe import get_logger


class LeavesTables(Protocol):
    """Work on tables that must end before a table is dropped."""

    def leave(self, location: str) -> None:
        """Stop work on a table; no work is running for it on return."""
        ...


class BackgroundWork:
    """Runs work beside commits, for all tables that one process writes. Thread-safe."""

    def __init__(self, name: str, work: Callable[[str], None]) -> None:
        """``work`` is called with a table's location; ``name`` describes the work in the log."""
        self._name = name
        self._work = work
        self._changed = threading.Condition()
        self._wanted: list[str] = []
        self._running: str | None = None
        self._left: list[str] = []
        self._thread: threading.Thread | None = None

    def ask(self, location: str) -> None:
        """Queue the table; returns at once."""
        with self._changed:
            if location not in self._wanted:
                self._wanted.append(location)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread.start()

    def leave(self, location: str) -> None:
        """Stop work on a table that is being dropped; no work is running for it on return."""
        with self._changed:
            if location in self._wanted:
                self._wanted.remove(location)
            self._left.append(location)
            try:
                self._changed.wait_for(lambda: self._running != location)
            finally:
                self._left.remove(location)

    def is_left(self, location: str) -> bool:
        """Whether a caller of ``leave`` waits for this table; long work should then give up."""
        with self._changed:
            return location in self._left

    def wait(self) -> None:
        """Wait until the queue is empty and no work is running."""
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
                # Also happens when a stopping engine closes the session.
                get_logger().warning(
                    f"could not {self._name}", location=location, error=error
                )
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
