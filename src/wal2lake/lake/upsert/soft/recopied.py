"""Keeps deleted rows through a copy that replaces a table's rows.

Comes in: the table's present files, and the files of the copy. Goes out: files with the rows that
the copy does not have, marked. Called by copies, which add these files in their own commit.

A row that was marked keeps its mark, unless the copy has its key. A row that was not marked, and
whose key the copy lacks, was deleted at the source while the subscription could not see it, and is
marked with the time of the copy. In a table without a key only marked rows are kept: equal rows
cannot be told apart.

First the rows are found by their keys, some millions at a time, then those rows alone are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.generated import computed
from wal2lake.lake.tablefiles import AddedFile, DataFile, add_action
from wal2lake.lake.upsert.keys import open_keys
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import DELETED_AT, Generated
from wal2lake.pgtypes.equality import loose_columns

_ROWS_AT_ONCE: Final = 4_000_000
"""Most rows whose keys are looked up at once. Each time the keys of the whole copy are read: of
100 million rows 25 times, which takes about as long as writing a tenth of them."""

Rows = npt.NDArray[np.uint64]

_Piece = tuple[int, Rows, pa.Table]
"""Number of a file, rows of it, and their columns."""


def keep_deleted(
    state: TableState,
    files: Sequence[DataFile],
    copied: Sequence[AddedFile],
    key: Sequence[str],
    generated: Generated,
    at_us: int,
    directory: str,
) -> tuple[AddedFile, ...]:
    """Write the rows of ``files`` that the copy lacks, marked; ``at_us``: the time of the copy,
    microseconds since 1970. The caller removes the files if it does not commit them."""
    names = [field.name for field in state.fields]
    mark = names.index(DELETED_AT)
    stored = StoredRows(state, files)
    if key:
        positions = [names.index(name) for name in key]
        copy = StoredRows(
            state, [DataFile(add_action(f, data_change=True)) for f in copied]
        )
        kept = _not_copied(stored, copy, positions, directory)
    else:
        kept = _marked(stored, mark)
    time = pa.scalar(at_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
    every = range(len(names))
    with TableWriter(state.location, state.physical_fields) as writer:
        for number, numbers in kept:
            for rows in stored.picked(number, numbers, every):
                marks = pc.fill_null(
                    rows.column(mark), time.cast(rows.field(mark).type)
                )
                rows = rows.set_column(mark, DELETED_AT, marks)
                writer.write_all(computed(generated, state.fields, rows)[0])
        return writer.finish()


def _marked(stored: StoredRows, mark: int) -> Iterator[tuple[int, Rows]]:
    for number, numbers, rows in stored.live_places([mark]):
        here = rows.column(0).is_valid().to_numpy()
        if here.any():
            yield number, numbers[here]


def _not_copied(
    stored: StoredRows, copy: StoredRows, key: Sequence[int], directory: str
) -> Iterator[tuple[int, Rows]]:
    """Yield the rows whose keys the copy lacks."""
    loose = loose_columns(stored.fields, key)
    for pieces in _some(stored.live_places(key)):
        columns = [
            pa.chunked_array(
                [c for _, _, rows in pieces for c in rows.column(i).chunks]
            )
            for i in range(len(key))
        ]
        with open_keys(columns, directory, loose=loose) as keys:
            is_copied = np.zeros(keys.count, np.bool_)
            is_copied[keys.locate(copy.scan(key)).key] = True
            lacks = ~is_copied[keys.numbers]
        begin = 0
        for number, numbers, rows in pieces:
            here = lacks[begin : begin + rows.num_rows]
            begin += rows.num_rows
            if here.any():
                yield number, numbers[here]


def _some(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Join pieces until they have many rows."""
    joined: list[_Piece] = []
    count = 0
    for piece in pieces:
        if piece[2].num_rows:
            joined.append(piece)
            count += piece[2].num_rows
        if count >= _ROWS_AT_ONCE:
            yield joined
            joined, count = [], 0
    if joined:
        yield joined
