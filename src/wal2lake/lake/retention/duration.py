"""Reads the durations of Delta's table properties. Pure.

In: ``interval 7 days``, ``30 days``, ``interval 1 week 12 hours``. Out: seconds. Months and years
have no fixed length; Delta refuses them, too.

Source: DeltaConfigs.parseCalendarInterval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from wal2lake.lake.retention.tablelog import UnreadableLog

FILES: Final = "delta.deletedFileRetentionDuration"
LOG_FILES: Final = "delta.logRetentionDuration"
CLEANS_LOG: Final = "delta.enableExpiredLogCleanup"
CURSORS: Final = "delta.setTransactionRetentionDuration"

LOG_DEFAULT_SECONDS: Final = 30 * 86_400.0
"""How long Delta itself keeps the log of a table without the property."""

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


def stated_seconds(properties: Mapping[str, str], name: str) -> float | None:
    """Return a property in seconds; None if the table does not have it. UnreadableLog if it cannot
    be understood: what the table's owner wants is then not known."""
    text = properties.get(name)
    if text is None:
        return None
    rest = re.sub(r"^\s*interval\b", "", text.lower()).strip()
    seconds, at = 0.0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or part[2] not in _UNITS:
            raise UnreadableLog(
                f'property "{name}" has the value "{text}", which is no duration',
                sqlstate="22023",
                hint="Write it as in 'interval 7 days'.",
            )
        seconds += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return seconds
