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
    checkpoint."""
    return version % int(properties.get(INTERVAL, _DEFAULT_INTERVAL)) == 0
