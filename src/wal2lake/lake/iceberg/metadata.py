"""Builds a mirror's metadata: schemas, snapshots, the mirror's own cursor. Pure.

Comes in: the metadata so far, a snapshot. Goes out: the next metadata as JSON. Called by
``mirror``.

The cursor is in the summary of the newest snapshot, so it changes in one commit with the files:

    wal2lake.table_id         Delta's id of the table
    wal2lake.delta_version    the version that the snapshot shows
    wal2lake.lsn              all transactions that commit before this position are in it
    wal2lake.moment           number of the round of mirroring that has made the snapshot

A snapshot leaves the metadata some time after the next one has replaced it, however old it is
itself: until then readers begin with it. It is one moment of the table, so a reader of an old one
needs files that Delta may have given up:
``oldest_version`` says from which version on the mirror needs files.

Sources: Iceberg table specification, "Table Metadata Fields", "Snapshots", "Row Lineage".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from wal2lake.errors import StorageError
from wal2lake.lake.iceberg.columns import PARTITION_IDS, Json, MirroredColumns

TABLE_ID: Final = "wal2lake.table_id"
VERSION: Final = "wal2lake.delta_version"
LSN: Final = "wal2lake.lsn"
MOMENT: Final = "wal2lake.moment"
_MAPPED: Final = "wal2lake.column_mapping"
_NAME_MAPPING: Final = "schema.name-mapping.default"

EARLIER_METADATA: Final = 100
"""Earlier metadata files that are kept: a reader that has looked up the newest one's number has at
least 100 commits' time to read it."""


