"""A version of a local table as readers need it, the newest or an earlier one, without Delta.

In: a table's directory, the newest version and its files. Out: the state and the files of the
version asked for. Its checksum file says what the table was and, of a few files, which; of more
they are the newest version's, with the commits between undone. The checksum has their number and
size, so files that do not come out right (an ``add`` that only renews what is said of a file
cannot be undone) are noticed.

Called by ``tables``. Source: Delta transaction log protocol, "Add File and Remove File", "Version
Checksum File".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wal2lake.lake.delta.log.firstversion import FEATURES
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.log.version import Version, read_actions, read_version
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import DataFile

_MOST_COMMITS: Final = 200
"""That are undone: each is a small file to read. A snapshot that is further behind is Spark's."""

_READER: Final = 3
"""The last version of the protocol for readers, which names features."""

_MAPPING: Final = "delta.columnMapping.mode"

_DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a field that Delta says is a string."""

_CHAR: Final = re.compile(r"\bchar\(", re.IGNORECASE)


def is_plainly_read(version: Version) -> bool:
    """Whether its rows are those of its Parquet files, columns called by their physical names,
    less what deletion vectors say."""
    protocol = version.protocol
    return (
        int(protocol.get("minReaderVersion", 1)) <= _READER
        and FEATURES.issuperset(protocol.get("readerFeatures") or ())
        # By field ids, whatever the names in the files are.
        and version.state.properties.get(_MAPPING, "none") in ("none", "name")
        and not _is_padded(version.metadata)
    )


def _is_padded(metadata: Object) -> bool:
    """Spark makes CHAR as long as it is declared, also when it reads."""
    fields = json.loads(metadata["schemaString"])["fields"]
    declared = (str(one.get("metadata", {}).get(_DECLARED, "")) for one in fields)
    return any(_CHAR.search(text) for text in declared)


def earlier(
    root: Path, newest: TableState, files: Iterable[DataFile], number: int
) -> tuple[Version, Sequence[DataFile]] | None:
    """The version of that number and its files; None: its log does not say."""
    behind = newest.version - number
    if not 0 < behind <= _MOST_COMMITS:
        return None
    found = read_version(newest.location, root, number)
    if found is None or found.version.state.table_id != newest.table_id:
        return None
    if found.files is not None:
        return found.version, list(found.files.values())
    commits = (
        read_actions(root, number) for number in range(newest.version, number, -1)
    )
    undone = _undone(files, commits)
    if (
        undone is None
        or (len(undone), sum(file.size for file in undone)) != (found.count, found.size)
        or (
            found.version.state.partition_columns
            and any("partitionValues" not in file.action for file in undone)
        )
    ):
        return None
    return found.version, undone


def _undone(
    files: Iterable[DataFile], commits: Iterable[Sequence[Mapping[str, Any]]]
) -> list[DataFile] | None:
    """Files of before these commits, which come newest first; None: one is not there, or does
    not say enough."""
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
