"""COPY ... TO STDOUT: the protocol's messages, and rows that read back as what they were."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fakes.door import COPIED, RawClient, errors, open_door

from wal2lake.door.session.copying import arrow_rows, text_rows
from wal2lake.sql.backend import CopyRows
from wal2lake.sql.grammar.copying import CopyFormat, CopyOptions
from wal2lake.wire.frontback import (
    Bind,
    CommandComplete,
    CopyData,
    CopyDone,
    Describe,
    DescribeTarget,
    Execute,
    Parse,
    Query,
    ReadyForQuery,
    Signal,
    Sync,
)
from wal2lake.wire.frontback.backend import CopyMode, CopyResponse

COUNT = len(COPIED["a"])

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
columns = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.tuples(
            *[st.none() | texts | st.sampled_from(["", "\\.", "\\N", "x"])] * width
        ),
        min_size=1,
        max_size=5,
    )
)


def written(options: CopyOptions, rows: list[tuple[str | None, ...]]) -> list[str]:
    """The messages' contents."""
    given = [
        [None if value is None else value.encode() for value in column]
        for column in zip(*rows, strict=True)
    ]
    copy = CopyRows(options, (False,) * len(given))
    data = text_rows(copy, "UTF8")(given, len(rows))
    if options.format is CopyFormat.TEXT:
        # In one piece, and as part of a longer column.
        columns = [pa.array([b"\t", *column], pa.binary()) for column in given]
        some = [column.slice(1) for column in columns]
        assert arrow_rows(some, copy, "UTF8") == data
    found = []
    while data:
        assert data[:1] == b"d"
        size = int.from_bytes(data[1:5], "big") + 1
        found.append(data[5:size].decode())
        data = data[size:]
    return found


@given(columns)
@example([("\\.",)])
def test_csv_is_read_back_by_a_reader_of_csv(rows):
    # A reader that tells NULL from an empty string is not in the library: NULL is a word here.
    options = CopyOptions(CopyFormat.CSV, delimiter=",", null="NULL-HERE")
    lines = written(options, rows)
    read = list(csv.reader(io.StringIO("".join(lines), newline=""), strict=True))
    shown = [["NULL-HERE" if v is None else v for v in row] for row in rows]
    # It takes a line without anything for a row without columns.
    assert [row or [""] for row in read] == shown
    if len(rows[0]) == 1:
        assert "\\.\n" not in lines


@given(columns, st.sampled_from("\t|,\x01;"))
def test_text_is_read_back_by_the_rules_of_the_manual(rows, delimiter):
    options = CopyOptions(delimiter=delimiter)
    escapes = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
    for line, row in zip(written(options, rows), rows, strict=True):
        assert line.endswith("\n") and "\n" not in line[:-1] and line != "\\.\n"
        read: list[str | None] = []
        value, rest = "", iter(line[:-1] + delimiter)
        raw = ""
        for character in rest:
            if character == delimiter:
                read.append(None if raw == "\\N" else value)
                value, raw = "", ""
                continue
            raw += character
            if character == "\\":
                character = next(rest)
                raw += character
                character = escapes.get(character, character)
            value += character
        assert tuple(read) == row


def test_a_copy_is_a_response_a_message_for_each_row_and_a_tag():
    with open_door() as door, RawClient(door.port) as client:
        client.start()
        client.send(Query(b"copy t (b) to stdout"))
        answer = client.until_ready()
        assert answer[0] == CopyResponse(CopyMode.OUT, 0, (0,))
        data = [m.data for m in answer if isinstance(m, CopyData)]
        assert data == [b"\\N\n", *(b"%d\n" % number for number in range(COUNT - 1))]
        assert answer[-3:-1] == [CopyDone(), CommandComplete(f"COPY {COUNT}")]
        assert door.journal.calls[-1] == "commit"


def test_a_copy_by_the_extended_protocol_has_no_row_limit_and_no_fields():
    with open_door() as door, RawClient(door.port) as client:
        client.start()
        client.send(
            Parse(b"", b"copy t (a, b) to stdout (format binary)", ()),
            Bind(b"", b"", (), (), ()),
            Describe(DescribeTarget.PORTAL, b""),
            Execute(b"", 2),
            Execute(b"", 2),
            Sync(),
        )
        answer = client.until_ready()
        assert answer[:3] == [
            Signal.PARSE_COMPLETE,
            Signal.BIND_COMPLETE,
            Signal.NO_DATA,
        ]
        assert answer[3] == CopyResponse(CopyMode.OUT, 1, (1, 1))
        assert CommandComplete(f"COPY {COUNT}") in answer
        assert errors(answer) == [("ERROR", "55000", 'portal "" cannot be run')]
        assert isinstance(answer[-1], ReadyForQuery)


def test_an_error_among_the_rows_ends_the_copy_without_its_end():
    with open_door() as door, RawClient(door.port) as client:
        client.start(client_encoding="LATIN1")
        client.send(Query(b"copy t to stdout"))
        answer = client.until_ready()
        assert isinstance(answer[0], CopyResponse)
        assert [code for _, code, _ in errors(answer)] == ["22P05"]
        assert not any(isinstance(m, CopyDone | CommandComplete) for m in answer)
        assert door.journal.calls[-1] == "rollback"
