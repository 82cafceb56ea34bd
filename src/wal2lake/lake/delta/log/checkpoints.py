"""Decides which versions of a table get a checkpoint.

No commit needs a checkpoint: it saves readers the commits below it. So checkpoints are written
``background``, and a checkpoint that failed is written at the next version that is due.
"""

from __future__ import annotations

from typing import Final

from wal2lake.lake.delta.log.version import Version

INTERVAL: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = 10


def is_due(version: Version) -> bool:
    """Whether the version is one of those that get a checkpoint."""
    state = version.state
    interval = int(state.properties.get(INTERVAL, _DEFAULT_INTERVAL))
    return state.version % interval == 0
