"""Sends the rows of a COPY to the client, and receives those of a COPY ... FROM STDIN.

Comes in: the batches of an Outcome, with values in the text or binary format of their types. Goes
out: CopyData messages, one for each row.

    text      values separated by a delimiter, with a newline behind the row; \\N for NULL; a
              backslash before characters with a special meaning
    csv       as in text, but with quotes around a value that has special characters
    binary    a signature, then for each row the number of fields, and each field with its length

All values of a column are searched for special characters at once, because most columns have none.

Source: src/backend/commands/copyto.c; PostgreSQL manual, COPY, "File Formats".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
import pyarrow as pa

from wal2lake.door.client.conversation import ClientConversation
from wal2lake.door.client.transport import Transport
from wal2lake.door.session.results import TEXT_IN_BINARY
from wal2lake.errors import ProtocolViolation
from wal2lake.sql.backend import CopyInput, CopyRows, Outcome, ResultBatch
from wal2lake.sql.grammar.copying import CopyFormat, CopyOptions, Header
from wal2lake.sql.parameters import convert_column, is_utf8
from wal2lake.wire.encoder import Parts, big_endian, offsets_of
from wal2lake.wire.frontback import write_backend, write_data_rows
from wal2lake.wire.frontback.backend import CopyMode, CopyResponse

Column = Sequence[bytes | None]

_SLICE_ROWS: Final = 4096

_ARROW_SLICE_ROWS: Final = 16_384

_MUCH: Final = 1 << 29
"""Above so many bytes rows are built in Python: an Arrow array holds less than 2 GiB."""

_ESCAPES: Final = {
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"\t": b"\\t",
    b"\v": b"\\v",
}

_SPECIAL: Final = b"\\" + b"".join(_ESCAPES)

_BACKSLASH: Final = ord("\\")
_LAST_CONTROL: Final = max(max(_ESCAPES))
"""The greatest control character that has an escape."""

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"

_HEADER_BYTES: Final = 5
"""The bytes of a message before its content: kind and length."""

_END_OF_DATA: Final = b"\\."


def send_copy(
    outcome: Outcome,
    transport: Transport,
    *,
    encoding: str,
    check: Callable[[], None],
) -> int:
    """Send a COPY without its CommandComplete; return the number of rows.

    ``encoding`` is the client's. ``check`` is called every few thousand rows and may raise.
    """
    copy, fields = outcome.copy, outcome.fields
    assert copy is not None and fields is not None
    binary = copy.options.format is CopyFormat.BINARY
    lead, rows = b"", 0
    try:
        formats = (int(binary),) * len(fields)
        response = CopyResponse(CopyMode.OUT, int(binary), formats)
        transport.write(write_backend(response))
        if binary:
            lead = _SIGNATURE
            textual = [field.type_oid in TEXT_IN_BINARY for field in fields]
            encode = _binary_rows(textual, encoding)
        else:
            encode = text_rows(copy, encoding)
            if copy.options.header is not Header.NONE:
                names = [[field.name.encode()] for field in fields]
                plain = replace(copy, forced=(False,) * len(fields))
                transport.write(text_rows(plain, encoding)(names, 1))
        for batch in outcome.batches:
            if batch.texts is not None:
                for some, size in _arrow_slices(batch):
                    check()
                    transport.write(arrow_rows(some, copy, encoding))
                    rows += size
                continue
            for columns, size in _slices(batch, alone=bool(lead)):
                check()
                data = encode(columns, size)
                if lead and size:
                    # Clients expect the first row in the message of the signature.
                    lead, data = b"", _data(lead + data[_HEADER_BYTES:])
                transport.write(data)
                rows += size
    finally:
        outcome.close()
    if binary:
        transport.write(_data(lead + _TRAILER))
    transport.write(b"c\0\0\0\4")
    return rows


def receive_copy(
    target: CopyInput,
    conversation: ClientConversation,
    *,
    check: Callable[[], None],
) -> int:
    """Receive a COPY; return the number of rows. ``check`` may raise; it is called for each
    message.

    Source: CopyGetData() in copyfromparse.c."""
    formats = (int(target.is_binary),) * target.columns
    conversation.send(CopyResponse(CopyMode.IN, int(target.is_binary), formats))
    conversation.transport.flush()
    try:
        while True:
            frame = conversation.next_frame()
            check()
            if frame.kind == b"d":
                target.write(frame.body)
            elif frame.kind == b"c":
                return target.finish()
            elif frame.kind == b"f":
                reason = frame.body.rstrip(b"\0").decode(
                    conversation.codec(), "replace"
                )
                raise target.failed(reason)
            elif frame.kind not in (b"H", b"S"):
                raise ProtocolViolation(
                    f"unexpected message type 0x{frame.kind[0]:02X} during COPY from stdin"
                )
    finally:
        target.close()


def _slices(batch: ResultBatch, *, alone: bool) -> Iterator[tuple[list[Column], int]]:
    """Cut a batch into slices; with ``alone``, the first row is a slice of its own."""
    start = 0
    while start < batch.rows:
        stop = min(start + (1 if alone else _SLICE_ROWS), batch.rows)
        yield [column[start:stop] for column in batch.columns], stop - start
        start, alone = stop, False


def _arrow_slices(batch: ResultBatch) -> Iterator[tuple[list[pa.Array], int]]:
    assert batch.texts is not None
    for start in range(0, batch.rows, _ARROW_SLICE_ROWS):
        size = min(_ARROW_SLICE_ROWS, batch.rows - start)
        yield [column.slice(start, size) for column in batch.texts], size


def _data(content: bytes) -> bytes:
    return b"d" + (len(content) + 4).to_bytes(4, "big") + content


# ---- text and csv ----------------------------------------------------------------------


def text_rows(
    copy: CopyRows, encoding: str
) -> Callable[[Sequence[Column], int], bytes]:
    """Build the function that turns columns of UTF-8 text, and their length, into messages."""
    options = copy.options
    client_encoding = options.encoding or encoding
    convert = not is_utf8(client_encoding)
    delimiter = options.delimiter.encode()
    dress = (
        _quoting(options) if options.format is CopyFormat.CSV else _escaping(options)
    )

    def rows(columns: Sequence[Column], count: int) -> bytes:
        if not columns:
            return _data(b"\n") * count
        alone = len(columns) == 1
        texts: list[Column] = [
            dress(column, forced, alone)
            for column, forced in zip(columns, copy.forced, strict=True)
        ]
        if convert:
            # Convert last: in another encoding a backslash may be half of a character.
            texts = [convert_column(text, client_encoding) for text in texts]
        lines = map(delimiter.join, zip(*texts, strict=True))
        # This inlines _data, to save a call for each row.
        return b"".join(
            [b"d%b%b\n" % ((len(line) + 5).to_bytes(4, "big"), line) for line in lines]
        )

    return rows


def arrow_rows(
    columns: Sequence[pa.Array], copy: CopyRows, encoding: str
) -> bytes | memoryview:
    """Like ``text_rows`` in text format, for one or more columns that are Arrow binary arrays.

    Arrow gathers the messages without a Python object for each value.
    """
    options = copy.options
    client_encoding = options.encoding or encoding
    count = len(columns[0])
    if not is_utf8(client_encoding) or sum(c.nbytes for c in columns) > _MUCH:
        lists = [column.to_pylist() for column in columns]
        return text_rows(copy, encoding)(lists, count)
    dress = _escaping(options)
    null = pa.scalar(options.null.encode(), pa.binary())
    plain = []
    for column in columns:
        if _may_have(column, ord(options.delimiter)):
            column = pa.array(dress(column.to_pylist(), False, False), pa.binary())
        plain.append(column.fill_null(null) if column.null_count else column)
    # The content's length counts the length field, the delimiters and the newline.
    lengths = np.full(count, 4 + len(plain), np.int64)
    for column in plain:
        lengths += np.diff(offsets_of(column))
    header = np.full((count, _HEADER_BYTES), ord("d"), np.uint8)
    header[:, 1:] = big_endian(lengths, ">i4")
    parts = Parts(count)
    parts.bytes(header)
    delimiter = np.full((count, 1), ord(options.delimiter), np.uint8)
    newline = np.full((count, 1), ord("\n"), np.uint8)
    for number, column in enumerate(plain, 1):
        parts.values(column)
        parts.bytes(newline if number == len(plain) else delimiter)
    joined = parts.joined()
    ends = offsets_of(joined)
    return memoryview(joined.buffers()[2]).cast("B")[: int(ends[-1])]


def _may_have(column: pa.Array, delimiter: int) -> bool:
    """Whether any value may have a character to escape.

    These are the delimiter, a backslash, and the control characters up to the last with an escape.
    """
    offsets = offsets_of(column)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return False
    data = np.frombuffer(column.buffers()[2], np.uint8)[first:last]
    return bool(
        (data <= _LAST_CONTROL).any()
        or (data == _BACKSLASH).any()
        or (delimiter > _LAST_CONTROL and (data == delimiter).any())
    )


_Dress = Callable[[Column, bool, bool], Sequence[bytes]]
"""Escapes or quotes the values of a column.

