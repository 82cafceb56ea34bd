"""Reads a version of a table from its log, without Delta.

In: a table's store. Out: a ``Version``: its state, and the parts from which the next
version's commit and checksum are made. It is read from the commit's checksum file, in which Delta
and ``commit`` keep all of that. If there is none (a foreign writer's commit, a torn file), the
result is None and the caller replays the log (``versions.replay``).

A version that was read stays the newest as long as its commit is the same file and the next
commit does not exist: two looks at the store.

Called by ``versions``. Sources: Delta transaction log protocol, "Delta Log Entries" (versions are
contiguous), "Version Checksum File".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import StorageError
from wal2lake.lake.delta.durability import actions_of
from wal2lake.lake.delta.fields import read_field
from wal2lake.lake.delta.log.checksum import CURSORS_END, Totals
from wal2lake.lake.delta.log.clustering import clustering_columns
from wal2lake.lake.delta.log.place import LOG, Object, checksum_key, commit_key
from wal2lake.lake.delta.protocol.features import writer_features
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
    totals: Totals
    """Numbers of its files."""
    stamp: Stamp
    """Stamp of the version's commit."""
    committed_ms: int | None = None
    """The commit's own time (``inCommitTimestamp``); None if it has none."""

    @property
    def size(self) -> TableSize:
        """The size of the version."""
        return TableSize(
            self.state.version,
            self.totals.files,
            self.totals.size,
            self.totals.vectors,
        )


def is_newest(store: Store, version: Version) -> bool:
    """Whether the version is still the newest in the store."""
    number = version.state.version
    if store.stamp(commit_key(number)) != version.stamp:
        return False
    return store.stamp(commit_key(number + 1)) is None


def read_newest(
    location: str, store: Store
) -> tuple[Version, dict[str, DataFile] | None] | None:
    """Read the newest version, and its files if they are listed; None: no checksum tells."""
    number = newest_number(store)
    if number is None:
        return None
    summed = read_version(location, store, number)
    return None if summed is None else (summed.version, summed.files)


def newest_number(store: Store) -> int | None:
    """Return the number of the newest commit; None if there is no log."""
    names = filter(_is_commit, store.list_after(LOG))
    return max((int(name[:20]) for name in names), default=None)


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
        version = _version(
            location, number, summed, stamp, info.get("inCommitTimestamp")
        )
        if version is None:
            return None
        count, size = int(summed["numFiles"]), int(summed["tableSizeBytes"])
        listed = summed.get("allFiles", [] if count == 0 else None)
        files = None
        if listed is not None:
            files = {file.key: file for file in map(_file, listed)}
    except (StorageError, ValueError, KeyError, TypeError):
        # Also a checksum that this user may not read: the log is replayed.
        return None
    if files is not None and len(files) != count:
        files = None
    return Summed(version, files, count, size)


def _file(listed: Object) -> DataFile:
    """Return a file as the log has it, without nulls."""
    return DataFile(
        {name: value for name, value in listed.items() if value is not None}
    )


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
    location: str,
    number: int,
    summed: Mapping[str, Any],
    stamp: Stamp,
    committed_ms: int | None,
) -> Version | None:
    """Return the version; None if the checksum lacks something."""
    metadata, protocol = summed["metadata"], summed["protocol"]
    if CURSORS_END in metadata["configuration"] and "setTransactions" not in summed:
        return None
    transactions = tuple(summed["setTransactions"])
    cursors = {str(token["appId"]): int(token["version"]) for token in transactions}
    if "domainMetadata" in writer_features(protocol):
        listed = summed["domainMetadata"]
    else:
        listed = summed.get("domainMetadata") or ()
    domains = tuple(domain for domain in listed if not domain["removed"])
    totals = Totals.read(summed, protocol)
    if totals is None:
        return None
    return Version(
        state_of(location, metadata, number, cursors, domains),
        metadata,
        protocol,
        transactions,
        domains,
        totals,
        stamp,
        committed_ms,
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
