"""Decides which versions of a table get a checkpoint.

No commit needs a checkpoint: it saves readers the commits below it. So checkpoints are written
``background``, and a checkpoint that failed is written at the next version that is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

INTERVAL: Final = "delta.checkpointInterval"
POLICY: Final = "delta.checkpointPolicy"
_DEFAULT_INTERVAL: Final = 10


def is_due(version: int, properties: Mapping[str, str]) -> bool:
    """Whether the version of a table with these properties is one of those that get a
    checkpoint. An interval that is no whole number above 0, as another writer may set it, counts
    as Delta's default: the version has been committed."""
    stated = properties.get(INTERVAL, "")
    interval = int(stated) if stated.isdecimal() else 0
    return version % (interval or _DEFAULT_INTERVAL) == 0
