"""Mirrors versions of a Delta table to Iceberg: one snapshot for all versions since the last.

Comes in: a table, the version to show. Goes out: a durable snapshot whose rows are those of that
version. The data files are the table's own. Called by the engine after versions are published.

    log since the cursor ─▶ fold ─▶ vectors (Puffin) ─▶ manifests ─▶ manifest list
                                                            ─▶ vN.metadata.json: the commit
                                                            ─▶ version-hint.text

Before the commit a crash leaves files that nothing names. After it the mirror's cursor, which is
in the snapshot, is at the version; the next call repairs the hint and goes on from there. So a
version is never lost and never shown twice. Two writers exclude each other by put-if-absent.

The mirror begins anew, with another UUID, if the table was dropped and created again, if it is
somewhere else now (a warehouse that was moved; paths in the metadata are absolute), if its
partition columns change, if the format version changes, or if a column's id or type does not go
on (``columns``). Its earlier snapshots then go at once.

Sources: Iceberg table specification; Delta transaction log protocol.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow.parquet as pq

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.delta.deletionvectors import Rows, read_vector
from wal2lake.lake.iceberg.bounds import facts_of, partition_of
from wal2lake.lake.iceberg.columns import Json, MirroredColumns, columns_of
from wal2lake.lake.iceberg.containers import (
    Record,
    partition_record,
    read_records,
    write_manifest_list,
)
from wal2lake.lake.iceberg.deletes import PATH_ID, position_deletes_of, puffin_of
from wal2lake.lake.iceberg.fold import FoldedChange, difference, fold, redefines
from wal2lake.lake.iceberg.manifests import (
    SnapshotFacts,
    StoredManifest,
    WrittenManifests,
    next_manifests,
    read_manifest,
)
from wal2lake.lake.iceberg.metadata import (
    MirrorCursor,
    NewSnapshot,
    current_schema,
    current_snapshot,
    cursor_of,
    moments_of,
    name_mapping,
    new_table,
    oldest_version,
    replaces,
    was_mapped,
    with_columns,
    with_snapshot,
    without_old,
)
from wal2lake.lake.iceberg.place import (
    Check,
    MirrorNames,
    MirrorPlace,
    StoredMetadata,
    UnreadableMirror,
)
from wal2lake.lake.port import CommitConflict, TablePort, TableState
from wal2lake.lake.store import open_reader, store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.observe import get_logger

MOST_COMMITS: Final = 1_000
"""Most commits that are folded; further back all files are compared, which reads one checkpoint
instead of so many small files. A guess."""

KEPT_FILES: Final = 50_000
"""Most files whose manifests are kept in memory for all tables, at some kilobytes each."""

_DATA: Final = 0
_POSITION_DELETES: Final = 1


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """The choices for one table's mirror."""

    format_version: int = 3
    """3: deletion vectors; 2: position delete files, for readers without format 3."""
    history_ms: int = 3_600_000
    """A snapshot goes when the next one is that old."""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The result of ``IcebergMirror.mirror``."""

    cursor: MirrorCursor
    number: int
    """The number of the metadata file."""
    anew: bool = False
    """True if the mirror began anew, so earlier snapshots are gone."""
    already_done: bool = False
    """True if the mirror already was at the version or past it."""


@dataclass(frozen=True, slots=True)
class ShownMirror:
    """A mirror as readers see it."""

    path: str
    """Path of the newest metadata file."""
    metadata: Json
    moments: Sequence[int]
    """For each snapshot the number of the round that has made it; 0 without one."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A mirror's newest snapshot with its manifests."""

    stored: StoredMetadata
    data: tuple[StoredManifest, ...] = ()
    deletes: tuple[StoredManifest, ...] = ()
    paths: frozenset[str] = frozenset()
    """The data files."""

    @property
    def size(self) -> int:
        """Number of files."""
        return sum(len(manifest.files) for manifest in (*self.data, *self.deletes))


