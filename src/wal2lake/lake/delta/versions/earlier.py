"""Reads the newest or an earlier version of a table without Delta.

In: a table's store, the newest version and its files. Out: the state and the files of the
requested version. Its checksum file holds its metadata and, if there are few files, their list.
Otherwise the files are those of the newest version with the commits in between undone. The
checksum has their number and total size, so a wrong result is noticed (an ``add`` that only
renews what the log holds about a file cannot be undone).

Called by ``spark.delta.deltatables``. Source: Delta transaction log protocol, "Add File and Remove
File", "Version Checksum File".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.log.version import Version, read_actions, read_version
from wal2lake.lake.delta.protocol.features import NAMING_READER, reader_features
from wal2lake.lake.port import TableState
from wal2lake.lake.store import Store
from wal2lake.lake.tablefiles import DataFile

_MOST_COMMITS: Final = 200
"""Most commits that are undone, since each is a small file to read. Spark reads snapshots that
are further behind."""

_READ: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)
"""Features under which rows are what the Parquet files and the deletion vectors hold."""

_MAPPING: Final = "delta.columnMapping.mode"

_DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in the metadata of a field that Delta declares as a string."""

_CHAR: Final = re.compile(r"\bchar\(", re.IGNORECASE)


def is_plainly_read(version: Version) -> bool:
    """Whether a reader needs only the Parquet files and the deletion vectors: columns have their
    physical names, and no value is padded."""
    protocol = version.protocol
    return (
        int(protocol["minReaderVersion"]) <= NAMING_READER
        and reader_features(protocol) <= _READ
        # Mapping by id ignores the names in the files.
        and version.state.properties.get(_MAPPING, "none") in ("none", "name")
        and not _is_padded(version.metadata)
    )


def _is_padded(metadata: Object) -> bool:
    """Whether the table has a CHAR column, which Spark pads to its declared length, also on
    reading."""
    fields = json.loads(metadata["schemaString"])["fields"]
    declared = (str(field.get("metadata", {}).get(_DECLARED, "")) for field in fields)
    return any(_CHAR.search(text) for text in declared)


def earlier(
    store: Store, newest: TableState, files: Iterable[DataFile], number: int
) -> tuple[Version, Sequence[DataFile]] | None:
    """Return the version of that number and its files; None if the log does not tell."""
    behind = newest.version - number
    if not 0 < behind <= _MOST_COMMITS:
        return None
    summed = read_version(newest.location, store, number)
    if summed is None or summed.version.state.table_id != newest.table_id:
        return None
    if summed.files is not None:
        return summed.version, list(summed.files.values())
    commits = (
        read_actions(store, number) for number in range(newest.version, number, -1)
    )
    undone = _undo(files, commits)
    if (
        undone is None
        or (len(undone), sum(file.size for file in undone))
        != (summed.count, summed.size)
        or (
            summed.version.state.partition_columns
            and any("partitionValues" not in file.action for file in undone)
        )
    ):
        return None
    return summed.version, undone


def _undo(
    files: Iterable[DataFile], commits: Iterable[Sequence[Mapping[str, Any]]]
) -> list[DataFile] | None:
    """Return the files before these commits, which come newest first; None if a commit is
    missing, or an action lacks something."""
    live = {file.key: file for file in files}
    for commit in commits:
        if not commit:
            return None
        removed: list[Object] = []
        for action in commit:
            if "add" in action:
                live.pop(action["add"]["path"], None)
            elif "remove" in action:
                removed.append(action["remove"])
        for remove in removed:
            if "size" not in remove:
                return None
            live[remove["path"]] = DataFile(remove)
    return list(live.values())
