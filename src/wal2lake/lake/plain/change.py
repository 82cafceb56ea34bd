"""Deletes, adds or rewrites a few rows of a table's newest version without Spark.

Comes in: a table's location, a condition, new rows. Goes out: one commit with deletion vectors for
the files that lose rows, and one file with the new rows; or nothing, if Spark must do it. Called
by transactions of the front door, under the table's locks: Spark's UPDATE takes more than a
second, however small the table is.

Memory is that of a row group of the columns that the condition needs, and of the rows themselves.
"""

from __future__ import annotations

import os
import tempfile
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
    FieldSpec,
    TablePort,
    TableState,
)
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.staging.layout import ChangeShape
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert import TooLarge, UpsertMemory, is_plainly_written
from wal2lake.lake.upsert.keys import open_keys
from wal2lake.lake.upsert.locating import candidates
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.pgtypes.equality import loose_columns

_MOST_FILE_BYTES: Final = 64 << 20
"""Most bytes of files that are searched; a guess at the size from which Spark's fixed second pays
off."""

_MOST_FILES: Final = 256
"""Most files that are searched; each takes a millisecond to open."""

_MOST_KEY_BYTES: Final = 256 << 20
"""Most bytes of key columns that are read to find keys, uncompressed: 32 M of bigint."""

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


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Rows of a table that have one of some keys."""

    numbers: Index
    """For each of the keys, its number; equal keys have the same."""
    key: Index
    """For each row, the number of its key."""
    places: FoundRows
    """The rows."""


def _is_compared_by_spark(field: FieldSpec) -> bool:
    """Whether Spark compares values in its own way: it pads CHAR, and knows collations."""
    ddl = field.spark_ddl.lower()
    return (
        ddl.startswith("char")
        or "collate" in ddl
        or pa.types.is_nested(mapping_of(field).arrow_type)
    )


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
        self._placed = replace(state, location=place)
        self._stored = StoredRows(self._placed, files)
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
        cls, tables: TablePort, location: str, names: Sequence[str] | None = None
    ) -> PlainChange | None:
        """Open a change of rows in the files of these names, or in any file. None: Spark must do
        it.

        CommitConflict if the newest version lacks one of the files.
        """
        listed = tables.plainly_read(location, None)
        if listed is None:
            return None
        state, files = listed
        if names is not None:
            chosen = {file_name(file): file for file in files}
            if not chosen.keys() >= set(names):
                raise CommitConflict(
                    "could not serialize access due to concurrent update",
                    hint="The transaction might succeed if retried.",
                )
            files = [chosen[name] for name in names]
        if not (
            state.has_vectors
            and is_plainly_written(state)
            and all(map(is_plain, state.fields, state.physical_fields))
        ):
            return None
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

    @property
    def files(self) -> int:
        """Number of files that may have the rows."""
        return len(self._files)

    @property
    def size(self) -> int:
        """Bytes of these files."""
        return sum(file.size for file in self._files)

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

    def find_keys(self, columns: Sequence[str], keys: pa.Table) -> FoundKeys | None:
        """Find the rows that have one of ``keys`` in the columns of a key; None if only Spark
        can compare them."""
        fields = self.state.fields
        places = tuple(self._places[name] for name in columns)
        if any(map(_is_compared_by_spark, map(fields.__getitem__, places))):
            return None
        arrays = keys.select(list(columns)).columns
        folder = f"{tempfile.gettempdir()}/wal2lake-{os.getpid()}/_keys"
        loose = loose_columns(fields, places)
        with open_keys(arrays, folder, loose=loose) as numbered_keys:
            searched = candidates(
                ChangeShape(fields, places),
                self.state,
                self._files,
                (arrays, np.zeros(0, np.int64)),
            )
            file_numbers = {file.key: number for number, file in enumerate(self._files)}
            stored = StoredRows(self._placed, searched)
            try:
                located = stored.locate(
                    numbered_keys, places, most_bytes=_MOST_KEY_BYTES
                )
            except TooLarge:
                return None
            of_all = np.asarray([file_numbers[file.key] for file in searched], np.int64)
            files = of_all[located.file] if len(of_all) else located.file
            return FoundKeys(
                numbered_keys.numbers,
                located.key,
                FoundRows(files, located.row.astype(np.int64)),
            )

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