@dataclass(slots=True)
class _Next:
    """The next snapshot while it is made."""

    base: Json
    """Metadata with the columns of the version, without the snapshot."""
    columns: MirroredColumns
    change: FoldedChange
    data: tuple[StoredManifest, ...]
    deletes: tuple[StoredManifest, ...]
    paths: frozenset[str] = frozenset()
    """The data files of the snapshot before."""
    snapshot_id: int = field(default_factory=lambda: secrets.randbits(62) + 1)

    def facts(self, next_row_id: int) -> SnapshotFacts:
        """Return the snapshot's facts for manifests."""
        return SnapshotFacts(
            self.snapshot_id,
            self.base["last-sequence-number"] + 1,
            self.columns,
            self.base["current-schema-id"],
            self.base["format-version"],
            next_row_id,
        )


class IcebergMirror:
    """Mirrors of the tables of one process. Safe for all threads; one table is mirrored by one
    thread at a time."""

    def __init__(self, tables: TablePort, clock_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._absent: set[str] = set()
        """Tables that are known to have no mirror."""

    def mirror(
        self,
        location: str,
        version: int,
        lsn: str | None,
        options: MirrorOptions = MirrorOptions(),
        check: Check = lambda: None,
        moment: Callable[[], int | None] = lambda: None,
    ) -> Mirrored:
        """Show a version of the table, durably. ``check`` is called between the steps and ends the
        work by raising, as for all methods; before the commit nothing names what was written.
        ``moment`` gives the number of the round; it is called if there will be a snapshot.

        CommitConflict (40001) if another process has mirrored meanwhile: repeat.
        FeatureNotSupportedError (0A000) if the table has no form in Iceberg; the mirror then stays
        as it was.
        """
        place = _place(location, check)
        with self._lock:
            self._absent.discard(location)
        current = self._current(location, place)
        check()
        state = self._state(location, version)
        target = MirrorCursor(state.table_id, version, lsn)
        if current is not None:
            cursor = cursor_of(current.stored.metadata)
            if (
                cursor is not None
                and cursor.table_id == target.table_id
                and cursor.version >= version
                and current.stored.metadata["format-version"] == options.format_version
                and not _was_moved(place, current.stored.metadata)
            ):
                if place.hinted() != current.stored.number:
                    place.hint(current.stored.number)
                return Mirrored(cursor, current.stored.number, already_done=True)
        check()
        following = self._following(location, place, current, state, options)
        anew = following is None
        if following is None:
            following = self._first(location, place, state, options)
        if current is None:
            place.make()
        target = replace(target, moment=moment())
        made = self._commit(location, place, current, following, target, options)
        return Mirrored(target, made.number, anew=anew and current is not None)

    def trim(
        self, location: str, oldest_ms: int, check: Check = lambda: None
    ) -> int | None:
        """Remove snapshots that were replaced before a time, and then the mirror's own files that
        are not needed; return how many files went. None: there is no mirror of this place."""
        place = _place(location, check)
        current = self._current(location, place)
        if current is None or _was_moved(place, current.stored.metadata):
            return None
        stored = current.stored
        metadata = without_old(stored.metadata, oldest_ms)
        if metadata is not stored.metadata:
            logged = replaces(
                metadata, stored.metadata, place.metadata_path(stored.number)
            )
            stored = _committed(location, place, stored.number + 1, logged)
            self._keep(
                location, _Known(stored, current.data, current.deletes, current.paths)
            )
        return place.remove_others(
            _needed(place, stored.metadata), stored.number, self._clock_ms()
        )

    def shown(self, location: str, check: Check = lambda: None) -> ShownMirror | None:
        """Return the newest metadata; None: there is no mirror of this place."""
        place = _place(location, check)
        current = self._current(location, place)
        if current is None or _was_moved(place, current.stored.metadata):
            return None
        metadata = current.stored.metadata
        path = place.metadata_path(current.stored.number)
        return ShownMirror(path, metadata, moments_of(metadata))

    def oldest_version(self, location: str) -> int | None:
        """Return the oldest version of the table whose files the mirror needs; None: no mirror, or
        none that can be read."""
        store = store_at(location)
        with self._lock:
            cached = self._known.get(location)
            if store is None or location in self._absent:
                return None
        try:
            stored = MirrorPlace(store).newest(
                None if cached is None else cached.stored
            )
        except UnreadableMirror as error:
            get_logger().warning("nothing is kept for an Iceberg mirror", error=error)
            return None
        return None if stored is None else oldest_version(stored.metadata)

    def remove(self, location: str, check: Check = lambda: None) -> bool:
        """Remove a table's mirror; false if there is none. Called often: a place is listed again
        only after ``mirror``."""
        store = store_at(location)
        with self._lock:
            self._known.pop(location, None)
            if store is None or location in self._absent:
                return False
        removed = MirrorPlace(store, check).remove()
        with self._lock:
            self._absent.add(location)
        return removed

    def _state(self, location: str, version: int) -> TableState:
        state = self._tables.state(location)
        if state.version == version:
            return state
        return self._tables.state_at(location, version)

    def _current(self, location: str, place: MirrorPlace) -> _Known | None:
        """Return the newest snapshot and its manifests; None if there is no mirror."""
        with self._lock:
            cached = self._known.get(location)
        stored = place.newest(None if cached is None else cached.stored)
        if stored is None:
            return None
        if cached is None or stored is not cached.stored:
            cached = _read(place, stored)
            self._keep(location, cached)
        return cached

    def _keep(self, location: str, current: _Known) -> None:
        with self._lock:
            self._known.pop(location, None)
            self._known[location] = current
            held = sum(cached.size for cached in self._known.values())
            while held > KEPT_FILES and self._known:
                held -= self._known.pop(next(iter(self._known))).size

    def _following(
        self,
        location: str,
        place: MirrorPlace,
        current: _Known | None,
        state: TableState,
        options: MirrorOptions,
    ) -> _Next | None:
        """Return the snapshot behind the newest one; None: the mirror begins anew."""
        if current is None:
            return None
        metadata = current.stored.metadata
        cursor = cursor_of(metadata)
        if (
            cursor is None
            or cursor.table_id != state.table_id
            or metadata["format-version"] != options.format_version
            or _was_moved(place, metadata)
        ):
            return None
        columns = columns_of(
            state,
            current_schema(metadata),
            name_mapping(metadata),
            was_mapped=was_mapped(metadata),
        )
        if columns is None or columns.spec() != metadata["partition-specs"][0]:
            return None
        change = None
        if state.version - cursor.version <= MOST_COMMITS:
            commits = self._tables.actions(location, cursor.version + 1, state.version)
            if not redefines(commits):
                change = fold(_root(location), commits, current.paths)
        if change is None:
            change = difference(
                _root(location), self._files(location, state), current.paths
            )
        base = with_columns(metadata, columns, mapped=state.column_mapping)
        return _Next(
            base, columns, change, current.data, current.deletes, current.paths
        )

    def _first(
        self,
        location: str,
        place: MirrorPlace,
        state: TableState,
        options: MirrorOptions,
    ) -> _Next:
        """Return the first snapshot of a new mirror."""
        columns = columns_of(state, None, was_mapped=False)
        assert columns is not None
        files = self._files(location, state)
        metadata = new_table(
            place.location, columns, options.format_version, state.table_id
        )
        base = with_columns(metadata, columns, mapped=state.column_mapping)
        return _Next(base, columns, difference(_root(location), files, ()), (), ())

    def _files(self, location: str, state: TableState) -> Sequence[DataFile]:
        read = self._tables.plainly_read(location, state.version)
        if read is None:
            raise FeatureNotSupportedError(
                f'the table at "{location}" cannot be mirrored to Iceberg',
                detail="Its rows are not those of its Parquet files without the deleted ones, or"
                " it has too many files.",
                hint="Set iceberg = false for the table.",
            )
        return read[1]

    def _commit(
        self,
        location: str,
        place: MirrorPlace,
        current: _Known | None,
        following: _Next,
        cursor: MirrorCursor,
        options: MirrorOptions,
    ) -> StoredMetadata:
        """Write the files of a snapshot and then the metadata that names it."""
        now_ms = self._clock_ms()
        names = place.names(now_ms)
        data, deletes = self._manifests(location, place, names, following)
        manifest_list = write_manifest_list(
            [manifest.record for manifest in (*data.manifests, *deletes.manifests)],
            options.format_version,
            {
                "snapshot-id": str(following.snapshot_id),
                "sequence-number": str(following.base["last-sequence-number"] + 1),
            },
        )
        place.write(names.manifest_list, manifest_list)
        snapshot = NewSnapshot(
            following.snapshot_id,
            now_ms,
            cursor,
            names.manifest_list,
            _operation(following.change),
            _counts(following, data.manifests, deletes.manifests),
            data.next_row_id,
        )
        metadata = with_snapshot(following.base, snapshot)
        metadata = without_old(metadata, now_ms - options.history_ms)
        number = 1
        if current is not None:
            number = current.stored.number + 1
            before = place.metadata_path(current.stored.number)
            metadata = replaces(metadata, current.stored.metadata, before)
        stored = _committed(location, place, number, metadata)
        change = following.change
        paths = (following.paths - change.removed).union(change.added)
        self._keep(
            location,
            _Known(stored, tuple(data.manifests), tuple(deletes.manifests), paths),
        )
        return stored

    def _manifests(
        self,
        location: str,
        place: MirrorPlace,
        names: MirrorNames,
        following: _Next,
    ) -> tuple[WrittenManifests, WrittenManifests]:
        """Write what says which rows are deleted, and the manifests."""
        change, columns = following.change, following.columns
        changed = {**change.added, **change.vectors}
        vectors = {}
        for path, file in changed.items():
            if file.vector is not None:
                place.check()
                vectors[path] = read_vector(location, file.vector)
        telling = _write_deletes(place, names, following, changed, vectors)
        paths = names.numbered("avro")
        data = next_manifests(
            following.data,
            change.removed,
            _data_records(place, change.added, columns),
            following.facts(following.base.get("next-row-id", 0)),
            paths,
            deletes=False,
        )
        deletes = next_manifests(
            following.deletes,
            change.removed | change.vectors.keys(),
            telling,
            following.facts(0),
            paths,
            deletes=True,
        )
        for path, content in (*data.contents, *deletes.contents):
            place.write(path, content)
        return data, deletes


def _place(location: str, check: Check) -> MirrorPlace:
    store = store_at(location)
    if store is None:
        raise FeatureNotSupportedError(
            f'the table at "{location}" cannot be mirrored to Iceberg',
            hint="Mirrors are in directories and in object stores.",
        )
    return MirrorPlace(store, check)


def _root(location: str) -> str:
    """Return the location as it is in the paths of data files."""
    store = store_at(location)
    assert store is not None
    return store.location


def _read(place: MirrorPlace, stored: StoredMetadata) -> _Known:
    snapshot = current_snapshot(stored.metadata)
    if snapshot is None or _was_moved(place, stored.metadata):
        return _Known(stored)
    data: list[StoredManifest] = []
    deletes: list[StoredManifest] = []
    for record in read_records(place.read(snapshot["manifest-list"])):
        manifest = read_manifest(record, place.read(record["manifest_path"]))
        (deletes if record["content"] else data).append(manifest)
    return _Known(stored, tuple(data), tuple(deletes), _paths(data))


def _was_moved(place: MirrorPlace, metadata: Json) -> bool:
    """Whether the table's files are elsewhere now, so that all paths in the mirror are wrong."""
    return bool(metadata["location"] != place.location)


def _paths(manifests: Sequence[StoredManifest]) -> frozenset[str]:
    return frozenset[str]().union(*(manifest.data_paths for manifest in manifests))


def _committed(
    location: str, place: MirrorPlace, number: int, metadata: Json
) -> StoredMetadata:
    stored = place.commit(number, metadata)
    if stored is None:
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'The Iceberg mirror of the table at "{location}" already has'
            f" metadata {number}.",
        )
    return stored


