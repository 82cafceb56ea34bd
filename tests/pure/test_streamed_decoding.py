"""A transaction above logical_decoding_work_mem goes in blocks to a client that wants that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes.xids import Numbers

from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError, UsageError
from wal2lake.lake.capture.commitfacts import Emitted
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.driver import Decoding
from wal2lake.publish.plugins.pgoutput import PgOutput
from wal2lake.publish.plugins.port import Base, Context, DecodedChange, OutputPlugin
from wal2lake.publish.plugins.test_decoding import TestDecoding
from wal2lake.publish.sending import Sending
from wal2lake.wire.encoder import FRAME_HEADER
from wal2lake.wire.pgoutput import (
    Begin,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
    OldTuple,
    Origin,
    RelationMessage,
    StreamCommit,
    StreamStart,
    StreamStop,
    Update,
    read_message,
)

WORK_MEM = 64 * 1024


def relation(number: int) -> Relation:
    columns = (Column("id", Oid(23), -1, True),)
    name = f"t{number}"
    return Relation(Oid(16384 + number), "s", name, ReplicaIdentity.DEFAULT, columns)


T, U, HIDDEN = relation(0), relation(1), relation(2)
ONLY_ID = Sending(frozenset("IUDT"), frozenset(["id"]), {})
Rows = tuple[Relation, pa.RecordBatch]


def inserts(first: int, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array([ord("I")] * rows, pa.uint8()),
            "old": pa.array([0] * rows, pa.uint8()),
            "c0": pa.array([f"{n:0100}".encode() for n in range(first, first + rows)]),
        }
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """1001: small; 1002: large, of two tables, through an origin; 1003: small again; 1004: large
    and published nowhere."""
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())

    def add(origin: tuple[str, Lsn] | None, *changes: Rows) -> None:
        count = sum(rows.num_rows for _, rows in changes)
        writer.transaction(7, origin, iter(changes), count, {})

    add(None, (T, inserts(0, 2)))
    add(
        ("pg_5", Lsn(77)),
        *((T, inserts(0, 1000)), (HIDDEN, inserts(0, 1000))),
        *((U, inserts(0, 3)), (T, inserts(1000, 1000))),
    )
    add(None, (T, inserts(5, 1)), (U, inserts(5, 1)))
    add(None, (HIDDEN, inserts(0, 2000)))
    writer.seal(note=False)
    return tmp_path / "log"


def decoded(
    log: Path,
    plugin: OutputPlugin,
    options: Mapping[str, str | None],
    sending: Sending = ONLY_ID,
) -> list[bytes]:
    out: list[bytes] = []

    def write(payload: bytes, lsn: Lsn, last: bool) -> None:
        out.append(payload)

    def write_frames(data: memoryview) -> None:
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 1 : at + 5], "big")
            out.append(bytes(data[at + FRAME_HEADER : at + 1 + size]))
            at += 1 + size

    found = {T.relid: sending, U.relid: sending}
    context = Context(
        "slot",
        "plugin",
        write,
        write_frames,
        lambda names, lsn: found,
        lambda relid: None,
        lambda name: 0,
    )
    plugin.startup(context, options)
    Decoding(LogReader(log), plugin, context, Lsn(0), WORK_MEM).advance()
    return out


def messages(payloads: list[bytes], *, parallel: bool) -> Iterator[Message]:
    inside = False
    for payload in payloads:
        found = read_message(payload, in_stream=inside, parallel=parallel)
        inside = isinstance(found, StreamStart) or (
            inside and not isinstance(found, StreamStop)
        )
        yield found


def pgoutput(log: Path, streaming: str) -> list[Message]:
    options = {"proto_version": "4", "publication_names": "p", "streaming": streaming}
    payloads = decoded(log, PgOutput(), options)
    return list(messages(payloads, parallel=streaming == "parallel"))


@pytest.mark.parametrize("streaming", ["on", "parallel"])
def test_pgoutput_streams_what_is_large(log: Path, streaming: str) -> None:
    found = pgoutput(log, streaming)
    begins = [m for m in found if isinstance(m, Begin)]
    assert [m.xid for m in begins] == [1001, 1003]
    starts = [m for m in found if isinstance(m, StreamStart)]
    assert {m.xid for m in starts} == {1002}
    assert [m.first_segment for m in starts] == [True] + [False] * (len(starts) - 1)
    assert len(starts) > 2
    assert sum(isinstance(m, StreamStop) for m in found) == len(starts)
    (commit,) = [m for m in found if isinstance(m, StreamCommit)]
    assert commit.xid == 1002 and commit.commit_lsn < commit.end_lsn
    assert [m for m in found if isinstance(m, Origin)] == [Origin(Lsn(0), "pg_5")]

    # Rows are all there, in order, each with its transaction; no block is too large.
    plain = pgoutput(log, "off")
    rows = [m for m in found if isinstance(m, Insert)]
    assert [(m.relid, m.new) for m in rows] == [
        (m.relid, m.new) for m in plain if isinstance(m, Insert)
    ]
    assert [m.xid for m in rows] == [None] * 2 + [1002] * 2003 + [None] * 2
    size = 0
    for message in found:
        size = 0 if isinstance(message, StreamStart) else size
        size += 100 if isinstance(message, Insert) else 0
        assert size <= WORK_MEM

    # Each large transaction describes what it changes; afterwards that is known.
    described = [
        (m.relation.relid, m.xid) for m in found if isinstance(m, RelationMessage)
    ]
    assert described == [(T.relid, None), (T.relid, 1002), (U.relid, 1002)]
    assert sum(isinstance(m, Commit) for m in plain) == 3


def test_test_decoding_streams_if_it_is_told_to(log: Path) -> None:
    lines = decoded(log, TestDecoding(), {"stream-changes": "1"})
    at = lines.index(b"opening a streamed block for transaction TXN 1002")
    assert lines[at - 1] == b"COMMIT 1001"
    assert lines[at + 1] == b"streaming change for TXN 1002"
    assert lines.count(b"streaming change for TXN 1002") == 3003
    closed = lines.count(b"closing a streamed block for transaction TXN 1002")
    assert closed == lines.count(lines[at]) > 2
    at = lines.index(b"committing streamed transaction TXN 1002")
    assert lines[at - 1] == b"closing a streamed block for transaction TXN 1002"
    assert lines[at + 1] == b"BEGIN 1003"

    lines = decoded(
        log,
        TestDecoding(),
        {
            "stream-changes": "on",
            "include-xids": "off",
            "include-timestamp": None,
            "skip-empty-xacts": None,
        },
    )
    assert lines.count(b"streaming change for transaction") == 5003
    assert b"opening a streamed block for transaction" in lines
    assert b"closing a streamed block for transaction" in lines
    assert lines[-1] == (
        b"committing streamed transaction (at 2000-01-01 00:00:00.000007+00)"
    )
    assert not any(b"stream" in line for line in decoded(log, TestDecoding(), {}))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("include-xids", "maybe"), 'value "maybe" for parameter "include-xids"'),
        (("only-local", " on"), 'value " on" for parameter "only-local"'),
        (("stream-changes", "o"), 'value "o" for parameter "stream-changes"'),
        (("include-sequences", "on"), 'option "include-sequences" = "on" is unknown'),
        (("nope", ""), 'option "nope" = "" is unknown'),
        (("nope", None), 'option "nope" = "(null)" is unknown'),
    ],
)
def test_test_decoding_refuses_options_as_postgresql(
    log: Path, option: tuple[str, str | None], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        decoded(log, TestDecoding(), dict([option]))
    assert refused.value.sqlstate == "22023"
    assert message in refused.value.message


def test_test_decoding_quotes_what_needs_it(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    names = Relation(
        Oid(16390),
        "user",
        "values",
        ReplicaIdentity.DEFAULT,
        (Column("select", Oid(23), -1, True),),
    )
    plain = Relation(
        Oid(16391),
        "name",
        "a$b",
        ReplicaIdentity.DEFAULT,
        (Column("text", Oid(23), -1, True),),
    )
    rows = inserts(1, 1)
    writer.transaction(7, None, iter([(names, rows), (plain, rows)]), 2, {})
    writer.seal(note=False)
    value = f"{1:0100}"
    assert decoded(tmp_path / "log", TestDecoding(), {"include-xids": "0"}) == [
        b"BEGIN",
        f'table "user"."values": INSERT: "select"[integer]:{value}'.encode(),
        f'table name."a$b": INSERT: text[integer]:{value}'.encode(),
        b"COMMIT",
    ]


def test_messages_go_with_their_transaction_or_alone(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    inside = [Emitted("p", b"in")]
    alone = writer.message(Emitted("q", b"out"))
    writer.transaction(7, None, iter([*inside, (T, inserts(0, 2000))]), 2001, {})
    writer.transaction(7, None, iter(inside), 1, {})
    writer.transaction(7, None, iter([(HIDDEN, inserts(0, 1))]), 1, {})
    writer.seal(note=False)
    log = tmp_path / "log"
    options = {"proto_version": "4", "publication_names": "p"}

    def pgoutput_with(**more: str) -> list[Message]:
        return list(messages(decoded(log, PgOutput(), options | more), parallel=False))

    streamed = pgoutput_with(messages="true", streaming="on")
    found = [m for m in streamed if isinstance(m, LogicalMessage)]
    assert [(m.transactional, m.prefix, m.content, m.xid) for m in found] == [
        (False, "q", b"out", None),
        (True, "p", b"in", 1001),
        (True, "p", b"in", None),
    ]
    assert found[0].lsn == alone
    assert [type(m) for m in streamed[:4]] == [
        *(LogicalMessage, StreamStart, LogicalMessage, RelationMessage),
    ]
    # A transaction that has said something is there, as if it had a row.
    assert [type(m) for m in streamed[-3:]] == [Begin, LogicalMessage, Commit]
    plain = pgoutput_with(messages="true")
    assert [type(m) for m in plain[:3]] == [LogicalMessage, Begin, LogicalMessage]
    assert len([m for m in plain if isinstance(m, Begin)]) == 2
    without = pgoutput_with()
    assert [type(m) for m in (without[0], without[-1])] == [Begin, Commit]
    assert len([m for m in without if not isinstance(m, Insert)]) == 3

    lines = decoded(log, TestDecoding(), {"stream-changes": "1"})
    assert lines[:3] == [
        b"message: transactional: 0 prefix: q, sz: 3 content:out",
        b"opening a streamed block for transaction TXN 1001",
        b"streaming message: transactional: 1 prefix: p, sz: 2",
    ]
    said = b"message: transactional: 1 prefix: p, sz: 2 content:in"
    at = lines.index(said)
    assert lines[at - 1 : at + 2] == [b"BEGIN 1002", said, b"COMMIT 1002"]

    class Failing(TestDecoding):
        def message(self, *arguments: object) -> None:
            raise ValueError("no")

    with pytest.raises(InternalError) as failed:
        decoded(log, Failing(), {})
    assert "in the message callback" in str(failed.value.context)


@pytest.mark.parametrize("copies", [1, 20])
def test_pgoutput_sends_binary_values_to_who_asks(tmp_path: Path, copies: int) -> None:
    columns = (
        Column("id", Oid(23), -1, True),
        Column("v", Oid(25), -1, False),
        Column("later", Oid(1082), -1, False),
        # Its text is a name of the catalog: it stays so.
        Column("kind", Oid(2206), -1, False),
    )
    described = Relation(Oid(16384), "s", "t0", ReplicaIdentity.DEFAULT, columns)
    changes = {
        "op": pa.array([*b"IUD"] * copies, pa.uint8()),
        "old": pa.array([0, *b"KK"] * copies, pa.uint8()),
        "c0": pa.array([b"-2", b"7", None] * copies),
        "c1": pa.array([b"a\xc3\xa4", None, None] * copies),
        "c2": pa.array([b"2000-01-02", b"infinity", None] * copies),
        "c3": pa.array([b"text", b"integer", None] * copies),
        "o0": pa.array([None, b"-2", b"7"] * copies),
    }
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    batch = pa.RecordBatch.from_pydict(changes)
    writer.transaction(7, None, iter([(described, batch)]), batch.num_rows, {})
    writer.seal(note=False)
    options = {"proto_version": "1", "publication_names": "p", "binary": "true"}
    wide = Sending(frozenset("IUDT"), None, {})
    payloads = decoded(tmp_path / "log", PgOutput(), options, wide)
    minus_2, seven = BinaryValue(b"\xff\xff\xff\xfe"), BinaryValue(b"\0\0\0\x07")
    text, day = BinaryValue("a\u00e4".encode()), BinaryValue(b"\0\0\0\x01")
    endless = BinaryValue(b"\x7f\xff\xff\xff")
    relid, none = described.relid, (None, None, None)
    wanted = [
        Insert(relid, (minus_2, text, day, b"text")),
        Update(
            relid,
            OldTuple(OldKind.KEY, (minus_2, *none)),
            (seven, None, endless, b"integer"),
        ),
        Delete(relid, OldTuple(OldKind.KEY, (seven, *none))),
    ]
    assert list(messages(payloads, parallel=False))[2:-1] == wanted * copies


def test_an_error_in_a_block_names_its_callback(log: Path) -> None:
    at: list[Lsn] = []

    class Failing(Base):
        streams = True

        def begin(self, context: Context, transaction: object) -> None: ...

        def commit(self, context: Context, transaction: object) -> None: ...

        def truncate(self, *arguments: object) -> None: ...

        def change(
            self,
            context: Context,
            transaction: object,
            relation: Relation,
            change: DecodedChange,
        ) -> None:
            if relation is HIDDEN or relation.relid == HIDDEN.relid:
                at.append(change.lsn)
                raise ValueError("no")

    with pytest.raises(InternalError) as failed:
        decoded(log, Failing(), {})
    assert failed.value.context == (
        'slot "slot", output plugin "plugin", in the stream_change callback,'
        f" associated LSN {at[0]}"
    )


def test_streaming_needs_the_protocol_that_has_it(log: Path) -> None:
    options = {"proto_version": "1", "publication_names": "p", "streaming": "on"}
    with pytest.raises(UsageError, match="does not support streaming, need 2"):
        decoded(log, PgOutput(), options)
