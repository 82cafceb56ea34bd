"""Writes checkpoints of a table.

In: a table's store. Out: a checkpoint of one version, durable, and the pointer to it.
No commit needs a checkpoint; readers save the commits below it.

    delta.checkpointPolicy   files
    classic                  <version>.checkpoint.parquet, with everything
    v2                       <version>.checkpoint.<uuid>.json, and one sidecar with the files

``delta.checkpoint.writeStatsAsJson`` and ``...writeStatsAsStruct`` say how files' statistics are in
it. A removed file stays in the checkpoint as a tombstone for as long as the table keeps its files,
since VACUUM asks for it.

Called by ``spark.delta.deltatables``. Sources: Delta transaction log protocol, "Checkpoints",
"Checkpoint Schema", "V2 Spec", "Last Checkpoint File Schema"; delta-spark 4.4 Checkpoints.scala.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.lake.delta.log.checkpoints import POLICY
from wal2lake.lake.delta.log.place import LOG, Object, content_of, dump
from wal2lake.lake.delta.log.version import Version
from wal2lake.lake.delta.protocol.durations import (
    FILES,
    FILES_DEFAULT_SECONDS,
    seconds_or,
)
from wal2lake.lake.delta.versions.actionrows import Rows, batches, schemas_of
from wal2lake.lake.delta.versions.checkpointfiles import SIDECARS
from wal2lake.lake.delta.versions.replay import Replay, replay
from wal2lake.lake.port import TableState
from wal2lake.lake.store import Store

POINTER: Final = "_last_checkpoint"


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that has just been written."""

    version: Version
    actions: int


def write_checkpoint(location: str, store: Store, number: int) -> WrittenCheckpoint:
    """Write a checkpoint of a version that is durable; durable on return.

    StorageError and its kin if the log cannot be read, or the checkpoint not be written."""
    state = replay(location, store, number)
    version = state.version(location, store, number)
    properties = version.state.properties
    others, files = _rows(version, state)
    count = sum(map(len, (*others.values(), *files.values())))
    if properties.get(POLICY) == "v2":
        pointer = _write_v2(store, version, others, files)
    else:
        pointer = _write_classic(store, version, {**others, **files})
    facts = {
        "version": number,
        "size": count,
        "numOfAddFiles": len(files["add"]),
        **pointer,
    }
    _replace(store, POINTER, content_of([dump(facts)]))
    return WrittenCheckpoint(version, count)


def write_classic(location: str, store: Store, number: int) -> None:
    """Write a classic checkpoint of a version beside one that old readers do not know."""
    state = replay(location, store, number)
    version = state.version(location, store, number)
    others, files = _rows(version, state)
    _write_classic(store, version, {**others, **files})


def _rows(version: Version, state: Replay) -> tuple[Rows, Rows]:
    """Return the actions that are not of files, and those that are."""
    others: Rows = {
        "protocol": [version.protocol],
        "metaData": [version.metadata],
        "txn": version.transactions,
        "domainMetadata": version.domains,
    }
    files: Rows = {
        "add": [{**file.action, "dataChange": False} for file in state.live.values()],
        "remove": _tombstones(state, version.state.properties),
    }
    return others, files


def _tombstones(state: Replay, properties: Mapping[str, str]) -> list[Object]:
    """Return the removed files that VACUUM may have to keep."""
    kept = seconds_or(properties, FILES, FILES_DEFAULT_SECONDS)
    since = 0.0 if kept is None else (time.time() - kept) * 1000
    return [
        {**remove, "dataChange": False}
        for remove in state.tombstones.values()
        if int(remove.get("deletionTimestamp") or 0) > since
    ]


def _write_classic(store: Store, version: Version, rows: Rows) -> dict[str, object]:
    """Write a checkpoint in one file; return facts for the pointer."""
    name = f"{version.state.version:020}.checkpoint.parquet"
    content = _parquet(version.state, schemas_of(version.state), rows)
    _replace(store, name, content)
    return {"sizeInBytes": len(content)}


def _write_v2(
    store: Store, version: Version, others: Rows, files: Rows
) -> dict[str, object]:
    """Write a checkpoint with a sidecar; return facts for the pointer."""
    number = version.state.version
    sidecar = f"{number:020}.checkpoint.{1:010}.{1:010}.{uuid.uuid4()}.parquet"
    schemas = schemas_of(version.state)
    of_files = _parquet(version.state, {kind: schemas[kind] for kind in files}, files)
    store.make_folder(SIDECARS)
    store.put(f"{SIDECARS}/{sidecar}", of_files)
    store.settle(SIDECARS)
    # The folder may be new; the checkpoint must not get its name without it.
    store.settle(LOG)
    now = int(time.time() * 1000)
    tags = {
        "sidecarNumActions": str(sum(map(len, files.values()))),
        "sidecarSizeInBytes": str(len(of_files)),
        "numOfAddFiles": str(len(files["add"])),
    }
    lines: list[Object] = [
        {"checkpointMetadata": {"version": number, "tags": tags}},
        {
            "sidecar": {
                "path": sidecar,
                "sizeInBytes": len(of_files),
                "modificationTime": now,
                "tags": {},
            }
        },
        *({kind: row} for kind, of_it in others.items() for row in of_it),
    ]
    name = f"{number:020}.checkpoint.{uuid.uuid4()}.json"
    content = content_of(map(dump, lines))
    _replace(store, name, content)
    return {
        "sizeInBytes": len(of_files) + len(content),
        "v2Checkpoint": {
            "path": name,
            "sizeInBytes": len(content),
            "modificationTime": now,
        },
    }


def _replace(store: Store, name: str, content: bytes) -> None:
    """Write a file of the log; durable on return."""
    # Hadoop's checksum of an earlier file, by which Spark would judge the new one.
    store.delete(f"{LOG}/.{name}.crc")
    store.put(f"{LOG}/{name}", content)
    store.settle(LOG)


def _parquet(
    state: TableState, schemas: Mapping[str, pa.StructType], rows: Rows
) -> bytes:
    """Return actions as a Parquet file. They are in memory, so the file may be, too."""
    schema, sink = pa.schema(list(schemas.items())), io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for kind in schemas:
            for batch in batches(state, schema, kind, rows.get(kind, ())):
                writer.write_batch(batch)
    return sink.getvalue()
