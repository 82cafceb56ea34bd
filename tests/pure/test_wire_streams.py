"""wire.columnar's StreamDecoder: events, and what it refuses, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes import streams as ws
from tests.fakes.publisher import gulp, xlogdata
from tests.fakes.streaming import Source

from wal2lake.errors import ProtocolViolation
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.wire.columnar import (
    Decoded,
    Decoder,
    PreparedCommitted,
    PreparedRolledBack,
    StreamAborted,
    StreamCommitted,
    StreamDecoder,
    Streamed,
    StreamPrepared,
)
from wal2lake.wire.copyboth import XLogData, write_xlogdata
from wal2lake.wire.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    write_message,
)

TABLE = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("a", Oid(25), -1, True), Column("b", Oid(25), -1, False)),
)
WIDE = Relation(
    Oid(1),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (*TABLE.columns, Column("c", Oid(25), -1, False)),
)
X, SUB = Xid(7), Xid(8)


def feed(decoder: StreamDecoder, *messages: Message) -> list[Any]:
    return decoder.feed(*gulp([xlogdata(m, 5) for m in messages]))


def row(xid: Xid | None, *values: bytes) -> Insert:
    return Insert(Oid(1), values, xid)


def rows(events: Sequence[Any]) -> list[tuple[int, int, bytes]]:
    """xid, ordinal and first value of all streamed rows."""
    return [
        (r["xid"], r["ordinal"], r["c0"])
        for e in events
        if isinstance(e, Streamed)
        for b in e.blocks
        for r in b.batch.to_pylist()
    ]


BLOCK = (
    StreamStart(X, True),
    RelationMessage(TABLE, X),
    row(X, b"1", b"x"),
    row(SUB, b"2", b"x"),
    StreamStop(),
)


def test_rows_of_a_block_carry_their_subtransaction_and_an_ordinal() -> None:
    decoder = StreamDecoder()
    events = feed(decoder, *BLOCK)
    assert rows(events) == [(7, 0, b"1"), (8, 1, b"2")]
    events = feed(
        decoder,
        StreamStart(X, False),
        row(SUB, b"3", b"y"),
        LogicalMessage(True, Lsn(3), "p", b"c", SUB),
        StreamStop(),
        StreamCommit(X, Lsn(100), Lsn(108), 5),
    )
    assert rows(events) == [(8, 2, b"3")]
    (message,) = [e.messages for e in events if isinstance(e, Streamed) and e.messages]
    assert message.to_pylist() == [{"xid": 8, "lsn": 3, "prefix": "p", "content": b"c"}]
    end = events[-1]
    assert isinstance(end, StreamCommitted)
    assert (end.xid, end.commit_lsn, end.end_lsn) == (7, 100, 108)
    assert end.stream is not None and end.stream.next_ordinal == 3


def test_a_committed_streams_relations_are_the_connections() -> None:
    decoder = StreamDecoder()
    feed(decoder, *BLOCK, StreamCommit(X, Lsn(100), Lsn(108), 5))
    events = feed(
        decoder,
        Begin(Lsn(200), 5, Xid(9)),
        row(None, b"4", b"z"),
        Commit(Lsn(200), Lsn(208), 5),
    )
    assert isinstance(events[0], Decoded)
    assert events[0].blocks[0].relation == TABLE


def test_what_was_described_outside_later_stays_when_a_stream_commits() -> None:
    decoder = StreamDecoder()

    def say(sent: int, *messages: Message) -> list[Any]:
        return decoder.feed(
            *gulp(
                [
                    write_xlogdata(XLogData(Lsn(5), Lsn(5), sent, write_message(m)))
                    for m in messages
                ]
            )
        )

    say(1, *BLOCK)
    begin, commit = Begin(Lsn(50), 5, Xid(9)), Commit(Lsn(50), Lsn(58), 5)
    say(2, begin, RelationMessage(WIDE), row(None, b"4", b"y", b"z"), commit)
    say(3, StreamCommit(X, Lsn(100), Lsn(108), 5))
    events = say(4, Begin(Lsn(200), 5, Xid(9)), row(None, b"5", b"y", b"z"))
    assert events[0].blocks[0].relation == WIDE


@pytest.mark.parametrize("sub", [X, SUB])
def test_a_rolled_back_relation_message_leaves_nothing_behind(sub: Xid) -> None:
    decoder = StreamDecoder()
    feed(
        decoder,
        StreamStart(X, True),
        RelationMessage(TABLE, X),
        row(X, b"1", b"x"),
        RelationMessage(WIDE, SUB),
        row(SUB, b"2", b"x", b"y"),
        StreamStop(),
    )
    (aborted,) = feed(decoder, StreamAbort(X, sub))
    assert isinstance(aborted, StreamAborted)
    if sub == X:
        assert aborted.stream is None
        with pytest.raises(ProtocolViolation, match="without the first"):
            feed(decoder, StreamStart(X, False))
        return
    events = feed(decoder, StreamStart(X, False), row(X, b"3", b"x"), StreamStop())
    assert events[0].blocks[0].relation == TABLE, "what was valid before it"
    feed(decoder, StreamCommit(X, Lsn(100), Lsn(108), 5))
    with pytest.raises(ProtocolViolation, match="3 columns received"):
        feed(decoder, Begin(Lsn(200), 5, Xid(9)), row(None, b"4", b"y", b"z"))


def test_a_prepared_transaction_is_events_of_its_own() -> None:
    decoder = StreamDecoder()
    feed(decoder, Begin(Lsn(10), 5, Xid(2)), RelationMessage(TABLE))
    feed(decoder, Commit(Lsn(10), Lsn(18), 5))
    events = feed(
        decoder,
        BeginPrepare(Lsn(100), Lsn(108), 5, X, "g"),
        Origin(Lsn(3), "elsewhere"),
        row(None, b"1", b"x"),
        Prepare(Lsn(100), Lsn(108), 5, X, "g"),
        *BLOCK[:1],
        RelationMessage(TABLE, X),
        row(X, b"2", b"x"),
        StreamStop(),
        StreamPrepare(Lsn(200), Lsn(208), 6, X, "h"),
        CommitPrepared(Lsn(300), Lsn(308), 7, X, "g"),
        RollbackPrepared(Lsn(208), Lsn(408), 6, 8, X, "h"),
    )
    assert rows(events) == [(7, 0, b"1"), (7, 0, b"2")]
    kinds = [type(e) for e in events if not isinstance(e, Streamed)]
    assert kinds == [
        StreamPrepared,
        StreamPrepared,
        PreparedCommitted,
        PreparedRolledBack,
    ]
    first = next(e for e in events if isinstance(e, StreamPrepared))
    assert (first.gid, first.prepare_lsn, first.end_lsn) == ("g", 100, 108)
    assert first.stream is not None and first.stream.origin == "elsewhere"


def test_prepares_that_older_minor_releases_send_are_tolerated() -> None:
    decoder = StreamDecoder()
    (lone,) = feed(decoder, Prepare(Lsn(100), Lsn(108), 5, X, "g"))
    assert isinstance(lone, StreamPrepared) and lone.stream is not None
    assert lone.stream.next_ordinal == 0
    feed(decoder, CommitPrepared(Lsn(200), Lsn(208), 5, X, "g"))
    feed(decoder, CommitPrepared(Lsn(300), Lsn(308), 5, X, "never prepared"))
    # What was prepared before two_phase was enabled comes late, with an old position.
    feed(
        decoder,
        BeginPrepare(Lsn(90), Lsn(98), 5, X, "late"),
        Prepare(Lsn(90), Lsn(98), 5, X, "late"),
        CommitPrepared(Lsn(400), Lsn(408), 5, X, "late"),
    )


OPEN = (Begin(Lsn(10), 5, Xid(2)),)
PREPARING = (BeginPrepare(Lsn(100), Lsn(108), 5, X, "g"),)


@pytest.mark.parametrize(
    ("before", "message", "problem"),
    [
        (BLOCK[:1], StreamStart(Xid(9), True), "duplicate STREAM START"),
        (BLOCK[:1], StreamCommit(X, Lsn(9), Lsn(10), 5), "without STREAM STOP"),
        (BLOCK[:1], Begin(Lsn(10), 5, Xid(2)), "BEGIN message without STREAM STOP"),
        (BLOCK[:1], row(X, b"1", b"x"), "no relation map entry"),
        (BLOCK[:2], row(X, b"1"), "not found in tuple"),
        (BLOCK[:2], row(Xid(0), b"1", b"x"), "invalid transaction ID"),
        (BLOCK[:3], Origin(Lsn(0), "o"), "ORIGIN message sent out of order"),
        (
            BLOCK[:2],
            LogicalMessage(False, Lsn(3), "p", b"", X),
            "non-transactional message inside",
        ),
        ((), StreamStop(), "STREAM STOP message without STREAM START"),
        ((), StreamStart(X, False), "without the first"),
        (BLOCK, StreamStart(X, True), "of which a block has come"),
        ((), StreamCommit(X, Lsn(9), Lsn(10), 5), "is not known"),
        (BLOCK, StreamCommit(X, Lsn(9), Lsn(9), 5), "is not after"),
        (OPEN, StreamStart(X, True), "inside of a transaction"),
        (OPEN, BeginPrepare(Lsn(9), Lsn(10), 5, X, "g"), "inside of a transaction"),
        (OPEN, Prepare(Lsn(9), Lsn(10), 5, X, "g"), "inside of a transaction"),
        (PREPARING, Prepare(Lsn(9), Lsn(108), 5, X, "g"), "incorrect prepare LSN 0/9"),
        (PREPARING, Prepare(Lsn(100), Lsn(108), 5, X, "h"), "of another transaction"),
        (PREPARING, Begin(Lsn(10), 5, Xid(2)), "inside of a prepared transaction"),
        (PREPARING, CommitPrepared(Lsn(9), Lsn(10), 5, X, "g"), "inside of a"),
        (
            (CommitPrepared(Lsn(100), Lsn(108), 5, X, "g"),),
            CommitPrepared(Lsn(99), Lsn(109), 5, X, "h"),
            "before the end of the previous",
        ),
    ],
)
def test_a_broken_rule_is_named_and_leaves_the_state_of_before(
    before: tuple[Message, ...], message: Message, problem: str
) -> None:
    decoder = StreamDecoder()
    feed(decoder, *before)
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match=problem) as caught:
            feed(decoder, message)
    assert "XLogData at 0/5" in str(caught.value.context)


@settings(max_examples=examples(60), deadline=None)
@given(ws.streams(), st.data())
def test_without_streams_it_is_the_decoder(
    payloads: list[bytes], data: st.DataObject
) -> None:
    one, other = StreamDecoder(), Decoder()
    for run in data.draw(ws.split(payloads)):
        expected = other.feed(*run)
        found = one.feed(*run)
        assert all(isinstance(event, Decoded) for event in found)
        decoded = [event for event in found if isinstance(event, Decoded)]
        assert sum(len(d.blocks) for d in decoded) == len(expected.blocks)
        for a, b in zip(
            (b for d in decoded for b in d.blocks), expected.blocks, strict=True
        ):
            assert a.relation == b.relation and a.batch.equals(b.batch)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_any_damage_is_a_violation_or_other_events_and_never_another_error(
    data: st.DataObject,
) -> None:
    source = Source()
    for number in range(3):
        one = source.begin()
        one.items.append((one.xid, b"message"))
        source.savepoint(one)
        one.items.append((one.current, b"other"))
        source.block(one)
        source.rollback_to(one)
        source.end(one, "prepare" if number else "commit")
    for ended in list(source.prepared.values()):
        source.finish(ended, commit=True)
    decoder = StreamDecoder(headless=data.draw(st.booleans()))
    try:
        for run in data.draw(ws.split(data.draw(ws.damaged(source.wire)))):
            decoder.feed(*run)
    except ProtocolViolation:
        pass


def test_a_transaction_may_be_prepared_without_a_name() -> None:
    """PostgreSQL takes PREPARE TRANSACTION ''; it was a protocol violation here, for good."""
    events = feed(
        StreamDecoder(),
        BeginPrepare(Lsn(100), Lsn(108), 5, X, ""),
        Prepare(Lsn(100), Lsn(108), 5, X, ""),
        CommitPrepared(Lsn(110), Lsn(118), 5, X, ""),
    )
    assert [e.gid for e in events if hasattr(e, "gid")] == ["", ""]
