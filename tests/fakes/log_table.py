"""Tables on this machine without Spark: created, committed to and read as the node does it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.delta.log.checksum import NO_FILES, checksum_line
from wal2lake.lake.delta.log.commit import Change, NextVersion, write_next
from wal2lake.lake.delta.log.firstversion import (
    commit_lines,
    own_time_of,
    write_first,
)
from wal2lake.lake.delta.log.version import Version
from wal2lake.lake.delta.protocol.newtables import completed
from wal2lake.lake.delta.schema import field_json, json_of
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.port import Cursor
from wal2lake.lake.store import LocalStore
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced, add_action

APP = "wal2lake:1:2:3"

COLUMNS = (("id", "bigint"), ("part", "int"), ("name", "string"))


class LogTable:
    """One table, and the rows that it should have."""

    def __init__(
        self,
        root: Path,
        properties: Mapping[str, str] | None = None,
        *,
        partitioned: bool = False,
        columns: Sequence[tuple[str, str]] = COLUMNS,
    ) -> None:
        self.root, self.location = root, str(root)
        fields = [field_json(name, json_of(ddl), {}) for name, ddl in columns]
        metadata, protocol = completed(
            {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": ["part"] if partitioned else [],
                "configuration": {
                    "delta.enableDeletionVectors": "true",
                    **(properties or {}),
                },
                "createdTime": int(time.time() * 1000),
            },
            {},
        )
        txn_id = str(uuid.uuid4())
        self.store = LocalStore(root)
        write_first(
            self.store,
            commit_lines(metadata, protocol, txn_id),
            checksum_line(
                metadata,
                protocol,
                txn_id,
                NO_FILES,
                files=(),
                committed_ms=own_time_of(metadata),
            ),
        )
        self.known = KnownVersions()
        self.rows: dict[int, tuple[int, str]] = {}
        self._next = 1

    @property
    def version(self) -> Version:
        found = self.known.newest(self.location)
        assert found is not None
        return found

    @property
    def files(self) -> dict[str, DataFile]:
        found = self.known.files(self.version.state)
        assert found is not None
        return found

    def commit(self, changes: Sequence[Change], **more: object) -> Version:
        """Commit, as ``DeltaTables`` does."""
        before = self.version
        cursor = Cursor(APP, self._next)
        self._next += 1
        commit = NextVersion(changes, cursor, "test", **more)  # type: ignore[arg-type]
        written = write_next(self.store, before, self.known.files(before.state), commit)
        assert written is not None
        self.known.written(before.state, written)
        return self.version

    def write(self, ids: Sequence[int], part: int = 1) -> AddedFile:
        """Write a file, which is not yet one of the table."""
        state = self.version.state
        names = [field.name for field in state.fields]
        values = {
            "id": list(ids),
            "part": pa.array([part] * len(ids), pa.int32()),
            "name": [f"n{i}" for i in ids],
        }
        rows = pa.table({name: values[name] for name in names})
        with TableWriter(self.location, state.physical_fields) as writer:
            writer.write(rows)
            (added,) = writer.finish()
        return added

    def append(self, ids: Sequence[int], part: int = 1) -> Version:
        """Commit new rows."""
        self.rows |= {i: (part, f"n{i}") for i in ids}
        added = self.write(ids, part)
        return self.commit([{"add": add_action(added, data_change=True)}])

    def delete(self, file: DataFile, rows: Sequence[int]) -> Version:
        """Commit a deletion vector with these row numbers; none: remove the file."""
        vector = None
        if rows:
            (vector,) = write_vectors(self.location, [np.array(rows, np.uint64)])
        replaced = Replaced(file, vector)
        now = int(time.time() * 1000)
        changes: list[Change] = [{"remove": replaced.remove(now, data_change=True)}]
        kept = replaced.add(data_change=True)
        if kept is not None:
            changes.append({"add": kept})
        return self.commit(changes, reads=True)
