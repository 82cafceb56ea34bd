"""The rows that a commit has changed, as PostgreSQL's text, by operation.

Comes in: a commit, and the table's definition in that version. Goes out: record batches:

    op u8 (I U D)  old u8 (0, K, O)  c<i> binary, the new row  o<i> binary, the old key or row

deletes first, then updates, then inserts, so that a unique index never has a key twice. ``i``
counts the columns of the relation.

What came and what went is compared by key (or as a whole, where there is none): a row on both
sides that is equal was only written again; with another content it is an UPDATE. A commit that only
brings rows, or only takes some away, needs no comparison and is read as a stream; DuckDB does the
rest, and beyond its memory on disk.

Called by capture (``publish``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from wal2lake.lake.capture.commits import TableCommit, Touched
from wal2lake.lake.delta.deletionvectors import Rows, read_vector
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Relation, ReplicaIdentity
from wal2lake.pgtypes.encode.text import arrow_to_text

_INSERT, _UPDATE, _DELETE = map(ord, "IUD")
_KEY, _ROW = map(ord, "KO")

_BATCH_ROWS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """What a comparison may use."""

    bytes: int
    directory: Path
    """For what is more than that."""


def row_changes(
    state: TableState,
    commit: TableCommit,
    relation: Relation,
    key: Sequence[int],
    memory: Memory,
) -> Iterator[pa.RecordBatch]:
    """Of one commit. ``relation`` has the columns of ``state``, in an order of its own; ``key``:
    positions in it of the primary key, empty if there is none.

    Raises StorageError if a file is not there any more.
    """
    reader = _Reader(state, relation)
    touched = commit.touched
    if commit.truncates:
        touched = tuple(Touched(None, t.after) for t in touched if t.after is not None)
    gone = [piece for one in touched for piece in reader.gone(one)]
    came = [piece for one in touched for piece in reader.came(one)]
    layout = _Layout(relation)
    if not gone:
        for table in reader.read(came):
            yield from layout.inserts(table)
    elif not came:
        for table in reader.read(gone):
            yield from layout.deletes(table)
    else:
        yield from _compare(reader, gone, came, layout, key, memory)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one file."""

    file: DataFile
    rows: Rows | None
    """None: all that its deletion vector leaves."""


