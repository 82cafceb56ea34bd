"""Rows of COPY ... FROM STDIN: what Arrow reads is what the reader of lines reads, however the data
are divided; and what is malformed is found at its line."""

from __future__ import annotations

import random
from struct import pack
from typing import Any

import pytest

from wal2lake.wire.copyin import BinaryRows, RowBlock, TextFormat, TextRows, texts

CSV = TextFormat(("a", "b"), b",", b"", is_csv=True)
TEXT = TextFormat(("a", "b"))


def read(reader: Any, data: bytes, step: int) -> list[Any]:
    """All rows with their lines and texts, and the error that ends them."""
    blocks: list[RowBlock] = []
    for start in range(0, len(data), step):
        blocks += reader.feed(data[start : start + step])
        if blocks and blocks[-1].error is not None:
            break
    else:
        blocks += reader.finish()
    rows: list[Any] = []
    for block in blocks:
        values = zip(*(column.to_pylist() for column in block.columns), strict=True)
        for number, row in enumerate(values):
            line = int(block.lines[number])
            rows.append((*row, line, block.text_of(number)))
        if block.error is not None:
            rows.append(block.error)
    return rows


def by_line(
    form: TextFormat, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    with monkeypatch.context() as patched:
        patched.setattr(TextRows, "_by_arrow", lambda self, block: None)
        return read(TextRows(form), data, len(data) or 1)


@pytest.mark.parametrize("form", [TEXT, CSV], ids=["text", "csv"])
def test_arrow_reads_what_the_reader_of_lines_reads(
    form: TextFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    pieces = [b"a", b"1", b"", b"\xc3\xbc", form.delimiter, b"\n", b"\n", b" "]
    pieces += [b"\\N", b"\\n", b"\\"] if form is TEXT else [b'"', b'""', b'"x"', b'",']
    monkeypatch.setattr(texts, "BLOCK_BYTES", 24)
    for _ in range(600):
        rows = [
            b"".join(rng.choices(pieces, k=rng.randrange(3)))
            + form.delimiter
            + b"".join(rng.choices(pieces, k=rng.randrange(3)))
            for _ in range(rng.randrange(6))
        ]
        data = b"\n".join(rows) + rng.choice([b"", b"\n"])
        expected = by_line(form, data, monkeypatch)
        for step in (1, 7, 1000):
            assert read(TextRows(form), data, step) == expected, data


def test_lines_are_counted_through_quoted_newlines() -> None:
    data = b'1,"a\nb"\n2,c\n3,"d\n\n"\n4\n'
    rows = read(TextRows(CSV), data, 1000)
    # PostgreSQL does not count those in the first row.
    assert [row[2] for row in rows[:3]] == [1, 2, 5]
    assert rows[0][3] == b'1,"a\nb"'
    assert (rows[3].line, rows[3].text) == (6, b"4")


def test_nothing_follows_the_marker_of_the_end() -> None:
    assert read(TextRows(TEXT), b"1\tx\n\\.\nrubbish\n", 3) == [
        (b"1", b"x", 1, b"1\tx")
    ]


def row(*values: bytes | None) -> bytes:
    fields = [
        pack("!i", -1) if value is None else pack("!i", len(value)) + value
        for value in values
    ]
    return pack("!h", len(values)) + b"".join(fields)


HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def test_binary_rows_are_found_however_they_are_divided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = HEADER + row(b"1", b"x") + row(None, b"") + b"\xff\xff"
    for step in (1, 5, 1000):
        for size in (1, 1 << 20):
            monkeypatch.setattr("wal2lake.wire.copyin.binaries.BLOCK_BYTES", size)
            assert read(BinaryRows(2), data, step) == [
                (b"1", b"x", 1, None),
                (None, b"", 2, None),
            ]


@pytest.mark.parametrize(
    ("data", "message", "line"),
    [
        (b"rubbish", "COPY file signature not recognized", 0),
        (HEADER[:12], "invalid COPY file header (missing flags)", 0),
        (HEADER + row(b"1"), "row field count is 1, expected 2", 1),
        (HEADER + row(b"1", b"x") + b"\0\2\0", "unexpected EOF in COPY data", 2),
        (HEADER + b"\0\2" + pack("!i", -7), "invalid field size", 1),
        (HEADER + b"\xff\xffx", "received copy data after EOF marker", 1),
    ],
)
def test_malformed_binary_data(data: bytes, message: str, line: int) -> None:
    error = read(BinaryRows(2), data, 1000)[-1]
    assert (error.message, error.line, error.sqlstate) == (message, line, "22P04")


@pytest.mark.parametrize(
    ("form", "data", "hint", "right"),
    [
        (TEXT, b"1\tx\n2\ta\rb\n", 'Use "\\r" to represent carriage return.', b"a\\rb"),
        (TEXT, b"1\tx\r\n2\ta\nb\r\n", 'Use "\\n" to represent newline.', b"a\\nb"),
        (
            CSV,
            b"1,x\n2,a\rb\n",
            "Use quoted CSV field to represent carriage return.",
            b'"a\rb"',
        ),
        (
            CSV,
            b"1,x\r\n2,a\nb\r\n",
            "Use quoted CSV field to represent newline.",
            b'"a\nb"',
        ),
    ],
)
def test_ends_of_lines_inside_of_values(
    form: TextFormat, data: bytes, hint: str, right: bytes
) -> None:
    value = b"a\nb" if b"a\nb" in data else b"a\rb"
    error = read(TextRows(form), data, 1000)[-1]
    assert (error.hint, error.line) == (hint, 2)
    rows = read(TextRows(form), data.replace(value, right), 1000)
    assert [row[1] for row in rows] == [b"x", value]
