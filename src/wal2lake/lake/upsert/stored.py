"""Reads rows of a table's data files by row number, without Spark.

Comes in: the files of a version, columns, row numbers. Goes out: Arrow tables in the target's own
types and names, whatever program wrote the file: Spark writes timestamps as INT96 without a zone,
and a file that is older than a column does not have that column.

A file in an object store is read with few requests (``lake.parquet``), and the next files are
opened meanwhile.

Sources: Delta transaction log protocol, "Reader Requirements for Deletion Vectors" (row numbers
count every row of the file), "Column Mapping".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.delta.deletionvectors import (
    read_vector,
    united_rows,
    write_vectors,
)
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.origins import COLUMNS, RowMarks, marks_in, tag_of
from wal2lake.lake.parquet import OpenParquet, is_of
from wal2lake.lake.partitions import column_of
from wal2lake.lake.port import FieldSpec, TableState, has_partition_text
from wal2lake.lake.prefetch import called_ahead
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.store import StoreReader, is_object_store, open_reader
from wal2lake.lake.tablefiles import DataFile, Replaced
from wal2lake.lake.upsert.calendar import legacy_of
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.keys import BatchKeys, Places, distinct
from wal2lake.lake.upsert.memory import Share, TooLarge
from wal2lake.model import Modified
from wal2lake.pgtypes import arrow_from_ddl

Index = npt.NDArray[np.int64]

_Item = TypeVar("_Item")

_Wanted = tuple[int, Any, Sequence[tuple[int, Index]]]
"""Number of a file, its footer, and the wanted rows of its row groups."""

_HELD_FILES: Final = 64
"""Most files that ``fetch`` keeps open; further files are opened twice. Most small files of an
object store that are kept in memory. A process may have 1,024
or as few as 256 open files, and other parts of the engine need some of them."""


_FOOTER_BYTES: Final = 4 << 20
"""Most bytes of footers that are kept, as they are stored; in memory they take several times
that. A footer that is not kept is read each time that its file is opened."""

_VECTORS_BYTES: Final = 4 << 20
"""Most bytes of row numbers from deletion vectors in an object store that are kept."""

_AHEAD: Final = 4
"""Files in an object store that are being opened or used."""


_PIECE_BYTES: Final = 1 << 20
"""Bytes read at once of a column of a row group that is read in pieces."""


_THREADS_BYTES: Final = 4 << 20
"""Size of a file from which several threads read its row groups. A guess."""


def is_readable(state: TableState) -> bool:
    """Whether this node writes every column's type itself."""
    return only_spark(state) is None


def is_plainly_written(state: TableState) -> bool:
    """Whether this node writes every column's type, and rows need no check before they are
    added."""
    return state.is_plain and is_readable(state)


def only_spark(state: TableState) -> str | None:
    """Say in a sentence why only Spark can read and write the table; None if this process can."""
    for part in state.physical_fields:
        if part.is_partition and not has_partition_text(part.spark_ddl):
            return (
                f'It is partitioned by column "{part.name}" of type {part.spark_ddl}.'
            )
    for field in state.fields:
        if not is_ours(field):
            return f'Its column "{field.name}" is of Spark\'s type {field.spark_ddl}.'
    return None


def is_ours(field: FieldSpec) -> bool:
    """Whether a field's values are read as the type that this node writes for it."""
    try:
        return bool(mapping_of(field).arrow_type == arrow_from_ddl(field.spark_ddl))
    except Wal2LakeError:
        return False


