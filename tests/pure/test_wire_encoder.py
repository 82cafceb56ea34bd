"""wire.encoder against the scalar writers, and through the columnar decoder and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes import streams as ws
from tests.fakes.publisher import gulp, relation, xlogdata

from wal2lake.errors import InternalError, UsageError
from wal2lake.model import Lsn, Oid, Relation, Xid
from wal2lake.wire.columnar import ChangeBlock, Decoded, Decoder
from wal2lake.wire.copyboth import XLogData, read_from_server
from wal2lake.wire.encoder import (
    BEFORE,
    FRAME_HEADER,
    MessagePayloads,
    MessageSource,
    RowsEncoder,
    begins,
    commits,
    frames,
    messages,
    rowmessages,
    truncates,
)
from wal2lake.wire.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    RelationMessage,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    TypeMessage,
    Update,
    read_message,
    write_message,
)

Row = Insert | Update | Delete


def _decoded(sent: Sequence[Message]) -> Decoded:
    begin, commit = Begin(Lsn(90), 5, Xid(7)), Commit(Lsn(90), Lsn(98), 5)
    payloads = [xlogdata(one) for one in (begin, *sent, commit)]
    return Decoder().feed(*gulp(payloads))


def _block(sent: Sequence[Message]) -> ChangeBlock:
    (block,) = _decoded(sent).blocks
    return block


def _narrowed(row: Row, columns: Sequence[int], xid: Xid | None) -> Row:
    def of(values: TupleData) -> TupleData:
        return tuple(values[i] for i in columns)

    if isinstance(row, Insert):
        return replace(row, new=of(row.new), xid=xid)
    old = replace(row.old, values=of(row.old.values)) if row.old else None
    if isinstance(row, Update):
        return replace(row, old=old, new=of(row.new), xid=xid)
    assert old is not None
    return replace(row, old=old, xid=xid)


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_rows_are_written_as_the_scalar_writers_write_them(data: st.DataObject) -> None:
    described = data.draw(ws._relation(Oid(data.draw(st.sampled_from((5, 2**32 - 1))))))
    sent = data.draw(st.lists(ws._row(described), min_size=1, max_size=12))
    everything = list(range(len(described.columns)))
    columns = data.draw(
        st.permutations(everything).flatmap(
            lambda all_: st.integers(0, len(all_)).map(lambda n: all_[:n])
        )
    )
    streamed = data.draw(st.booleans())
    batch = _block([RelationMessage(described), *sent]).batch
    xids: list[Xid | None] = [None] * len(sent)
    if streamed:
        own = data.draw(st.lists(ws.set_xids, min_size=len(sent), max_size=len(sent)))
        xids = [*own]
        batch = batch.append_column("xid", pa.array([int(x) for x in own], pa.int64()))
        batch = batch.drop_columns(["commit_lsn"])
    encoder = RowsEncoder(
        described.relid,
        batch,
        columns,
        streamed=streamed,
        commit_lsn=Lsn(90) if streamed else None,
    )
    expected = [
        write_message(_narrowed(row, columns, xid))
        for row, xid in zip(sent, xids, strict=True)
    ]
    assert encoder.sizes.tolist() == [len(one) for one in expected]
    assert encoder.commit_lsn.tolist() == encoder.lsns.tolist() == [90] * len(sent)
    cut = data.draw(st.integers(0, len(sent)))
    for first, last in ((0, cut), (cut, len(sent)), (0, len(sent))):
        found = encoder.encode(first, last)
        found.validate(full=True)
        assert found.to_pylist() == expected[first:last]


def _sent(pieces: Iterator[memoryview], piece_bytes: int) -> list[XLogData]:
    """The frames as a client takes them apart."""
    found = []
    for piece in pieces:
        data, count = bytes(piece), 0
        while data:
            assert data[0] == ord("d")
            length = int.from_bytes(data[1:5], "big") + 1
            payload = read_from_server(data[5:length])
            assert isinstance(payload, XLogData)
            found.append(payload)
            data, count = data[length:], count + 1
        assert len(piece) <= piece_bytes or count == 1
    return found


def _sources(decoded: Decoded, described: list[tuple[Lsn, int, Lsn, Message]]) -> Any:
    transactions = decoded.transactions.to_pydict()

    def column(name: str) -> Any:
        return np.array(transactions[name], np.int64)

    found: list[MessageSource] = [
        begins(column("commit_lsn"), column("commit_time"), column("xid")),
        messages(described),
        truncates([(b.relation.relid, b.batch) for b in decoded.blocks]),
    ]
    found += [
        RowsEncoder(b.relation.relid, b.batch, range(len(b.relation.columns)))
        for b in decoded.blocks
    ]
    found.append(
        commits(column("commit_lsn"), column("end_lsn"), column("commit_time"))
    )
    return found


def _said(
    message: Message,
) -> Message | tuple[str, frozenset[Oid], int]:
    """Relations of a TRUNCATE have no order in the log."""
    if isinstance(message, Truncate):
        return "T", frozenset(message.relids), message.options
    return message


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_stream_is_woven_again_as_it_came(data: st.DataObject) -> None:
    payloads = data.draw(ws.streams())
    while payloads and payloads[-1][25:26] != b"C":
        payloads.pop()
    expected: list[Message] = []
    described: list[tuple[Lsn, int, Lsn, Message]] = []
    begin, ordinal = Lsn(0), 0
    lsns = {}
    for payload in payloads:
        message = read_message(payload[25:])
        match message:
            case Begin():
                # One LSN twice would be two transactions with the same place.
                if begin == message.final_lsn:
                    return
                begin, ordinal = message.final_lsn, 0
            case TypeMessage() | LogicalMessage():
                continue
            case Origin():
                described.append((begin, BEFORE, Lsn(0), message))
            case RelationMessage():
                described.append((begin, ordinal, Lsn(0), message))
            case Commit():
                lsns[len(expected)] = message.end_lsn
            case _:
                ordinal += 1
        lsns.setdefault(
            len(expected),
            Lsn(0) if isinstance(message, RelationMessage | Origin) else begin,
        )
        expected.append(message)
    decoded = Decoder().feed(*gulp(payloads))
    size = data.draw(st.sampled_from((1, 100, 1000, 1 << 20)))
    found = _sent(frames(_sources(decoded, described), -3, piece_bytes=size), size)
    assert [_said(read_message(one.message)) for one in found] == [
        _said(one) for one in expected
    ]
    assert [one.start_lsn for one in found] == [lsns[i] for i in range(len(found))]
    assert all(one.end_lsn == one.start_lsn for one in found)
    assert {one.send_time for one in found} <= {-3}


GOLDEN = (
    "49000040574e000474000000013174000000016174000000026f6b7400000004312e3530",
    "49000040574e00047400000001326e6e6e",
    "55000040574e000474000000013174000000016274000000026f6b7400000004312e3530",
    "55000040574b00047400000001316e6e6e4e000474000000013374000000016274000000"
    "026f6b7400000004312e3530",
    "44000040574b00047400000001336e6e6e",
    "49000040574e000462000000040000000162000000016162000000026f6b620000000c00"
    "0200000000000200011388",
    "490000405f4e000274000000013174000000016f",
    "550000405f4f000274000000013174000000016f4e000274000000013274000000016f",
    "440000405f4f000274000000013274000000016f",
    "55000040644b00027400000001316e4e000274000000013275",
)
"""Rows that PostgreSQL 18.4 has sent (reference 4.6)."""
TRUNCATE = "540000000203000040570000405f"
STREAMED = "490000030f000040574e0004740000000232306e6e6e"


def _golden_relations() -> list[Relation]:
    sizes = {0x4057: 4, 0x405F: 2, 0x4064: 2}
    return [relation(relid, columns) for relid, columns in sizes.items()]


def test_rows_that_postgresql_sent_are_written_as_it_did() -> None:
    golden = [bytes.fromhex(one) for one in (*GOLDEN, TRUNCATE)]
    described = [RelationMessage(one) for one in _golden_relations()]
    decoded = _decoded([*described, *map(read_message, golden)])
    found = _sent(frames(_sources(decoded, []), 0), 1 << 20)
    assert [one.message for one in found][1:-1] == golden


def test_a_row_of_a_stream_block_is_written_as_postgresql_did() -> None:
    golden = read_message(bytes.fromhex(STREAMED), in_stream=True)
    assert isinstance(golden, Insert)
    (described, *_) = _golden_relations()
    block = _block([RelationMessage(described), replace(golden, xid=None)])
    batch = block.batch.append_column("xid", pa.array([0x30F], pa.int64()))
    encoder = RowsEncoder(described.relid, batch, range(4), streamed=True)
    assert encoder.encode(0, 1).to_pylist() == [bytes.fromhex(STREAMED)]


def test_a_stream_block_is_woven_between_its_start_and_its_stop() -> None:
    described, xid, at = relation(5), Xid(9), Lsn(70)
    sent = [Insert(Oid(5), (b"%d" % i, None)) for i in range(4)]
    batch = _block([RelationMessage(described), *sent]).batch
    batch = batch.append_column("xid", pa.array([9] * 4, pa.int64()))
    encoder = RowsEncoder(
        Oid(5), batch.drop_columns(["commit_lsn"]), [0, 1], commit_lsn=at, streamed=True
    )
    opened: list[Message] = [StreamStart(xid, True), RelationMessage(described, xid)]
    again = StreamStart(xid, False)
    before = messages([(at, 0, at, m) for m in opened] + [(at, 2, at, again)])
    stop = StreamStop()
    after = messages([(at, 1, at, stop), (at, 3, at, stop)])
    rows_ = [replace(row, xid=xid) for row in sent]
    assert [
        one.message for one in _sent(frames([before, encoder, after], 0), 1 << 20)
    ] == [
        write_message(one)
        for one in (*opened, *rows_[:2], stop, again, *rows_[2:], stop)
    ]


def test_truncates_of_a_stream_block_carry_their_xid() -> None:
    described = [relation(5), relation(6)]
    both = Truncate((Oid(5), Oid(6)), True, False)
    decoded = _decoded([*map(RelationMessage, described), both])
    batches = [
        (
            b.relation.relid,
            b.batch.append_column("xid", pa.array([9], pa.int64())).drop_columns(
                ["commit_lsn"]
            ),
        )
        for b in decoded.blocks
    ]
    found = truncates(batches, commit_lsn=Lsn(70), streamed=True)
    assert found.payloads.to_pylist() == [write_message(replace(both, xid=Xid(9)))]
    assert found.commit_lsn.tolist() == [70]


def test_nothing_is_no_piece_at_all() -> None:
    assert list(frames([], 0)) == []
    none = np.zeros(0, np.int64)
    assert list(frames([begins(none, none, none), truncates([])], 0)) == []


def test_what_does_not_ascend_is_refused() -> None:
    begun = begins(*(np.array([3, 2], np.int64) for _ in range(3)))
    with pytest.raises(InternalError, match="do not ascend"):
        list(frames([begun], 0))


def test_a_message_that_postgresql_could_not_send_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = relation(5)
    batch = _block(
        [RelationMessage(described), Insert(Oid(5), (b"x" * 80, b"y" * 20))]
    ).batch
    assert RowsEncoder(Oid(5), batch, range(2)).sizes.tolist() == [118]
    monkeypatch.setattr(rowmessages, "LARGEST_MESSAGE", 117)
    with pytest.raises(UsageError, match="does not fit a message") as raised:
        RowsEncoder(Oid(5), batch, range(2))
    assert raised.value.sqlstate == "54000"
    assert RowsEncoder(Oid(5), batch, [0]).sizes.tolist() == [93]


def test_rows_of_another_layout_are_refused() -> None:
    described = relation(5)
    batch = _block([RelationMessage(described), Insert(Oid(5), (b"x", b"y"))]).batch
    at = batch.schema.get_field_index("old")
    with pytest.raises(InternalError, match="log layout"):
        RowsEncoder(
            Oid(5), batch.set_column(at, "old", pa.array([1], pa.uint8())), range(2)
        )
    flagged = batch.append_column("u0", pa.array([True]))
    with pytest.raises(InternalError, match="a value that is not sent"):
        RowsEncoder(Oid(5), flagged, range(2))


def test_pieces_hold_a_window_of_the_rows_only() -> None:
    """A piece asks each source for its own run, and for nothing twice."""
    asked = []

    class Watched(MessagePayloads):
        def encode(self, first: int, last: int) -> Any:
            asked.append((first, last))
            return MessagePayloads.encode(self, first, last)

    lsns = np.arange(1, 101)
    one = begins(lsns, lsns, lsns)
    watched = Watched(one.commit_lsn, one.ordinal, one.lsns, one.payloads)
    list(
        frames(
            [watched, commits(lsns, lsns, lsns)],
            0,
            piece_bytes=10 * (2 * FRAME_HEADER + 21 + 26),
        )
    )
    assert asked == [(i, i + 10) for i in range(0, 100, 10)]
