"""Removes what a table's log no longer needs, as Delta does when it writes a checkpoint.

In: the store of a table's directory, the version that a new checkpoint has. Out: a shorter log.
Entries below the newest checkpoint that is older than ``delta.logRetentionDuration`` and can be
read go, from the lowest version up, so that a crash leaves no gap; then sidecars that no checkpoint
names.

Nothing goes if ``delta.enableExpiredLogCleanup`` is false, if the duration cannot be understood,
or if the table protects its checkpoints. ``local.retention`` removes entries earlier, by what
readers need.

Called by ``spark.delta.deltatables``. Source: Delta transaction log protocol, "Metadata Cleanup";
delta-spark 4.4 MetadataCleanup.scala.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
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
    Checkpoint,
    Wanted,
    complete_checkpoints,
    read_checkpoint,
    sidecars_of,
)
from wal2lake.lake.delta.versions.checkpoints import write_classic
from wal2lake.lake.store import Entry, LocalStore, Store

_DAY: Final = 86_400.0

_NUMBERED: Final = re.compile(r"([0-9]{20})\.(?:json|crc|checkpoint\..*)")
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_COMPACTED: Final = re.compile(r"([0-9]{20})\.[0-9]{20}\.compacted\.json")

_PROBED: Final[Wanted] = {
    "protocol": None,
    "metaData": frozenset({"id"}),
    "add": frozenset({"path"}),
    "remove": frozenset({"path"}),
}
"""Parts of a checkpoint that are read to see whether it is whole: each row of each file."""


def clean_up(store: Store, version: Version, now: float | None = None) -> int:
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
    commits = [name for name in names if _COMMIT.fullmatch(name)]
    expired = sorted(_expired(store, names, _newest_by(store, commits, cutoff)))
    if expired and properties.get(POLICY) == "v2":
        # Readers that do not know v2 find a protocol here that they refuse.
        write_classic(version.state.location, store, version.state.version)
    for start in range(0, len(expired), store.most_at_once):
        part = expired[start : start + store.most_at_once]
        if isinstance(store, LocalStore):
            store.delete_all([f"{LOG}/.{name}.crc" for name in part])
        store.delete_all([f"{LOG}/{name}" for name in part])
    if expired:
        store.settle(LOG)
    return len(expired) + _clean_sidecars(store)


def _newest_by(store: Store, commits: Sequence[str], cutoff: float) -> int:
    """Return the newest version that was committed by the cutoff; -1 if there is none. Readers may
    ask for it as of that moment, and for every later one."""
    newest = -1
    # A directory is asked file by file, since the first look is mostly the last one.
    for start in range(0, len(commits), store.most_at_once):
        part = commits[start : start + store.most_at_once]
        entries = store.entries([f"{LOG}/{name}" for name in part])
        for name in part:
            entry = entries.get(f"{LOG}/{name}")
            if entry is None:
                # Somebody else has removed it.
                continue
            if entry.written > cutoff:
                # Later ones are no older, whatever a copy of the files has made of their times.
                return newest
            newest = int(name.partition(".")[0])
    return newest


def _expired(store: Store, names: Sequence[str], needed: int) -> Iterator[str]:
    """Yield what is below the newest checkpoint from which version ``needed`` can be read."""
    for checkpoint in complete_checkpoints(names):
        base = checkpoint.version
        if base > needed:
            continue
        expired = [name for name in names if _is_below(name, base)]
        # The only way to all later versions: it is read before what would replace it goes.
        if not expired or _is_whole(store, checkpoint):
            yield from expired
            return


def _is_below(name: str, base: int) -> bool:
    compacted = _COMPACTED.fullmatch(name)
    if compacted is not None:
        return int(compacted[1]) <= base
    numbered = _NUMBERED.fullmatch(name)
    return numbered is not None and int(numbered[1]) < base


def _is_whole(store: Store, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint and its sidecars can be read."""
    kinds: set[str] = set()
    try:
        for action in read_checkpoint(store, checkpoint, _PROBED):
            kinds.update(action)
    except (StorageError, OSError, ValueError, KeyError, pa.ArrowException):
        return False
    return kinds >= {"protocol", "metaData"}


def _clean_sidecars(store: Store) -> int:
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
    unneeded = [key for key in present if key not in needed]
    entries: Mapping[str, Entry] = store.entries(unneeded)
    gone = [key for key, entry in entries.items() if entry.written < young]
    if gone:
        store.delete_all(gone)
        store.settle(SIDECARS)
    return len(gone)
