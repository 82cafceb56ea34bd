"""Reads text and CSV format in blocks of whole lines.

In: data, divided anywhere. Out: blocks of rows; a block with an error is the last one. Arrow reads
a block whose lines it divides as PostgreSQL would: text without escapes, CSV whose quotes surround
whole fields. All other blocks are read line by line (``lines``), with the same result.

Memory: a block, and what it becomes. A line that is longer than a block makes it larger, up to
PostgreSQL's limit of 1 GB for a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from wal2lake.wire.copyin.lines import LineError, LineReader, TextFormat
from wal2lake.wire.copyin.rows import BLOCK_BYTES, BadFormat, RowBlock

_MAX_LINE_BYTES: Final = (1 << 30) - 2

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_Ints = npt.NDArray[np.int64]


class TextRows:
    """One COPY in text or CSV format."""

    def __init__(
        self, form: TextFormat, *, header: bool = False, match: bool = False
    ) -> None:
        """``header``: the first line is left out; with ``match`` it must have the names."""
        self._form = form
        self._reader = LineReader(form)
        self._has_header = header
        self._matches = match
        self._parts: list[bytes] = []
        self._held = 0

    @property
    def line(self) -> int:
        """The number of the last line that has been received."""
        held = sum(part.count(b"\n") for part in self._parts)
        return self._reader.line + held

    def feed(self, data: bytes) -> Iterator[RowBlock]:
        """Add data; yields the blocks that are whole."""
        if self._reader.is_complete:
            return
        self._parts.append(data)
        self._held += len(data)
        if self._held >= BLOCK_BYTES:
            whole = b"".join(self._parts)
            end = self._last_end(whole)
            if not end and len(whole) > _MAX_LINE_BYTES:
                line = self._reader.line + 1
                error = BadFormat("out of memory", line, None, None, "54000")
                yield RowBlock((), np.zeros(0, np.int64), error)
                return
            self._parts, self._held = [whole[end:]], 0
            if end:
                yield self._block(whole[:end], is_last=False)
            else:
                # The line is looked at again only when there is as much more of it.
                self._held = -len(whole)

    def finish(self) -> Iterator[RowBlock]:
        """Yield the rest."""
        rest = b"".join(self._parts)
        if rest and not self._reader.is_complete:
            yield self._block(rest, is_last=True)

    # ---- whole lines ---------------------------------------------------------------------

    def _last_end(self, data: bytes) -> int:
        """Return the end of the last whole line; 0 if there is none."""
        mark = b"\r" if self._reader.end == b"\r" else b"\n"
        if self._form.is_csv:
            return self._last_csv_end(data, mark)
        end = len(data)
        while (end := data.rfind(mark, 0, end)) != -1:
            line_end = end - 1 if data[end - 1 : end] == b"\r" else end
            before = (
                data[:line_end] if line_end < 64 else data[line_end - 64 : line_end]
            )
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                return end + 1
        return 0

    def _last_csv_end(self, data: bytes, mark: bytes) -> int:
        form = self._form
        if form.escape == form.quote:
            ends = _positions(data, mark)
            quotes = _positions(data, form.quote)
            outside = np.searchsorted(quotes, ends) % 2 == 0
            row_ends = ends[outside]
            return int(row_ends[-1]) + 1 if len(row_ends) else 0
        end = 0
        quoted = False
        pattern = (
            re.escape(form.escape)
            + rb"["
            + re.escape(form.quote + form.escape)
            + rb"]|["
            + re.escape(form.quote)
            + re.escape(mark)
            + rb"]"
        )
        for match in re.finditer(pattern, data):
            found_mark = match.group()
            if found_mark == form.quote or (
                not quoted and found_mark[1:] == form.quote
            ):
                quoted = not quoted
            elif found_mark == mark and not quoted:
                end = match.end()
        return end

    def _block(self, data: bytes, *, is_last: bool) -> RowBlock:
        if not data:
            return self._by_line(data, is_last=is_last)
        invalid = _invalid_byte(data)
        if invalid is not None:
            place, shown = invalid
            line = self._reader.line + 1 + data.count(b"\n", 0, place)
            message = f'invalid byte sequence for encoding "UTF8": {shown}'
            error = BadFormat(message, line, sqlstate="22021")
            # Rows that precede it may have other errors.
            rows = self._block(data[: self._last_end(data[:place])], is_last=False)
            return rows if rows.error is not None else replace(rows, error=error)
        if not self._has_header:
            block = self._by_arrow(data)
            if block is not None:
                return block
        return self._by_line(data, is_last=is_last)

    # ---- by Arrow -------------------------------------------------------------------------

    def _by_arrow(self, data: bytes) -> RowBlock | None:
        """Return the rows; None if Arrow might divide them in another way than PostgreSQL."""
        form = self._form
        end = self._reader.end or (b"\r\n" if b"\r\n" in data[: 1 << 16] else b"\n")
        newlines = data.count(b"\n")
        carriages = data.count(b"\r")
        if end == b"\r" or carriages != (newlines if end == b"\r\n" else 0):
            return None
        if end == b"\r\n" and data.count(b"\r\n") != newlines:
            return None
        if len(form.names) > 1 and (data.startswith(end) or end + end in data):
            # Arrow reads an empty line as a row of empty fields.
            return None
        escapes = data.count(b"\\")
        if data.startswith(_BYTE_ORDER_MARK) or (
            form.is_csv and form.quote != form.escape
        ):
            return None
        if not form.is_csv and escapes and form.null != b"\\N":
            return None
        quotes = _positions(data, form.quote) if form.is_csv else np.zeros(0, np.int64)
        if not _surround_fields(data, quotes, form.delimiter):
            return None
        # Arrow takes an empty field at the end of the data for a quoted one.
        ended = data if data.endswith(end) else data + end
        table = self._parsed(ended, has_quotes=len(quotes) > 0)
        if table is None:
            return None
        columns = [column.combine_chunks() for column in table.columns]
        if not form.is_csv and sum(c.null_count for c in columns) != escapes:
            return None
        lines, starts = self._numbered(data, table.num_rows, quotes)
        self._reader.end = self._reader.end or (end if newlines else b"")
        return RowBlock(
            tuple(self._forced(columns, len(quotes) > 0)),
            lines,
            data=data,
            starts=starts,
        )

    def _parsed(self, data: bytes, *, has_quotes: bool) -> Any:
        form = self._form
        names = [f"c{number}" for number in range(len(form.names))]
        quote: Any = form.quote.decode("latin-1") if has_quotes else False
        parse = pacsv.ParseOptions(
            delimiter=form.delimiter.decode("latin-1"),
            quote_char=quote,
            double_quote=has_quotes,
            escape_char=False,
            newlines_in_values=has_quotes,
            ignore_empty_lines=False,
        )
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[form.null.decode("utf-8", "surrogateescape")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = pacsv.ReadOptions(
            column_names=names, block_size=len(data) + 1, use_threads=False
        )
        try:
            return pacsv.read_csv(pa.BufferReader(data), read, parse, convert)
        except (pa.ArrowInvalid, UnicodeError):
            return None

    def _forced(self, columns: Sequence[Any], has_quotes: bool) -> Iterator[Any]:
        """Apply FORCE_NOT_NULL and FORCE_NULL."""
        form = self._form
        null = pa.scalar(form.null, pa.binary())
        for number, column in enumerate(columns):
            kept = number < len(form.force_not_null) and form.force_not_null[number]
            forced = number < len(form.force_null) and form.force_null[number]
            if kept and column.null_count:
                column = pc.fill_null(column, null)
            if forced and has_quotes:
                is_mark = pc.equal(column, null)
                column = pc.if_else(is_mark, pa.scalar(None, pa.binary()), column)
            yield column

    def _numbered(
        self, data: bytes, rows: int, quotes: _Ints
    ) -> tuple[_Ints, _Ints | None]:
        """Return each row's last line, and where each row begins if it may have several lines."""
        before = self._reader.line
        if not len(quotes):
            self._reader.line += rows
            return before + 1 + np.arange(rows, dtype=np.int64), None
        ends = _positions(data, b"\n")
        if not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        outside = np.searchsorted(quotes, ends) % 2 == 0
        lines = before + 1 + np.flatnonzero(outside)
        if not before:
            # As ``lines`` does for the first row.
            lines -= lines[0] - 1
        starts = np.concatenate(([0], ends[outside][:-1] + 1)).astype(np.int64)
        self._reader.line = int(lines[-1])
        return lines.astype(np.int64), starts

    # ---- by line --------------------------------------------------------------------------

    def _by_line(self, data: bytes, *, is_last: bool) -> RowBlock:
        reader = self._reader
        rows: list[Sequence[bytes | None]] = []
        lines: list[int] = []
        texts: list[bytes] = []
        error: BadFormat | None = None
        try:
            for text in reader.lines(data, is_last=is_last):
                if self._has_header:
                    self._has_header = False
                    if self._matches:
                        self._match_header(text)
                    continue
                rows.append(reader.fields(text))
                lines.append(reader.line)
                texts.append(text)
        except LineError as refused:
            error = refused.error
        columns = tuple(
            pa.array([row[number] for row in rows], pa.binary())
            for number in range(len(self._form.names))
        )
        sizes = np.asarray([len(text) + 1 for text in texts], np.int64)
        starts = np.cumsum(sizes) - sizes
        return RowBlock(
            columns,
            np.asarray(lines, np.int64),
            error,
            b"\n".join(texts),
            starts,
        )

    def _match_header(self, text: bytes) -> None:
        form, names = self._form, self._form.names
        wide = TextFormat(
            ("",) * max(len(names), text.count(form.delimiter) + 1),
            form.delimiter,
            form.null,
            form.is_csv,
            form.quote,
            form.escape,
        )
        try:
            fields = LineReader(wide, line=1).fields(text)
        except LineError as refused:
            if not refused.error.message.startswith("missing data"):
                raise
            fields = ()
            for count in range(len(wide.names) - 1, 0, -1):
                try:
                    narrow = TextFormat(
                        wide.names[:count],
                        form.delimiter,
                        form.null,
                        form.is_csv,
                        form.quote,
                        form.escape,
                    )
                    fields = LineReader(narrow, line=1).fields(text)
                    break
                except LineError:
                    continue
        message = None
        if len(fields) != len(names):
            message = (
                f"wrong number of fields in header line: got {len(fields)},"
                f" expected {len(names)}"
            )
        else:
            for number, (name, value) in enumerate(zip(names, fields, strict=True), 1):
                if value is None:
                    shown = form.null.decode("utf-8", "replace")
                    message = (
                        f"column name mismatch in header line field {number}: got null"
                        f' value ("{shown}"), expected "{name}"'
                    )
                    break
                got = value.decode("utf-8", "replace")
                if got != name:
                    message = (
                        f"column name mismatch in header line field {number}: got"
                        f' "{got}", expected "{name}"'
                    )
                    break
        if message is not None:
            raise LineError(BadFormat(message, self._reader.line, text))


