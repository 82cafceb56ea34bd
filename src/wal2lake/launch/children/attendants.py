"""The forks of the supervisor that it keeps alive: the guardian, and the collector of the log.

Neither is a worker of the plan: no client and no subscription waits for them, and without them the
node goes on. One that has ended is started again, and a fork that fails is tried again. There is a
pause between two starts, because one that ends at once (no descriptor is free) would otherwise keep
the supervisor busy with nothing else.

Called by: supervisor and nodelog, each time around the supervisor's loop.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from wal2lake.errors import reason_of
from wal2lake.launch.processes import describe_exit
from wal2lake.observe import get_logger

PAUSE_SECONDS: Final = 1.0
"""Least time between two starts of one of them. Chosen arbitrarily."""

_STABLE_SECONDS: Final = 60.0
"""One that has lived this long did not end of its start. Chosen arbitrarily."""

_FAREWELL_SECONDS: Final = 15.0
"""Longest wait for the end of one. A guardian kills for up to 10 seconds."""


class Attendant:
    """One of the forks. Not thread-safe: the supervisor has one thread."""

    def __init__(self, name: str, start: Callable[[], int], pid: int = 0) -> None:
        """``start`` forks and returns the pid; ``pid`` is one that runs already."""
        self._name = name
        self._start = start
        self._due = 0.0
        self._has_failed = False
        self._ends = 0
        """Number of ends in a row, each soon after the start."""
        self.pid = pid
        """Process ID; 0 while there is none."""

    def keep(self, now: float) -> None:
        """Start it if there is none and its pause is over."""
        if self.pid or now < self._due:
            return
        self._due = now + PAUSE_SECONDS
        try:
            self.pid = self._start()
        except OSError as error:
            if not self._has_failed:
                get_logger().error(
                    f"could not fork {self._name} process: {reason_of(error)}"
                )
            self._has_failed = True
            return
        self._has_failed = False

    def note_end(self, pid: int, status: int, now: float) -> None:
        """Note that a child has been reaped; ``status`` is what ``os.waitpid`` returned. One that
        ends again and again is logged the 1st, 10th, 100th ... time."""
        if pid != self.pid:
            return
        self.pid = 0
        lived = now - (self._due - PAUSE_SECONDS)
        self._ends = self._ends + 1 if lived < _STABLE_SECONDS else 1
        times = "" if self._ends == 1 else f" for the {self._ends}th time in a row"
        if str(self._ends).strip("0") == "1":
            how = describe_exit(os.waitstatus_to_exitcode(status))
            get_logger().warning(
                f"{self._name} process (PID {pid}) {how}{times}, starting another"
            )

    def part(
        self, timeout_seconds: float = _FAREWELL_SECONDS, *, kill: bool = True
    ) -> bool:
        """Wait until it has ended by itself. One that does not end in time is killed, or left
        behind. Returns whether none is left."""
        if not self.pid:
            return True
        has_ended = True
        with suppress(ProcessLookupError):
            # It may have been stopped.
            os.kill(self.pid, signal.SIGCONT)
        deadline = time.monotonic() + timeout_seconds
        with suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    if kill:
                        os.kill(self.pid, signal.SIGKILL)
                        os.waitpid(self.pid, 0)
                    has_ended = kill
                    break
                time.sleep(0.005)
        self.pid = 0
        return has_ended
