"""Writes typed rows as Parquet files that a table or a later job will read.

Comes in: typed Arrow tables. Goes out: finished, durable files. A file in a table's directory is
returned as ``AddedFile`` with statistics and its partition, a staged file as a plain path. Called
inside Spark's Python workers, by staging and by the initial copy.

Why this way. A file in a table's directory means nothing until a commit names it. So it has its
final, never used before, name from the start, and a crash leaves an orphan that VACUUM removes.
The writer fsyncs the file before it returns it, because the copy records finished ranges in the
catalog long before their commit. The files of a batch are committed at once, which syncs them.
``DataFileWriter`` takes a stream of tables; its memory is one table, 1 MiB of small ones, and what
Parquet buffers of one row group.

Zstandard level 1: 1 M rows of six columns converted and written take 0.31 CPU-s and 8 MB, with
Snappy 0.30 and 21 MB.

Sources: Parquet format, "Data Pages"; Delta transaction log protocol, "Data Files".
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.errors import InternalError
from wal2lake.lake.delta.stats import added_file
from wal2lake.lake.origins import COLUMNS
from wal2lake.lake.partitions import Values, by_partition
from wal2lake.lake.port import FieldSpec, PhysicalField
from wal2lake.lake.store import (
    StoreWriter,
    local_path,
    open_writer,
    remove_file,
    storage_error,
)
from wal2lake.lake.tablefiles import AddedFile

_COMPRESSION: Final = "zstd"
_COMPRESSION_LEVEL: Final = 1

# pyarrow abandons a column's dictionary beyond this many bytes. With its default of 1 MiB
# columns of unique values fill the dictionary first: the same rows take 0.43 CPU-s and 14 MB.
_DICTIONARY_BYTES: Final = 128 * 1024


ROW_GROUP_ROWS: Final = 128 * 1024
"""Row group size for writers that have a choice. A reader of one row reads its whole row
group."""

ROW_GROUP_BYTES: Final = 32 << 20
"""The same limit for wide rows, in bytes of Arrow memory."""

_JOINED_ROWS: Final = 16 * 1024
_JOINED_BYTES: Final = 1 << 20
"""Small tables are joined into one row group up to these limits: reading a row group of one row
costs 2 ms."""


def row_groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in slices of a good size for row groups."""
    size = max(1, rows.nbytes // max(1, rows.num_rows))
    step = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // size))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


MOST_OPEN: Final = 64
"""Most files that are written at the same time. Each file holds one buffer per column."""


class DataFileWriter:
    """Writes one Parquet file under a fresh name below ``directory`` (a path or URL).

    A context manager: leaving it by an exception removes the file. Raises StorageError (53100
    when the disk is full).
    """

    def __init__(
        self,
        directory: str,
        physical: Sequence[PhysicalField] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """``physical``: names and ids in a table's files; ``durable``: fsync at the end."""
        self._directory = directory
        self._durable = durable
        self._physical = physical
        self._name = f"part-{uuid.uuid4()}.parquet"
        self._file: StoreWriter | None = None
        self._writer: Any = None
        self._schema: Any = None
        self._joined: list[pa.Table] = []
        """Tables that will form the next row group."""
        self._joined_rows = 0
        self._joined_bytes = 0
        self.rows = 0

    @property
    def path(self) -> str:
        """The file's path or URL, in the same form as ``directory``."""
        return f"{self._directory.rstrip('/')}/{self._name}"

    def write(self, table: pa.Table) -> None:
        """Append rows; all tables have the same columns. Each table becomes a row group, several
        small ones share one."""
        if not table.num_rows:
            return
        try:
            if self._writer is None:
                self._open(table)
            if self._physical is not None:
                table = table.rename_columns(self._schema.names)
            rows = table.cast(self._schema)
            if rows.num_rows < _JOINED_ROWS and rows.nbytes < _JOINED_BYTES:
                # Copy the rows: a slice would keep its whole large batch in memory.
                rows = rows.take(pa.array(range(rows.num_rows)))
            self._joined.append(rows)
            self._joined_rows += rows.num_rows
            self._joined_bytes += rows.nbytes
            if self._joined_rows >= _JOINED_ROWS or self._joined_bytes >= _JOINED_BYTES:
                self._write_group()
        except OSError as error:
            raise storage_error("write to file", self.path, error) from error
        self.rows += table.num_rows

    def _write_group(self) -> None:
        if self._joined:
            group = pa.concat_tables(self._joined)
            self._writer.write_table(group, row_group_size=group.num_rows)
        self._joined, self._joined_rows, self._joined_bytes = [], 0, 0

    def finish(self) -> AddedFile | None:
        """Close the file, and fsync it if it is to be durable; None if no row was written, in
        which case there is no file."""
        if self._writer is None or self._file is None:
            return None
        try:
            self._write_group()
            self._writer.close()
        except OSError as error:
            raise storage_error("write to file", self.path, error) from error
        metadata = self._writer.writer.metadata
        written = self._file.finish(durable=self._durable)
        return added_file(self._name, written.size, written.modified_ms, metadata)

    def discard(self) -> None:
        """Remove the file; a leftover only costs space."""
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            self._file.discard()

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()

    def _open(self, table: pa.Table) -> None:
        self._schema = table.schema.remove_metadata()
        if self._physical is not None:
            self._schema = physical_schema(self._schema, self._physical)
        local = local_path(self._directory)
        if local is not None and not self._durable:
            local.mkdir(parents=True, exist_ok=True)
        self._file = open_writer(self._directory, self._name)
        self._writer = pq.ParquetWriter(
            self._file.sink,
            self._schema,
            compression=_COMPRESSION,
            compression_level=_COMPRESSION_LEVEL,
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_page_checksum=True,
            store_schema=False,
            write_statistics=_columns_with_bounds(self._schema),
        )


def _columns_with_bounds(schema: pa.Schema) -> list[str]:
    """Return all columns but real and double. Parquet's bounds ignore NaN, which PostgreSQL and
    Spark sort above everything, and distinguish -0 from 0; a reader that trusts them loses
    rows."""
    return [field.name for field in schema if not pa.types.is_floating(field.type)]


class TableWriter:
    """Writes rows as data files below a table's directory, at least one file for each partition.

    A context manager, as ``DataFileWriter``. Its memory is that of its open files. At most
    ``MOST_OPEN`` are open; beyond that the file that was written to longest ago is finished.
    """

    def __init__(
        self, location: str, physical: Sequence[PhysicalField], *, durable: bool = True
    ) -> None:
        """``durable`` as in ``DataFileWriter``; False if the caller commits the files soon, since
        ``commit_files`` syncs them anyway."""
        self._location = location
        self._durable = durable
        self._kept = [field for field in physical if not field.is_partition]
        self._columns = [i for i, field in enumerate(physical) if field.is_partition]
        self._names = [physical[i].physical_name for i in self._columns]
        self._open: dict[Values, DataFileWriter] = {}
        self._finished: list[AddedFile] = []
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows, in the table's columns, to the files of their partitions."""
        for values, rows in by_partition(table, self._columns):
            self._writer_for(values).write(rows)
        self.rows += table.num_rows

    def write_all(self, table: pa.Table) -> None:
        """Append rows that may exceed one row group."""
        for values, rows in by_partition(table, self._columns):
            writer = self._writer_for(values)
            for group in row_groups(rows):
                writer.write(group)
        self.rows += table.num_rows

    def _writer_for(self, values: Values) -> DataFileWriter:
        writer = self._open.pop(values, None)
        if writer is None:
            if len(self._open) >= MOST_OPEN:
                self._finish(next(iter(self._open)))
            writer = DataFileWriter(self._location, self._kept, durable=self._durable)
        self._open[values] = writer
        return writer

    def _finish(self, values: Values) -> None:
        added = self._open[values].finish()
        del self._open[values]
        if added is not None:
            named = tuple(zip(self._names, values, strict=True))
            self._finished.append(replace(added, partition=named))

    def finish(self) -> tuple[AddedFile, ...]:
        """Close all files, and fsync them if they are to be durable; none if no row was
        written."""
        for values in list(self._open):
            self._finish(values)
        return tuple(self._finished)

    def discard(self) -> None:
        """Remove what was written."""
        for writer in self._open.values():
            writer.discard()
        discard_added(self._location, self._finished)
        self._open.clear()
        self._finished.clear()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()


def write_data_file(
    table: pa.Table,
    location: str,
    fields: Sequence[FieldSpec],
    physical: Sequence[PhysicalField],
) -> AddedFile:
    """Write rows as one file of the table at ``location``; the file is not visible yet.

    ``table`` has the columns of ``fields``, in that order, and at least one row.
    """
    if table.column_names != [field.name for field in fields]:
        raise InternalError(
            f'rows do not have the columns of the table at "{location}"'
        )
    with DataFileWriter(location, physical) as writer:
        writer.write(table)
        added = writer.finish()
    if added is None:
        raise InternalError("a data file must have at least one row")
    return added


def physical_schema(schema: pa.Schema, physical: Sequence[PhysicalField]) -> pa.Schema:
    """Return the schema of the table's files: physical names, and field ids if columns are
    mapped. The columns that identify a row's writer (``lake.origins``) keep their names."""
    marks = [field for field in schema if field.name in COLUMNS]
    fields = []
    for field, target in zip(
        list(schema)[: len(schema) - len(marks)], physical, strict=True
    ):
        metadata = None
        if target.field_id is not None:
            metadata = {"PARQUET:field_id": str(target.field_id)}
        fields.append(pa.field(target.physical_name, field.type, metadata=metadata))
    return pa.schema([*fields, *marks])


def discard_added(location: str, files: Sequence[AddedFile]) -> None:
    """Remove data files that will not be committed."""
    for file in files:
        remove_file(f"{location.rstrip('/')}/{file.path}")
