"""How long a segment lasts: longer while apply takes its time. Pure.

Comes in: when segments were sealed and how far apply has come. Goes out: seconds.

A segment costs apply a file to open for each of its tables. Who applies a batch in two seconds
gains nothing from eight segments in it: two hold the same rows. So a segment lasts a quarter of
the time that the one before took from its seal until it was applied. As soon as nothing comes, or
apply keeps up, it is as short as the setting says.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from wal2lake.model import Lsn

_SHARE: Final = 4
_LONGEST_SECONDS: Final = 1.0
_REMEMBERED: Final = 256
"""Segments: apply that stands still is measured when it goes on, by the last of these."""


class Pace:
    """Paces one seal thread. Times are of any one clock, in seconds."""

    def __init__(self, shortest: float) -> None:
        self._shortest = shortest
        self._longest = max(shortest, _LONGEST_SECONDS)
        self._waiting: deque[tuple[Lsn, float]] = deque(maxlen=_REMEMBERED)
        self.seconds = shortest
        """That a segment lasts now."""

    def sealed(self, end: Lsn, at: float) -> None:
        """A segment that ends there."""
        self._waiting.append((end, at))

    def nothing_to_seal(self) -> None:
        """Let the next seal wait for nothing."""
        self.seconds = self._shortest

    def look(self, applied: Lsn, now: float) -> None:
        """So far has apply come, as it is seen."""
        took = None
        while self._waiting and self._waiting[0][0] <= applied:
            took = now - self._waiting.popleft()[1]
        if took is not None:
            self.seconds = min(max(took / _SHARE, self._shortest), self._longest)