def _needed(place: MirrorPlace, metadata: Json) -> set[str]:
    """Return the paths of all of the mirror's files that its snapshots and its log name."""
    needed = {entry["metadata-file"] for entry in metadata["metadata-log"]}
    for snapshot in metadata["snapshots"]:
        needed.add(snapshot["manifest-list"])
        for record in read_records(place.read(snapshot["manifest-list"])):
            path = record["manifest_path"]
            if path in needed:
                continue
            needed.add(path)
            if record["content"]:
                manifest = read_manifest(record, place.read(path))
                needed.update(file.path for file in manifest.files)
    return needed


def _write_deletes(
    place: MirrorPlace,
    names: MirrorNames,
    following: _Next,
    changed: Mapping[str, DataFile],
    vectors: Mapping[str, Rows],
) -> list[Record]:
    """Write deletion vectors or position deletes; return their ``data_file`` records."""
    if not vectors:
        return []
    columns = following.columns
    if following.base["format-version"] >= 3:
        content, blobs = puffin_of(vectors, {"created-by": "wal2lake"})
        place.write(names.vectors, content)
        return [
            {
                **_record(_POSITION_DELETES, names.vectors, "PUFFIN", len(content)),
                "partition": _partition(changed[path], columns),
                "record_count": blob.rows,
                "referenced_data_file": path,
                "content_offset": blob.offset,
                "content_size_in_bytes": blob.size,
            }
            for path, blob in blobs.items()
        ]
    records = []
    for (path, rows), name in zip(
        vectors.items(), names.numbered("parquet"), strict=False
    ):
        content = position_deletes_of(path, rows)
        place.write(name, content)
        bound = [{"key": PATH_ID, "value": path.encode()}]
        records.append(
            {
                **_record(_POSITION_DELETES, name, "PARQUET", len(content)),
                "partition": _partition(changed[path], columns),
                "record_count": len(rows),
                "lower_bounds": bound,
                "upper_bounds": bound,
                "referenced_data_file": path,
            }
        )
    return records


