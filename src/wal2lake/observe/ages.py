"""Ages of many transactions as one histogram.

In: commit times in microseconds since 2000-01-01 UTC, and the present. Out: observations for
``Telemetry.observe_all``. Apart from ``telemetry`` because it needs NumPy, which readers of
telemetry do not load.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from wal2lake.observe.telemetry import BUCKETS

_EPOCH_SECONDS: Final = 946_684_800
"""2000-01-01 UTC in Unix time."""

_BOUNDS_US: Final = np.array([round(bound * 1e6) for bound in BUCKETS], np.int64)


def ages(times: NDArray[np.int64], now: float) -> tuple[list[int], float]:
    """Return how many commit times are in each bucket by their age, and the sum of the ages in
    seconds. ``now`` is in Unix time. A commit in the future has age 0: the clocks of two machines
    differ."""
    now_us = round((now - _EPOCH_SECONDS) * 1e6)
    waited = np.sort(np.maximum(now_us - times, 0))
    # Bounds are inclusive, as in the histogram.
    below = np.searchsorted(waited, _BOUNDS_US, side="right")
    counts = np.diff(below, prepend=0, append=len(waited))
    return counts.tolist(), float(waited.sum()) / 1e6
