"""Removes what a table's log no longer needs, as Delta does when it writes a checkpoint.

In: the store of a table's directory, the version that a new checkpoint has. Out: a shorter log.
Entries below the newest checkpoint that is older than ``delta.logRetentionDuration`` go, from the
lowest version up, so that a crash leaves no gap; then sidecars that no checkpoint names.

Nothing goes if ``delta.enableExpiredLogCleanup`` is false, if the duration cannot be understood,
or if the table protects its checkpoints. ``local.retention`` removes entries earlier, by what
readers need.

Called by ``spark.delta.deltatables``. Source: Delta transaction log protocol, "Metadata Cleanup";
delta-spark 4.4 MetadataCleanup.scala.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from wal2lake.errors import StorageError
from wal2lake.lake.delta.log.checkpoints import POLICY
from wal2lake.lake.delta.log.place import LOG
from wal2lake.lake.delta.log.version import Version
from wal2lake.lake.delta.protocol.durations import (
    CLEANS_LOG,
    LOG_DEFAULT_SECONDS,
    LOG_FILES,
    seconds_or,
)
from wal2lake.lake.delta.protocol.features import writer_features
from wal2lake.lake.delta.versions.checkpointfiles import (
    SIDECARS,
    complete_checkpoints,
    sidecars_of,
)
from wal2lake.lake.delta.versions.checkpoints import write_classic
from wal2lake.lake.store import LocalStore

_DAY: Final = 86_400.0

_NUMBERED: Final = re.compile(r"([0-9]{20})\.(?:json|crc|checkpoint\..*)")
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")


def clean_up(store: LocalStore, version: Version, now: float | None = None) -> int:
    """Remove expired entries of the log of a table that has just got a checkpoint of ``version``;
    return their number. ``now``: seconds since 1970. StorageError or OSError if that fails; the
    log is whole."""
    properties = version.state.properties
    kept = seconds_or(properties, LOG_FILES, LOG_DEFAULT_SECONDS)
    if (
        kept is None
        or properties.get(CLEANS_LOG, "true").lower() != "true"
        or "checkpointProtection" in writer_features(version.protocol)
    ):
        return 0
    # To the day, as Delta: otherwise each checkpoint would remove a few entries.
    cutoff = ((time.time() if now is None else now) - kept) // _DAY * _DAY
    names = store.list_after(LOG)
    old = [
        int(found[1])
        for found in map(_COMMIT.fullmatch, names)
        if found is not None and _written(store, f"{LOG}/{found[0]}") <= cutoff
    ]
    needed = max(old, default=-1)
    bases = [c.version for c in complete_checkpoints(names) if c.version <= needed]
    expired = sorted(_below(names, max(bases, default=0)))
    if expired and properties.get(POLICY) == "v2":
        # Readers that do not know v2 find a protocol here that they refuse.
        write_classic(version.state.location, store, version.state.version)
    for name in expired:
        store.delete(f"{LOG}/.{name}.crc")
        store.delete(f"{LOG}/{name}")
    if expired:
        store.settle(LOG)
    return len(expired) + _clean_sidecars(store)


def _below(names: list[str], version: int) -> Iterator[str]:
    for found in map(_NUMBERED.fullmatch, names):
        if found is not None and int(found[1]) < version:
            yield found[0]


def _clean_sidecars(store: LocalStore) -> int:
    """Remove sidecars that no checkpoint names. Younger ones may be of a checkpoint that is being
    written."""
    present = [f"{SIDECARS}/{name}" for name in store.list_after(SIDECARS)]
    if not present:
        return 0
    try:
        needed = {
            key
            for checkpoint in complete_checkpoints(store.list_after(LOG))
            for key in sidecars_of(store, checkpoint)
        }
    except (StorageError, ValueError, KeyError, pa.ArrowException):
        # A checkpoint that cannot be read does not say what it needs.
        return 0
    young = time.time() - _DAY
    gone = 0
    for key in present:
        if key not in needed and _written(store, key) < young:
            store.delete(key)
            gone += 1
    if gone:
        store.settle(SIDECARS)
    return gone


def _written(store: LocalStore, key: str) -> float:
    return (store.root / key).stat().st_mtime
