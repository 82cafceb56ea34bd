"""A clock for the age of files, which a jump of the machine's clock does not age.

In: an age. Out: the moment that long ago, on the clock of the files' time stamps. Only its age
protects a file that is written and not yet committed, so the age must not grow because the clock is
set, or because the machine slept.

    the clock is set forward, or the     files from before look older than they are; the jump is
     machine sleeps                       taken off until the whole age has passed since
    the clock is set back                 files from before lie in the future: they are young until
                                          the clock has passed them
    it was wrong when the process began   a file that is older than the process is not of a present
                                          writer of this node; for other engines' writers, the
                                          clock has to be right

Each look compares the wall clock with the monotonic one since the last jump. A clock that is set
back and forth between two looks is not noticed, so the engine looks twice a second. Called by
``local.retention`` and the engine's main loop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

_NOISE_SECONDS: Final = 1.0
"""Two clocks that are read one after the other differ by the pause between the readings."""

_MOST_JUMPS: Final = 1024
"""Jumps that are remembered. A clock that jumps more often than this within an age is broken."""


class AgeClock:
    """The clock of one process, from its start. Safe for all threads."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; jumps are noticed from now on, whenever ``look`` or ``ago`` is called."""
        self._wall = wall
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last = wall(), monotonic()
        self._jumps: deque[tuple[float, float]] = deque(maxlen=_MOST_JUMPS)
        """When each jump was noticed, by the monotonic clock, and its seconds."""

    def look(self) -> None:
        """Notice a jump of the clock."""
        with self._lock:
            self._notice()

    def ago(self, seconds: float) -> float:
        """Return the moment ``seconds`` ago, in seconds since 1970: a file that has changed since
        then, in real time, is never told to be older."""
        with self._lock:
            wall, monotonic = self._notice()
            jumped = sum(
                j for jumped_at, j in self._jumps if monotonic - jumped_at < seconds
            )
        return wall - jumped - seconds

    def _notice(self) -> tuple[float, float]:
        wall, monotonic = self._wall(), self._monotonic()
        last_wall, last_monotonic = self._last
        jump = (wall - last_wall) - (monotonic - last_monotonic)
        if abs(jump) > _NOISE_SECONDS:
            # Smaller differences gather until they count.
            self._last = wall, monotonic
        if jump > _NOISE_SECONDS:
            self._jumps.append((monotonic, jump))
        return wall, monotonic
