"""Columns of a version of a table, read from its Parquet files without Spark.

Comes in: a table's place, a version of it, names of columns. Goes out: their fields, and record
batches with the values that Spark would give, in an order of their own; or nothing, if only Spark
knows them. Called by the front door for a COPY of a table, which has no use for Spark's plans and
pays for its rows three times: read, made Arrow, sent; and for a small table.

Memory is that of a few batches, however large the table's row groups are. The version does not
change while it is read: files that later versions do not have stay where they are (VACUUM keeps
them for its retention time), as for Spark.

Types are the limit: a struct in a file may have other fields than the table, and what is not
written by us in exactly one way is left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from wal2lake.lake.ahead import Ahead
from wal2lake.lake.delta.durability import local_path
from wal2lake.lake.port import (
    FieldSpec,
    PhysicalField,
    TablePort,
    TableState,
    can_partition,
)
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import StoredRows, is_ours

_BATCH_ROWS: Final = 32 * 1024
_BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch as Parquet holds them, not compressed."""

_SPARKS: Final = re.compile(r"\b(?:struct|map|collate)\b", re.IGNORECASE)
"""In the name of a type that is Spark's to read."""


@dataclass(frozen=True, slots=True)
class PlainRead:
    """Some columns of one version."""

    fields: tuple[FieldSpec, ...]
    _state: TableState
    _files: Sequence[DataFile]
    _positions: tuple[int, ...]

    @classmethod
    def of(
        cls,
        tables: TablePort,
        location: str,
        version: int | None,
        columns: Sequence[str],
    ) -> PlainRead | None:
        """``version`` None: the newest. None: it is for Spark to read."""
        root = local_path(location)
        found = None if root is None else tables.plainly_read(location, version)
        if found is None:
            return None
        state, files = found
        places = {field.name: i for i, field in enumerate(state.fields)}
        if not columns or not places.keys() >= set(columns):
            return None
        positions = tuple(places[name] for name in columns)
        for i in positions:
            if not is_plain(state.fields[i], state.physical_fields[i]):
                return None
        # A path, so that what is in a URL is not decoded twice.
        local = replace(state, location=str(root))
        return cls(tuple(state.fields[i] for i in positions), local, files, positions)

    def within(self, bounds: Mapping[str, tuple[int, int]]) -> PlainRead:
        """Without files none of whose rows has a value between these (lowest, highest), both
        included, in its columns of integers."""
        files = [file for file in self._files if may_have(file, self._state, bounds)]
        return replace(self, _files=files)

    @property
    def files(self) -> int:
        """How many there are to be read."""
        return len(self._files)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(file.size for file in self._files)

    @property
    def rows(self) -> int | None:
        """How many there are; None: the table's log does not say."""
        found = 0
        for file in self._files:
            if file.rows is None:
                return None
            found += file.rows - file.deleted
        return found

    def batches(self) -> Ahead[pa.RecordBatch]:
        """All rows. To be closed."""
        return Ahead(self.read(), "plain read")

    def read(self) -> Iterator[pa.RecordBatch]:
        """The same, by whoever takes them."""
        rows = StoredRows(self._state, self._files)
        return rows.live_batches(self._positions, _BATCH_ROWS, _BATCH_BYTES)


def may_have(
    file: DataFile, state: TableState, bounds: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether a row of it may have a value between these (lowest, highest), both included, in
    each of these columns of integers."""
    for field, physical in zip(state.fields, state.physical_fields, strict=True):
        if field.name not in bounds:
            continue
        known, (low, high) = file.bounds(physical.physical_name), bounds[field.name]
        if known is not None and (known[1] < low or known[0] > high):
            return False
    return True


def is_plain(field: FieldSpec, physical: PhysicalField) -> bool:
    """Whether the files' values of a column are read here as Spark reads them."""
    ddl = field.spark_ddl
    if physical.is_partition and not can_partition(ddl):
        return False
    return _SPARKS.search(ddl) is None and is_ours(field)
