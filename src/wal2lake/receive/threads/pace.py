"""Decides how long a segment lasts: longer while apply is slow. Pure.

In: times of seals, and the applied position. Out: seconds.

For each segment, apply opens a file for each of the segment's tables. If a batch takes two seconds
to apply, eight segments in it are no better than two segments with the same rows. So a segment
lasts a quarter of the time from the previous segment's seal until it was applied. When no changes
arrive, or apply keeps up, the segment is as short as the setting says.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from wal2lake.model import Lsn

_SHARE: Final = 4
_LONGEST_SECONDS: Final = 1.0
_REMEMBERED: Final = 256
"""Number of sealed segments to remember. If apply stands still, its time is measured when it
continues, by the newest of them."""


class Pace:
    """Pace of one seal thread. Times are in seconds, of any single clock."""

    def __init__(self, shortest: float) -> None:
        self._shortest = shortest
        self._longest = max(shortest, _LONGEST_SECONDS)
        self._waiting: deque[tuple[Lsn, float]] = deque(maxlen=_REMEMBERED)
        self.seconds = shortest
        """Present duration of a segment."""

    def sealed(self, end: Lsn, now: float) -> None:
        """Note that a segment up to ``end`` was sealed."""
        self._waiting.append((end, now))

    def nothing_to_seal(self) -> None:
        """Make the next segment as short as possible, because there was nothing to seal."""
        self.seconds = self._shortest

    def adapt(self, applied: Lsn, now: float) -> None:
        """Adapt the duration to the position that apply has reached."""
        duration = None
        while self._waiting and self._waiting[0][0] <= applied:
            duration = now - self._waiting.popleft()[1]
        if duration is not None:
            self.seconds = min(max(duration / _SHARE, self._shortest), self._longest)