def _positions(data: bytes, mark: bytes) -> _Ints:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == mark[0]).astype(np.int64)


def _invalid_byte(data: bytes) -> tuple[int, str] | None:
    """Return the place of the first bytes that are not UTF-8, and PostgreSQL's words for them."""
    place = data.find(b"\0")
    try:
        (data if place < 0 else data[:place]).decode()
    except UnicodeDecodeError as error:
        first = data[error.start]
        size = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        part = data[error.start : error.start + (size if first < 0xF8 else 1)]
        return error.start, " ".join(f"0x{byte:02x}" for byte in part)
    return None if place < 0 else (place, "0x00")


def _surround_fields(data: bytes, quotes: _Ints, delimiter: bytes) -> bool:
    """Whether each quoted part is a whole field: it begins and ends at a delimiter or a line's
    end, or at the quote that it doubles."""
    if not len(quotes):
        return True
    if len(quotes) % 2:
        return False
    all_bytes = np.frombuffer(data, np.uint8)
    edges = np.frombuffer(delimiter + b"\r\n", np.uint8)
    opening, closing = quotes[::2], quotes[1::2]
    before = np.where(opening > 0, all_bytes[np.maximum(opening - 1, 0)], edges[-1])
    last = len(all_bytes) - 1
    after = np.where(
        closing < last, all_bytes[np.minimum(closing + 1, last)], edges[-1]
    )
    doubled_before = np.zeros(len(opening), np.bool_)
    doubled_before[1:] = opening[1:] == closing[:-1] + 1
    doubled_after = np.zeros(len(closing), np.bool_)
    doubled_after[:-1] = doubled_before[1:]
    begins = np.isin(before, edges) | doubled_before
    ends = np.isin(after, edges) | doubled_after
    return bool(begins.all() and ends.all())
