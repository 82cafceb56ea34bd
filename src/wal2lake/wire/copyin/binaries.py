"""Reads the binary format: finds whole rows, of which ``columnar.copybinary`` makes columns.

In: data, divided anywhere. Out: blocks of rows; a block with an error is the last one. The trailer
may be missing, as in PostgreSQL.

Source: CopyFromBinaryOneRow() and ReceiveCopyBinaryHeader() in copyfromparse.c; PostgreSQL manual,
COPY, "Binary Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.wire.columnar.copybinary import BinaryCopy
from wal2lake.wire.copyin.rows import BLOCK_BYTES, BadFormat, RowBlock

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_FLAGS_END: Final = len(_SIGNATURE) + 4
_HEADER: Final = _FLAGS_END + 4
_CRITICAL: Final = 0xFFFF0000
_INT16: Final = Struct("!h")
_INT32: Final = Struct("!i")
_TRAILER: Final = -1


class _MalformedError(Exception):
    """Raised for data that is not in the format."""


class BinaryRows:
    """One COPY in binary format."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._copy = BinaryCopy(columns)
        self._copy.feed(_SIGNATURE + bytes(8), [_HEADER])
        self._parts: list[bytes] = []
        self._held = 0
        self._begun = False
        self._ended = False
        self.line = 0
        """The number of the last row that was read, without those of a block that is not whole."""

    def feed(self, data: bytes) -> Iterator[RowBlock]:
        """Add data; yields the blocks that are whole."""
        self._parts.append(data)
        self._held += len(data)
        if self._held >= BLOCK_BYTES:
            yield from self._read(is_last=False)

    def finish(self) -> Iterator[RowBlock]:
        """Yield the rest."""
        yield from self._read(is_last=True)

    def _read(self, *, is_last: bool) -> Iterator[RowBlock]:
        data = b"".join(self._parts)
        sizes: list[int] = []
        error, start = None, 0
        try:
            if not self._begun:
                start = self._behind_header(data, is_last=is_last)
            if self._begun:
                self._find_rows(data, start, sizes, is_last=is_last)
        except _MalformedError as malformed:
            line = self.line + len(sizes) + 1 if self._begun else 0
            error = BadFormat(str(malformed), line)
        end = start + sum(sizes)
        behind = len(data) if self._ended else end
        # A row that is longer than a block is looked at again only when there is more of it.
        self._parts, self._held = [data[behind:]], -(len(data) - behind)
        if not sizes and error is None:
            return
        if sizes:
            columns = tuple(self._copy.feed(data[start:end], sizes))
        else:
            columns = tuple(pa.nulls(0, pa.binary()) for _ in range(self._columns))
        lines = self.line + 1 + np.arange(len(sizes), dtype=np.int64)
        self.line += len(sizes)
        yield RowBlock(columns, lines, error)

    def _behind_header(self, data: bytes, *, is_last: bool) -> int:
        """Return where the rows begin; 0 if the header is not there yet."""
        if not data.startswith(_SIGNATURE):
            if is_last or data[: len(_SIGNATURE)] != _SIGNATURE[: len(data)]:
                raise _MalformedError("COPY file signature not recognized")
            return 0
        if len(data) < _HEADER:
            if is_last:
                part = "length" if len(data) >= _FLAGS_END else "flags"
                raise _MalformedError(f"invalid COPY file header (missing {part})")
            return 0
        flags = int.from_bytes(data[len(_SIGNATURE) : _FLAGS_END])
        if flags & 1 << 16:
            raise _MalformedError("invalid COPY file header (WITH OIDS)")
        if flags & _CRITICAL:
            raise _MalformedError("unrecognized critical flags in COPY file header")
        extension = int.from_bytes(data[_FLAGS_END:_HEADER], signed=True)
        if extension < 0:
            raise _MalformedError("invalid COPY file header (missing length)")
        if len(data) < _HEADER + extension:
            if is_last:
                raise _MalformedError("invalid COPY file header (wrong length)")
            return 0
        self._begun = True
        return _HEADER + extension

    def _find_rows(
        self, data: bytes, start: int, sizes: list[int], *, is_last: bool
    ) -> None:
        """Add the sizes of the whole rows to ``sizes``."""
        columns, length = self._columns, len(data)
        int16, int32 = _INT16.unpack_from, _INT32.unpack_from
        place = start
        while not self._ended and place + 2 <= length:
            (count,) = int16(data, place)
            if count == _TRAILER:
                self._ended = True
                place += 2
                break
            if count != columns:
                raise _MalformedError(f"row field count is {count}, expected {columns}")
            end = place + 2
            for _ in range(columns):
                if end + 4 > length:
                    end = length + 1
                    break
                (size,) = int32(data, end)
                if size < -1:
                    raise _MalformedError("invalid field size")
                end += 4 + size if size > 0 else 4
            if end > length:
                break
            sizes.append(end - place)
            place = end
        if self._ended and place < length:
            raise _MalformedError("received copy data after EOF marker")
        if is_last and not self._ended and place < length:
            raise _MalformedError("unexpected EOF in COPY data")