class StoredRows:
    """The files of one table version."""

    def __init__(
        self,
        state: TableState,
        files: Sequence[DataFile],
        live: LiveFiles | None = None,
    ) -> None:
        """``live``: what earlier runs of the same batch have done to the files."""
        self._state = state
        self._live = live
        self.files = files
        self._is_remote = is_object_store(state.location)
        self._footers: dict[str, Any] = {}
        self._footer_bytes = 0
        self._vectors: dict[str, npt.NDArray[np.uint64]] = {}
        self._vector_bytes = 0
        self._whole: dict[str, StoreReader] = {}
        """Readers of small files in an object store, which have these in memory."""

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        """The table's columns."""
        return self._state.fields

    def count(self) -> int:
        """Return the number of rows in the files by their footers, deleted rows included."""
        opened = self._each_file(range(len(self.files)), ())
        return sum(int(parquet.metadata.num_rows) for _, parquet in opened)

    def locate(
        self,
        keys: BatchKeys,
        columns: Sequence[int],
        index: KeyIndex | None = None,
        *,
        most_bytes: int | None = None,
    ) -> Places:
        """Find the rows of the keys, whose columns are ``columns``; deleted rows are left out.

        Files that ``index`` holds are not read; other files are added to it if it has room.
        TooLarge if more than ``most_bytes`` of the other files, uncompressed, would be read.
        """
        names = {} if index is None else self._indexed(index, columns, keys)
        located, unindexed = [], []
        for number in range(len(self.files)):
            places = self._find_indexed(index, number, names.get(number), keys)
            if places is None:
                unindexed.append(number)
            else:
                located.append(places)
        # Compare compressed sizes first, because they need no footers.
        if (
            most_bytes is not None
            and sum(self.files[i].size for i in unindexed) > most_bytes // 8
            and self.scan_bytes(columns, unindexed) > most_bytes
        ):
            raise TooLarge
        located.append(keys.locate(self.scan(columns, unindexed)))
        return self.without_deleted(Places.joined(located))

    def _indexed(
        self, index: KeyIndex, columns: Sequence[int], keys: BatchKeys
    ) -> dict[int, str]:
        """Return the names that the index has for the files that it can search now, by file
        number."""
        if keys.sought is None:
            return {}
        # The name has the physical column, so each column of a file is a separate entry.
        column = self._state.physical_fields[columns[0]].physical_name
        names = {
            number: f"{self._path(file)}\n{column}"
            for number, file in enumerate(self.files)
            if index.takes(file.rows)
        }
        names = {n: name for n, name in names.items() if not index.refuses(name)}
        missing = [number for number, name in names.items() if not index.knows(name)]
        large = {n for n in missing if not index.is_small(self.files[n].rows or 0)}
        rows = sum(self.files[number].rows or 0 for number in large)
        if large and not index.admits(rows):
            names = {n: name for n, name in names.items() if n not in large}
            missing = [number for number in missing if number not in large]
        for number, parquet in self._each_file(missing, columns):
            with index.learning if number in large else nullcontext():
                file = self.files[number]
                read = pa.concat_tables(
                    self._read_groups(file, parquet, columns, parquet.groups)
                ).column(0)
                if read.null_count or not len(read):
                    index.refuse(names[number])
                    continue
                values = read.to_numpy().astype(np.int64, copy=False)
                index.add(names[number], values)
        return names

    def _find_indexed(
        self, index: KeyIndex | None, number: int, name: str | None, keys: BatchKeys
    ) -> Places | None:
        if index is None or name is None or keys.sought is None:
            return None
        hit = index.find(name, keys.sought)
        if hit is None:
            return None
        return Places(hit[0], np.full(len(hit[0]), number), hit[1])

    def without_deleted(self, places: Places) -> Places:
        """Drop the places whose rows are in a deletion vector."""
        keep = np.ones(len(places.key), np.bool_)
        for number in distinct(places.file):
            gone = self.deleted(self.files[number])
            if gone.size:
                here = np.flatnonzero(places.file == number)
                keep[here] = ~np.isin(places.row[here].astype(np.uint64), gone)
        return Places(places.key[keep], places.file[keep], places.row[keep])

    def scan(
        self, columns: Sequence[int], numbers: Sequence[int] | None = None
    ) -> Iterator[pa.Table]:
        """Yield columns as ``k0``.. with ``file`` and ``row``, a row group at a time, deleted rows
        included. ``numbers`` restricts the files that are read."""
        every = range(len(self.files)) if numbers is None else numbers
        for number, parquet in self._each_file(every, columns):
            file = self.files[number]
            first = 0
            for table in self._read_groups(file, parquet, columns, parquet.groups):
                table = table.rename_columns([f"k{i}" for i in range(len(columns))])
                rows = np.arange(first, first + table.num_rows)
                first += table.num_rows
                yield table.append_column(
                    "file", pa.array(np.full(len(rows), number))
                ).append_column("row", pa.array(rows))

    def scan_bytes(self, columns: Sequence[int], numbers: Sequence[int]) -> int:
        """Return the bytes that ``scan`` would read, uncompressed."""
        return sum(
            self._group_bytes(parquet.metadata, group, columns)
            for _, parquet in self._each_file(numbers, ())
            for group in parquet.groups
        )

    def fetch(
        self, file: Index, row: Index, columns: Sequence[int], share: Share
    ) -> pa.Table:
        """Return columns of rows in the order of ``row``; TooLarge if the share cannot grow by
        them and by the largest row group that holds one of them."""
        order = np.lexsort((row, file))
        held: dict[int, OpenParquet] = {}
        wanted: list[_Wanted] = []
        for number, parquet in self._each_file(distinct(file), ()):
            rows = row[order][file[order] == number]
            groups = list(_by_group(parquet.metadata, rows))
            wanted.append((number, parquet.metadata, groups))
            if len(held) < _HELD_FILES:
                held[number] = parquet
        share.grow(*self._fetch_bytes(wanted, columns))

        def got(wanted_file: _Wanted) -> OpenParquet:
            number, metadata, groups = wanted_file
            parquet = held.pop(number, None)
            if parquet is None:
                parquet = self._open(self.files[number], metadata)
            if self._is_remote:
                names = self._present_columns(parquet, columns)
                parquet.fetch_ahead([group for group, _ in groups], names)
            return parquet

        parts = []
        for (number, _, rows_of), parquet in self._ahead(got, wanted):
            read = self._read_groups(
                self.files[number], parquet, columns, [group for group, _ in rows_of]
            )
            parts += [
                table.take(pa.array(here))
                for table, (_, here) in zip(read, rows_of, strict=True)
            ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts).take(pa.array(back))

    def _fetch_bytes(
        self,
        wanted: Sequence[_Wanted],
        columns: Sequence[int],
    ) -> tuple[int, int]:
        """Return the bytes of the rows that ``fetch`` returns, and of the largest row group that
        it reads for them."""
        taken = largest = 0
        for _, metadata, groups in wanted:
            for group, here in groups:
                size = self._group_bytes(metadata, group, columns)
                largest = max(largest, size)
                taken += size * len(here) // metadata.row_group(group).num_rows
        return taken, largest

    def _group_bytes(self, metadata: Any, group: int, columns: Sequence[int]) -> int:
        """Return the columns' bytes in a row group, uncompressed, by the file's footer."""
        names = {self._state.physical_fields[i].physical_name for i in columns}
        described = metadata.row_group(group)
        return sum(
            column.total_uncompressed_size
            for column in map(described.column, range(described.num_columns))
            if is_of(column.path_in_schema, names)
        )

    def marks(self, file: Index, row: Index) -> RowMarks:
        """Return the writers of rows, in the order of ``row``."""
        marks = RowMarks.unknown(len(file))
        for number in distinct(file):
            here = np.flatnonzero(file == number)
            tag = tag_of(self.files[number].action)
            parquet = self._open(self.files[number])
            if _has_marks(parquet):
                here = here[np.argsort(row[here], kind="stable")]
                groups = list(_by_group(parquet.metadata, row[here]))
                tables = parquet.each_group([group for group, _ in groups], COLUMNS)
                parts = [
                    table.take(pa.array(rows))
                    for table, (_, rows) in zip(tables, groups, strict=True)
                ]
                read = marks_in(pa.concat_tables(parts))
            elif tag is not None:
                read = _same_marks(tag, len(here))
            else:
                continue
            marks.origin[here] = read.origin
            marks.xid[here] = read.xid
            marks.time_us[here] = read.time_us
        return marks

    def are_marked(self) -> bool:
        """Whether the writers of the rows are known for any file."""
        if any(tag_of(file.action) is not None for file in self.files):
            return True
        opened = self._each_file(range(len(self.files)), ())
        return any(_has_marks(parquet) for _, parquet in opened)

    def live(self, columns: Sequence[int]) -> Iterator[pa.Table]:
        """Yield all rows that are not deleted, a row group at a time; with their writers if those
        are known for any file."""
        for _, _, table in self.live_places(columns):
            yield table

    def live_places(
        self, columns: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[np.uint64], pa.Table]]:
        """Yield the same tables, each with its file's position in ``files`` and its row numbers
        there."""
        marked = self.are_marked()
        every = range(len(self.files))
        for number, parquet in self._each_file(every, columns, also=COLUMNS):
            file = self.files[number]
            tag, gone = tag_of(file.action), self.deleted(file)
            has_marks = marked and _has_marks(parquet)
            first = 0
            for table in self._read_groups(
                file, parquet, columns, parquet.groups, marked=has_marks
            ):
                if marked:
                    if has_marks:
                        marks = marks_in(table.select(COLUMNS))
                        table = table.select(range(len(columns)))
                    elif tag is not None:
                        marks = _same_marks(tag, table.num_rows)
                    else:
                        marks = RowMarks.unknown(table.num_rows)
                    table = marks.appended(table)
                rows = np.arange(first, first + table.num_rows, dtype=np.uint64)
                first += table.num_rows
                if gone.size:
                    kept = ~np.isin(rows, gone)
                    rows, table = rows[kept], table.filter(pa.array(kept))
                yield number, rows, table

    def picked(
        self,
        number: int,
        wanted: npt.NDArray[np.uint64] | None,
        columns: Sequence[int],
    ) -> Iterator[pa.Table]:
        """Yield rows of one file by their numbers, or all rows that are not deleted, a row group
        at a time."""
        file = self.files[number]
        parquet = self._open(file)
        selected = self.deleted(file) if wanted is None else wanted
        first = 0
        masks = {}
        for group in parquet.groups:
            rows = parquet.metadata.row_group(group).num_rows
            numbers = np.arange(first, first + rows, dtype=np.uint64)
            first += rows
            here = np.isin(numbers, selected, invert=wanted is None)
            if here.any():
                masks[group] = here
        tables = self._read_groups(file, parquet, columns, list(masks))
        for table, here in zip(tables, masks.values(), strict=True):
            yield table if here.all() else table.filter(pa.array(here))

    def live_batches(
        self, columns: Sequence[int], most_rows: int, most_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows that are not deleted, in pieces of at most about ``most_bytes``, however
        large the row groups are."""
        every = range(len(self.files))
        for number, parquet in self._each_file(every, columns, pieces=True):
            file = self.files[number]
            gone = self.deleted(file)
            present = self._present_columns(parquet, columns)
            first = 0
            for group in parquet.fetched(parquet.groups, present):
                size = self._piece_rows(parquet, group, columns, most_bytes)
                size = min(size, most_rows)
                for batch in parquet.batches([group], present, size, are_fetched=True):
                    table = self._convert(file, parquet, batch, columns, batch.num_rows)
                    if gone.size:
                        last = first + batch.num_rows
                        here = slice(*np.searchsorted(gone, [first, last]))
                        kept = np.ones(batch.num_rows, np.bool_)
                        kept[gone[here].astype(np.int64) - first] = False
                        table = table.filter(pa.array(kept))
                    first += batch.num_rows
                    yield from table.to_batches()

    def _piece_rows(
        self,
        parquet: OpenParquet,
        group: int,
        columns: Sequence[int],
        most_bytes: int,
    ) -> int:
        """Return how many rows of a group take about ``most_bytes``. A dictionary holds a repeated
        value once, so the largest value of a dictionary is counted for each of its rows."""
        described = parquet.metadata.row_group(group)
        width = self._group_bytes(parquet.metadata, group, columns)
        width //= described.num_rows or 1
        names = set(self._present_columns(parquet, columns))
        repeated = [
            column
            for column in map(described.column, range(described.num_columns))
            if column.physical_type == "BYTE_ARRAY"
            and column.has_dictionary_page
            and column.path_in_schema.split(".")[0] in names
        ]
        # No value is larger than its whole column.
        most = sum(part.num_values * part.total_uncompressed_size for part in repeated)
        if most > most_bytes:
            paths = [part.path_in_schema for part in repeated]
            indexed = parquet.reopened(buffer_size=_PIECE_BYTES, read_dictionary=paths)
            pieces = indexed.batches([group], paths, 1, are_fetched=True)
            (first,) = itertools.islice(pieces, 1)
            often = max(-(-part.num_values // described.num_rows) for part in repeated)
            width += sum(map(_longest, first.columns)) * often
        return max(1, most_bytes // (width or 1))

    def without(
        self, gone: Mapping[int, npt.NDArray[np.uint64]]
    ) -> tuple[Replaced, ...]:
        """Build the replacements of files that lose rows; ``gone`` has the rows by file number.
        The new deletion vectors are in the table's directory, not synced."""
        whole: list[Replaced] = []
        partly: list[DataFile] = []
        vectors: list[npt.NDArray[np.uint64]] = []
        for number, rows in gone.items():
            file = self.files[number]
            vector = united_rows(self.deleted(file), rows)
            if len(vector) == file.rows:
                whole.append(Replaced(file, None))
            else:
                partly.append(file)
                vectors.append(vector)
        if not partly:
            return tuple(whole)
        written = write_vectors(self._state.location, vectors)
        return (
            *whole,
            *(Replaced(f, vector) for f, vector in zip(partly, written, strict=True)),
        )

    def is_null(self, number: int, column: int) -> bool:
        """Whether a column is null in all rows of a file, by the file's statistics."""
        name = self._state.physical_fields[column].physical_name
        return self.files[number].is_null(name)

    def deleted(self, file: DataFile) -> npt.NDArray[np.uint64]:
        """Return the numbers of a file's deleted rows."""
        gone = None if self._live is None else self._live.gone(file)
        if gone is not None:
            return gone
        if file.vector is None:
            return np.zeros(0, np.uint64)
        # Two versions of a file have different vectors.
        key = f"{file.key} {file.vector}"
        rows = self._vectors.get(key)
        if rows is None:
            rows = read_vector(self._state.location, file.vector)
            if self._is_remote and self._vector_bytes + rows.nbytes <= _VECTORS_BYTES:
                self._vectors[key] = rows
                self._vector_bytes += rows.nbytes
        return rows

    def _read_groups(
        self,
        file: DataFile,
        parquet: OpenParquet,
        columns: Sequence[int],
        groups: Sequence[int],
        *,
        marked: bool = False,
    ) -> Iterator[pa.Table]:
        """Read columns of row groups, by their position in the target; ``marked``: with those of
        the rows' writers behind them."""
        names = self._present_columns(parquet, columns)
        names += COLUMNS if marked else ()
        read = parquet.each_group(
            groups,
            names,
            # A few columns of a small group are read before other threads have woken up.
            use_threads=file.size > _THREADS_BYTES,
        )
        for group, part in zip(groups, read, strict=True):
            rows = parquet.metadata.row_group(group).num_rows
            table = self._convert(file, parquet, part, columns, rows)
            for name in COLUMNS if marked else ():
                table = table.append_column(name, part.column(name))
            yield table

    def _present_columns(
        self, parquet: OpenParquet, columns: Sequence[int]
    ) -> list[str]:
        """Return the names of those columns that the file has."""
        physical = [self._state.physical_fields[i] for i in columns]
        stored_names = parquet.names
        names = [
            field.physical_name
            for field in physical
            if not field.is_partition and field.physical_name in stored_names
        ]
        return list(dict.fromkeys(names))

    def _convert(
        self,
        file: DataFile,
        parquet: OpenParquet,
        read: pa.Table | pa.RecordBatch,
        columns: Sequence[int],
        rows: int,
    ) -> pa.Table:
        """Convert the part that was ``read`` of the file to columns of the target."""
        legacy = legacy_of(parquet.metadata)
        arrays = []
        for i in columns:
            name = self._state.physical_fields[i].physical_name
            kind = mapping_of(self._state.fields[i]).arrow_type
            if name in read.schema.names:
                column = read.column(name).cast(kind)
                if legacy is not None:
                    column = legacy.meant(column, is_int96=_is_int96(parquet, name))
                arrays.append(column)
            else:
                value = file.partition.get(name)
                arrays.append(pa.chunked_array([column_of(value, kind, rows)]))
        return pa.table(arrays, names=[self._state.fields[i].name for i in columns])

    def _path(self, file: DataFile) -> str:
        return file.place(self._state.location.rstrip("/"))

    def _each_file(
        self,
        numbers: Iterable[int],
        columns: Sequence[int],
        *,
        also: Sequence[str] = (),
        pieces: bool = False,
    ) -> Iterator[tuple[int, OpenParquet]]:
        """Open files, one after another. Some files in an object store are opened ahead, and
        ``columns`` and ``also`` of their first row groups are on their way."""

        def opened(number: int) -> OpenParquet:
            parquet = self._open(self.files[number], pieces=pieces)
            if self._is_remote:
                names = [*self._present_columns(parquet, columns), *also]
                parquet.fetch_ahead(parquet.groups, names)
            return parquet

        return self._ahead(opened, numbers)

    def _ahead(
        self, call: Callable[[_Item], OpenParquet], items: Iterable[_Item]
    ) -> Iterator[tuple[_Item, OpenParquet]]:
        """Open files, one after another; those in an object store a few ahead."""
        if self._is_remote:
            return called_ahead(call, items, _AHEAD)
        return ((item, call(item)) for item in items)

    def _open(
        self, file: DataFile, metadata: Any = None, *, pieces: bool = False
    ) -> OpenParquet:
        """Open a file. ``metadata``: its footer, if it has been read already. ``pieces``: do not
        read a column's bytes all at once. Several threads may call it."""
        path = self._path(file)
        reader = self._whole.get(file.key)
        if reader is None:
            reader = open_reader(path, file.action.get("size"))
        parquet = OpenParquet(
            path,
            reader,
            metadata=metadata or self._footers.get(file.key),
            coerce_int96_timestamp_unit="us",
            buffer_size=_PIECE_BYTES if pieces else 0,
        )
        if parquet.is_whole and len(self._whole) < _HELD_FILES:
            self._whole[file.key] = reader
        size = parquet.metadata.serialized_size
        if file.key not in self._footers and self._footer_bytes + size <= _FOOTER_BYTES:
            self._footers[file.key] = parquet.metadata
            self._footer_bytes += size
        return parquet


def _longest(column: Any) -> int:
    """Return the bytes of the largest value of a dictionary, which may be inside lists."""
    while not pa.types.is_dictionary(column.type):
        if not pa.types.is_list(column.type):
            return 0
        column = column.values
    return pc.max(pc.binary_length(column.dictionary)).as_py() or 0


def _is_int96(parquet: OpenParquet, name: str) -> bool:
    columns = map(parquet.schema.column, range(len(parquet.schema)))
    return any(c.physical_type == "INT96" and c.path == name for c in columns)


def _has_marks(parquet: OpenParquet) -> bool:
    return COLUMNS[0] in parquet.names


def _same_marks(modified: Modified, rows: int) -> RowMarks:
    return RowMarks(
        np.full(rows, modified.origin, np.int64),
        np.full(rows, modified.xid, np.int64),
        np.full(rows, modified.time_us, np.int64),
    )


def _by_group(metadata: Any, rows_wanted: Index) -> Iterator[tuple[int, Index]]:
    """Yield the row groups that hold wanted rows, with the rows' numbers inside."""
    first = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        here = (
            rows_wanted[(rows_wanted >= first) & (rows_wanted < first + rows)] - first
        )
        if here.size:
            yield group, here
        first += rows


def held_rows(state: TableState, file: DataFile) -> int:
    """Return the number of rows in a file, deleted rows included."""
    rows = file.rows
    return StoredRows(state, [file]).count() if rows is None else rows
