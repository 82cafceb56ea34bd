"""Reads columns of a version of a table from its Parquet files, without Spark.

Comes in: a table's location, a version of it, names of columns. Goes out: their fields, and record
batches with the values that Spark would give, in no particular order; or nothing, if only Spark
can read them. Called by the front door for small tables, and for a COPY of a table. A COPY does
not need Spark's plans, and with Spark would pay for each row three times: read, converted to
Arrow, sent.

Memory is that of a few batches, however large the table's row groups are. The version does not
change while it is read: files that later versions have removed stay (VACUUM keeps them for its
retention time), as for Spark.

Types limit this reader: a struct in a file may have other fields than the table. Spark reads every
type that this node does not write in exactly one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from wal2lake.lake.port import (
    FieldSpec,
    PhysicalField,
    TablePort,
    TableState,
    can_partition,
)
from wal2lake.lake.prefetch import Prefetched
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import StoredRows, is_ours

_BATCH_ROWS: Final = 32 * 1024
_BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch as Parquet stores them, uncompressed."""

_SPARKS: Final = re.compile(r"\b(?:struct|map|collate)\b", re.IGNORECASE)
"""Matches the names of types that only Spark reads."""


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
        """Open a read; ``version`` None: the newest. None: Spark must read it."""
        store = store_at(location)
        listed = None if store is None else tables.plainly_read(location, version)
        if store is None or listed is None:
            return None
        state, files = listed
        places = {field.name: i for i, field in enumerate(state.fields)}
        if not columns or not places.keys() >= set(columns):
            return None
        positions = tuple(places[name] for name in columns)
        for i in positions:
            if not is_plain(state.fields[i], state.physical_fields[i]):
                return None
        # Use a path instead of a URL, so that percent signs are not decoded twice.
        placed = replace(state, location=store.location)
        return cls(tuple(state.fields[i] for i in positions), placed, files, positions)

    def within(self, bounds: Mapping[str, tuple[int, int]]) -> PlainRead:
        """Skip files in which no row has values within ``bounds`` (lowest, highest), both
        included, in its integer columns."""
        files = [file for file in self._files if may_have(file, self._state, bounds)]
        return replace(self, _files=files)

    @property
    def files(self) -> int:
        """Number of files to be read."""
        return len(self._files)

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in self._files)

    @property
    def rows(self) -> int | None:
        """Number of rows; None if the table's log does not have it."""
        count = 0
        for file in self._files:
            if file.rows is None:
                return None
            count += file.rows - file.deleted
        return count

    def batches(self) -> Prefetched[pa.RecordBatch]:
        """Read all rows in another thread. The caller must close the result."""
        return Prefetched(self.read(), "plain read")

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read all rows in the calling thread."""
        rows = StoredRows(self._state, self._files)
        return rows.live_batches(self._positions, _BATCH_ROWS, _BATCH_BYTES)


def may_have(
    file: DataFile, state: TableState, bounds: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether a row of the file may have values within ``bounds`` (lowest, highest), both
    included, in each of these integer columns."""
    for field, physical in zip(state.fields, state.physical_fields, strict=True):
        if field.name not in bounds:
            continue
        limits, (low, high) = file.bounds(physical.physical_name), bounds[field.name]
        if limits is not None and (limits[1] < low or limits[0] > high):
            return False
    return True


def is_plain(field: FieldSpec, physical: PhysicalField) -> bool:
    """Whether this module reads a column's values from the files as Spark does."""
    ddl = field.spark_ddl
    if physical.is_partition and not can_partition(ddl):
        return False
    return _SPARKS.search(ddl) is None and is_ours(field)
