"""Keeps the manifests of a mirror: which files it has, and in which manifest each is. Pure.

Comes in: the manifests of a snapshot, a change. Goes out: the manifests of the next snapshot, with
the content of those that are new. Called by ``mirror``.

A manifest is never changed. A commit writes those again that name a file which goes, and one for
what is new; it carries over all others. When more than ``SMALL_MANIFESTS`` are small, they are
written as one. So a commit costs as much as it changes, and a reader opens about one manifest for
each ``MANIFEST_ENTRIES`` files.

    entry in a manifest   this snapshot adds it       ADDED, its sequence number is the snapshot's
                          an earlier one added it     EXISTING, with its own sequence number
                          this snapshot removes it    DELETED; in no later manifest

Format 3 numbers rows. A file that a snapshot adds gets its first number from its manifest, which
gets it from the table's ``next-row-id``; entries that move to another manifest state it. A
snapshot uses as many numbers as its new manifests have rows, as Iceberg's own writer does.

Sources: Iceberg table specification, "Manifests", "Sequence Number Inheritance", "First Row ID
Inheritance", "Row Lineage".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from wal2lake.lake.iceberg.bounds import partition_bound
from wal2lake.lake.iceberg.columns import MirroredColumns
from wal2lake.lake.iceberg.containers import (
    Record,
    partition_values,
    read_records,
    write_manifest,
)

MANIFEST_ENTRIES: Final = 2_000
"""Most entries of a manifest: about half a megabyte, which a reader parses in some 0.1 s."""

SMALL_MANIFESTS: Final = 8
"""Most manifests with less than half of the entries. A guess."""


class EntryStatus(IntEnum):
    """The status of a file in a manifest, with Iceberg's numbers."""

    EXISTING = 0
    """An earlier snapshot has added the file."""
    ADDED = 1
    """The manifest's snapshot adds the file."""
    DELETED = 2
    """The manifest's snapshot removes the file."""


