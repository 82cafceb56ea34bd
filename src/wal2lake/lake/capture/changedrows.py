"""Reads the rows that a commit has changed, as PostgreSQL's text, by operation.

Comes in: a commit, and the table's definition in that version. Goes out: record batches:

    op u8 (I U D)  old u8 (0, K, O)  c<i> binary, the new row  o<i> binary, the old key or row

deletes first, then updates, then inserts, so that a unique index never has a key twice. ``i``
counts the columns of the relation. Without a replica identity no row has an old one.

Removed and added rows are compared (``comparison``). A commit that only adds rows, or only removes
rows, needs no comparison and is read as a stream.

Called by capture (``publish``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.lake.capture.commits import TableCommit, TouchedFile
from wal2lake.lake.capture.comparison import (
    DELETE,
    INSERT,
    MOVE,
    UPDATE,
    ComparisonMemory,
    RecordedUpdates,
    compare,
)
from wal2lake.lake.delta.deletionvectors import Rows, read_vector, rows_without
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Column, Relation, ReplicaIdentity
from wal2lake.pgtypes.encode.text import arrow_to_text, plain_text

_INSERT, _UPDATE, _DELETE = map(ord, "IUD")
_KEY, _ROW = map(ord, "KO")

_BATCH_ROWS: Final = 64 * 1024


def row_changes(
    state: TableState,
    commit: TableCommit,
    relation: Relation,
    key: Sequence[int],
    memory: ComparisonMemory,
) -> Iterator[pa.RecordBatch]:
    """Yield the row changes of one commit. Raises StorageError if a file is missing.

    ``relation`` has the columns of ``state``, in an order of its own. ``key``: positions of the
    primary key in it, empty if there is none.
    """
    reader = _Reader(state, relation)
    touched = commit.touched
    if commit.truncates:
        touched = tuple(
            TouchedFile(None, t.after) for t in touched if t.after is not None
        )
    gone = [piece for file in touched for piece in reader.gone(file)]
    came = [piece for file in touched for piece in reader.came(file)]
    # Names of a statement's part files are numbered in order.
    came.sort(key=lambda piece: piece.file.key)
    layout = _Layout(relation)
    if not gone:
        for table in reader.read(came):
            yield from layout.inserts(table)
    elif not came:
        for table in reader.read(gone):
            yield from layout.deletes(table)
    else:
        rows = (reader.read(gone), reader.read(came))
        recorded = RecordedUpdates(commit.remarks.moved, commit.updated)
        for table in compare(*rows, reader.schema, key, recorded, memory):
            yield from layout.compared(table)


def rows_gone(
    state: TableState, commit: TableCommit, relation: Relation
) -> Iterator[pa.Table]:
    """Yield the rows that a commit has removed or rewritten: columns v0, v1, ..."""
    reader = _Reader(state, relation)
    yield from reader.read([p for file in commit.touched for p in reader.gone(file)])


def as_text(values: pa.Array, column: Column) -> pa.Array:
    """Return a column's values as the log has them: PostgreSQL's text, as binary."""
    oid, typmod = int(column.type_oid), column.typmod
    converted = plain_text(values, oid, typmod)
    if converted is None:
        texts = arrow_to_text(values, oid, typmod, extra_float_digits=1)
        converted = pa.array(texts, pa.binary())
    return converted


def most_changes(commit: TableCommit, rows_of: Callable[[DataFile], int]) -> int:
    """Return an upper bound of the changes that ``row_changes`` yields, a TRUNCATE included, by
    what the log holds about the files. ``rows_of`` counts the rows of a file without
    statistics."""
    count = int(commit.truncates)
    for touched in commit.touched:
        before = None if commit.truncates else touched.before
        if before is not None and touched.after is not None:
            # Rows that are deleted now, and rows that a RESTORE brings back.
            count += before.deleted + touched.after.deleted
            continue
        for file in (before, touched.after):
            if file is not None:
                rows = rows_of(file) if file.rows is None else file.rows
                count += rows - file.deleted
    return count


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one file."""

    file: DataFile
    rows: Rows | None
    """None: all rows that its deletion vector leaves."""


