"""Files of the node's Iceberg catalog, which the engine writes and the web process reads.

Takes: moments at which all mirrors agree, and the mirrors' metadata. Gives: both, to a process that
reaches no store. Owns: ``run/iceberg``. Never: reads a mirror.

    moments   which moments there are
    shown     metadata of one table, and how it looks at a moment
"""

from wal2lake.catalog.mirrored.moments import (
    MirrorMoment,
    MomentReader,
    MomentWriter,
)
from wal2lake.catalog.mirrored.shown import (
    ShownTable,
    ShownTables,
)

__all__ = [
    "MirrorMoment",
    "MomentReader",
    "MomentWriter",
    "ShownTable",
    "ShownTables",
]
