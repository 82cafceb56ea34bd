"""Divides the data of text and CSV format into lines and fields, one after the other.

In: bytes, and the format. Out: lines; the fields of a line, None for NULL; PostgreSQL's errors. It
has all rules, and is slow: ``texts`` uses it for the blocks that Arrow would read otherwise.

Source: CopyReadLineText(), CopyReadAttributesText() and CopyReadAttributesCSV() in copyfromparse.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.wire.copyin.rows import BadFormat

_ESCAPED: Final = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The format of the lines."""

    names: tuple[str, ...]
    """The names of the columns, for errors."""
    delimiter: bytes = b"\t"
    null: bytes = b"\\N"
    is_csv: bool = False
    quote: bytes = b'"'
    escape: bytes = b'"'
    force_not_null: tuple[bool, ...] = ()
    """Columns in which an unquoted NULL mark is a value; empty: none."""
    force_null: tuple[bool, ...] = ()
    """Columns in which a quoted NULL mark is NULL, too; empty: none."""


class LineError(Exception):
    """Raised for a line that is not in the format."""

    def __init__(self, error: BadFormat) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(slots=True)
class LineReader:
    """Divides data into lines, and remembers how lines end and how many there were."""

    form: TextFormat
    end: bytes = b""
    """The end of lines, as the first line has it."""
    line: int = 0
    is_complete: bool = False
    """True behind the end-of-copy marker."""

    def lines(self, data: bytes, *, is_last: bool) -> Iterator[bytes]:
        """Yield the lines of ``data``, which ends with a whole line unless ``is_last``."""
        ends = self._csv_ends if self.form.is_csv else self._text_ends
        start = 0
        for stop, behind in ends(data):
            text = data[start:stop]
            start = behind
            self._count(text)
            if self._is_marker(text):
                self.is_complete = True
                return
            yield text
        if is_last and start < len(data):
            self._count(data[start:])
            if not self._is_marker(data[start:]):
                yield data[start:]

    def _count(self, text: bytes) -> None:
        # PostgreSQL does not count the lines inside of the first row's quotes.
        if self.form.is_csv and self.line:
            self.line += text.count(b"\r" if self.end == b"\r" else b"\n")
        self.line += 1

    def _is_marker(self, text: bytes) -> bool:
        return not self.form.is_csv and text == b"\\."

    def _text_ends(self, data: bytes) -> Iterator[tuple[int, int]]:
        # A backslash takes the special meaning from a line's end, too.
        for match in re.finditer(rb"\\.|\r\n|\r|\n", data, re.DOTALL):
            mark = match.group()
            if mark[:1] != b"\\":
                self._check_end(mark)
                yield match.span()
            elif mark == b"\\." and not self._stands_alone(data, match.start()):
                raise self._refused("end-of-copy marker is not alone on its line")

    def _stands_alone(self, data: bytes, start: int) -> bool:
        before = data[start - 1 : start] if start else b"\n"
        after = data[start + 2 : start + 3]
        return before in (b"\r", b"\n") and after in (b"", b"\r", b"\n")

    def _check_end(self, mark: bytes) -> None:
        if not self.end:
            self.end = mark
        if mark == self.end:
            return
        csv = self.form.is_csv
        is_newline = self.end != b"\n" and mark == b"\n"
        word, escape = ("newline", "\\n") if is_newline else ("carriage return", "\\r")
        raise self._refused(
            f"{'unquoted' if csv else 'literal'} {word} found in data",
            hint=f"Use quoted CSV field to represent {word}."
            if csv
            else f'Use "{escape}" to represent {word}.',
        )

    def _refused(self, message: str, hint: str | None = None) -> LineError:
        return LineError(BadFormat(message, self.line + 1, None, hint))

    def _csv_ends(self, data: bytes) -> Iterator[tuple[int, int]]:
        quote, escape = self.form.quote, self.form.escape
        marks = re.escape(quote)
        if escape != quote:
            marks = (
                re.escape(escape) + rb"[" + re.escape(quote + escape) + rb"]|" + marks
            )
        quoted = False
        for match in re.finditer(marks + rb"|\r\n|\r|\n", data):
            mark = match.group()
            if mark == quote or (not quoted and mark[1:] == quote):
                # Outside of quotes the escape is an ordinary character.
                quoted = not quoted
            elif mark[:1] in (b"\r", b"\n") and not quoted:
                self._check_end(mark)
                yield match.span()

    # ---- fields ------------------------------------------------------------------------

    def fields(self, text: bytes) -> Sequence[bytes | None]:
        """Return the fields of a line, as many as there are columns. Raises LineError."""
        form = self.form
        fields = _csv_fields(text, form) if form.is_csv else _text_fields(text, form)
        if fields is None:
            message = "unterminated CSV quoted field"
            raise LineError(BadFormat(message, self.line, text))
        if len(fields) > len(form.names):
            message = "extra data after last expected column"
            raise LineError(BadFormat(message, self.line, text))
        if len(fields) < len(form.names):
            message = f'missing data for column "{form.names[len(fields)]}"'
            error = BadFormat(message, self.line, text, fields=tuple(fields))
            raise LineError(error)
        return fields


