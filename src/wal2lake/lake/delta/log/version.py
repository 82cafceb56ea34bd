"""Reads a version of a table from its log, without Delta.

In: a table's store. Out: a ``Version``: its state, and the parts from which the next
version's commit and checksum are made. It is read from the commit's checksum file, in which Delta
and ``commit`` keep all of that. If there is none (a foreign writer's commit, a torn file), the
result is None and the caller asks Delta.

A version that was read stays the newest as long as its commit is the same file and the next
commit does not exist: two looks at the store.

Called by ``spark.delta.deltatables``. Sources: Delta transaction log protocol, "Delta Log Entries"
(versions are contiguous), "Version Checksum File".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import StorageError
from wal2lake.lake.delta.durability import actions_of
from wal2lake.lake.delta.fields import read_field
from wal2lake.lake.delta.log.checksum import Bins
from wal2lake.lake.delta.log.clustering import clustering_columns, is_only_domain
from wal2lake.lake.delta.log.place import LOG, Object, checksum_key, commit_key
from wal2lake.lake.port import PhysicalField, TableSize, TableState
from wal2lake.lake.store import MissingFileError, Stamp, Store
from wal2lake.lake.tablefiles import DataFile

_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
_FIELD_ID: Final = "delta.columnMapping.id"

_LINE_BYTES: Final = 16 * 1024
"""Bytes in which the first line of a commit, without files, usually ends."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table."""

    state: TableState
    metadata: Object
    protocol: Object
    transactions: tuple[Object, ...]
    """``txn`` actions in force."""
    domains: tuple[Object, ...]
    """``domainMetadata`` actions in force."""
    bins: Bins | None
    """None if its checksum lacks something that ``checksum_line`` would write."""
    stamp: Stamp
    """Stamp of the version's commit."""
    size: TableSize | None = None
    """Size from the checksum; None: this process wrote the version, and has its files."""


def is_newest(store: Store, version: Version) -> bool:
    """Whether the version is still the newest in the store."""
    number = version.state.version
    if store.stamp(commit_key(number)) != version.stamp:
        return False
    return store.stamp(commit_key(number + 1)) is None


def read_newest(
    location: str, store: Store
) -> tuple[Version, dict[str, DataFile] | None] | None:
    """Read the newest version, and its files if they are listed; None: ask Delta."""
    numbers = [int(name[:20]) for name in store.list_after(LOG) if _is_commit(name)]
    if not numbers:
        return None
    summed = read_version(location, store, max(numbers))
    return None if summed is None else (summed.version, summed.files)


@dataclass(frozen=True, slots=True)
class Summed:
    """A version as its checksum file describes it."""

    version: Version
    files: dict[str, DataFile] | None
    """Files by their keys; None if the checksum does not list them."""
    count: int
    """Number of the version's files."""
    size: int
    """Bytes of all files together."""


def read_version(location: str, store: Store, number: int) -> Summed | None:
    """Read any version; None if it or its checksum is missing, or the checksum is not whole."""
    stamp = store.stamp(commit_key(number))
    if stamp is None:
        return None
    try:
        summed = json.loads(store.read(checksum_key(number)))
        info = json.loads(_first_line(store, commit_key(number)))["commitInfo"]
        if info["txnId"] != summed["txnId"]:
            # The checksum belongs to an undone commit of the same version.
            return None
        version = _version(location, number, summed, stamp)
        count, size = int(summed["numFiles"]), int(summed["tableSizeBytes"])
        listed = summed.get("allFiles", [] if count == 0 else None)
        files = None
        if listed is not None:
            files = {file.key: file for file in map(DataFile, listed)}
    except (StorageError, ValueError, KeyError, TypeError):
        # Also a checksum that this user may not read: Delta derives it anew.
        return None
    if files is not None and len(files) != count:
        files = None
    return Summed(version, files, count, size)


def _first_line(store: Store, key: str) -> bytes:
    """Return the first line of a file, whose other lines may be megabytes."""
    line, newline, _ = store.read_range(key, 0, _LINE_BYTES).partition(b"\n")
    return line if newline else store.read(key).partition(b"\n")[0]


def read_actions(store: Store, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit; empty if the log does not have it."""
    try:
        content = store.read(commit_key(version))
    except MissingFileError:
        return []
    return actions_of(content.decode())


def _is_commit(name: str) -> bool:
    return len(name) == 25 and name.endswith(".json") and name[:20].isdecimal()


def _version(
    location: str, number: int, summed: Mapping[str, Any], stamp: Stamp
) -> Version:
    transactions = tuple(summed["setTransactions"])
    cursors = {str(token["appId"]): int(token["version"]) for token in transactions}
    domains, bins = summed.get("domainMetadata"), None
    if (
        is_only_domain(domains)
        and "fileSizeHistogram" in summed
        and "deletedRecordCountsHistogramOpt" in summed
    ):
        deleted = summed["deletedRecordCountsHistogramOpt"]["deletedRecordCounts"]
        bounds = summed["fileSizeHistogram"]["sortedBinBoundaries"]
        bins = Bins(tuple(bounds), len(deleted))
    metadata, in_force = summed["metadata"], tuple(domains or ())
    return Version(
        state_of(location, metadata, number, cursors, in_force),
        metadata,
        summed["protocol"],
        transactions,
        in_force,
        bins,
        stamp,
        TableSize(
            number,
            int(summed["numFiles"]),
            int(summed["tableSizeBytes"]),
            summed.get("numDeletionVectorsOpt"),
        ),
    )


def state_of(
    location: str,
    metadata: Object,
    version: int,
    cursors: Mapping[str, int],
    domains: Sequence[Object] = (),
) -> TableState:
    """Build a version's state from its ``metaData`` action and the ``domainMetadata`` in
    force."""
    schema = json.loads(metadata["schemaString"])["fields"]
    properties = metadata["configuration"]
    fields = tuple(map(read_field, schema))
    return TableState(
        location=location,
        table_id=metadata["id"],
        version=version,
        cursors=cursors,
        fields=fields,
        physical_fields=tuple(
            PhysicalField(
                spec.name,
                own.get(_PHYSICAL_NAME, spec.name),
                own.get(_FIELD_ID),
                spec.spark_ddl,
                spec.name in metadata["partitionColumns"],
            )
            for own, spec in zip(
                (field.get("metadata") or {} for field in schema), fields, strict=True
            )
        ),
        column_mapping=properties.get("delta.columnMapping.mode", "none") != "none",
        properties=properties,
        partition_columns=tuple(metadata["partitionColumns"]),
        clustering=clustering_columns(domains, metadata),
    )