@dataclass(frozen=True, slots=True)
class MirroredFile:
    """A file in the mirror: a data file, or what says which of its rows are deleted."""

    record: Record
    """The ``data_file`` of its entry, without a first row number."""
    snapshot_id: int
    """Snapshot that added the file."""
    sequence: int
    """Sequence number of that snapshot."""
    first_row_id: int | None

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return int(self.record["record_count"])

    @property
    def path(self) -> str:
        """The path of the file itself."""
        return str(self.record["file_path"])

    @property
    def data_path(self) -> str:
        """The path of the data file that it is, or whose rows it deletes."""
        return str(self.record.get("referenced_data_file") or self.path)


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest that is stored."""

    record: Record
    """The record of a manifest list that describes it."""
    files: tuple[MirroredFile, ...]
    """The files that are not deleted."""
    data_paths: frozenset[str]
    """``data_path`` of each file, so that a commit looks at its own changes only."""

    @property
    def is_small(self) -> bool:
        """Whether it is to be united with others if there are many."""
        return len(self.files) < MANIFEST_ENTRIES // 2


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """Facts of a snapshot for the manifests that it writes."""

    snapshot_id: int
    sequence: int
    columns: MirroredColumns
    schema_id: int
    format_version: int
    next_row_id: int


@dataclass(slots=True)
class WrittenManifests:
    """Manifests of one kind in the next snapshot."""

    manifests: list[StoredManifest] = field(default_factory=list)
    contents: list[tuple[str, bytes]] = field(default_factory=list)
    """Paths and contents of those that are new."""
    next_row_id: int = 0


def read_manifest(record: Record, content: bytes) -> StoredManifest:
    """Return a manifest from its content; ``record`` is from the manifest list."""
    files = []
    next_row_id = record.get("first_row_id")
    for entry in read_records(content):
        data_file = entry["data_file"]
        first = data_file.pop("first_row_id", None)
        if first is None and next_row_id is not None:
            first = next_row_id
            next_row_id += data_file["record_count"]
        if entry["status"] == EntryStatus.DELETED:
            continue
        sequence = entry["sequence_number"]
        files.append(
            MirroredFile(
                data_file,
                entry["snapshot_id"],
                record["sequence_number"] if sequence is None else sequence,
                first,
            )
        )
    return _stored(record, files)


def _stored(record: Record, files: Sequence[MirroredFile]) -> StoredManifest:
    paths = frozenset(file.data_path for file in files)
    return StoredManifest(record, tuple(files), paths)


def next_manifests(
    before: Sequence[StoredManifest],
    removed: frozenset[str],
    added: Sequence[Record],
    facts: SnapshotFacts,
    paths: Iterator[str],
    *,
    deletes: bool,
) -> WrittenManifests:
    """Return the manifests after a change. ``removed``: paths of data files (or of data files
    whose deleted rows are told by a file that goes); ``added``: ``data_file`` records of new
    files; ``paths``: names for new manifests."""
    kept, rewritten = _divided(before, removed, bool(added))
    entries: list[tuple[EntryStatus, MirroredFile]] = []
    for manifest in rewritten:
        for file in manifest.files:
            gone = file.data_path in removed
            status = EntryStatus.DELETED if gone else EntryStatus.EXISTING
            entries.append((status, file))
    for record in added:
        new = MirroredFile(record, facts.snapshot_id, facts.sequence, None)
        entries.append((EntryStatus.ADDED, new))
    result = WrittenManifests(kept, next_row_id=facts.next_row_id)
    for start in range(0, len(entries), MANIFEST_ENTRIES):
        part = entries[start : start + MANIFEST_ENTRIES]
        _write(part, facts, next(paths), result, deletes=deletes)
    return result


def _divided(
    before: Sequence[StoredManifest], removed: frozenset[str], grows: bool
) -> tuple[list[StoredManifest], list[StoredManifest]]:
    """Return the manifests that stay, and those that are written again."""
    kept: list[StoredManifest] = []
    rewritten: list[StoredManifest] = []
    for manifest in before:
        if not manifest.files:
            continue
        touched = not manifest.data_paths.isdisjoint(removed)
        (rewritten if touched else kept).append(manifest)
    small = [manifest for manifest in kept if manifest.is_small]
    if len(small) + grows > SMALL_MANIFESTS:
        kept = [manifest for manifest in kept if not manifest.is_small]
        rewritten += small
    return kept, rewritten


def _write(
    entries: Sequence[tuple[EntryStatus, MirroredFile]],
    facts: SnapshotFacts,
    path: str,
    result: WrittenManifests,
    *,
    deletes: bool,
) -> None:
    """Add one new manifest to ``result``."""
    numbered = facts.format_version >= 3 and not deletes
    files: list[MirroredFile] = []
    counts = {status: [0, 0] for status in EntryStatus}
    unnumbered = 0
    for status, file in entries:
        counts[status][0] += 1
        counts[status][1] += file.rows
        if numbered and file.first_row_id is None:
            file = replace(file, first_row_id=result.next_row_id + unnumbered)
            unnumbered += file.rows
        if status is not EntryStatus.DELETED:
            files.append(file)
    content = write_manifest(
        facts.columns,
        facts.schema_id,
        facts.format_version,
        (_entry(status, file, facts) for status, file in entries),
        deletes=deletes,
    )
    sequences = [file.sequence for file in files]
    record: Record = {
        "manifest_path": path,
        "manifest_length": len(content),
        "partition_spec_id": 0,
        "content": int(deletes),
        "sequence_number": facts.sequence,
        "min_sequence_number": min(sequences, default=facts.sequence),
        "added_snapshot_id": facts.snapshot_id,
        "partitions": _partitions(facts.columns, (file for _, file in entries)),
    }
    for status, (number, rows) in counts.items():
        record[f"{status.name.lower()}_files_count"] = number
        record[f"{status.name.lower()}_rows_count"] = rows
    if facts.format_version >= 3:
        record["first_row_id"] = result.next_row_id if numbered else None
    if numbered:
        result.next_row_id += (
            counts[EntryStatus.ADDED][1] + counts[EntryStatus.EXISTING][1]
        )
    result.manifests.append(_stored(record, files))
    result.contents.append((path, content))


def _entry(status: EntryStatus, file: MirroredFile, facts: SnapshotFacts) -> Record:
    """Return the entry of a file as it is written."""
    added = status is EntryStatus.ADDED
    deleted = status is EntryStatus.DELETED
    return {
        "status": int(status),
        "snapshot_id": facts.snapshot_id if deleted else file.snapshot_id,
        "sequence_number": None if added else file.sequence,
        "file_sequence_number": None if added else file.sequence,
        "data_file": {**file.record, "first_row_id": file.first_row_id},
    }


def _partitions(
    columns: MirroredColumns, files: Iterable[MirroredFile]
) -> list[dict[str, Any]]:
    """Return, for each partition column, the bounds of its values in the files."""
    partition = columns.partition
    if not partition:
        return []
    rows = [partition_values(columns, file.record["partition"]) for file in files]
    summaries = []
    for place, column in enumerate(partition):
        values = [row[place] for row in rows if row[place] is not None]
        summaries.append(
            {
                "contains_null": len(values) < len(rows),
                "contains_nan": False,
                "lower_bound": partition_bound(column, min(values)) if values else None,
                "upper_bound": partition_bound(column, max(values)) if values else None,
            }
        )
    return summaries
