"""Deletes, adds or rewrites a few rows of a table's newest version without Spark.

Comes in: a table's location, a condition, new rows. Goes out: one commit with deletion vectors for
the files that lose rows, and one file with the new rows; or nothing, if Spark must do it. Called
by transactions of the front door, under the table's locks: Spark's UPDATE takes more than a
second, however small the table is.

Memory is that of a row group of the columns that the condition needs, and of the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.delta.datafile import TableWriter, discard_added
from wal2lake.lake.plain.read import is_plain, may_have
from wal2lake.lake.port import (
    CommitConflict,
    Committed,
    Cursor,
    TablePort,
    TableState,
)
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert import TooLarge, UpsertMemory, is_plainly_written
from wal2lake.lake.upsert.stored import StoredRows

_MOST_FILE_BYTES: Final = 64 << 20
"""Most bytes of files that are searched; a guess at the size from which Spark's fixed second pays
off."""

_MOST_FILES: Final = 256
"""Most files that are searched; each takes a millisecond to open."""

_MOST_BYTES: Final = 32 << 20
"""Most bytes of rows that are rewritten."""

Index = npt.NDArray[np.int64]

Matches = Callable[[pa.Table], pa.Array | pa.ChunkedArray | None]
"""Returns true, false or null for each row; None if all rows match."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Positions of rows."""

    file: Index
    """Indexes into the files that were searched."""
    row: Index

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def nothing(cls) -> FoundRows:
        """Return no rows."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))


def file_name(file: DataFile) -> str:
    """Return the last part of a file's path, as Spark's ``_metadata.file_name`` has it."""
    return unquote(file.key).rsplit("/", 1)[-1]


class PlainChange:
    """A change of one table, to be made while no other writer of this node has the table."""

    def __init__(self, state: TableState, files: Sequence[DataFile]) -> None:
        self.state = state
        self._files = files
        # Use a path instead of a URL, so that percent signs are not decoded twice.
        store = store_at(state.location)
        place = state.location if store is None else store.location
        self._stored = StoredRows(replace(state, location=place), files)
        self._places = {field.name: i for i, field in enumerate(state.fields)}

    @classmethod
    def of(
        cls,
        tables: TablePort,
        location: str,
        bounds: Mapping[str, tuple[int, int]],
    ) -> PlainChange | None:
        """Open a change of the rows within ``bounds``, as in ``PlainRead.within``. None: Spark
        must do it."""
        listed = tables.plainly_read(location, None)
        if listed is None:
            return None
        state, files = listed
        if not (
            state.has_vectors
            and is_plainly_written(state)
            and all(map(is_plain, state.fields, state.physical_fields))
        ):
            return None
        files = [file for file in files if may_have(file, state, bounds)]
        if (
            len(files) > _MOST_FILES
            or sum(file.size for file in files) > _MOST_FILE_BYTES
            or not all(file.is_plain for file in files)
        ):
            return None
        return cls(state, files)

    @classmethod
    def at(
        cls, tables: TablePort, location: str, names: Sequence[str]
    ) -> PlainChange | None:
        """Open a change of rows in the files of these names. None: Spark must do it.

        CommitConflict if the newest version lacks one of the files.
        """
        listed = tables.plainly_read(location, None)
        if listed is None:
            return None
        state, files = listed
        chosen = {file_name(file): file for file in files}
        if not (
            state.has_vectors
            and is_plainly_written(state)
            and all(map(is_plain, state.fields, state.physical_fields))
        ):
            return None
        if not chosen.keys() >= set(names):
            raise CommitConflict(
                "could not serialize access due to concurrent update",
                hint="The transaction might succeed if retried.",
            )
        files = [chosen[name] for name in names]
        return cls(state, files) if all(file.is_plain for file in files) else None

    @classmethod
    def adding(cls, tables: TablePort, location: str) -> PlainChange | None:
        """Open a change that only adds rows, and reads none. None: Spark must do it."""
        listed = tables.plainly_read(location, None)
        if listed is None:
            return None
        state, _ = listed
        if not (
            is_plainly_written(state)
            and all(map(is_plain, state.fields, state.physical_fields))
        ):
            return None
        return cls(state, ())

    def has(self, columns: Sequence[str]) -> bool:
        """Whether the table has columns of these names."""
        return self._places.keys() >= set(columns)

    def find(
        self, columns: Sequence[str], matches: Matches, check: Callable[[], None]
    ) -> FoundRows:
        """Find rows that match by some of their columns, in the order in which they are stored."""
        files, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        positions = [self._places[name] for name in columns] or [0]
        for number, numbers, table in self._stored.live_places(positions):
            check()
            matching = matches(table)
            if matching is not None:
                kept = np.asarray(matching.fill_null(False).to_pylist(), np.bool_)
                numbers = numbers[kept]
            rows.append(numbers.astype(np.int64))
            files.append(np.full(len(numbers), number, np.int64))
        return FoundRows(np.concatenate(files), np.concatenate(rows))

    def table_of(
        self, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]
    ) -> pa.Table | None:
        """Build rows in the table's columns, from values in ``columns``, which have Spark's types;
        None if the table's columns have other types."""
        kinds = {name: (place, ddl) for place, (name, ddl) in enumerate(columns)}
        fields = self.state.fields
        if {f.name: f.spark_ddl.lower().replace(" ", "") for f in fields} != {
            name: ddl.lower() for name, (_, ddl) in kinds.items()
        }:
            return None
        arrays = [
            pa.array(
                [row[kinds[field.name][0]] for row in rows],
                mapping_of(field).arrow_type,
            )
            for field in fields
        ]
        return pa.Table.from_arrays(arrays, names=[field.name for field in fields])

    def rows(self, places: FoundRows) -> pa.Table | None:
        """Return all columns of the rows, in the same order; None if they are too large."""
        try:
            with UpsertMemory(_MOST_BYTES).share(0) as share:
                columns = list(range(len(self.state.fields)))
                return self._stored.fetch(places.file, places.row, columns, share)
        except TooLarge:
            return None

    def commit(
        self,
        tables: TablePort,
        removed: FoundRows,
        rows: pa.Table | None,
        cursor: Cursor,
        operation: str,
    ) -> Committed:
        """Remove the rows ``removed``, and add ``rows`` in the table's columns, in one durable
        commit. CommitConflict if another writer was first."""
        location = self.state.location
        gone = {
            number: removed.row[removed.file == number].astype(np.uint64)
            for number in np.unique(removed.file).tolist()
        }
        replaced = self._stored.without(gone)
        with TableWriter(location, self.state.physical_fields) as writer:
            if rows is not None:
                writer.write_all(rows)
            adds = writer.finish()
        try:
            return tables.commit_files(
                location,
                adds,
                cursor,
                read_version=self.state.version,
                replaced=replaced,
                operation=operation,
            )
        except CommitConflict:
            discard_added(location, adds)
            raise
