"""Rates from counters that only grow, over a sliding window.

In: totals with the time when they were read. Out: amounts per second. A counter that falls was
reset (its process has started again) and begins a new window. The window is longer than the
interval at which processes write their counters, so that a rate does not alternate between 0 and
twice its value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Final

WINDOW_SECONDS: Final = 5.0
"""Length of the window. Chosen for a calm display."""


class RateWindow:
    """Rates of many counters that are read together. Used by one thread."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        """Begin without readings; the first reading gives no rates."""
        self._window = window_seconds
        self._readings: deque[tuple[float, Mapping[Hashable, float]]] = deque()

    def add(
        self, now: float, totals: Mapping[Hashable, float]
    ) -> dict[Hashable, float]:
        """Take the totals at ``now`` in seconds; return the rate of each counter that an earlier
        reading in the window has. A clock that is set back begins a new window."""
        readings = self._readings
        if readings and now < readings[-1][0]:
            readings.clear()
        # The reading just outside the window stays: it is the window's beginning.
        while len(readings) > 1 and readings[1][0] <= now - self._window:
            readings.popleft()
        rates: dict[Hashable, float] = {}
        for key, total in totals.items():
            start = self._start(key, total)
            if start is not None and now > start[0]:
                rates[key] = (total - start[1]) / (now - start[0])
        readings.append((now, totals))
        return rates

    def _start(self, key: Hashable, total: float) -> tuple[float, float] | None:
        """Return the oldest reading of a counter since its last reset."""
        oldest: tuple[float, float] | None = None
        later = total
        for when, totals in reversed(self._readings):
            value = totals.get(key)
            if value is None or value > later:
                break
            oldest, later = (when, value), value
        return oldest
