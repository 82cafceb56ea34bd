"""Files of a table that a backup leaves out: those that VACUUM would remove, and will.

An orphan is a file that no version in the log has, that is noted nowhere, and that is older than
half of ``lake.orphan_age_ms``. Size is not the reason to leave orphans out: a link counts as a
change of its file, so links of a daily backup would keep orphans young, and VACUUM would never
remove them. Called by ``moment``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from wal2lake.catalog import Catalog
from wal2lake.lake.retention import (
    UnreadableLog,
    choose,
    list_files,
    read_history,
    read_log,
)
from wal2lake.lake.store import LocalStore
from wal2lake.model import SyncState
from wal2lake.settings import Settings


def left_over(
    catalog: Catalog, settings: Settings, warehouse: Path, place: str
) -> frozenset[str]:
    """Return the names of the files below the table that are left out."""
    root = warehouse / place
    store = LocalStore(root)
    if str(root) in set(_noted(catalog)):
        # Another writer may need files by name.
        return frozenset()
    too_young = time.time() - settings.lake.orphan_age_ms / 2000
    try:
        log = read_log(store)
        history = read_history(log, log.first)
    except UnreadableLog:
        # It does not tell which files are needed.
        return frozenset()
    columns = frozenset(history.metadata.get("partitionColumns") or ())
    present = list_files(store, columns)
    return frozenset(f.name for f in choose(history, present, (), too_young).files)


def _noted(catalog: Catalog) -> Iterator[str]:
    """Yield the locations of tables of which the catalog names files, or may soon."""
    for local in catalog.local_commits():
        yield from (change.location for change in local.tables)
    for prepared in catalog.prepared_commits():
        yield from (change.location for change in prepared.tables)
    copied = {
        rel.relid
        for rel in catalog.rels()
        if rel.state in (SyncState.INIT, SyncState.DATASYNC)
        or catalog.ranges(rel.subid, rel.relid)
    }
    copied |= {h for h, feed in catalog.histories().items() if feed.relid in copied}
    for table in catalog.tables():
        if table.oid in copied or catalog.files_of_history(table.oid):
            yield table.location
