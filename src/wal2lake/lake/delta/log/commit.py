"""Writes the next version of a plain table without Delta.

In: a table's store, the newest version, its files, the changes. Out: the commit and its checksum,
or nothing if another writer has committed first.

Why not Delta's own commit. It takes some two hundred calls over py4j and 60 CPU-milliseconds of
the JVM, whatever the commit holds. For many small tables with a few rows each that was nearly the
whole cost of a copy or a batch. Delta adds three things for a plain table. It looks for
conflicts; there are none if the version that was read is still the newest and the next version's
name is free. It writes the checksum (``checksum``). It writes a checkpoint now and then
(``checkpoints``).

The name is taken by the store's ``put_if_absent``, on a file system link(2).
``tables.DeltaTables.writing`` keeps out other writers of this process: Delta renames its commit
into place, and a rename would replace an existing commit.

Called by ``spark.delta.deltatables``. Sources: Delta transaction log protocol, "Delta Log Entries"
and "Actions"; delta-spark 4.4 OptimisticTransaction.scala.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from wal2lake.errors import StorageError
from wal2lake.lake.delta.log.checkpoints import INTERVAL
from wal2lake.lake.delta.log.checksum import checksum_line
from wal2lake.lake.delta.log.firstversion import is_plain
from wal2lake.lake.delta.log.place import (
    LOG,
    checksum_key,
    commit_key,
    content_of,
    dump,
)
from wal2lake.lake.delta.log.version import Version, state_of
from wal2lake.lake.port import Cursor
from wal2lake.lake.store import NoPutIfAbsent, Store
from wal2lake.lake.tablefiles import DataFile, Replaced

_PROTOCOL: Final = (3, 7)
"""Reader and writer versions of a protocol that names its features."""

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
"""Delta's properties that have no effect on a commit."""

Change = Mapping[str, Mapping[str, Any]]
"""A Delta action as JSON: its name, and the object below it."""


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """A version that has just been committed."""

    version: Version | None
    """None if its checksum could not be written; the next reader then derives it."""
    files: dict[str, DataFile]


def is_ours_to_write(version: Version) -> bool:
    """Whether ``write_next`` can write the next version of such a table."""
    protocol, properties = version.protocol, version.state.properties
    versions = (protocol.get("minReaderVersion"), protocol.get("minWriterVersion"))
    return (
        version.bins is not None
        and versions == _PROTOCOL
        and is_plain(protocol)
        and version.state.is_plain
        and '"delta.invariants"' not in version.metadata["schemaString"]
        and all(name in _PROPERTIES for name in properties if name.startswith("delta."))
    )


def write_next(
    store: Store,
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
    """Commit on exactly ``version``, whose files are ``files``.

    None: it is no longer the newest version, or the file system has no hard links, where Delta's
    rename must do; nothing was written. ``reads``: the changes were made from the table's
    contents. ``replaces``: all rows of the table are removed. ``metadata``: the table's new
    metadata, as ``after_metadata`` allows. The version is durable on return.
    """
    assert version.bins is not None
    now = int(time.time() * 1000)
    if replaces:
        gone = [
            Replaced(file, None).remove(now, data_change=True)
            for file in files.values()
        ]
        for action in gone:
            # Delta leaves them out, too: no reader needs statistics of a whole table's removal.
            action.pop("stats", None)
        changes = [*({"remove": action} for action in gone), *changes]
    token = {"appId": cursor.app_id, "version": cursor.version, "lastUpdated": now}
    txn_id = str(uuid.uuid4())
    info = {
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
        and all("add" in action for action in changes),
        "operationMetrics": {},
        "userMetadata": operation,
        "engineInfo": "wal2lake",
        "txnId": txn_id,
    }
    described = () if metadata is None else ({"metaData": metadata},)
    lines = map(dump, ({"commitInfo": info}, {"txn": token}, *described, *changes))
    number = version.state.version + 1
    try:
        stamp = store.put_if_absent(commit_key(number), content_of(lines))
    except NoPutIfAbsent:
        return None
    if stamp is None:
        return None
    after = files_after({} if replaces else files, changes)
    transactions = (
        *(
            action
            for action in version.transactions
            if action["appId"] != cursor.app_id
        ),
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
    successor: Version | None = None
    # The version is committed even if its checksum fails. Remove first what an undone commit
    # of the same number left.
    with suppress(StorageError):
        store.delete(checksum_key(number))
        store.put(checksum_key(number), content_of([summed]))
        state = version.state
        successor = replace(
            version,
            state=replace(
                state,
                version=number,
                cursors={**state.cursors, cursor.app_id: cursor.version},
            ),
            transactions=transactions,
            stamp=stamp,
            size=None,
        )
    store.settle(LOG)
    return WrittenVersion(successor, after)


def after_metadata(version: Version, metadata: Mapping[str, Any]) -> Version:
    """Return the version as it would be with other metadata."""
    state = version.state
    described = state_of(
        state.location, metadata, state.version, state.cursors, version.domains
    )
    return replace(version, metadata=metadata, state=described)


def files_after(
    files: Mapping[str, DataFile], changes: Sequence[Change]
) -> dict[str, DataFile]:
    """Return the files of the next version."""
    live_files = dict(files)
    for change in changes:
        if "remove" in change:
            live_files.pop(str(change["remove"]["path"]), None)
    for change in changes:
        if "add" in change:
            file = DataFile(change["add"])
            live_files[file.key] = file
    return live_files
