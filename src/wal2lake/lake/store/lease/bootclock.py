"""The clock by which a node knows how long its lease is valid."""

from __future__ import annotations

import time


def clock() -> float:
    """Return seconds of a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
