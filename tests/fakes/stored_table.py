"""A table's files in a directory without Delta, changed by upserts as a commit would.

Comes in: rows, in Parquet files with deletion vectors; staged events. Goes out: the rows, read back
through the vectors that readers would use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from wal2lake.lake.delta.datafile import DataFileWriter
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.origins import COLUMNS, RowMarks, tagged
from wal2lake.lake.port import FieldSpec, PhysicalField, TableState
from wal2lake.lake.staging.historyrows import HistoryTarget
from wal2lake.lake.staging.layout import ChangeShape, RowFailure, Uniqueness
from wal2lake.lake.staging.stage import read_staged
from wal2lake.lake.tablefiles import DataFile, add_action
from wal2lake.lake.upsert import Upsert, UpsertMemory, plan_upsert
from wal2lake.lake.upsert.judging import AS_POSTGRESQL, ConflictRules
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Modified


@dataclass
class HeldChanges:
    """Staged changes in memory, as ``staging.StagedChanges``."""

    shape: ChangeShape
    size: int
    held: Sequence[pa.Table]
    paths: Sequence[str] = ()

    def tables(self) -> list[pa.Table]:
        """All tables."""
        return [*self.held, *map(read_staged, self.paths)]


class StoredTable:
    """See the header. Rows are tuples, in the order of the fields."""

    def __init__(
        self,
        location: Path | str,
        fields: Sequence[FieldSpec],
        schema: pa.Schema,
        rows: Sequence[Sequence[object]],
        files: int,
        scratch: Path | None = None,
    ) -> None:
        """The rows are divided over so many files; ``schema`` is Arrow's of the fields.
        ``scratch``: a directory for a table that has a URL."""
        if isinstance(location, Path):
            location.mkdir(parents=True)
            scratch = location
        assert scratch is not None
        self._scratch = scratch
        self._schema = schema
        self.state = TableState(
            location=str(location),
            table_id="id",
            version=0,
            cursors={},
            fields=tuple(fields),
            physical_fields=tuple(
                PhysicalField(f.name, f.name, None, f.spark_ddl) for f in fields
            ),
            column_mapping=False,
            properties={"delta.enableDeletionVectors": "true"},
        )
        self._index = KeyIndex(scratch / "_index", 1 << 30, least_rows=1)
        self._plans = 0
        self.files: list[DataFile] = []
        share = -(-len(rows) // files) or 1
        for start in range(0, len(rows), share):
            self.add(rows[start : start + share])

    def add(
        self,
        rows: Sequence[Sequence[object]],
        by: Modified | None = None,
        *,
        tag: bool = False,
    ) -> None:
        """One more file, whose rows ``by`` has made; ``tag``: as a local statement says so."""
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        table = pa.table(columns, schema=self._schema)
        if by is not None and not tag:
            known = (by.origin, by.xid, by.time_us)
            table = RowMarks(*(np.full(len(rows), one) for one in known)).appended(
                table
            )
        with DataFileWriter(self.state.location, self.state.physical_fields) as writer:
            writer.write(table)
            added = writer.finish()
        assert added is not None
        action = add_action(added, data_change=True)
        if by is not None and tag:
            action = tagged(action, by)
        self.files.append(DataFile(action))

    def plan(
        self,
        shape: ChangeShape,
        staged: Sequence[pa.Table],
        uniqueness: Uniqueness,
        *,
        memory: int,
        runs: int = 1,
        rules: ConflictRules = AS_POSTGRESQL,
        history: HistoryTarget | None = None,
    ) -> Upsert | RowFailure:
        """What a batch would change; ``memory`` in bytes, or as much as ``runs`` need that are
        more than one. Every second batch looks into an index of keys."""
        self._plans += 1
        size = sum(t.nbytes for t in staged)
        if runs > 1:
            memory = 2 * size * (1 if history is None else 3) // runs - 1
        return plan_upsert(
            HeldChanges(shape, size, list(staged)),
            self.state,
            self.files,
            uniqueness,
            UpsertMemory(memory),
            f"{self._scratch}/spill",
            rules=rules,
            index=self._index if self._plans % 2 else None,
            history=history,
        )

    def commit(self, upsert: Upsert) -> None:
        """As Delta's log has it afterwards."""
        files = {} if upsert.truncates else {f.key: f for f in self.files}
        for one in upsert.replaced:
            del files[one.file.key]
            kept = one.add(data_change=True)
            if kept is not None:
                files[one.file.key] = DataFile(json.loads(json.dumps(kept)))
        for added in upsert.adds:
            file = DataFile(add_action(added, data_change=True))
            files[file.key] = file
        self.files = list(files.values())

    def read(self) -> list[tuple[object, ...]]:
        """Its rows."""
        parts = StoredRows(self.state, self.files).live(range(len(self.state.fields)))
        width = len(self.state.fields)
        return [
            tuple(row.values())[:width] for part in parts for row in part.to_pylist()
        ]

    def marks(self) -> dict[tuple[object, ...], int | None]:
        """By row: the origin of who has made it; None: not known."""
        parts = StoredRows(self.state, self.files).live(range(len(self.state.fields)))
        width = len(self.state.fields)
        return {
            tuple(row.values())[:width]: row.get(COLUMNS[0])
            for part in parts
            for row in part.to_pylist()
        }
