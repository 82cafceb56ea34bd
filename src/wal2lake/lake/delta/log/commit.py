"""The next version of a plain table on this machine, written without Delta.

In: the newest version, its files, the changes. Out: the commit and its checksum on the disk, or
nothing if somebody has come first.

Why not Delta's own commit. It takes some two hundred calls over py4j and 60 CPU-milliseconds of
the JVM, whatever is in it: of many small tables with a few rows each it was nearly all that a
copy or a batch cost. What it adds to a plain table is known: it looks for conflicts, which are
none if the version that was read is the newest still and the next one's name can be taken; it
writes the checksum (``checksum``); it makes a checkpoint now and then (``checkpoints``).

The name is taken by link(2), which fails if it is there. Whoever else writes in this process is
kept out by ``tables.DeltaTables.writing``: Delta renames its commit into place, and a rename
would take the name a second time.

Called by ``tables``. Sources: Delta transaction log protocol, "Delta Log Entries" and
"Actions"; delta-spark 4.4 OptimisticTransaction.scala.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from wal2lake.lake.delta.datafile import storage_error
from wal2lake.lake.delta.durability import sync_directory
from wal2lake.lake.delta.log.checkpoints import INTERVAL
from wal2lake.lake.delta.log.checksum import checksum_line
from wal2lake.lake.delta.log.firstversion import is_plain
from wal2lake.lake.delta.log.place import dump, place
from wal2lake.lake.delta.log.version import Version, commit_file, stamp_of, state_of
from wal2lake.lake.port import Cursor
from wal2lake.lake.tablefiles import DataFile, Replaced

_PROTOCOL: Final = (3, 7)
"""Reader and writer of a table whose features are named."""

_PROPERTIES: Final = frozenset(
    {
        "delta.enableDeletionVectors",
        INTERVAL,
        "delta.logRetentionDuration",
        "delta.deletedFileRetentionDuration",
        "delta.columnMapping.mode",
        "delta.columnMapping.maxColumnId",
    }
)
"""Properties of Delta that have no effect on a commit."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""A file system that has no hard links: Delta's rename has to do."""

Change = Mapping[str, Mapping[str, Any]]
"""Delta's action as JSON: its name, and the object below it."""


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version that is there now."""

    version: Version | None
    """None: without a checksum, which the next reader derives."""
    files: dict[str, DataFile]


def is_ours_to_write(version: Version) -> bool:
    """Whether the next version of such a table is what is written here."""
    protocol, properties = version.protocol, version.state.properties
    found = (protocol.get("minReaderVersion"), protocol.get("minWriterVersion"))
    return (
        version.bins is not None
        and found == _PROTOCOL
        and is_plain(protocol)
        and version.state.is_plain
        and '"delta.invariants"' not in version.metadata["schemaString"]
        and all(name in _PROPERTIES for name in properties if name.startswith("delta."))
    )


def write_next(
    root: Path,
    version: Version,
    files: Mapping[str, DataFile],
    changes: Sequence[Change],
    cursor: Cursor,
    *,
    reads: bool,
    replaces: bool,
    operation: str,
    metadata: Mapping[str, Any] | None = None,
) -> WrittenVersion | None:
    """Commit on exactly ``version``, whose files are ``files``; None: it is not the newest any
    more, and nothing was written. ``reads``: the changes were made from what the table holds;
    ``replaces``: all of that goes. ``metadata``: the table's from now on, as ``after_metadata``
    allows. Durable at its return."""
    assert version.bins is not None
    now = int(time.time() * 1000)
    if replaces:
        gone = [
            Replaced(file, None).remove(now, data_change=True)
            for file in files.values()
        ]
        for one in gone:
            # As in Delta's own: they say what nobody asks of a whole table's end.
            one.pop("stats", None)
        changes = [*({"remove": one} for one in gone), *changes]
    token = {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}
    txn_id = str(uuid.uuid4())
    made = {
        "timestamp": now,
        "operation": "STREAMING UPDATE",
        "operationParameters": {
            "outputMode": "Complete" if replaces else "Append",
            "queryId": cursor.app_id,
            "epochId": str(cursor.version),
        },
        "readVersion": version.state.version,
        "isolationLevel": "Serializable",
        "isBlindAppend": not reads
        and metadata is None
        and all("add" in one for one in changes),
        "operationMetrics": {},
        "userMetadata": operation,
        "engineInfo": "wal2lake",
        "txnId": txn_id,
    }
    described = () if metadata is None else ({"metaData": metadata},)
    lines = map(dump, ({"commitInfo": made}, {"txn": token}, *described, *changes))
    number = version.state.version + 1
    commit = commit_file(root, number)
    try:
        stat = place(commit, "\n".join(lines), os.link, durable=True)
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno in _NO_LINKS:
            return None
        raise storage_error("write to file", commit, error) from error
    after = files_after({} if replaces else files, changes)
    transactions = (
        *(one for one in version.transactions if one["appId"] != cursor.app_id),
        token,
    )
    bins = version.bins
    if metadata is not None:
        version = after_metadata(version, metadata)
    summed = checksum_line(
        version.metadata,
        version.protocol,
        txn_id,
        transactions=transactions,
        domains=version.domains,
        files=list(after.values()),
        bins=bins,
    )
    found: Version | None = None
    # The version is there, whatever becomes of this; what another one of the number left goes.
    with suppress(OSError):
        commit.with_suffix(".crc").unlink(missing_ok=True)
        place(commit.with_suffix(".crc"), summed, os.replace, durable=True)
        state = version.state
        found = replace(
            version,
            state=replace(
                state,
                version=number,
                cursors={**state.cursors, cursor.app_id: cursor.version},
            ),
            transactions=transactions,
            stamp=stamp_of(stat),
        )
    sync_directory(commit.parent)
    return WrittenVersion(found, after)


def after_metadata(version: Version, metadata: Mapping[str, Any]) -> Version:
    """The version as it would be with other metadata."""
    state = version.state
    described = state_of(
        state.location, metadata, state.version, state.cursors, version.domains
    )
    return replace(version, metadata=metadata, state=described)


def files_after(
    files: Mapping[str, DataFile], changes: Sequence[Change]
) -> dict[str, DataFile]:
    """The files of the next version."""
    found = dict(files)
    for change in changes:
        if "remove" in change:
            found.pop(str(change["remove"]["path"]), None)
    for change in changes:
        if "add" in change:
            file = DataFile(change["add"])
            found[file.key] = file
    return found
