"""The Spark data source without Spark: positions in a log, and its changes as rows."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.publisher import Change, Transaction, gulps, inserts

from wal2lake.changelog import LogReader, Retention
from wal2lake.changelog.segments import open_writer
from wal2lake.datasource.positions import (
    LogPosition,
    advanced,
    ending_position,
    held_position,
    slices,
    starting_position,
)
from wal2lake.datasource.rows import ChangeFormat, ChangeReader
from wal2lake.datasource.source import OPTIONS, StreamOptions
from wal2lake.errors import UsageError
from wal2lake.lake import FieldSpec
from wal2lake.model import Lsn, Oid
from wal2lake.wire.columnar import Decoder

pytestmark = pytest.mark.usefixtures("no_fsync")


def sealed(directory: Path, segments: Sequence[Sequence[Transaction]]) -> LogReader:
    """A log with these segments."""
    directory.mkdir(exist_ok=True)
    writer, decoder = open_writer(directory), Decoder()
    for transactions in segments:
        for one in gulps(transactions, 3):
            writer.add(decoder.feed(*one))
        assert writer.seal() is not None
    return LogReader(directory)


def rows_between(
    reader: LogReader,
    start: LogPosition,
    end: LogPosition,
    chosen: ChangeFormat | None = None,
) -> list[dict[str, Any]]:
    """All rows of a range; the parts travel to the tasks as pickles."""
    rows: list[dict[str, Any]] = []
    for part in slices(reader, start, end):
        part = pickle.loads(pickle.dumps(part))
        for batch in ChangeReader(chosen or ChangeFormat()).read(part):
            rows += batch.to_pylist()
    return rows


def whole(reader: LogReader) -> tuple[LogPosition, LogPosition]:
    return starting_position(reader, "earliest"), starting_position(reader, "latest")


@settings(max_examples=examples(25), deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=4), max_size=6),
    limit=st.integers(1, 12),
)
def test_micro_batches_have_every_transaction_once_and_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], limit: int
) -> None:
    lsn, segments = 1000, []
    expected: list[tuple[int, int]] = []
    for counts in sizes:
        transactions = []
        for count in counts:
            lsn += 100
            transactions.append(inserts(lsn, count))
            expected.append((lsn, count))
        segments.append(transactions)
    reader = sealed(tmp_path_factory.mktemp("log"), segments)
    position = starting_position(reader, "earliest")
    read: list[tuple[int, int]] = []
    while True:
        end = LogPosition.from_json(json.loads(json.dumps(position.to_json())))
        assert end == position
        end = advanced(reader, position, limit)
        if end == position:
            break
        rows = rows_between(reader, position, end)
        numbers = [
            (lsn, sum(r["commit_lsn"] == lsn for r in rows)) for lsn, _ in expected
        ]
        batch = [pair for pair in numbers if pair[1]]
        assert len(rows) <= limit or len(batch) == 1
        read += batch
        position = end
    assert read == expected
    everything = rows_between(reader, *whole(reader))
    assert len(everything) == sum(count for _, count in expected)


def test_each_operation_is_a_row_with_its_values(tmp_path: Path) -> None:
    changes = (
        Change(1, "I", (b"1", b'say "hi"')),
        Change(1, "U", (b"2", b"x"), key=b"1"),
        Change(1, "U", (b"2", b"x"), unchanged=(1,)),
        Change(1, "D", key=b"2"),
        Change(1, "T"),
    )
    reader = sealed(tmp_path / "log", [[Transaction(1000, changes, xid=9)]])
    rows = rows_between(reader, *whole(reader))
    assert [row["op"] for row in rows] == [
        "insert", "update", "update", "delete", "truncate",
    ]  # fmt: skip
    assert [row["new"] for row in rows] == [
        '{"a0":"1","a1":"say \\"hi\\""}', '{"a0":"2","a1":"x"}', '{"a0":"2"}', None, None,
    ]  # fmt: skip
    assert [row["old"] for row in rows] == [
        None,
        '{"a0":"1"}',
        None,
        '{"a0":"2"}',
        None,
    ]
    assert [row["unchanged"] for row in rows] == [[], [], ["a1"], [], []]
    assert {row["table_name"] for row in rows} == {"t1"}
    assert [row["ordinal"] for row in rows] == [0, 1, 2, 3, 4]
    first = rows[0]
    assert (first["lsn"], first["commit_lsn"], first["end_lsn"], first["xid"]) == (
        "0/3E8", 1000, 1008, 9,
    )  # fmt: skip
    assert first["commit_time"].isoformat() == "2000-01-01T00:00:00.000005+00:00"


def test_a_single_table_has_typed_columns(tmp_path: Path) -> None:
    transaction = Transaction(
        1000,
        (
            Change(1, "I", (b"1", b"7")),
            Change(2, "I", (b"5", b"5")),
            Change(1, "U", (b"2", b"x"), key=b"1", unchanged=(1,)),
        ),
    )
    reader = sealed(tmp_path / "log", [[transaction]])
    fields = (
        FieldSpec("a0", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("a1", "int", pg_type_oid=Oid(23)),
        FieldSpec("later", "string", pg_type_oid=Oid(25)),
    )
    chosen = ChangeFormat(table=("public", "t1"), fields=fields)
    assert "new struct<`a0`:bigint,`a1`:int,`later`:string>" in chosen.schema()
    rows = rows_between(reader, *whole(reader), chosen)
    assert [(row["op"], row["new"], row["old"], row["unchanged"]) for row in rows] == [
        ("insert", {"a0": 1, "a1": 7, "later": None}, None, []),
        ("update", {"a0": 2, "a1": None, "later": None},
         {"a0": 1, "a1": None, "later": None}, ["a1"]),
    ]  # fmt: skip


def test_a_value_that_its_type_cannot_hold_is_an_error_or_null(tmp_path: Path) -> None:
    changes = (Change(1, "I", (b"1", b"many")),)
    reader = sealed(tmp_path / "log", [[Transaction(1000, changes)]])
    fields = (FieldSpec("a1", "int", pg_type_oid=Oid(23)),)
    chosen = ChangeFormat(table=("public", "t1"), fields=fields)
    with pytest.raises(UsageError) as caught:
        rows_between(reader, *whole(reader), chosen)
    assert caught.value.sqlstate == "22P02"
    assert caught.value.detail is not None
    assert 'Column "a1" of table "public.t1"' in caught.value.detail
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(
        'Read without the option "table" to get all values as JSON'
    )
    chosen = ChangeFormat(table=("public", "t1"), fields=fields, null_if_bad=True)
    assert rows_between(reader, *whole(reader), chosen)[0]["new"] == {"a1": None}


def test_json_has_numbers_booleans_and_documents_as_such() -> None:
    from wal2lake.datasource.values import _token

    assert _token("12.50", 1700) == "12.50"
    assert _token("NaN", 701) == '"NaN"'
    assert _token("-Infinity", 1700) == '"-Infinity"'
    assert _token("1e-07", 701) == "1e-07"
    assert (_token("t", 16), _token("f", 16)) == ("true", "false")
    assert _token('{"a": [1]}', 3802) == '{"a": [1]}'
    assert _token("2026-01-02", 1082) == '"2026-01-02"'
    assert _token("ä\n\x01", 25) == '"ä\\n\\u0001"'


def test_what_the_log_has_given_up_is_an_error_that_says_where_to_begin(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "log"
    reader = sealed(directory, [[inserts(1000 * n, 2)] for n in range(1, 5)])
    early = starting_position(reader, "earliest")
    kept = advanced(reader, early, 4)
    assert kept == LogPosition(Lsn(2008), 2)
    Retention(directory).trim(Lsn(2008))
    assert reader.numbers() == [3, 4]
    with pytest.raises(UsageError) as caught:
        slices(reader, early, starting_position(reader, "latest"))
    assert caught.value.sqlstate == "55000"
    assert "no longer has the changes from 0/3E8 on" in caught.value.message
    assert caught.value.hint is not None
    assert 'startingLsn "0/BB8"' in caught.value.hint
    assert caught.value.hint.startswith(
        "Read the tables once more, and start the query with a new checkpoint location"
    )
    with pytest.raises(UsageError, match="no longer has the changes from 0/1 on"):
        starting_position(reader, "0/1")
    # A checkpoint at the last segment that went goes on.
    rows = rows_between(reader, kept, starting_position(reader, "latest"))
    assert [row["commit_lsn"] for row in rows] == [3000, 3000, 4000, 4000]


def test_a_slot_begins_in_the_gap_before_the_first_segment_that_is_left(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "log"
    reader = sealed(directory, [[inserts(1000 * n, 2)] for n in range(1, 4)])
    Retention(directory).trim(Lsn(2008))
    start = held_position(reader, Lsn(2008))
    assert start == LogPosition(Lsn(2008), 2)
    rows = rows_between(reader, start, starting_position(reader, "latest"))
    assert [row["commit_lsn"] for row in rows] == [3000, 3000]


def test_a_log_that_was_begun_anew_is_noticed(tmp_path: Path) -> None:
    reader = sealed(tmp_path / "log", [[inserts(1000, 1)]])
    with pytest.raises(UsageError) as caught:
        advanced(reader, LogPosition(Lsn(9000), 7), 5)
    assert (
        caught.value.message == "the change log was begun anew behind position 0/2328"
    )
    assert caught.value.hint is not None
    assert "start the query with a new checkpoint location from 0/3E8 on" in (
        caught.value.hint
    )


def test_a_batch_read_ends_where_it_is_told(tmp_path: Path) -> None:
    reader = sealed(
        tmp_path / "log", [[inserts(1000, 1), inserts(2000, 1)], [inserts(3000, 1)]]
    )
    start, end = starting_position(reader, "0/7D0"), ending_position(reader, "0/BB8")
    rows = rows_between(reader, start, end)
    assert [row["commit_lsn"] for row in rows] == [2000]
    with pytest.raises(UsageError) as caught:
        ending_position(reader, "F/0")
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint == (
        "Wait until the node has received the position, or read to an earlier one."
    )


def test_an_empty_log_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    reader = LogReader(tmp_path / "log")
    start, end = whole(reader)
    assert start == end == advanced(reader, start, 3) == LogPosition()
    assert slices(reader, start, end) == []


BASE = {"conninfo": "host=h", "subscription": "s"}


@pytest.mark.parametrize(
    ("options", "sqlstate", "text"),
    [
        ({}, "42601", 'one of the options "subscription" and "publication" is needed'),
        ({**BASE, "publication": "p"}, "42601", "is needed"),
        ({"subscription": "s"}, "42601", 'option "conninfo" is needed'),
        ({**BASE, "colour": "red"}, "42601", 'unrecognized option "colour"'),
        (
            {**BASE, "maxRowsPerTrigger": "0"},
            "22023",
            'option "maxRowsPerTrigger": "0"',
        ),
        ({**BASE, "badValues": "x"}, "22023", 'option "badValues": "x"'),
    ],
)
def test_wrong_options_are_named(
    options: dict[str, str], sqlstate: str, text: str
) -> None:
    with pytest.raises(UsageError) as caught:
        StreamOptions.read(options)
    assert caught.value.sqlstate == sqlstate
    assert text in caught.value.message
    hints = (
        None,
        "Give a number of row changes above 0.",
        'Valid values are "error" and "null".',
        f"Options are: {', '.join(OPTIONS)}.",
        'It is the node\'s connection string: "host=localhost port=5480 dbname=lake user=...".',
    )
    assert caught.value.hint in hints


def test_wrong_positions_are_named(tmp_path: Path) -> None:
    reader = sealed(tmp_path / "log", [[inserts(1000, 1)]])
    with pytest.raises(UsageError) as caught:
        starting_position(reader, "yesterday")
    assert caught.value.hint == (
        'Valid values are "earliest", "latest" and a position such as "0/15E2A8".'
    )
    with pytest.raises(UsageError) as caught:
        ending_position(reader, "never")
    assert caught.value.hint == (
        'Valid values are "latest" and a position such as "0/15E2A8".'
    )
    with pytest.raises(UsageError) as caught:
        LogPosition.from_json({"v": 1})
    assert caught.value.hint == "Start the query with a new checkpoint location."


def test_batches_have_the_schema_that_spark_is_told(tmp_path: Path) -> None:
    reader = sealed(tmp_path / "log", [[inserts(1000, 1)]])
    (part,) = slices(reader, *whole(reader))
    (batch,) = ChangeReader(ChangeFormat()).read(part)
    names = [part.strip().split()[0] for part in ChangeFormat().schema().split(",")]
    assert batch.schema.names == names
    assert batch.schema.field("unchanged").type == pa.list_(pa.string())


def test_a_log_on_another_machine_is_an_error_with_a_remedy() -> None:
    from wal2lake.datasource.node import readable_directory

    with pytest.raises(UsageError) as caught:
        readable_directory("/nowhere/at/all/log/16384")
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint == (
        "Spark must run where the node's files are: on its machine as its user, or with"
        " log.directory on storage that all machines share."
    )
