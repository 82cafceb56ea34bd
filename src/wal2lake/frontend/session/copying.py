"""Rows of a COPY on their way to the client.

In: an Outcome's batches, each value in the text or binary form of its type. Out: CopyData messages
of some thousand rows.

    text      values with a tab between and a newline behind, \\N for NULL; a backslash before
              what would be read as something else
    binary    a signature, then for each row the number of fields, and each with its length

Source: src/backend/commands/copyto.c; PostgreSQL manual, COPY, "File Formats".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wal2lake.frontend.backend import Batch, Outcome
from wal2lake.frontend.client.transport import Transport
from wal2lake.frontend.parameters import convert_column, is_utf8
from wal2lake.wire.frontback import Format, write_backend
from wal2lake.wire.frontback.backend import CopyMode, CopyResponse

_SLICE_ROWS: Final = 4096

_SPECIAL: Final = re.compile(rb"[\\\b\f\n\r\t\v]")
_ESCAPES: Final = {
    b"\\": b"\\\\",
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
    b"\v": b"\\v",
}

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"


def send_copy(
    outcome: Outcome,
    transport: Transport,
    *,
    encoding: str,
    check: Callable[[], None],
) -> int:
    """All of it, but for CommandComplete; how many rows that were."""
    assert outcome.copy is not None and outcome.fields is not None
    binary = outcome.copy is Format.BINARY
    count = len(outcome.fields)
    code = int(binary)
    transport.write(write_backend(CopyResponse(CopyMode.OUT, code, (code,) * count)))
    if binary:
        transport.write(_data(_SIGNATURE))
    convert = None if is_utf8(encoding) or binary else encoding
    rows = 0
    for batch in outcome.batches:
        for columns, size in _slices(batch):
            check()
            encoded = (
                _binary(columns, size) if binary else _text(columns, size, convert)
            )
            transport.write(b"".join(map(_data, encoded)))
            rows += size
    if binary:
        transport.write(_data(_TRAILER))
    transport.write(b"c\0\0\0\4")
    return rows


def _slices(batch: Batch) -> Iterator[tuple[list[Sequence[bytes | None]], int]]:
    for start in range(0, batch.rows, _SLICE_ROWS):
        stop = min(start + _SLICE_ROWS, batch.rows)
        yield [column[start:stop] for column in batch.columns], stop - start


def _text(
    columns: Sequence[Sequence[bytes | None]], rows: int, encoding: str | None
) -> list[bytes]:
    if not columns:
        return [b"\n"] * rows
    texts = [_escaped(column) for column in columns]
    found = [b"\t".join(row) + b"\n" for row in zip(*texts, strict=True)]
    if encoding is None:
        return found
    # Last: in another encoding a backslash may be half of a character.
    return [line or b"" for line in convert_column(found, encoding)]


def _escaped(column: Sequence[bytes | None]) -> list[bytes]:
    found = [b"\\N" if value is None else value for value in column]
    # Most columns have nothing to escape: one look at all of it.
    if _SPECIAL.search(b"".join(value for value in column if value is not None)):
        found = [
            b"\\N"
            if value is None
            else _SPECIAL.sub(lambda one: _ESCAPES[one[0]], value)
            for value in column
        ]
    return found


def _binary(columns: Sequence[Sequence[bytes | None]], rows: int) -> list[bytes]:
    head = len(columns).to_bytes(2, "big")
    if not columns:
        return [head] * rows
    fields = [
        [
            b"\xff\xff\xff\xff" if v is None else len(v).to_bytes(4, "big") + v
            for v in column
        ]
        for column in columns
    ]
    return [head + b"".join(row) for row in zip(*fields, strict=True)]


def _data(content: bytes) -> bytes:
    return b"d" + (len(content) + 4).to_bytes(4, "big") + content
