"""Describes the data files of a table version for this node's writers.

Comes in: ``add`` actions of Delta's log, as JSON objects. Goes out: the same with the facts by
which files are chosen for a batch of keys, and the actions that replace a file: with a larger
deletion vector, or without rows. Pure.

Sources: Delta transaction log protocol, "Add File and Remove File", "Per-file Statistics".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, unquote

Descriptor = Mapping[str, Any]
"""The ``deletionVector`` object of an add action."""

_PATH_SAFE: Final = "/!$&'()*+,;=@-._~"

_OBJECT_STORES: Final = ("s3://", "gs://", "abfss://")
"""Beginnings of URLs that ``store`` knows, beside ``file:``."""

_TIGHT: Final = re.compile(r'"tightBounds"\s*:\s*true')


_LIQUID: Final = "liquid"
"""Name of Delta's own clustering; OPTIMIZE continues with files that have it."""

_CUBE: Final = "ZCUBE_ID"
_CUBE_COLUMNS: Final = "ZCUBE_ZORDER_BY"


@dataclass(frozen=True, slots=True)
class Cube:
    """Files of a clustered table that were written together, each with its own range of the
    clustering columns, as Delta's tags describe them."""

    id: str
    columns: tuple[str, ...]
    """The table's clustering columns when the cube was written, as in Delta's tags."""

    @property
    def facts(self) -> dict[str, object]:
        """Return the facts for an ``add`` action."""
        columns = json.dumps(self.columns, separators=(",", ":"))
        return {
            "tags": {_CUBE: self.id, _CUBE_COLUMNS: columns},
            "clusteringProvider": _LIQUID,
        }


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A finished Parquet file below the table's location: Delta's ``add`` as data."""

    path: str
    """Relative to the location, ``/`` between segments, not percent-encoded."""
    size: int
    """Bytes."""
    modified_ms: int
    """Modification time, milliseconds since 1970."""
    stats: str | None
    """Delta's statistics as JSON text (see ``stats.stats_for``), or None."""
    partition: tuple[tuple[str, str | None], ...] = ()
    """Physical names and values of partition columns, which the file does not have; see
    ``partitions``."""
    vector: Descriptor | None = None
    """Rows that are deleted before the file is added (by a compaction); not in ``to_dict``."""
    cube: Cube | None = None
    """Set if the file is clustered (by a compaction); not in ``to_dict`` either."""

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, for the catalog's copy_range rows."""
        return {
            "path": self.path,
            "size": self.size,
            "modified_ms": self.modified_ms,
            "stats": self.stats,
            "partition": dict(self.partition),
        }


def files_to_json(files: Iterable[AddedFile]) -> str:
    """Return text for the catalog; ``files_from_json`` is the inverse."""
    return json.dumps([f.to_dict() for f in files], separators=(",", ":"))


def files_from_json(text: str) -> tuple[AddedFile, ...]:
    """Read what ``files_to_json`` wrote."""
    return tuple(
        AddedFile(
            f["path"],
            f["size"],
            f["modified_ms"],
            f["stats"],
            tuple(f.get("partition", {}).items()),
        )
        for f in json.loads(text)
    )


def absolute_place(url: str) -> str:
    """Return the place of an absolute URL in Delta's log, which is percent-encoded. The node's own
    URLs of object stores are not."""
    return unquote(url) if url.startswith(_OBJECT_STORES) else url


