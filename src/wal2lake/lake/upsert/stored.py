"""Reading rows of a table's data files by row number, without Spark.

Comes in: the files of a version and what to read. Goes out: typed Arrow tables in the
target's own types and names, whoever wrote the file: Spark writes timestamps as INT96
without a zone, and a file that is older than a column does not have it.

Sources: Delta transaction log protocol, "Reader Requirements for Deletion Vectors" (row
numbers count every row of the file), "Column Mapping".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from wal2lake.errors import StorageError
from wal2lake.lake.delta.datafile import storage_error
from wal2lake.lake.delta.deletionvectors import read_vector
from wal2lake.lake.delta.durability import local_path
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.tablefiles import DataFile

Index = npt.NDArray[np.int64]


class StoredRows:
    """The files of one table version."""

    def __init__(self, state: TableState, files: Sequence[DataFile]) -> None:
        self._state = state
        self.files = files

    def scan(self, columns: Sequence[int]) -> Iterator[pa.Table]:
        """Each file's columns as ``k0``.. with ``file`` and ``row``; deleted rows too."""
        for number, file in enumerate(self.files):
            parquet = self._open(file)
            table = self._typed(parquet, columns, None)
            table = table.rename_columns([f"k{i}" for i in range(len(columns))])
            rows = np.arange(table.num_rows)
            yield table.append_column(
                "file", pa.array(np.full(len(rows), number))
            ).append_column("row", pa.array(rows))

    def fetch(self, file: Index, row: Index, columns: Sequence[int]) -> pa.Table:
        """Columns of the given rows, in the order given."""
        order = np.lexsort((row, file))
        parts = []
        for number in np.unique(file).tolist():
            wanted = row[order][file[order] == number]
            parts += self._fetch_file(self.files[number], wanted, columns)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts).take(pa.array(back))

    def live(self, columns: Sequence[int]) -> Iterator[pa.Table]:
        """All rows that are not deleted, a row group at a time."""
        for file in self.files:
            parquet = self._open(file)
            gone = self.deleted(file)
            first = 0
            for group in range(parquet.metadata.num_row_groups):
                table = self._typed(parquet, columns, group)
                rows = np.arange(first, first + table.num_rows, dtype=np.uint64)
                first += table.num_rows
                if gone.size:
                    table = table.filter(pa.array(~np.isin(rows, gone)))
                yield table

    def deleted(self, file: DataFile) -> npt.NDArray[np.uint64]:
        """Row numbers that are gone."""
        if file.vector is None:
            return np.zeros(0, np.uint64)
        return read_vector(self._state.location, file.vector)

    def _fetch_file(
        self, file: DataFile, wanted: Index, columns: Sequence[int]
    ) -> list[pa.Table]:
        parquet = self._open(file)
        parts = []
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            here = wanted[(wanted >= first) & (wanted < first + rows)] - first
            if here.size:
                table = self._typed(parquet, columns, group)
                parts.append(table.take(pa.array(here)))
            first += rows
        return parts

    def _typed(
        self, parquet: pq.ParquetFile, columns: Sequence[int], group: int | None
    ) -> pa.Table:
        """Columns by their position in the target, one row group or all."""
        names = [self._state.physical_fields[i].physical_name for i in columns]
        present = [n for n in names if n in parquet.schema_arrow.names]
        try:
            if group is None:
                read = parquet.read(present)
            else:
                read = parquet.read_row_group(group, present)
        except OSError as error:
            raise storage_error("read", self._state.location, error) from error
        arrays = []
        for i, name in zip(columns, names, strict=True):
            kind = mapping_of(self._state.fields[i]).arrow_type
            if name in present:
                arrays.append(read.column(name).cast(kind))
            else:
                arrays.append(pa.chunked_array([pa.nulls(read.num_rows, kind)]))
        return pa.table(arrays, names=[self._state.fields[i].name for i in columns])

    def _open(self, file: DataFile) -> Any:
        path = file.path
        if not (urlsplit(path).scheme or path.startswith("/")):
            path = f"{self._state.location.rstrip('/')}/{path}"
        local = local_path(path)
        try:
            if local is not None:
                source: Any = str(local)
            else:
                files, name = fs.FileSystem.from_uri(path)
                source = files.open_input_file(name)
            return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f'could not read data file "{path}": {error}', sqlstate="58030"
            ) from error