class _Reader:
    """Reads rows of a table's files as text, columns in the relation's order."""

    def __init__(self, state: TableState, relation: Relation) -> None:
        self._state = state
        self._columns = relation.columns
        positions = {field.name: i for i, field in enumerate(state.fields)}
        self._positions = [positions[column.name] for column in relation.columns]
        self.schema = pa.schema(
            [(f"v{i}", pa.binary()) for i in range(len(self._positions))]
        )

    def gone(self, touched: TouchedFile) -> Iterator[_Piece]:
        """Yield the rows that the file had before the commit and no longer has."""
        before, after = touched.before, touched.after
        if before is not None and after is None:
            yield _Piece(before, None)
        elif before is not None and after is not None:
            rows = rows_without(self._deleted(after), self._deleted(before))
            if rows.size:
                yield _Piece(after, rows)

    def came(self, touched: TouchedFile) -> Iterator[_Piece]:
        """Yield the rows that the file has and did not have before: a new file's rows, or rows
        that a RESTORE brings back."""
        before, after = touched.before, touched.after
        if before is None and after is not None:
            yield _Piece(after, None)
        elif before is not None and after is not None:
            rows = rows_without(self._deleted(before), self._deleted(after))
            if rows.size:
                yield _Piece(after, rows)

    def read(self, pieces: Sequence[_Piece]) -> Iterator[pa.Table]:
        """Yield the rows of pieces, a row group at a time."""
        for piece in pieces:
            stored = StoredRows(self._state, [piece.file])
            for table in stored.picked(0, piece.rows, self._positions):
                if table.num_rows:
                    yield self._as_text(table)

    def _as_text(self, table: pa.Table) -> pa.Table:
        arrays = [
            as_text(table.column(i).combine_chunks(), column)
            for i, column in enumerate(self._columns)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _deleted(self, file: DataFile) -> Rows:
        if file.vector is None:
            return np.zeros(0, np.uint64)
        return read_vector(self._state.location, file.vector)


class _Layout:
    """Builds record batches as the log has them, but without positions."""

    def __init__(self, relation: Relation) -> None:
        count = len(relation.columns)
        self._whole = relation.identity is ReplicaIdentity.FULL
        self.old = list(range(count)) if self._whole else list(relation.key_positions)
        self._new = list(range(count))

    def inserts(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield inserts of the rows of ``table``: v0, v1, ..."""
        yield from self._batches(table, _INSERT, new="v")

    def deletes(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield deletes of the rows of ``table``: v0, v1, ..."""
        yield from self._batches(table, _DELETE, old="v")

    def compared(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a comparison: ``kind``, g0.. of removed rows, v0.. of added
        rows."""
        kinds = table.column("kind").to_numpy()
        # If the key is unchanged, only replica identity FULL sends an old row.
        update = {"new": "v", "old": "g" if self._whole else ""}
        for kind, op, sides in (
            (DELETE, _DELETE, {"old": "g"}),
            (UPDATE, _UPDATE, update),
            (MOVE, _UPDATE, {"new": "v", "old": "g"}),
            (INSERT, _INSERT, {"new": "v"}),
        ):
            here = table.filter(pa.array(kinds == kind))
            if here.num_rows:
                yield from self._batches(here, op, **sides)

    def _batches(
        self, table: pa.Table, op: int, *, new: str = "", old: str = ""
    ) -> Iterator[pa.RecordBatch]:
        if not self.old:
            old = ""
        kind = 0 if not old else _ROW if self._whole else _KEY
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            rows = batch.num_rows
            columns = {
                "op": pa.array(np.full(rows, op, np.uint8)),
                "old": pa.array(np.full(rows, kind, np.uint8)),
            }
            for i in self._new:
                columns[f"c{i}"] = (
                    batch.column(f"{new}{i}") if new else pa.nulls(rows, pa.binary())
                )
            if old:
                for i in self.old:
                    columns[f"o{i}"] = batch.column(f"{old}{i}")
            yield pa.RecordBatch.from_pydict(columns)
