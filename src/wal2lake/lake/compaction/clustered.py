"""Rewrites files of a clustered table so that rows that are near each other share a file.

Comes in: the files of a version of a table that is clustered (``TableState.clustering``). Goes
out: the files that are worth rewriting, and the same rows in files of bounded size, each with a
range of its own. ``rewrite.carried`` builds the commit. Called by ``compactor``.

Why this way. The files that are written together are a *cube*: a lookup of a key opens one file of
it. New files, which batches, copies and other writers leave, have arbitrary rows (``loose``). When
there are enough of them they become a cube, together with each cube that is at most twice as large
as the files taken so far:

    loose files   16 x 0.1 MB ─┐
    a cube               3 MB ─┴─▶  a cube of 4.6 MB     (3 <= 2 * 1.6)
    a cube              40 MB       stays                (40 > 2 * 4.6)

So each cube is more than twice as large as the next smaller one, and their number, which is the
number of files that a lookup opens, is logarithmic in the table's size. A row that is rewritten is
then in a cube that is at least half as large again, so each row is rewritten a logarithmic number
of times. Beyond ``MOST_CUBE_BYTES`` or ``MOST_ROWS`` cubes stay as they are.

The order of all rows is computed from the clustering columns alone, which are read first. For one
column it is the column's own order; for several, the bits of each row's rank in each column are
interleaved (Z-order). The rows follow in pieces that fit into memory.

Sources: Delta transaction log protocol, "Clustered Table"; delta-spark 4.4
OptimizeTableStrategy.scala and ZCubeInfo.scala, whose OPTIMIZE continues with these files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.compaction.rewrite import (
    MANY,
    MOST_BYTES,
    SORTED_BYTES,
    Compaction,
    Rewritten,
    is_rotten,
    live_bytes,
)
from wal2lake.lake.delta.datafile import DataFileWriter, discard_added, row_groups
from wal2lake.lake.delta.log.clustering import references
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import AddedFile, Cube, DataFile
from wal2lake.lake.upsert.memory import UpsertMemory
from wal2lake.lake.upsert.stored import StoredRows

FILE_BYTES: Final = 16 << 20
"""Approximate bytes of a cube's files: fewer files are opened sooner, smaller files leave more
unopened."""

LOOSE_BYTES: Final = 32 << 20
"""Bytes of loose files from which they are rewritten as a cube, however few they are."""

MOST_CUBE_BYTES: Final = 512 << 20
"""Most bytes that are written at once."""

MOST_ROWS: Final = 8_000_000
"""Most rows that are written at once: their order and old positions take 24 bytes each, besides
the values of the clustering columns."""

_FIRST_ROWS: Final = 32 * 1024
"""Most rows of the first piece, which shows how large rows are in memory."""

_RANK_BITS: Final = 16
"""Bits of the rank of each clustering column; there are at most four columns."""


class Abandoned(Exception):
    """The work was abandoned because the table is being dropped."""


Numbers = npt.NDArray[np.int32]


def worth_clustering(
    files: Sequence[DataFile], columns: Sequence[str]
) -> list[DataFile]:
    """Return the files to write as one cube; empty if the table should stay as it is."""
    named = references(columns)
    loose: list[DataFile] = []
    cubes: dict[str, list[DataFile]] = {}
    for file in files:
        cube = file.cube
        if not file.is_plain:
            continue
        if cube is None or cube.columns != named or is_rotten(file):
            loose.append(file)
        else:
            cubes.setdefault(cube.id, []).append(file)
    if (
        len(loose) < MANY
        and _bytes(loose) < LOOSE_BYTES
        and not any(map(is_rotten, loose))
    ):
        return []
    chosen: list[DataFile] = []
    for file in sorted(loose, key=live_bytes):
        taken = [*chosen, file]
        # A single file can be read, whatever its size.
        if len(taken) > 1 and _bytes(taken) > MOST_BYTES:
            break
        if _fits(taken):
            chosen = taken
    for cube_files in sorted(cubes.values(), key=_bytes):
        taken = [*chosen, *cube_files]
        if not chosen or _bytes(cube_files) > 2 * _bytes(chosen) or not _fits(taken):
            break
        chosen = taken
    return chosen


def cluster(
    state: TableState,
    chosen: Sequence[DataFile],
    is_left: Callable[[], bool] = lambda: False,
) -> Compaction:
    """Write the rows of the chosen files as a cube; nothing is visible yet. Raises ``Abandoned`` as
    soon as ``is_left`` is true: a large cube takes a minute."""
    stored = StoredRows(state, chosen)
    file, row = _read_order(state, stored, is_left)
    count = max(1, -(-_bytes(chosen) // FILE_BYTES))
    step = max(1, -(-len(row) // count))
    cube = Cube(str(uuid.uuid4()), references(state.clustering))
    pieces = _Pieces(state, stored, is_left)
    written: list[Rewritten] = []
    try:
        for start in range(0, len(row), step):
            here = slice(start, start + step)
            added = pieces.write(file[here], row[here])
            written.append(Rewritten(replace(added, cube=cube), file[here], row[here]))
    except BaseException:
        discard_added(state.location, [file_written.added for file_written in written])
        raise
    return Compaction(state, tuple(chosen), tuple(written))


def _read_order(
    state: TableState, stored: StoredRows, is_left: Callable[[], bool]
) -> tuple[Numbers, Numbers]:
    """Return all rows in the order of the clustering: positions of their files, and row numbers in
    them."""
    names = [field.name for field in state.fields]
    columns = [names.index(name) for name in state.clustering]
    file: list[Numbers] = []
    row: list[Numbers] = []
    values: list[pa.Table] = []
    for number, rows, table in stored.live_places(columns):
        if is_left():
            raise Abandoned
        file.append(np.full(len(rows), number, np.int32))
        row.append(rows.astype(np.int32))
        values.append(table.select(range(len(columns))))
    order = order_of(pa.concat_tables(values)) if values else np.zeros(0, np.int64)
    empty = [np.zeros(0, np.int32)]
    return (
        np.concatenate(file or empty)[order],
        np.concatenate(row or empty)[order],
    )


def order_of(columns: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions of rows in the order of one column, NULLs last, or in the Z-order of
    several."""
    if columns.num_columns == 1:
        order: npt.NDArray[np.int64] = pc.sort_indices(columns.column(0)).to_numpy()
        return order
    ranks = [_rank(column) for column in columns.columns]
    code = np.zeros(columns.num_rows, np.uint64)
    place = len(ranks) * _RANK_BITS
    for bit in reversed(range(_RANK_BITS)):
        for rank in ranks:
            place -= 1
            code |= (rank >> np.uint64(bit) & np.uint64(1)) << np.uint64(place)
    return np.argsort(code, kind="stable")


