"""Rewrites small files of a table as one, which a stream of small commits needs now and then.

Comes in: the files of a version. Goes out: the files that are worth rewriting, the same rows in
fewer files, and the parts of a later version's commit that replaces the old files. Called by
``compactor``.

Why this way. Each small batch leaves a file, and each later batch and query opens them all. Files
that are small, or mostly deleted, are rewritten whenever there are ``MANY`` of them. So each row
is written a few times in its life, until its file has outgrown ``SMALL_BYTES``. A larger file most
of whose rows are deleted is rewritten however few such files there are: reading its deleted rows
costs more than writing the rest.

The table changes while the new files are written. So the origin of each row is recorded, and a row
that has been deleted meanwhile, by a deletion vector or with its file, is deleted in the new file,
too (``carried``).

Rows are ordered by the key, if they can be sorted in memory: then the statistics of row groups and
files show which keys they do not have.

The commit says that no data has changed (``dataChange`` false), so that a change feed of the table
shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.delta.datafile import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    TableWriter,
    discard_added,
    row_groups,
)
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.stored import StoredRows

MANY: Final = 8
"""Opening a file costs each batch and query about 0.5 ms, rewriting 16 small files once about
50."""

MANY_IN_PARTITION: Final = 4
"""The same limit for one partition, if there are several and together they have ``MANY`` small
files."""

SMALL_BYTES: Final = 8 << 20

MOST_BYTES: Final = 64 << 20
"""Most bytes of files that are rewritten at once."""

SORTED_BYTES: Final = 64 << 20
"""Most uncompressed bytes that are sorted by the key, which takes three times as much memory."""

_FILE, _ROW = "_wal2lake_file", "_wal2lake_row"
"""Columns with the position of a row while it is sorted."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A new file, and the position of each of its rows before: an index into
    ``Compaction.chosen``, and the number of the row in that file."""

    added: AddedFile
    file: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The same rows in fewer files."""

    state: TableState
    """Version whose rows are rewritten."""
    chosen: tuple[DataFile, ...]
    files: tuple[Rewritten, ...]

    @property
    def rows(self) -> int:
        """Number of rewritten rows."""
        return sum(len(file.row) for file in self.files)

    def discard(self) -> None:
        """Remove the new files, which no commit names."""
        discard_added(self.state.location, [file.added for file in self.files])


