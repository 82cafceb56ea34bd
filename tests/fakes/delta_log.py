"""A Delta table without rows' values, written by hand: its log, and files of a few bytes.

What each version needs is kept beside it, as the model that the log is judged by.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from wal2lake.lake.delta.z85 import encode_z85

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}],
    }
)
PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "changeDataFeed"],
}


def _pylists(rows: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in rows.columns]


@dataclass
class WrittenTable:
    """The table, and the files that each of its versions needs."""

    root: Path
    properties: dict[str, str] = field(default_factory=dict)
    versions: list[dict[str, str | None]] = field(default_factory=list)
    """By version: data files with the files of their deletion vectors."""
    changes: list[set[str]] = field(default_factory=list)
    """By version: the change files of its commit."""
    vectors: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Descriptors by data file."""
    cursors: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    """Features beside those of ``PROTOCOL``, for readers and writers."""

    def create(self) -> None:
        """Commit version 0."""
        (self.root / "_delta_log").mkdir(parents=True)
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": SCHEMA,
            "partitionColumns": [],
            "configuration": {
                "delta.enableDeletionVectors": "true",
                **self.properties,
            },
            "createdTime": 0,
        }
        protocol = {
            **PROTOCOL,
            "readerFeatures": ["deletionVectors", *self.features],
            "writerFeatures": ["deletionVectors", "changeDataFeed", *self.features],
        }
        self._commit([{"protocol": protocol}, {"metaData": metadata}], {}, set())

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self.versions) - 1

    def file(self, name: str | None = None, size: int = 10) -> str:
        """Write a data file; return its name."""
        name = name or f"part-{uuid.uuid4()}.parquet"
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return name

    def vector(self) -> tuple[str, dict[str, Any]]:
        """Write a file of a deletion vector; return its name and its descriptor."""
        identity = uuid.uuid4()
        name = f"deletion_vector_{identity}.bin"
        (self.root / name).write_bytes(b"v" * 10)
        return name, {
            "storageType": "u",
            "pathOrInlineDv": encode_z85(identity.bytes),
            "offset": 1,
            "sizeInBytes": 4,
            "cardinality": 1,
        }

    def commit(
        self,
        adds: list[str] | None = None,
        removes: list[str] | None = None,
        deletes_in: list[str] | None = None,
        changes: int = 0,
        cursor: tuple[str, int] | None = None,
    ) -> None:
        """Commit new files, files that go, and files that get one deletion vector together."""
        after = dict(self.versions[-1])
        actions: list[dict[str, Any]] = []
        if cursor is not None:
            self.cursors[cursor[0]] = cursor[1]
            actions.append({"txn": {"appId": cursor[0], "version": cursor[1]}})
        for name in removes or []:
            del after[name]
            actions.append({"remove": self._old(name)})
        if deletes_in:
            file, descriptor = self.vector()
            for name in deletes_in:
                actions.append({"remove": self._old(name)})
                self.vectors[name] = descriptor
                after[name] = file
                actions.append({"add": self._new(name)})
        for name in adds or []:
            self.vectors.pop(name, None)
            after[name] = None
            actions.append({"add": self._new(name)})
        named = set()
        for _ in range(changes):
            name = self.file(f"_change_data/cdc-{uuid.uuid4()}.parquet")
            named.add(name)
            cdc = {"path": name, "partitionValues": {}, "size": 10, "dataChange": False}
            actions.append({"cdc": cdc})
        self._commit(actions, after, named)

    def restore(self, version: int) -> None:
        """Commit the files of an earlier version again."""
        before, after = self.versions[-1], self.versions[version]
        gone = [n for n in before if n not in after]
        self.commit([n for n in after if n not in before], gone)

    def checkpoint(self) -> None:
        """Let deltalake write a checkpoint of the newest version."""
        DeltaTable(str(self.root)).create_checkpoint()

    def checkpoint_with_sidecar(self) -> None:
        """Write a checkpoint of format v2 of the newest version."""
        self.checkpoint()
        log, number = self.root / "_delta_log", self.newest
        classic = log / f"{number:020}.checkpoint.parquet"
        rows = pq.read_table(classic).select(["add", "remove"])
        of_files = [
            a is not None or r is not None for a, r in zip(*_pylists(rows), strict=True)
        ]
        sidecar = log / "_sidecars" / f"{uuid.uuid4()}.parquet"
        sidecar.parent.mkdir(exist_ok=True)
        pq.write_table(rows.filter(pa.array(of_files)), sidecar)
        first = map(json.loads, self._path(0).read_text().splitlines())
        lines: list[dict[str, Any]] = [
            {"checkpointMetadata": {"version": number, "tags": {}}},
            *(a for a in first if "protocol" in a or "metaData" in a),
            *({"txn": {"appId": k, "version": v}} for k, v in self.cursors.items()),
            {
                "sidecar": {
                    "path": sidecar.name,
                    "sizeInBytes": sidecar.stat().st_size,
                    "modificationTime": 0,
                }
            },
        ]
        path = log / f"{number:020}.checkpoint.{uuid.uuid4()}.json"
        path.write_text("\n".join(map(json.dumps, lines)))
        classic.unlink()

    def needed(self, first: int, last: int) -> set[str]:
        """The files that versions need."""
        names: set[str] = set()
        for version in range(first, last + 1):
            names |= set(self.versions[version]) | self.changes[version]
            names |= {v for v in self.versions[version].values() if v is not None}
        return names

    def age(self, version: int, seconds_ago: float) -> None:
        """Make a commit older."""
        path = self._path(version)
        then = path.stat().st_mtime - seconds_ago
        os.utime(path, (then, then))

    def present(self) -> set[str]:
        """The files in the table's directory."""
        return {
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and "_delta_log" not in path.parts
        }

    def assert_readable(self, version: int) -> None:
        """deltalake reads the version, its files are the model's, and all are there."""
        table = DeltaTable(str(self.root), version=version)
        found = {Path(uri).name for uri in table.file_uris()}
        assert found == set(self.versions[version]), version
        for name in self.needed(version, version):
            assert (self.root / name).exists(), (version, name)

    def _path(self, version: int) -> Path:
        return self.root / "_delta_log" / f"{version:020}.json"

    def _new(self, name: str) -> dict[str, Any]:
        action: dict[str, Any] = {
            "path": name,
            "partitionValues": {},
            "size": 10,
            "modificationTime": 0,
            "dataChange": True,
            "stats": '{"numRecords":3}',
        }
        if name in self.vectors:
            action["deletionVector"] = self.vectors[name]
        return action

    def _old(self, name: str) -> dict[str, Any]:
        action = {k: v for k, v in self._new(name).items() if k != "modificationTime"}
        return {**action, "deletionTimestamp": 0}

    def _commit(
        self,
        actions: list[dict[str, Any]],
        after: dict[str, str | None],
        changes: set[str],
    ) -> None:
        version = len(self.versions)
        info = {"commitInfo": {"timestamp": 0, "operation": "WRITE"}}
        lines = "\n".join(json.dumps(a) for a in (info, *actions))
        self._path(version).write_text(lines + "\n")
        tokens = [{"appId": k, "version": v} for k, v in self.cursors.items()]
        summed = json.dumps({"setTransactions": tokens})
        self._path(version).with_suffix(".crc").write_text(summed)
        self.versions.append(after)
        self.changes.append(changes)
