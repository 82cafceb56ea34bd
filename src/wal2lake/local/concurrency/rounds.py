"""Background work in rounds: a thread that works now and then, until the engine stops.

Takes the work of one round, and the seconds from its end to the next one. Gives ``start``,
``stop``, ``reload``, and the waits in which the work notices that it must end. A round that fails
is logged, and the next one comes in its time. Used by the workers of ``retention``, ``mirrors`` and
``catalogs``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from wal2lake.settings import Settings


class RoundsEnd(Exception):
    """Raised in a round that must end because the engine stops."""


class Rounds:
    """The thread of one worker, from ``start`` to ``stop``."""

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        interval: Callable[[], float],
        log: Any,
        *,
        first_seconds: float | None = None,
    ) -> None:
        """``interval`` gives the present seconds between two rounds; 0: there are none.
        ``first_seconds``: most time before the first one."""
        self._name = name
        self._work = work
        self._interval = interval
        self._log = log
        self._first = first_seconds
        self._changed = threading.Condition()
        self._stopping = False
        self._now = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether the work must end."""
        return self._stopping

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Let the work end at its next look or wait, and wait for the end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def reload(self, settings: Settings) -> None:
        """Look at the interval again, whose settings the node has already."""
        with self._changed:
            self._changed.notify_all()

    def hurry(self) -> None:
        """Begin the next round at once."""
        with self._changed:
            self._now = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise RoundsEnd if the work must end."""
        if self._stopping:
            raise RoundsEnd

    def sleep(self, seconds: float) -> None:
        """Pause in a round. Raises RoundsEnd if the work must end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)
        self.check()

    def _run(self) -> None:
        interval = self._interval()
        first = interval if self._first is None else self._first
        due = time.monotonic() + min(first, interval or first)
        while self._wait(due):
            try:
                self._work()
            except RoundsEnd:
                return
            except Exception as error:
                self._log.error(f"{self._name} stopped", error=error)
            due = time.monotonic() + self._interval()

    def _wait(self, due: float) -> bool:
        """Wait for the next round; False: the worker ends."""
        with self._changed:
            while not self._stopping:
                interval, now = self._interval(), time.monotonic()
                # A shorter interval counts from the change on.
                due = min(due, now + interval) if interval else due
                left = due - now if interval else None
                if self._now or (left is not None and left <= 0):
                    self._now = False
                    return True
                self._changed.wait(left)
        return False