The arguments are the column, whether its values are always quoted, and whether it is the only
column.
"""


def _escaping(options: CopyOptions) -> _Dress:
    null, delimiter = options.null.encode(), options.delimiter.encode()
    bytes_ = _SPECIAL + delimiter
    special = re.compile(rb"[\\\b\f\n\r\t\v" + re.escape(delimiter) + rb"]")

    def escaped(match: re.Match[bytes]) -> bytes:
        return _ESCAPES.get(match[0]) or b"\\" + match[0]

    def dress(column: Column, forced: bool, alone: bool) -> Sequence[bytes]:
        values = _not_null(column)
        if not _has_any(values, bytes_):
            return values if len(values) == len(column) else _with_nulls(column, null)
        return [null if v is None else special.sub(escaped, v) for v in column]

    return dress


def _quoting(options: CopyOptions) -> _Dress:
    null, delimiter = options.null.encode(), options.delimiter.encode()
    quote, escape = options.quote.encode(), options.escape.encode()
    bytes_ = b"\n\r" + delimiter + quote
    special = re.compile(rb"[\n\r" + re.escape(delimiter) + re.escape(quote) + rb"]")
    inner = re.compile(rb"[" + re.escape(quote) + re.escape(escape) + rb"]")

    def quoted(value: bytes) -> bytes:
        return quote + inner.sub(lambda match: escape + match[0], value) + quote

    def dress(column: Column, forced: bool, alone: bool) -> Sequence[bytes]:
        if forced:
            return [null if v is None else quoted(v) for v in column]
        values = _not_null(column)
        if not (
            null in values
            or (alone and _END_OF_DATA in values)
            or _has_any(values, bytes_)
        ):
            return values if len(values) == len(column) else _with_nulls(column, null)
        return [
            null
            if v is None
            else quoted(v)
            if v == null or (alone and v == _END_OF_DATA) or special.search(v)
            else v
            for v in column
        ]

    return dress


def _not_null(column: Column) -> Sequence[bytes]:
    """The values that are not NULL; the column itself if it has no NULL."""
    if None not in column:
        return cast("Sequence[bytes]", column)
    return [value for value in column if value is not None]


def _with_nulls(column: Column, null: bytes) -> Sequence[bytes]:
    return [null if value is None else value for value in column]


def _has_any(values: Sequence[bytes], bytes_: bytes) -> bool:
    """Whether any of the values has one of these bytes."""
    joined = b"".join(values)
    return len(joined.translate(None, bytes_)) != len(joined)


# ---- binary ----------------------------------------------------------------------------


def _binary_rows(
    textual: Sequence[bool], encoding: str
) -> Callable[[Sequence[Column], int], bytes]:
    """Build the function for binary rows, which have the content of DataRow messages.

    As in DataRow, text is in the client's encoding.
    """
    convert = not is_utf8(encoding)

    def rows(columns: Sequence[Column], count: int) -> bytes:
        if convert:
            columns = [
                convert_column(column, encoding) if is_text else column
                for column, is_text in zip(columns, textual, strict=True)
            ]
        return write_data_rows(columns, count, kind=b"d")

    return rows