def _data_records(
    place: MirrorPlace, added: Mapping[str, DataFile], columns: MirroredColumns
) -> list[Record]:
    """Return the ``data_file`` records of new files of the table."""
    records = []
    for path, file in added.items():
        place.check()
        records.append(_data_record(path, file, columns))
    return records


def _data_record(path: str, file: DataFile, columns: MirroredColumns) -> Record:
    """Return the ``data_file`` record of a file of the table."""
    record = {
        **_record(_DATA, path, "PARQUET", file.size),
        "partition": _partition(file, columns),
        "sort_order_id": 0,
    }
    facts = facts_of(file, columns)
    if facts is None:
        return {**record, "record_count": _counted(path, file.size)}
    for name, values in (
        ("value_counts", facts.values),
        ("null_value_counts", facts.nulls),
        ("lower_bounds", facts.lows),
        ("upper_bounds", facts.highs),
    ):
        record[name] = [{"key": key, "value": value} for key, value in values.items()]
    return {**record, "record_count": facts.rows}


def _record(content: int, path: str, file_format: str, size: int) -> Record:
    return {
        "content": content,
        "file_path": path,
        "file_format": file_format,
        "file_size_in_bytes": size,
    }


def _partition(file: DataFile, columns: MirroredColumns) -> Record:
    return partition_record(columns, partition_of(file, columns))