@dataclass(frozen=True)
class DataFile:
    """One file of a table version."""

    action: Mapping[str, Any]
    """The object below ``add``, as in the log."""

    @property
    def key(self) -> str:
        """The file's name in the log; a version has each path once."""
        return str(self.action["path"])

    @property
    def path(self) -> str:
        """The path, not percent-encoded; relative to the table, or a URL. See ``place``."""
        return unquote(self.key)

    def place(self, location: str) -> str:
        """Return the path of the file for a table at ``location``: below the location, or a path
        or URL of its own (a branch has files of its table)."""
        if ":" in self.key.split("/", 1)[0]:
            return absolute_place(self.key)
        return self.path if self.key.startswith("/") else f"{location}/{self.path}"

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.action["size"])

    @property
    def vector(self) -> Descriptor | None:
        """The file's deletion vector."""
        descriptor: Descriptor | None = self.action.get("deletionVector")
        return descriptor

    @property
    def rows(self) -> int | None:
        """Number of rows in the file, deleted rows included; None if unknown."""
        count: int | None = self._stats.get("numRecords")
        return count

    @property
    def deleted(self) -> int:
        """Number of deleted rows."""
        return int(self.vector["cardinality"]) if self.vector is not None else 0

    @property
    def is_plain(self) -> bool:
        """Whether the file can get a deletion vector, since its rows are counted."""
        return self.rows is not None

    @property
    def partition(self) -> Mapping[str, str | None]:
        """Values of partition columns, which the file does not have, by physical name; empty
        without partitions."""
        values: Mapping[str, str | None] = self.action.get("partitionValues") or {}
        return values

    @property
    def cube(self) -> Cube | None:
        """The cube to which the file belongs; None if it is not clustered, or not in Delta's
        way."""
        tags = self.action.get("tags") or {}
        columns = json.loads(tags.get(_CUBE_COLUMNS) or "null")
        if (
            self.action.get("clusteringProvider") != _LIQUID
            or _CUBE not in tags
            or not isinstance(columns, list)
        ):
            return None
        return Cube(str(tags[_CUBE]), tuple(map(str, columns)))

    def bounds(self, column: str) -> tuple[Any, Any] | None:
        """Return (lowest, highest) value of a column by its physical name, or a bit beyond."""
        low = self._stats.get("minValues", {}).get(column)
        high = self._stats.get("maxValues", {}).get(column)
        return None if low is None or high is None else (low, high)

    def is_null(self, column: str) -> bool:
        """Whether a column is known to be null in all rows, by its physical name."""
        nulls = self._stats.get("nullCount", {}).get(column)
        return nulls is not None and nulls == self.rows

    @cached_property
    def _stats(self) -> Mapping[str, Any]:
        stats: Mapping[str, Any] = json.loads(self.action.get("stats") or "{}")
        return stats


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file of the version read that the next version removes or changes."""

    file: DataFile
    vector: Descriptor | None
    """The file stays with this deletion vector; None: the file is removed."""

    def remove(self, now_ms: int, *, data_change: bool) -> dict[str, object]:
        """Build Delta's ``remove`` action."""
        action = self.file.action
        removed: dict[str, object] = {
            "path": action["path"],
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": action.get("partitionValues") or {},
            "size": action["size"],
        }
        if action.get("stats"):
            removed["stats"] = action["stats"]
        if self.file.vector is not None:
            removed["deletionVector"] = self.file.vector
        # Numbers of the file's rows, in a table that tracks them.
        for name in ("baseRowId", "defaultRowCommitVersion"):
            if action.get(name) is not None:
                removed[name] = action[name]
        return removed

    def add(self, *, data_change: bool) -> dict[str, object] | None:
        """Build Delta's ``add`` action of a file that stays."""
        if self.vector is None:
            return None
        return {
            **self.file.action,
            "dataChange": data_change,
            "stats": _not_tight(str(self.file.action["stats"])),
            "deletionVector": self.vector,
        }


def _not_tight(stats: str) -> str:
    """Mark bounds and counts as those of all rows, deleted rows included. The text is edited,
    because numbers with many digits would not survive parsing."""
    stats, replacements = _TIGHT.subn('"tightBounds":false', stats)
    if not replacements and '"tightBounds"' not in stats:
        stats = stats.rstrip()[:-1] + ',"tightBounds":false}'
    return stats


def add_action(added: AddedFile, *, data_change: bool) -> dict[str, object]:
    """Build Delta's ``add`` action of a new file."""
    action: dict[str, object] = {
        "path": quote(added.path, safe=_PATH_SAFE),
        "partitionValues": dict(added.partition),
        "size": added.size,
        "modificationTime": added.modified_ms,
        "dataChange": data_change,
    }
    if added.stats is not None:
        action["stats"] = added.stats
    if added.cube is not None:
        action |= added.cube.facts
    if added.vector is not None:
        action["deletionVector"] = added.vector
        action["stats"] = _not_tight(str(added.stats))
    return action