def _rank(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the share of rows with a smaller value. Equal values have equal ranks, and each bit
    divides the rows evenly, however values are distributed."""
    rank: npt.NDArray[np.uint64] = pc.rank(
        column, sort_keys="ascending", tiebreaker="min"
    ).to_numpy()
    return ((rank - 1) << np.uint64(_RANK_BITS)) // np.uint64(max(1, len(rank)))


class _Pieces:
    """Writes rows in a given order, as many at a time as fit into memory."""

    def __init__(
        self, state: TableState, stored: StoredRows, is_left: Callable[[], bool]
    ) -> None:
        self._is_left = is_left
        self._state = state
        self._stored = stored
        self._columns = range(len(state.fields))
        self._marked = stored.are_marked()
        # The number of rows in a piece bounds memory.
        self._unbounded = UpsertMemory(1 << 62)
        size = stored.scan_bytes(self._columns, range(len(stored.files)))
        rows = sum(file.rows or 0 for file in stored.files)
        self._rows = max(1, min(_FIRST_ROWS, SORTED_BYTES * rows // max(1, size)))

    def write(self, file: Numbers, row: Numbers) -> AddedFile:
        """Write one data file of these rows."""
        with DataFileWriter(
            self._state.location, self._state.physical_fields
        ) as writer:
            start = 0
            while start < len(row):
                here = slice(start, start + self._rows)
                start = here.stop
                for group in row_groups(self._read(file[here], row[here])):
                    writer.write(group)
            added = writer.finish()
        assert added is not None
        return added

    def _read(self, file: Numbers, row: Numbers) -> pa.Table:
        if self._is_left():
            raise Abandoned
        places = file.astype(np.int64), row.astype(np.int64)
        with self._unbounded.share(0) as share:
            rows = self._stored.fetch(*places, self._columns, share)
        if self._marked:
            rows = self._stored.marks(*places).appended(rows)
        self._rows = max(1, SORTED_BYTES * rows.num_rows // max(1, rows.nbytes))
        return rows


def _fits(files: Sequence[DataFile]) -> bool:
    rows = sum((file.rows or 0) - file.deleted for file in files)
    return rows <= MOST_ROWS and _bytes(files) <= MOST_CUBE_BYTES


def _bytes(files: Sequence[DataFile]) -> int:
    return sum(map(live_bytes, files))
