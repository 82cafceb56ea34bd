"""Files that no version of a table needs.

Takes: the store of a table, the oldest version that must stay readable, names
that are noted elsewhere. Gives: the files that may be removed, and removes them. Never: decides how
long a version is kept, or asks Spark.

    tablelog    the files that the log's versions need
    directory   the files in the store
    plan        the files to remove (pure)
    removal     removes them, in order
    duration    durations in the table's properties (pure)
    ages        a clock for the age of files, which a jump of the machine's does not age
"""

from wal2lake.lake.retention.ages import AgeClock
from wal2lake.lake.retention.directory import FileKind, StoredFile, list_files
from wal2lake.lake.retention.duration import (
    CLEANS_LOG,
    CURSORS,
    FILES,
    LOG_DEFAULT_SECONDS,
    LOG_FILES,
    stated_seconds,
)
from wal2lake.lake.retention.plan import Removal, choose, choose_log
from wal2lake.lake.retention.removal import Removed, remove
from wal2lake.lake.retention.tablelog import (
    LIVE,
    History,
    TableLog,
    UnreadableLog,
    are_present,
    has_cursors,
    name_below,
    read_history,
    read_log,
    vector_below,
)

__all__ = [
    "CLEANS_LOG",
    "CURSORS",
    "FILES",
    "LIVE",
    "LOG_DEFAULT_SECONDS",
    "LOG_FILES",
    "AgeClock",
    "FileKind",
    "History",
    "Removal",
    "Removed",
    "StoredFile",
    "TableLog",
    "UnreadableLog",
    "are_present",
    "choose",
    "choose_log",
    "has_cursors",
    "list_files",
    "name_below",
    "read_history",
    "read_log",
    "remove",
    "stated_seconds",
    "vector_below",
]
