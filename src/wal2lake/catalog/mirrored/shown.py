"""Metadata of mirrored tables, in files from which the answer for a moment is put together.

The metadata of a table with 1,000 snapshots has 700 kB. To parse and write that for each request
would cost tens of milliseconds, so the file has it in pieces, one a line:

    run/iceberg/<oid>.json    <oid> is that of the table's storage
      line 1     the first moment at which the table is there
      line 2     what a reader of this file needs: path and log of the metadata, and of each
                 snapshot id, time, schema and number of its moment
      line 3     the metadata without snapshots and without what points at one of them
      others     the snapshots, oldest first

At a moment a table is its newest snapshot with a number up to the moment's; later snapshots are not
there, and its schema is the snapshot's. The path of the metadata is that of the file in which this
snapshot is the current one, if the mirror still has it, because some readers look there alone.

Called by ``local.mirrors``, which writes, and by the web process, which reads.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wal2lake.model import Oid

_POINTING: Final = (
    "snapshots",
    "snapshot-log",
    "current-snapshot-id",
    "current-schema-id",
    "refs",
)


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table at a moment."""

    metadata_path: str | None
    """File in which the snapshot is the current one; None if it is gone."""
    _head: bytes
    _log: Sequence[bytes]
    _snapshots: Sequence[bytes]
    _pointers: Mapping[str, Any]

    def loaded(self, config: Mapping[str, str], *, only_refs: bool = False) -> bytes:
        """Return the catalog's answer as JSON. ``only_refs``: with the current snapshot alone."""
        head: dict[str, object] = {"config": dict(config)}
        if self.metadata_path is not None:
            head["metadata-location"] = self.metadata_path
        return b'%b,"metadata":%b}' % (
            _dumped(head).removesuffix(b"}"),
            self.metadata(only_refs=only_refs),
        )

    def metadata(self, *, only_refs: bool = False) -> bytes:
        """Return the metadata as JSON. ``only_refs``: with the current snapshot alone."""
        first = -1 if only_refs else 0
        return b'%b,%b,"snapshot-log":[%b],"snapshots":[%b]}' % (
            self._head.removesuffix(b"}"),
            _dumped(self._pointers)[1:-1],
            b",".join(self._log[first:]),
            b",".join(self._snapshots[first:]),
        )


class ShownTables:
    """The files of all tables."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(
        self,
        storage: Oid,
        path: str,
        metadata: Mapping[str, Any],
        moments: Sequence[int],
    ) -> None:
        """Replace the file of a table. ``path`` is that of the metadata; ``moments`` has the number
        of each snapshot. OSError."""
        snapshots = metadata["snapshots"]
        head = {
            "path": path,
            "files": [
                [entry["timestamp-ms"], entry["metadata-file"]]
                for entry in metadata["metadata-log"]
            ],
            "snapshots": [
                [
                    snapshot["snapshot-id"],
                    snapshot["timestamp-ms"],
                    snapshot["schema-id"],
                    moment,
                ]
                for snapshot, moment in zip(snapshots, moments, strict=True)
            ],
        }
        rest = {name: metadata[name] for name in metadata if name not in _POINTING}
        first = str(moments[0] if moments else 0).encode()
        lines = [first, _dumped(head), _dumped(rest), *map(_dumped, snapshots)]
        file = self._file(storage)
        draft = file.with_name(f".{file.name}.tmp")
        draft.touch(0o600)
        draft.write_bytes(b"\n".join(lines) + b"\n")
        draft.replace(file)

    def remove(self, storage: Oid) -> None:
        """Remove the file of a table, if there is one. OSError."""
        self._file(storage).unlink(missing_ok=True)

    def remove_others(self, kept: frozenset[Oid]) -> None:
        """Remove the files of all other tables."""
        for file in self._directory.glob("*.json"):
            if not (file.stem.isdecimal() and Oid(int(file.stem)) in kept):
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()

    def mirrored(self) -> frozenset[Oid]:
        """Return the tables that have a file."""
        return frozenset(
            Oid(int(file.stem))
            for file in self._directory.glob("*.json")
            if file.stem.isdecimal()
        )

    def is_there(self, storage: Oid, moment: int) -> bool:
        """Whether a table has a snapshot of a moment."""
        try:
            with self._file(storage).open("rb") as file:
                return int(file.readline()) <= moment
        except (FileNotFoundError, ValueError):
            return False

    def at(self, storage: Oid, moment: int) -> ShownTable | None:
        """Return a table at a moment; None if it has no snapshot of it."""
        try:
            lines = self._file(storage).read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        try:
            return _at(json.loads(lines[1]), lines[2], lines[3:-1], moment)
        except (ValueError, LookupError, TypeError):
            # A power loss; the engine writes the file anew when it starts.
            return None

    def _file(self, storage: Oid) -> Path:
        return self._directory / f"{int(storage)}.json"


def _at(
    head: Mapping[str, Any], rest: bytes, snapshots: Sequence[bytes], moment: int
) -> ShownTable | None:
    listed = head["snapshots"]
    if len(listed) != len(snapshots):
        raise ValueError("the file is not complete")
    count = len(listed)
    while count and listed[count - 1][3] > moment:
        count -= 1
    if count == 0:
        return None
    snapshot_id, time_ms, schema_id, _ = listed[count - 1]
    path = head["path"]
    if count < len(listed):
        # A clock that was set back gives several snapshots the same time.
        is_unique = [snapshot[1] for snapshot in listed].count(time_ms) == 1
        path = next(
            (
                file
                for written, file in reversed(head["files"])
                if is_unique and written == time_ms
            ),
            None,
        )
    pointers = {
        "current-snapshot-id": snapshot_id,
        "current-schema-id": schema_id,
        "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
    }
    log = [
        b'{"timestamp-ms":%d,"snapshot-id":%d}' % (snapshot[1], snapshot[0])
        for snapshot in listed[:count]
    ]
    return ShownTable(path, rest, log, snapshots[:count], pointers)


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
