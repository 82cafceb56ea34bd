"""A table that is written as the node writes it, for mirrors that readers of Iceberg read.

Its log is written by hand, so that each version is what a test wants; data files and deletion
vectors are the node's own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from wal2lake.lake import AddedFile, DataFile, FieldSpec, TableState
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.delta.deletionvectors import read_vector, write_vectors
from wal2lake.lake.delta.log.place import LOG, commit_key, content_of, dump
from wal2lake.lake.delta.log.version import read_actions, state_of
from wal2lake.lake.delta.schema import json_of
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import Replaced, add_action
from wal2lake.pgtypes import arrow_from_ddl

COLUMNS = (("id", "bigint"), ("name", "string"))

Rows = Counter[tuple[Any, ...]]


class MirroredTable:
    """One table. Answers what a mirror asks of ``TablePort``."""

    def __init__(
        self,
        root: Path | str,
        columns: Sequence[tuple[str, str]] = COLUMNS,
        partition: Sequence[str] = (),
    ) -> None:
        self.root, self.location = Path(root), str(root)
        store = store_at(self.location)
        assert store is not None
        self.store = store
        store.make_folder(LOG)
        self.version = -1
        self.files: dict[str, DataFile] = {}
        self.history: list[dict[str, DataFile]] = []
        self.metadata: list[dict[str, Any]] = []
        self.partition = list(partition)
        self.define(columns)

    def define(
        self,
        columns: Sequence[tuple[str, str]],
        mapped: Mapping[str, tuple[str, int]] | None = None,
        **metadata: Any,
    ) -> None:
        """Commit other columns; ``mapped``: physical names and ids by name."""
        fields = []
        for name, ddl in columns:
            own: dict[str, Any] = {}
            if mapped is not None:
                own["delta.columnMapping.physicalName"] = mapped[name][0]
                own["delta.columnMapping.id"] = mapped[name][1]
            kind = json_of(ddl)
            fields.append(
                {"name": name, "type": kind, "nullable": True, "metadata": own}
            )
        before = self.metadata[-1] if self.metadata else {"id": str(uuid.uuid4())}
        properties = {"delta.enableDeletionVectors": "true"}
        features = ["deletionVectors"]
        if mapped is not None:
            properties["delta.columnMapping.mode"] = "name"
            features.append("columnMapping")
        if any(ddl == "timestamp_ntz" for _, ddl in columns):
            features.append("timestampNtz")
        now = {
            **before,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": self.partition,
            "configuration": properties,
            "createdTime": 0,
            **metadata,
        }
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        self.commit({"protocol": protocol}, {"metaData": now})

    def commit(self, *actions: Mapping[str, Any]) -> int:
        """Commit these actions as the next version."""
        self.version += 1
        info = {"commitInfo": {"timestamp": int(time.time() * 1000)}}
        lines = [dump(action) for action in (info, *actions)]
        key = commit_key(self.version)
        assert self.store.put_if_absent(key, content_of(lines)) is not None
        metadata = self.metadata[-1] if self.metadata else {}
        for action in actions:
            metadata = action.get("metaData", metadata)
            if "remove" in action:
                self.files.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                self.files[action["add"]["path"]] = DataFile(action["add"])
        self.metadata.append(dict(metadata))
        self.history.append(dict(self.files))
        return self.version

    def write(self, columns: Mapping[str, Sequence[Any]]) -> list[AddedFile]:
        """Write rows as files that are not yet of the table."""
        state = self.state(self.location)
        rows = pa.table(
            {
                field.name: pa.array(columns[field.name], kind)
                for field, kind in zip(state.fields, _kinds(state.fields), strict=True)
            }
        )
        with TableWriter(self.location, state.physical_fields) as writer:
            writer.write(rows)
            return list(writer.finish())

    def append(self, columns: Mapping[str, Sequence[Any]]) -> int:
        """Commit new rows."""
        added = self.write(columns)
        return self.commit(*({"add": add_action(a, data_change=True)} for a in added))

    def delete(self, rows: Mapping[str, Sequence[int]]) -> int:
        """Commit deletion vectors of files, by their keys; no rows: the file goes."""
        actions: list[Mapping[str, Any]] = []
        for key, numbers in rows.items():
            file, vector = self.files[key], None
            if numbers:
                ascending = np.array(sorted(numbers), np.uint64)
                (vector,) = write_vectors(self.location, [ascending])
            replaced = Replaced(file, vector)
            actions.append({"remove": replaced.remove(0, data_change=True)})
            kept = replaced.add(data_change=True)
            if kept is not None:
                actions.append({"add": kept})
        return self.commit(*actions)

    def deleted(self, key: str) -> set[int]:
        """Return the rows that a file's vector deletes."""
        vector = self.files[key].vector
        if vector is None:
            return set()
        return {int(row) for row in read_vector(self.location, vector)}

    def state(self, location: str) -> TableState:
        return self.state_at(location, self.version)

    def state_at(self, location: str, version: int) -> TableState:
        return state_of(location, self.metadata[version], version, {})

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        return [read_actions(self.store, version) for version in range(first, last + 1)]

    def plainly_read(
        self, location: str, version: int | None
    ) -> tuple[TableState, Sequence[DataFile]] | None:
        at = self.version if version is None else version
        return self.state_at(location, at), list(self.history[at].values())


def _kinds(fields: Sequence[FieldSpec]) -> list[pa.DataType]:
    return [arrow_from_ddl(field.spark_ddl) for field in fields]


def now_ms() -> int:
    """Return the time as the mirror wants it."""
    return int(datetime.now().timestamp() * 1000)