def _counted(path: str, size: int) -> int:
    """Count the rows of a file whose writer has not, from its footer."""
    with open_reader(path, size) as reader:
        rows: int = pq.ParquetFile(reader.source).metadata.num_rows
    return rows


def _operation(change: FoldedChange) -> str:
    """Return Iceberg's word for the change; streaming readers go by it."""
    if not change.removed and not change.vectors:
        return "append"
    if not change.changes_data:
        return "replace"
    return "overwrite" if change.added else "delete"


def _counts(
    following: _Next, data: Sequence[StoredManifest], deletes: Sequence[StoredManifest]
) -> dict[str, str]:
    """Return the counts of a snapshot's summary. Of files that are carried over only the manifests'
    own counts are read."""
    change = following.change
    files, rows = _live(data)
    telling, positions = _live(deletes)
    return {
        "added-data-files": str(len(change.added)),
        "deleted-data-files": str(len(change.removed)),
        "total-data-files": str(files),
        "total-records": str(rows),
        "total-delete-files": str(telling),
        "total-position-deletes": str(positions),
        "total-equality-deletes": "0",
    }


def _live(manifests: Sequence[StoredManifest]) -> tuple[int, int]:
    """Return how many files and rows are in manifests, those that are deleted left out."""
    records = [manifest.record for manifest in manifests]
    return (
        sum(
            record["added_files_count"] + record["existing_files_count"]
            for record in records
        ),
        sum(
            record["added_rows_count"] + record["existing_rows_count"]
            for record in records
        ),
    )
