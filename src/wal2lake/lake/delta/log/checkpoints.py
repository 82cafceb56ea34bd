"""Checkpoints of tables, one after the other, beside the commits that they are due at.

Comes in: tables whose newest version is to have one. Goes out: calls of who writes it (Delta, on
Spark). Called by ``tables``.

Why this way. A checkpoint costs a second of Spark's, the first one of an engine several, and the
tables of a subscription reach the version at which it is due together. Within the commit it
stopped apply for that long (13 seconds of three tables, on two cores). No commit needs
it: it saves a reader the commits below it. One that is not made is made at the next version that
has one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal2lake.lake.delta.log.version import Version
from wal2lake.observe import get_logger

INTERVAL: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = 10


def is_due(version: Version) -> bool:
    """Whether a version is one of those that have a checkpoint."""
    state = version.state
    interval = int(state.properties.get(INTERVAL, _DEFAULT_INTERVAL))
    return state.version % interval == 0


class Checkpoints:
    """Of all tables that one process writes; safe for all threads."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """``write`` makes one of the table at a location, and makes it durable."""
        self._write = write
        self._changed = threading.Condition()
        self._wanted: list[str] = []
        self._running: str | None = None
        self._thread: threading.Thread | None = None

    def ask(self, location: str) -> None:
        """Some time from now; returns at once."""
        with self._changed:
            if location not in self._wanted:
                self._wanted.append(location)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="checkpoint", daemon=True
                )
                self._thread.start()

    def leave(self, location: str) -> None:
        """Not of this table, which goes: when it returns nothing is being written for it."""
        with self._changed:
            if location in self._wanted:
                self._wanted.remove(location)
            self._changed.wait_for(lambda: self._running != location)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    return
                location = self._running = self._wanted.pop(0)
            try:
                self._write(location)
            except Exception as error:
                # An engine that stops takes the session away, too.
                get_logger().warning(
                    "could not write a checkpoint", location=location, reason=str(error)
                )
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()
