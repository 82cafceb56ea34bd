"""Which versions of a table have a checkpoint.

No commit needs it: it saves a reader the commits below it. So it is made ``beside``, and one that
is not made is made at the next version that has one.
"""

from __future__ import annotations

from typing import Final

from wal2lake.lake.delta.log.version import Version

INTERVAL: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = 10


def is_due(version: Version) -> bool:
    """Whether a version is one of those that have a checkpoint."""
    state = version.state
    interval = int(state.properties.get(INTERVAL, _DEFAULT_INTERVAL))
    return state.version % interval == 0
