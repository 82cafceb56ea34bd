"""Durations and sizes in words, as messages of problems have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_TIMES: Final = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")


def in_words(duration: timedelta | float) -> str:
    """Return a duration in its largest unit of which there are at least two: 90 minutes, 3 days."""
    seconds = (
        duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    )
    if 0 < seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if 1 <= seconds < 10:
        # Otherwise 1.9 seconds would not look like more than 1.5.
        shown = f"{seconds:.1f}".removesuffix(".0")
        return f"{shown} second{'' if shown == '1' else 's'}"
    for unit, length in _TIMES:
        count = int(seconds / length)
        if count >= 2 or unit == "second":
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "0 seconds"


def in_bytes(size: int) -> str:
    """Return a size as pg_size_pretty() does: units of 1024, rounded."""
    value = float(size)
    for unit in _SIZES[:-1]:
        if value < 10_240:
            return f"{round(value)} {unit}"
        value /= 1024
    return f"{round(value)} {_SIZES[-1]}"
