"""The last hour of a node's rates and lag, in memory.

In: one sample per subscription and reading. Out: columns of numbers for charts. Memory is bounded:
a ring of ``CAPACITY`` samples of 32-bit floats for each of at most ``SUBSCRIPTIONS`` subscriptions,
about 7 MB in all. What is not known is NaN here and None in the answer.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final

from wal2lake.model import Oid

CAPACITY: Final = 3600
"""Samples of a ring: an hour of one a second."""

SUBSCRIPTIONS: Final = 64
"""Subscriptions that have a ring. Further ones have no history."""

SERIES: Final = (
    "rows",
    "bytes",
    "received",
    "durable",
    "applied",
    "visible",
    "behind_bytes",
)
"""Rows and bytes per second, seconds behind by stage, and bytes that the visible state is
behind."""


class _Ring:
    """The samples of one subscription."""

    def __init__(self) -> None:
        self.times = array("d")
        self.columns = {name: array("f") for name in SERIES}
        self.start = 0
        """Index of the oldest sample, once the ring is full."""

    def add(self, when: float, values: Mapping[str, float | None]) -> None:
        """Append a sample, in place of the oldest one if the ring is full."""
        full = len(self.times) == CAPACITY
        for column, value in (
            (self.times, when),
            *((self.columns[name], values.get(name)) for name in SERIES),
        ):
            number = math.nan if value is None else float(value)
            if full:
                column[self.start] = number
            else:
                column.append(number)
        if full:
            self.start = (self.start + 1) % CAPACITY

    @property
    def newest(self) -> float:
        """Time of the newest sample of a ring that has one."""
        return self.times[self.start - 1]

    def order(self) -> list[int]:
        """Return the indexes from the oldest to the newest sample."""
        count = len(self.times)
        return [(self.start + i) % count for i in range(count)]


class PageHistory:
    """Rings by subscription. One thread adds; any thread reads."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rings: dict[Oid, _Ring] = {}
        self._lock = Lock()

    def add(
        self, when: float, samples: Mapping[Oid, Mapping[str, float | None]]
    ) -> None:
        """Add one sample for each subscription; forget those of dropped subscriptions."""
        with self._lock:
            for oid in self._rings.keys() - samples.keys():
                del self._rings[oid]
            for oid, values in samples.items():
                ring = self._rings.get(oid)
                if ring is not None and when <= ring.newest:
                    # The clock was set back: a chart's times only grow.
                    del self._rings[oid]
                    ring = None
                if ring is None:
                    if len(self._rings) == SUBSCRIPTIONS:
                        continue
                    ring = self._rings[oid] = _Ring()
                ring.add(when, values)

    def columns(
        self, oid: Oid, since: float, points: int
    ) -> dict[str, list[float | None]]:
        """Return times and series of a subscription from ``since`` (Unix time), thinned to at
        most ``points``. A point of several samples has the time of the last and the largest
        values, so that no peak is lost. Empty columns for an unknown subscription."""
        with self._lock:
            ring = self._rings.get(oid)
            if ring is None:
                return {name: [] for name in ("times", *SERIES)}
            order = [i for i in ring.order() if ring.times[i] >= since]
            step = max(1, math.ceil(len(order) / max(1, points)))
            # Groups end with the newest sample, so that the last point is of now.
            first = len(order) % step
            groups = [order[:first]] if first else []
            groups += [order[i : i + step] for i in range(first, len(order), step)]
            columns: dict[str, list[float | None]] = {
                "times": [round(ring.times[group[-1]], 3) for group in groups]
            }
            for name in SERIES:
                column = ring.columns[name]
                columns[name] = [_largest(column, group) for group in groups]
            return columns


def _largest(column: Sequence[float], indexes: Sequence[int]) -> float | None:
    numbers = [column[i] for i in indexes if not math.isnan(column[i])]
    # Three digits are what a chart shows; JSON of all digits is three times as long.
    return float(f"{max(numbers):.4g}") if numbers else None