def worth_compacting(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files to rewrite as one; empty if the table should stay as it is."""
    small = sorted(
        (file for file in files if file.is_plain and _is_small(file)), key=live_bytes
    )
    groups: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in small:
        groups.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    # A batch leaves a file in each partition that it changes, so the limit is lower there.
    many = MANY_IN_PARTITION if len(groups) > 1 and len(small) >= MANY else MANY
    candidates = [
        file
        for group in groups.values()
        for file in (
            group if len(group) >= many else [f for f in group if is_rotten(f)]
        )
    ]
    chosen, size = [], 0
    for file in candidates:
        size += live_bytes(file)
        if size > MOST_BYTES:
            break
        chosen.append(file)
    return chosen


def compact(
    state: TableState, chosen: Sequence[DataFile], key: Sequence[int] = ()
) -> Compaction:
    """Write the rows of the chosen files as one new file for each partition; nothing is visible
    yet. ``key``: positions of the columns by which rows are ordered."""
    groups: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for number, file in enumerate(chosen):
        groups.setdefault(tuple(sorted(file.partition.items())), []).append(number)
    written: list[Rewritten] = []
    try:
        for numbers in groups.values():
            rewritten = _rewrite(state, [chosen[i] for i in numbers], key)
            if rewritten is not None:
                chosen_file = np.array(numbers, np.int32)[rewritten.file]
                written.append(replace(rewritten, file=chosen_file))
    except BaseException:
        discard_added(state.location, [rewritten.added for rewritten in written])
        raise
    return Compaction(state, tuple(chosen), tuple(written))


def is_rotten(file: DataFile) -> bool:
    """Whether most of its rows are deleted, and reading it and writing the rest is not too
    expensive."""
    return (
        file.deleted * 2 > (file.rows or 0)
        and live_bytes(file) <= MOST_BYTES
        and file.size <= 4 * MOST_BYTES
    )


def live_bytes(file: DataFile) -> int:
    """Return the approximate bytes of a file's live rows."""
    rows = max(1, file.rows or 0)
    return file.size * max(0, rows - file.deleted) // rows


def _rewrite(
    state: TableState, files: Sequence[DataFile], key: Sequence[int]
) -> Rewritten | None:
    """Rewrite the rows of one partition's files; None if there are none."""
    columns = range(len(state.fields))
    stored = StoredRows(state, files)
    tables = _join_groups(_with_positions(stored, columns))
    if (
        _are_sortable(state, key)
        and stored.scan_bytes(columns, range(len(files))) <= SORTED_BYTES
    ):
        tables = _sort(tables, [state.fields[i].name for i in key])
    file: list[npt.NDArray[np.int32]] = []
    row: list[npt.NDArray[np.int32]] = []
    with TableWriter(state.location, state.physical_fields) as writer:
        for table in tables:
            file.append(table.column(_FILE).to_numpy())
            row.append(table.column(_ROW).to_numpy())
            writer.write(table.drop_columns([_FILE, _ROW]))
        adds = writer.finish()
    if not adds:
        return None
    (added,) = adds
    return Rewritten(added, np.concatenate(file), np.concatenate(row))


def _with_positions(stored: StoredRows, columns: Sequence[int]) -> Iterator[pa.Table]:
    """Yield the rows that are not deleted, with their positions."""
    for number, rows, table in stored.live_places(columns):
        file = np.full(len(rows), number, np.int32)
        yield table.append_column(_FILE, pa.array(file)).append_column(
            _ROW, pa.array(rows.astype(np.int32))
        )


@dataclass(frozen=True, slots=True)
class Carried:
    """Parts of the commit of a compaction."""

    adds: tuple[AddedFile, ...]
    replaced: tuple[Replaced, ...]
    emptied: tuple[AddedFile, ...] = ()
    """New files all of whose rows have been deleted; they do not become part of the table."""


def carried(
    compaction: Compaction, state: TableState, files: Mapping[str, DataFile]
) -> Carried | None:
    """Carry a compaction over to the version ``state``, which has these ``files`` by
    ``DataFile.key``: rows deleted since are deleted in the new files, and files removed since are
    not replaced.

    None if no file is left to replace, the table's definition has changed, deleted rows have come
    back (a RESTORE), or rows have been deleted in a table without deletion vectors.
    """
    before = compaction.state
    if (
        before.table_id != state.table_id
        or before.physical_fields != state.physical_fields
        or before.fields != state.fields
        or before.properties != state.properties
        or before.clustering != state.clustering
    ):
        return None
    stored = StoredRows(before, compaction.chosen)
    replaced: list[Replaced] = []
    gone: dict[int, npt.NDArray[np.uint64] | None] = {}
    for number, was in enumerate(compaction.chosen):
        now = files.get(was.key)
        if now is None:
            gone[number] = None
            continue
        replaced.append(Replaced(now, None))
        if now.vector == was.vector:
            continue
        rows = stored.deleted(now)
        if not np.isin(stored.deleted(was), rows).all():
            return None
        gone[number] = rows
    if not replaced:
        return None
    if not gone:
        return Carried(tuple(f.added for f in compaction.files), tuple(replaced))
    adds: list[AddedFile] = []
    emptied: list[AddedFile] = []
    partly: list[tuple[AddedFile, npt.NDArray[np.uint64]]] = []
    for rewritten in compaction.files:
        dead = _deleted_rows(rewritten, gone)
        if not dead.size:
            adds.append(rewritten.added)
        elif len(dead) == len(rewritten.row):
            emptied.append(rewritten.added)
        else:
            partly.append((rewritten.added, dead))
    if partly:
        if not state.has_vectors:
            # Without vectors the deleted rows would come back.
            return None
        vectors = write_vectors(state.location, [dead for _, dead in partly])
        adds += [
            replace(added, vector=vector)
            for (added, _), vector in zip(partly, vectors, strict=True)
        ]
    return Carried(tuple(adds), tuple(replaced), tuple(emptied))


def _deleted_rows(
    rewritten: Rewritten, gone: Mapping[int, npt.NDArray[np.uint64] | None]
) -> npt.NDArray[np.uint64]:
    """Return the rows of a new file that have been deleted at their old positions; ascending."""
    dead = np.zeros(len(rewritten.row), np.bool_)
    for number, rows in gone.items():
        here = np.flatnonzero(rewritten.file == number)
        if rows is not None:
            here = here[np.isin(rewritten.row[here], rows)]
        dead[here] = True
    return np.flatnonzero(dead).astype(np.uint64)


def _are_sortable(state: TableState, key: Sequence[int]) -> bool:
    kinds = [mapping_of(state.fields[i]).arrow_type for i in key]
    return bool(kinds) and not any(map(pa.types.is_nested, kinds))


def _sort(tables: Iterable[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield all rows in order, as row groups. If they are larger in memory than their files
    suggest (repeated values are stored once), yield them unsorted."""
    collected: list[pa.Table] = []
    remaining = iter(tables)
    size = 0
    for table in remaining:
        collected.append(table)
        size += table.nbytes
        if size > SORTED_BYTES:
            yield from collected
            yield from remaining
            return
    if collected:
        rows = pa.concat_tables(collected)
        yield from row_groups(rows.sort_by([(name, "ascending") for name in names]))


def _join_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield row groups of small files joined into larger ones."""
    group: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if group and (
            rows + table.num_rows > ROW_GROUP_ROWS
            or size + table.nbytes > ROW_GROUP_BYTES
        ):
            yield pa.concat_tables(group)
            group, rows, size = [], 0, 0
        group.append(table)
        rows += table.num_rows
        size += table.nbytes
    if group:
        yield pa.concat_tables(group)


def _is_small(file: DataFile) -> bool:
    return file.size < SMALL_BYTES or is_rotten(file)