class _Reader:
    """Rows of a table's files as text, columns in the relation's order."""

    def __init__(self, state: TableState, relation: Relation) -> None:
        self._state = state
        self._columns = relation.columns
        positions = {field.name: i for i, field in enumerate(state.fields)}
        self._positions = [positions[column.name] for column in relation.columns]
        self.schema = pa.schema(
            [(f"v{i}", pa.binary()) for i in range(len(self._positions))]
        )

    def gone(self, touched: Touched) -> Iterator[_Piece]:
        """What the file had and has no more."""
        before, after = touched.before, touched.after
        if before is not None and after is None:
            yield _Piece(before, None)
        elif before is not None and after is not None:
            rows = np.setdiff1d(self._deleted(after), self._deleted(before))
            if rows.size:
                yield _Piece(after, rows)

    def came(self, touched: Touched) -> Iterator[_Piece]:
        """What it has and had not: a new file's rows, or those that a RESTORE brings back."""
        before, after = touched.before, touched.after
        if before is None and after is not None:
            yield _Piece(after, None)
        elif before is not None and after is not None:
            rows = np.setdiff1d(self._deleted(before), self._deleted(after))
            if rows.size:
                yield _Piece(after, rows)

    def read(self, pieces: Sequence[_Piece]) -> Iterator[pa.Table]:
        """Their rows, a row group at a time."""
        for piece in pieces:
            stored = StoredRows(self._state, [piece.file])
            for table in stored.picked(0, piece.rows, self._positions):
                if table.num_rows:
                    yield self._as_text(table)

    def _as_text(self, table: pa.Table) -> pa.Table:
        arrays = [
            pa.array(
                arrow_to_text(
                    table.column(i),
                    int(column.type_oid),
                    column.typmod,
                    extra_float_digits=1,
                ),
                pa.binary(),
            )
            for i, column in enumerate(self._columns)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _deleted(self, file: DataFile) -> Rows:
        if file.vector is None:
            return np.zeros(0, np.uint64)
        return read_vector(self._state.location, file.vector)


class _Layout:
    """Record batches as the log has them, but for their positions."""

    def __init__(self, relation: Relation) -> None:
        count = len(relation.columns)
        self._whole = relation.identity is ReplicaIdentity.FULL
        self.old = list(range(count)) if self._whole else list(relation.key_positions)
        self._new = list(range(count))

    def inserts(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """``table``: v0, v1, ..."""
        yield from self._batches(table, _INSERT, new="v")

    def deletes(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """The same rows, gone. Without an identity nobody could find them: none."""
        if self.old:
            yield from self._batches(table, _DELETE, old="v")

    def compared(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """``op``, and g0.. of what went, v0.. of what came."""
        ops = table.column("op").to_numpy()
        for op in (_DELETE, _UPDATE, _INSERT):
            here = table.filter(pa.array(ops == op))
            if not here.num_rows or (op != _INSERT and not self.old):
                continue
            if op == _INSERT:
                yield from self._batches(here, op, new="v")
            elif op == _DELETE:
                yield from self._batches(here, op, old="g")
            else:
                # The key is the same: only FULL has an old row to tell.
                old = "g" if self._whole else ""
                yield from self._batches(here, op, new="v", old=old)

    def _batches(
        self, table: pa.Table, op: int, *, new: str = "", old: str = ""
    ) -> Iterator[pa.RecordBatch]:
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


def _compare(
    reader: _Reader,
    gone: Sequence[_Piece],
    came: Sequence[_Piece],
    layout: _Layout,
    key: Sequence[int],
    memory: Memory,
) -> Iterator[pa.RecordBatch]:
    count = len(reader.schema)
    config = {
        "memory_limit": f"{max(memory.bytes, 64 << 20)}B",
        "temp_directory": str(memory.directory),
        "threads": "1",
    }
    with duckdb.connect(":memory:", config=config) as database:
        for name, pieces in (("gone", gone), ("came", came)):
            source = pa.RecordBatchReader.from_batches(
                reader.schema,
                (b for t in reader.read(pieces) for b in t.to_batches()),
            )
            database.register("source", source)
            names = ", ".join(f"v{i}" for i in range(count))
            # Of rows without a key equal ones are told apart by their number.
            number = "0" if key else f"row_number() over (partition by {names})"
            database.execute(
                f"create table {name} as select {names}, {number} as n from source"
            )
            database.unregister("source")
        if key:
            _number_repeated(database, key, names)
        by = [f"v{i}" for i in (key or range(count))] + ["n"]
        on = " and ".join(f"g.{c} is not distinct from c.{c}" for c in by)
        same = " and ".join(f"g.v{i} is not distinct from c.v{i}" for i in range(count))
        old = ", ".join(f"g.v{i} as g{i}" for i in range(count))
        new = ", ".join(f"c.v{i} as v{i}" for i in range(count))
        found = database.sql(
            f"select case when c.n is null then {_DELETE}"
            f" when g.n is null then {_INSERT} else {_UPDATE} end as op, {old}, {new}"
            f" from gone g full join came c on {on}"
            f" where g.n is null or c.n is null or not ({same})"
            f" order by case op when {_DELETE} then 0 when {_UPDATE} then 1 else 2 end"
        )
        for batch in found.to_arrow_reader(_BATCH_ROWS):
            yield from layout.compared(pa.Table.from_batches([batch]))


def _number_repeated(
    database: duckdb.DuckDBPyConnection, key: Sequence[int], names: str
) -> None:
    """Who writes from outside may write a key several times: those rows are told apart, too."""
    keys = ", ".join(f"v{i}" for i in key)
    repeated = (
        "select exists (select 1 from {} group by " + keys + " having count(*) > 1)"
    )
    found = [
        database.execute(repeated.format(name)).fetchall() for name in ("gone", "came")
    ]
    if found == [[(False,)], [(False,)]]:
        return
    for name in ("gone", "came"):
        database.execute(
            f"create or replace table {name} as select {names},"
            f" row_number() over (partition by {keys} order by {names}) as n from {name}"
        )
