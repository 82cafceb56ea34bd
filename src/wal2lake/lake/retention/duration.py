"""Reads the durations of a table's properties that retention keeps to. Pure.

In: a table's properties. Out: seconds, or an error that leaves the table alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal2lake.lake.delta.protocol.durations import (
    CLEANS_LOG,
    CURSORS,
    FILES,
    LOG_DEFAULT_SECONDS,
    LOG_FILES,
    seconds_of,
)
from wal2lake.lake.retention.tablelog import UnreadableLog

__all__ = [
    "CLEANS_LOG",
    "CURSORS",
    "FILES",
    "LOG_DEFAULT_SECONDS",
    "LOG_FILES",
    "stated_seconds",
]


def stated_seconds(properties: Mapping[str, str], name: str) -> float | None:
    """Return a property in seconds; None if the table does not have it. UnreadableLog if it cannot
    be understood: what the table's owner wants is then not known."""
    text = properties.get(name)
    if text is None:
        return None
    seconds = seconds_of(text)
    if seconds is None:
        raise UnreadableLog(
            f'property "{name}" has the value "{text}", which is no duration',
            sqlstate="22023",
            hint="Write it as in 'interval 7 days'.",
        )
    return seconds
