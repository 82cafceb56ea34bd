"""Large values, kept in a file while their rows are compared.

Comes in: batches of binary columns. Goes out: the same batches with a short mark in the place of
each large value, equal for equal values; and, of batches of such columns, all values again, in
pieces of bounded size. DuckDB has some thousand rows in memory at once, several times, whatever
they hold: with marks they are small.

Called by ``comparison``. In memory: a digest and a place of each different value.
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
"""Bytes. Some thousand rows of several columns of that size are little, and a value that large
takes longer to read than to digest."""

_PIECE_BYTES: Final = 32 << 20
"""Bytes of large values that are brought back at once; a row brings all of its own."""


@contextmanager
def kept_apart(directory: Path) -> Iterator[Apart]:
    """For one comparison; the file goes with it."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        yield Apart(file)


class Apart:
    """Large values of one comparison."""

    def __init__(self, file: IO[bytes]) -> None:
        """``file``: for them, empty."""
        self._file = file
        self._end = 0
        self._places: dict[bytes, bytes] = {}
        """By digest: the mark."""
        # No value begins so.
        self._prefix = os.urandom(16)

    def put(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without their large values. OSError."""
        columns = [self.marked(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def marked(self, values: pa.Array) -> pa.Array:
        """The same of one column. OSError."""
        large = pc.fill_null(pc.greater_equal(pc.binary_length(values), _LARGE), False)
        if not pc.any(large).as_py():
            return values
        marks: list[bytes | None] = [None] * len(values)
        for at in np.flatnonzero(large.to_numpy(zero_copy_only=False)).tolist():
            marks[at] = self._mark(memoryview(values[at].as_buffer()))
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
        """The rows with all their values. OSError."""
        if not self._places:
            yield pa.Table.from_batches([batch])
            return
        binary = [
            i for i, field in enumerate(batch.schema) if pa.types.is_binary(field.type)
        ]
        sizes = np.zeros(batch.num_rows, np.int64)
        for i in binary:
            for at, (_, size) in self._marked(batch.column(i)).items():
                sizes[at] += size
        first, held = 0, 0
        for at, size in enumerate(sizes.tolist()):
            if held and held + size > _PIECE_BYTES:
                yield self._restored(batch.slice(first, at - first), binary)
                first, held = at, 0
            held += size
        yield self._restored(batch.slice(first), binary)

    def _marked(self, values: pa.Array) -> dict[int, tuple[int, int]]:
        """Where marks stand: offset and size of what they stand for."""
        marked = pc.fill_null(pc.starts_with(values, pattern=self._prefix), False)
        found = {}
        for at in np.flatnonzero(marked.to_numpy(zero_copy_only=False)).tolist():
            mark = values[at].as_py()[len(self._prefix) :]
            found[at] = int.from_bytes(mark[:8], "big"), int.from_bytes(mark[8:], "big")
        return found

    def _restored(self, batch: pa.RecordBatch, binary: list[int]) -> pa.Table:
        table = pa.Table.from_batches([batch])
        for i in binary:
            marked = self._marked(batch.column(i))
            if not marked:
                continue
            values = batch.column(i).to_pylist()
            for at, (offset, size) in marked.items():
                self._file.seek(offset)
                values[at] = self._file.read(size)
            table = table.set_column(i, table.field(i), pa.array(values, pa.binary()))
        return table