def _text_fields(text: bytes, form: TextFormat) -> list[bytes | None]:
    if b"\\" not in text:
        return [None if f == form.null else f for f in text.split(form.delimiter)]
    delimiter = re.escape(form.delimiter)
    pattern = rb"(?:\\.|\\$|[^\\" + delimiter + rb"])*"
    fields: list[bytes | None] = []
    place = 0
    while True:
        match = re.compile(pattern, re.DOTALL).match(text, place)
        assert match is not None
        raw = match.group()
        fields.append(None if raw == form.null else _unescaped(raw))
        place = match.end() + 1
        if place > len(text):
            return fields


def _unescaped(raw: bytes) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] == b"x" and len(code) > 1:
            return bytes([int(code[1:], 16)])
        if code[:1] in b"01234567":
            return bytes([int(code, 8) & 0xFF])
        return _ESCAPED.get(code, code)

    text = _ESCAPE.sub(replaced, raw)
    # A backslash at the end of the line is dropped.
    return text[:-1] if _ends_in_escape(raw) else text


def _ends_in_escape(raw: bytes) -> bool:
    return (len(raw) - len(raw.rstrip(b"\\"))) % 2 == 1


def _csv_fields(text: bytes, form: TextFormat) -> list[bytes | None] | None:
    """Return the fields; None if a quoted one does not end."""
    fields: list[bytes | None] = []
    parts: list[bytes] = []
    place, quoted, was_quoted = 0, False, False
    start = 0
    marks = re.compile(
        b"[" + re.escape(form.delimiter + form.quote + form.escape) + b"]"
    )

    def finish() -> None:
        value = b"".join(parts)
        number = len(fields)
        forced = number < len(form.force_null) and form.force_null[number]
        kept = number < len(form.force_not_null) and form.force_not_null[number]
        is_null = value == form.null and (forced if was_quoted else not kept)
        fields.append(None if is_null else value)
        parts.clear()

    while (match := marks.search(text, place)) is not None:
        mark, at_mark = match.group(), match.start()
        place = at_mark + 1
        if quoted:
            following = text[place : place + 1]
            doubles = mark == form.escape and following in (form.quote, form.escape)
            if doubles and following:
                parts.append(text[start:at_mark])
                start, place = place, place + 1
                continue
            if mark == form.quote:
                parts.append(text[start:at_mark])
                start, quoted = place, False
        elif mark == form.quote:
            parts.append(text[start:at_mark])
            start, quoted, was_quoted = place, True, True
        elif mark == form.delimiter:
            parts.append(text[start:at_mark])
            finish()
            start, was_quoted = place, False
    if quoted:
        return None
    parts.append(text[start:])
    finish()
    return fields