@dataclass(frozen=True, slots=True)
class MirrorCursor:
    """The moment of the table that a snapshot shows."""

    table_id: str
    version: int
    """Delta's version."""
    lsn: str | None
    """Position in PostgreSQL's form; None: the table belongs to no subscription."""
    moment: int | None = None
    """Number that all snapshots of one round of mirroring have."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """The facts of the next snapshot."""

    snapshot_id: int
    time_ms: int
    cursor: MirrorCursor
    manifest_list: str
    """Path of its manifest list."""
    operation: str
    summary: Mapping[str, str]
    """Counts of files and rows."""
    next_row_id: int


def new_table(
    location: str, columns: MirroredColumns, format_version: int, state_id: str
) -> Json:
    """Return the metadata of a table without snapshots; ``location`` is the mirror's folder."""
    metadata: Json = {
        "format-version": format_version,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": columns.last_id,
        "current-schema-id": 0,
        "schemas": [columns.schema(0)],
        "default-spec-id": 0,
        "partition-specs": [columns.spec()],
        "last-partition-id": PARTITION_IDS + len(columns.partition) - 1,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {TABLE_ID: state_id},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if format_version >= 3:
        metadata["next-row-id"] = 0
    return metadata


def with_columns(metadata: Json, columns: MirroredColumns, *, mapped: bool) -> Json:
    """Return the metadata with these columns as the current schema. Earlier schemas stay for the
    snapshots that have them."""
    schemas = list(metadata["schemas"])
    named = name_mapping(metadata)
    current = columns.schema(metadata["current-schema-id"])
    for schema in schemas:
        if schema["fields"] == current["fields"]:
            schema_id = schema["schema-id"]
            break
    else:
        schema_id = 1 + max(schema["schema-id"] for schema in schemas)
        schemas.append(columns.schema(schema_id))
    return {
        **metadata,
        "schemas": schemas,
        "current-schema-id": schema_id,
        "last-column-id": max(metadata["last-column-id"], columns.last_id),
        "partition-specs": [columns.spec()],
        "properties": {
            **metadata["properties"],
            _MAPPED: "true" if mapped else "false",
            _NAME_MAPPING: json.dumps(
                columns.name_mapping(named), separators=(",", ":")
            ),
        },
    }


def with_snapshot(metadata: Json, snapshot: NewSnapshot) -> Json:
    """Return the metadata with one more snapshot, which becomes the current one."""
    parent = metadata["current-snapshot-id"]
    cursor = snapshot.cursor
    summary = {
        "operation": snapshot.operation,
        TABLE_ID: cursor.table_id,
        VERSION: str(cursor.version),
        **({} if cursor.lsn is None else {LSN: cursor.lsn}),
        **({} if cursor.moment is None else {MOMENT: str(cursor.moment)}),
        **snapshot.summary,
    }
    sequence = metadata["last-sequence-number"] + 1
    time_ms = max(snapshot.time_ms, metadata["last-updated-ms"])
    described: Json = {
        "snapshot-id": snapshot.snapshot_id,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": time_ms,
        "manifest-list": snapshot.manifest_list,
        "summary": summary,
        "schema-id": metadata["current-schema-id"],
    }
    changed: Json = {
        **metadata,
        "last-sequence-number": sequence,
        "last-updated-ms": time_ms,
        "current-snapshot-id": snapshot.snapshot_id,
        "refs": {"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}},
        "snapshots": [*metadata["snapshots"], described],
        "snapshot-log": [
            *metadata["snapshot-log"],
            {"timestamp-ms": time_ms, "snapshot-id": snapshot.snapshot_id},
        ],
    }
    if metadata["format-version"] >= 3:
        first = metadata["next-row-id"]
        described["first-row-id"] = first
        described["added-rows"] = snapshot.next_row_id - first
        changed["next-row-id"] = snapshot.next_row_id
    return changed


def without_old(metadata: Json, oldest_ms: int) -> Json:
    """Return the metadata without snapshots that were replaced before a time; the current one
    stays. The same object if there are none."""
    snapshots = metadata["snapshots"]
    kept = [
        snapshot
        for snapshot, successor in pairwise(snapshots)
        if successor["timestamp-ms"] >= oldest_ms
    ]
    kept += snapshots[-1:]
    if len(kept) == len(snapshots):
        return metadata
    ids = {snapshot["snapshot-id"] for snapshot in kept}
    schemas = {snapshot["schema-id"] for snapshot in kept}
    schemas.add(metadata["current-schema-id"])
    return {
        **metadata,
        "snapshots": kept,
        "schemas": [s for s in metadata["schemas"] if s["schema-id"] in schemas],
        "snapshot-log": [
            entry for entry in metadata["snapshot-log"] if entry["snapshot-id"] in ids
        ],
    }


def replaces(metadata: Json, before: Json, path: str) -> Json:
    """Return the metadata with the earlier file of it in its log; ``path`` is that file's."""
    log = [
        *before["metadata-log"],
        {"timestamp-ms": before["last-updated-ms"], "metadata-file": path},
    ]
    return {**metadata, "metadata-log": log[-EARLIER_METADATA:]}


def current_snapshot(metadata: Json) -> Json | None:
    """Return the current snapshot."""
    for snapshot in metadata["snapshots"]:
        if snapshot["snapshot-id"] == metadata["current-snapshot-id"]:
            current: Json = snapshot
            return current
    return None


def current_schema(metadata: Json) -> Json:
    """Return the current schema."""
    for schema in metadata["schemas"]:
        if schema["schema-id"] == metadata["current-schema-id"]:
            current: Json = schema
            return current
    raise StorageError("Iceberg metadata lacks its current schema", sqlstate="XX001")


def is_of_mirror(metadata: object) -> bool:
    """Whether this may be a mirror's metadata, and not that of another writer."""
    properties = metadata.get("properties") if isinstance(metadata, dict) else None
    return isinstance(properties, dict) and TABLE_ID in properties


def name_mapping(metadata: Json) -> list[Json]:
    """Return the names that columns have in files without field ids, as far as they are known."""
    mapping: list[Json] = json.loads(metadata["properties"].get(_NAME_MAPPING, "[]"))
    return mapping


def was_mapped(metadata: Json) -> bool:
    """Whether the table had column mapping when the metadata was written."""
    return bool(metadata["properties"].get(_MAPPED) == "true")


def cursor_of(metadata: Json) -> MirrorCursor | None:
    """Return the cursor; None if there is no snapshot."""
    snapshot = current_snapshot(metadata)
    if snapshot is None:
        return None
    summary: Mapping[str, Any] = snapshot["summary"]
    moment = summary.get(MOMENT)
    return MirrorCursor(
        summary[TABLE_ID],
        int(summary[VERSION]),
        summary.get(LSN),
        None if moment is None else int(moment),
    )


def moments_of(metadata: Json) -> list[int]:
    """Return the number of the round that has made each snapshot; 0 for one without a number."""
    return [
        int(snapshot["summary"].get(MOMENT, 0)) for snapshot in metadata["snapshots"]
    ]


def oldest_version(metadata: Json) -> int | None:
    """Return the oldest version of the table that a snapshot shows; None without snapshots."""
    return min(
        (int(snapshot["summary"][VERSION]) for snapshot in metadata["snapshots"]),
        default=None,
    )
