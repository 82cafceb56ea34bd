"""Reads the durations of Delta's table properties. Pure.

In: ``interval 7 days``, ``30 days``, ``interval 1 week 12 hours``. Out: seconds. Months and years
have no fixed length; Delta refuses them, too.

Source: DeltaConfigs.parseCalendarInterval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

FILES: Final = "delta.deletedFileRetentionDuration"
LOG_FILES: Final = "delta.logRetentionDuration"
CLEANS_LOG: Final = "delta.enableExpiredLogCleanup"
CURSORS: Final = "delta.setTransactionRetentionDuration"

FILES_DEFAULT_SECONDS: Final = 7 * 86_400.0
"""How long Delta keeps removed files of a table without the property."""

LOG_DEFAULT_SECONDS: Final = 30 * 86_400.0
"""How long Delta keeps the log of a table without the property."""

_UNITS: Final[Mapping[str, float]] = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3_600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 0.001,
    "microsecond": 0.000_001,
}
_PART: Final = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s+([a-z]+?)s?(?=\s|$)")


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None if the text is none."""
    rest = re.sub(r"^\s*interval\b", "", text.lower()).strip()
    seconds, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or part[2] not in _UNITS:
            return None
        seconds += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    return seconds


def seconds_or(
    properties: Mapping[str, str], name: str, default: float
) -> float | None:
    """Return a property in seconds, ``default`` if the table does not have it; None if it cannot
    be understood."""
    text = properties.get(name)
    return default if text is None else seconds_of(text)
