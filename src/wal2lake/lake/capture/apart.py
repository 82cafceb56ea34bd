"""Keeps large values in a file while their rows are compared.

Comes in: batches of binary columns. Goes out: the same batches with a short mark in place of each
large value, equal for equal values; and batches of such columns with all values restored, in
pieces of bounded size. DuckDB holds some thousand rows in memory at once, several times, whatever
their size; with marks the rows are small.

Called by ``comparison``. Memory: a digest and a mark for each distinct value.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LARGE: Final = 4096
"""Bytes. Some thousand rows of several columns of that size take little memory, and a value that
large takes longer to read than to digest."""

_PIECE_BYTES: Final = 32 << 20
"""Bytes of large values that are restored at once; a row is never divided."""


@contextmanager
def kept_apart(directory: Path) -> Iterator[Apart]:
    """Open the file for one comparison; it is removed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        yield Apart(file)


class Apart:
    """Large values of one comparison."""

    def __init__(self, file: IO[bytes]) -> None:
        """``file``: an empty file for the values."""
        self._file = file
        self._end = 0
        self._places: dict[bytes, bytes] = {}
        """Marks by digest."""
        # No value begins with these random bytes.
        self._prefix = os.urandom(16)

    def put(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the large values of the rows by marks. Raises OSError."""
        columns = [self.marked(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def marked(self, values: pa.Array) -> pa.Array:
        """Replace the large values of one column by marks. Raises OSError."""
        large = pc.fill_null(pc.greater_equal(pc.binary_length(values), _LARGE), False)
        if not pc.any(large).as_py():
            return values
        marks: list[bytes | None] = [None] * len(values)
        for row in np.flatnonzero(large.to_numpy(zero_copy_only=False)).tolist():
            marks[row] = self._mark(memoryview(values[row].as_buffer()))
        return pc.if_else(large, pa.array(marks, pa.binary()), values)

    def _mark(self, value: memoryview) -> bytes:
        digest = hashlib.blake2b(value, digest_size=32).digest()
        if digest not in self._places:
            self._file.seek(self._end)
            self._file.write(value)
            place = self._end.to_bytes(8, "big") + len(value).to_bytes(8, "big")
            self._places[digest] = self._prefix + place
            self._end += len(value)
        return self._places[digest]

    def back(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
        """Yield the rows with all their values. Raises OSError."""
        if not self._places:
            yield pa.Table.from_batches([batch])
            return
        binary = [
            i for i, field in enumerate(batch.schema) if pa.types.is_binary(field.type)
        ]
        sizes = np.zeros(batch.num_rows, np.int64)
        for i in binary:
            for row, (_, size) in self._find_marks(batch.column(i)).items():
                sizes[row] += size
        first, held = 0, 0
        for row, size in enumerate(sizes.tolist()):
            if held and held + size > _PIECE_BYTES:
                yield self._restore(batch.slice(first, row - first), binary)
                first, held = row, 0
            held += size
        yield self._restore(batch.slice(first), binary)

    def _find_marks(self, values: pa.Array) -> dict[int, tuple[int, int]]:
        """Return the offset and the size of the value for each marked row."""
        marked = pc.fill_null(pc.starts_with(values, pattern=self._prefix), False)
        places = {}
        for row in np.flatnonzero(marked.to_numpy(zero_copy_only=False)).tolist():
            mark = values[row].as_py()[len(self._prefix) :]
            places[row] = (
                int.from_bytes(mark[:8], "big"),
                int.from_bytes(mark[8:], "big"),
            )
        return places

    def _restore(self, batch: pa.RecordBatch, binary: list[int]) -> pa.Table:
        table = pa.Table.from_batches([batch])
        for i in binary:
            marked = self._find_marks(batch.column(i))
            if not marked:
                continue
            values = batch.column(i).to_pylist()
            for row, (offset, size) in marked.items():
                self._file.seek(offset)
                values[row] = self._file.read(size)
            table = table.set_column(i, table.field(i), pa.array(values, pa.binary()))
        return table
