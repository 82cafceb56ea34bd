"""Reads a Parquet file, in an object store with few requests.

In: a file's place and size, then row groups and names of columns. Out: Arrow tables, batches.

    request  its answer has
    1        the end of the file: its footer, or the whole file if it is small
    2        the columns of as many row groups as ``WINDOW_BYTES`` hold; those that are close to
             each other together, several at once
    3 ..     the same for the next row groups

A row group whose columns are larger than a window is read a few columns at a time, as many as a
window holds. If a single column is larger, or rows of all columns are wanted at once (``batches``),
pyarrow reads a column in pieces, and a window of these is got at a time, with several requests. So
memory does not grow with a row group, except by the columns that are returned.

The log states the size of each file, so nothing asks for it. A file of this machine is read as
pyarrow does, a column of a row group at once, without Python. Its ``pre_buffer`` is off: it reads
all columns of a row group at once, whatever ``buffer_size`` says, and in other threads, which takes
a small file longer than to read it.

Called by ``upsert.stored``, ``staging``, ``upsert.runs``. Sources: Parquet format, "File Format",
"Column Chunks".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.errors import DAMAGED, StorageError, Wal2LakeError, words_of
from wal2lake.lake.store import (
    Range,
    StoreReader,
    has_store,
    open_reader,
    storage_error,
)

WINDOW_BYTES: Final = 16 << 20
"""Most bytes of a file in an object store that are kept in memory, as they are stored."""

_PIECE_BYTES: Final = (64 << 10, 1 << 20)
"""Least and most bytes that pyarrow reads at once of a column that is read in pieces. The least is
a guess."""

_END_BYTES: Final = 64 << 10
"""Bytes of a file's end that pyarrow reads first. A larger footer costs another request: about one
of 20 row groups with 20 columns."""

_AHEAD_BYTES: Final = 4 << 20
"""Most bytes that are got before somebody needs them."""

Failed = Callable[[str, OSError | pa.ArrowException], Wal2LakeError]
"""Builds the error for a path that cannot be read, or whose content is damaged."""


def open_parquet(path: str, size: int | None = None, **options: Any) -> OpenParquet:
    """Open a data file. ``size``: its bytes, by the log. ``options``: as of ``OpenParquet``."""
    return OpenParquet(path, open_reader(path, size), **options)


class OpenParquet:
    """One open file. Belongs to one thread at a time.

    Every method raises StorageError, or what ``failed`` returns.
    """

    def __init__(
        self,
        path: str,
        reader: StoreReader,
        *,
        failed: Failed | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> None:
        """``metadata``: the file's footer, if it has been read already. ``options``: those of
        ``pq.ParquetFile``."""
        self.path = path
        self._reader = reader
        self._failed = failed or unreadable
        self._options = {**options, "pre_buffer": False}
        needs_footer = reader.is_remote and metadata is None
        size = reader.size if needs_footer else 0
        if needs_footer:
            reader.fetch([(max(0, size - _END_BYTES), size)])
        self._file: Any = self._call(
            pq.ParquetFile, reader.source, metadata=metadata, **self._options
        )
        if needs_footer and size > _END_BYTES:
            reader.fetch(())
        self.metadata: Any = self._file.metadata
        self.is_whole = needs_footer and size <= _END_BYTES
        """True if the whole of a file in an object store is in memory: whoever keeps the reader
        needs no other request."""

    def reopened(self, **options: Any) -> OpenParquet:
        """Return the same file with other options. Closing one of both closes the other."""
        return OpenParquet(
            self.path,
            self._reader,
            failed=self._failed,
            metadata=self.metadata,
            **options,
        )

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return self._file.schema_arrow

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        names: list[str] = self.arrow_schema.names
        return names

    @property
    def schema(self) -> Any:
        """Parquet's schema."""
        return self._file.schema

    @property
    def groups(self) -> range:
        """Numbers of the row groups."""
        return range(self.metadata.num_row_groups)

    def fetch_ahead(self, groups: Sequence[int], columns: Sequence[str]) -> None:
        """Get columns of the first of these row groups, if they are small, so that ``each_group``
        begins without a request."""
        window = next(self._windows(groups, columns), ())
        if self._reader.is_remote and self._bytes(window, columns) <= _AHEAD_BYTES:
            self._fetch(window, columns)

    def read_group(
        self,
        group: int,
        columns: Sequence[str] | None = None,
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Read columns of a row group; None: all."""
        return self._read([group], columns, use_threads=use_threads)

    def read_groups(
        self,
        groups: Sequence[int],
        columns: Sequence[str] | None = None,
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Read columns of row groups as one table; None: all."""
        windows = list(self._windows(groups, columns))
        if len(windows) <= 1:
            return self._read(groups, columns, use_threads=use_threads)
        return pa.concat_tables(
            self._read(window, columns, use_threads=use_threads) for window in windows
        )

    def each_group(
        self, groups: Sequence[int], columns: Sequence[str], *, use_threads: bool = True
    ) -> Iterator[pa.Table]:
        """Read columns of row groups, one after another."""
        for window in self._windows(groups, columns):
            if not self._fits(window, columns):
                yield self._read(window, columns, use_threads=use_threads)
                continue
            self._fetch(window, columns)
            for group in window:
                yield self._call(
                    self._file.read_row_group, group, columns, use_threads=use_threads
                )

    def fetched(self, groups: Sequence[int], columns: Sequence[str]) -> Iterator[int]:
        """Yield the row groups, each when its columns can be read without requests; one that is too
        large for that, when ``batches`` can read it in windows."""
        for window in self._windows(groups, columns):
            self._fetch(window, columns)
            yield from window

    def batches(
        self,
        groups: Sequence[int],
        columns: Sequence[str],
        rows: int,
        *,
        are_fetched: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of row groups, up to so many rows at a time. ``are_fetched``: the caller has
        got the groups by ``fetched``."""
        windows = [groups] if are_fetched else self._windows(groups, columns)
        for window in windows:
            file = self._file
            if not are_fetched:
                self._fetch(window, columns)
                if not self._fits(window, columns):
                    file = self._in_pieces(window[0], columns)
            batches = file.iter_batches(
                rows, row_groups=window, columns=columns, use_threads=False
            )
            while (batch := self._call(next, batches, None)) is not None:
                yield batch

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._reader.close()

    def __enter__(self) -> OpenParquet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(self.path, error) from error

    # ---- requests -------------------------------------------------------------------

    def _windows(
        self, groups: Sequence[int], columns: Sequence[str] | None
    ) -> Iterator[Sequence[int]]:
        """Divide row groups into consecutive ones whose columns are fetched at once, or one that is
        larger than that."""
        if not self._reader.is_remote:
            yield groups
            return
        window: list[int] = []
        size = 0
        for group in groups:
            more = self._bytes([group], columns)
            if window and size + more > WINDOW_BYTES:
                yield window
                window, size = [], 0
            window.append(group)
            size += more
        if window:
            yield window

    def _read(
        self,
        groups: Sequence[int],
        columns: Sequence[str] | None,
        *,
        use_threads: bool,
    ) -> pa.Table:
        """Read a window, or one row group that is larger."""
        if self._fits(groups, columns):
            self._fetch(groups, columns)
            return self._call(
                self._file.read_row_groups, groups, columns, use_threads=use_threads
            )
        parts = []
        for names in self._column_windows(groups[0], columns or self.names):
            self._fetch(groups, names)
            file = self._file
            if not self._fits(groups, names):
                file = self._in_pieces(groups[0], names)
            parts.append(
                self._call(file.read_row_groups, groups, names, use_threads=use_threads)
            )
        return _side_by_side(parts)

    def _column_windows(
        self, group: int, columns: Sequence[str]
    ) -> Iterator[Sequence[str]]:
        """Divide columns of a row group into some that are fetched at once, or one that is larger
        than that. Fields of one struct stay together."""
        together: dict[str, list[str]] = {}
        for name in columns:
            together.setdefault(name.partition(".")[0], []).append(name)
        window: list[str] = []
        size = 0
        for names in together.values():
            more = self._bytes([group], names)
            if window and size + more > WINDOW_BYTES:
                yield window
                window, size = [], 0
            window += names
            size += more
        if window:
            yield window

    def _in_pieces(self, group: int, columns: Sequence[str] | None) -> Any:
        """Return the file for reading columns in pieces."""
        least, most = _PIECE_BYTES
        share = WINDOW_BYTES // max(1, len(self._ranges(group, columns)))
        options = {**self._options, "buffer_size": min(max(least, share // 2), most)}
        return self._call(
            pq.ParquetFile, self._reader.source, metadata=self.metadata, **options
        )

    def _fetch(self, groups: Sequence[int], columns: Sequence[str] | None) -> None:
        """Get the columns. If they are larger than a window, they are got while they are read."""
        if not self._reader.is_remote:
            return
        ranges = [
            byte_range
            for group in groups
            for byte_range in self._ranges(group, columns)
        ]
        # Without a range, what is in memory would be forgotten: a small file as a whole.
        if ranges:
            self._reader.fetch(ranges, WINDOW_BYTES)

    def _fits(self, groups: Sequence[int], columns: Sequence[str] | None) -> bool:
        """Whether the columns fit into a window, as those of a file of this machine always do."""
        return (
            not self._reader.is_remote or self._bytes(groups, columns) <= WINDOW_BYTES
        )

    def _bytes(self, groups: Sequence[int], columns: Sequence[str] | None) -> int:
        """Return the bytes of columns, as they are stored."""
        return sum(
            end - start
            for group in groups
            for start, end in self._ranges(group, columns)
        )

    def _ranges(self, group: int, columns: Sequence[str] | None) -> list[Range]:
        """Return the columns' parts of the file."""
        described = self.metadata.row_group(group)
        ranges = []
        for column in map(described.column, range(described.num_columns)):
            if columns is None or is_of(column.path_in_schema, columns):
                start = column.data_page_offset
                if column.dictionary_page_offset:
                    start = min(start, column.dictionary_page_offset)
                ranges.append((start, start + column.total_compressed_size))
        return ranges


def _side_by_side(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the columns of several tables as one."""
    columns = [column for table in tables for column in table.columns]
    fields = [field for table in tables for field in table.schema]
    return pa.table(columns, pa.schema(fields, tables[0].schema.metadata))


def is_of(path: str, columns: Container[str]) -> bool:
    """Whether a leaf of Parquet's schema belongs to one of these columns, which may be fields of
    a struct."""
    if path in columns or "." not in path:
        return path in columns
    steps = path.split(".")
    return any(".".join(steps[:count]) in columns for count in range(1, len(steps)))


def unreadable(path: str, error: OSError | pa.ArrowException) -> StorageError:
    """Build the error for a data file that cannot be read."""
    # Without errno an error of a storage that only pyarrow reaches may have any cause.
    if isinstance(error, OSError) and (error.errno or not has_store(path)):
        return storage_error("read", path, error)
    return StorageError(
        f'could not read "{path}"',
        sqlstate="XX001",
        detail=DAMAGED,
        original=words_of(error),
    )
