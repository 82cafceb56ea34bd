"""wire.columnar against a model: rows made one by one from read_message's values."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes import streams as ws
from tests.fakes.publisher import Gulp, gulp, xlogdata

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.wire.columnar import Decoded, Decoder
from wal2lake.wire.pgoutput import (
    UNCHANGED,
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
    StreamStart,
    Truncate,
    TypeMessage,
    Update,
    Value,
    read_message,
)
from wal2lake.wire.stream import StreamReader, StreamState

Block = tuple[Relation, dict[Oid, str], list[dict[str, Any]]]
Expected = tuple[list[Block], list[dict[str, Any]], list[dict[str, Any]]]
"""Rows, messages, transactions."""


@dataclass
class Model:
    """What a decoder of good streams must give, the slow way."""

    skip_below: int = 0
    relations: dict[Oid, tuple[Relation, dict[Oid, str]]] = field(default_factory=dict)
    types: dict[Oid, str] = field(default_factory=dict)
    begin: Begin | None = None
    origin: Origin | None = None
    ordinal: int = 0

    def feed(self, payloads: list[bytes]) -> Expected:
        blocks: list[Block] = []
        messages: list[dict[str, Any]] = []
        transactions: list[dict[str, Any]] = []
        for payload in payloads:
            skipped = self.begin is not None and self.begin.final_lsn < self.skip_below
            if skipped and payload[25] in b"IUDT":
                self.ordinal += 1
                continue
            match message := read_message(payload[25:]):
                case Begin():
                    self.begin, self.origin, self.ordinal = message, None, 0
                case Origin():
                    self.origin = message
                case LogicalMessage():
                    if message.transactional:
                        assert self.begin is not None
                        keep = not skipped
                        commit_lsn = int(self.begin.final_lsn)
                    else:
                        keep, commit_lsn = message.lsn > self.skip_below, None
                    if keep:
                        messages.append(
                            {
                                "lsn": int(message.lsn),
                                "commit_lsn": commit_lsn,
                                "transactional": message.transactional,
                                "prefix": message.prefix,
                                "content": message.content,
                            }
                        )
                case TypeMessage():
                    self.types[message.type_oid] = f"{message.namespace}.{message.name}"
                case RelationMessage():
                    relation = message.relation
                    oids = {c.type_oid for c in relation.columns} & set(self.types)
                    names = {oid: self.types[oid] for oid in oids}
                    self.relations[relation.relid] = (relation, names)
                case Commit() if self.begin is not None:
                    if self.begin.final_lsn >= self.skip_below:
                        transactions.append(self._transaction(self.begin, message))
                    self.begin = None
                case Insert() | Update() | Delete() | Truncate() if self.begin:
                    relids = (
                        message.relids
                        if isinstance(message, Truncate)
                        else (message.relid,)
                    )
                    for relid in relids:
                        relation, names = self.relations[relid]
                        row = self._row(self.begin, relation, message)
                        _add(blocks, relation, names, row)
                    self.ordinal += 1
        return blocks, messages, transactions

    def _transaction(self, begin: Begin, commit: Commit) -> dict[str, Any]:
        return {
            "xid": begin.xid,
            "commit_lsn": int(begin.final_lsn),
            "end_lsn": int(commit.end_lsn),
            "commit_time": begin.commit_time,
            "origin": self.origin.name if self.origin else None,
            "origin_lsn": int(self.origin.origin_lsn) if self.origin else None,
            "changes": self.ordinal,
        }

    def _row(
        self, begin: Begin, relation: Relation, message: Message
    ) -> dict[str, Any]:
        old = message.old if isinstance(message, Update | Delete) else None
        new = message.new if isinstance(message, Insert | Update) else None
        row: dict[str, Any] = {
            "commit_lsn": int(begin.final_lsn),
            "ordinal": self.ordinal,
            "op": ord(type(message).__name__[0]),
            "old": ord(old.kind.value) if old else 0,
            "options": message.options if isinstance(message, Truncate) else 0,
        }
        for i in range(len(relation.columns)):
            value: Value = new[i] if new else None
            row[f"c{i}"] = _bytes(value)
            row[f"u{i}"] = value is UNCHANGED
            row[f"b{i}"] = isinstance(value, BinaryValue)
            value = old.values[i] if old else None
            row[f"o{i}"] = _bytes(value)
            row[f"ob{i}"] = isinstance(value, BinaryValue)
        return row


def _bytes(value: Value) -> bytes | None:
    if isinstance(value, BinaryValue):
        return value.data
    return value if isinstance(value, bytes) else None


def _add(
    blocks: list[Block], relation: Relation, names: dict[Oid, str], row: dict[str, Any]
) -> None:
    for known, known_names, rows in blocks:
        if (known, known_names) == (relation, names):
            rows.append(row)
            return
    blocks.append((relation, names, [row]))


def _optional(relation: Relation, rows: list[dict[str, Any]]) -> set[str]:
    """Which columns of the log layout these rows need."""
    need = {"commit_lsn", "ordinal", "op", "old"}
    if any(row["options"] for row in rows):
        need.add("options")
    for i, column in enumerate(relation.columns):
        need.add(f"c{i}")
        need |= {k for k in (f"u{i}", f"b{i}", f"ob{i}") if any(r[k] for r in rows)}
        if (
            any(r["old"] == ord("O") for r in rows)
            or (column.is_key and any(r["old"] for r in rows))
            or any(r[f"o{i}"] is not None for r in rows)
        ):
            need.add(f"o{i}")
    return need


def _assert_same(decoded: Decoded, expected: Expected) -> None:
    blocks, messages, transactions = expected
    assert decoded.messages.to_pylist() == messages
    decoded.messages.validate(full=True)
    assert decoded.transactions.to_pylist() == transactions
    decoded.transactions.validate(full=True)
    assert [(b.relation, b.type_names) for b in decoded.blocks] == [
        b[:2] for b in blocks
    ]
    for block, (relation, _, rows) in zip(decoded.blocks, blocks, strict=True):
        block.batch.validate(full=True)
        assert len(set(block.batch.schema.names)) == block.batch.num_columns
        assert set(block.batch.schema.names) == _optional(relation, rows)
        absent: dict[str, Any] = {
            k: None if k[0] in "co" and k[1] != "b" else False for k in rows[0]
        }
        absent["options"] = 0
        assert [absent | row for row in block.batch.to_pylist()] == rows
        for field_ in block.batch.schema:
            assert field_.nullable == (
                field_.name[0] in "co" and field_.type == pa.binary()
            )


def _decode(payloads: list[bytes], decoder: Decoder | None = None) -> Decoded:
    return (decoder or Decoder()).feed(*gulp(payloads))


def _cut(data: bytes, lengths: Any) -> list[bytes]:
    ends = np.cumsum(lengths).tolist()
    return [data[e - n : e] for e, n in zip(ends, lengths.tolist(), strict=True)]


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_columnar_decoding_equals_the_scalar_model(data: st.DataObject) -> None:
    payloads = data.draw(ws.streams())
    skip_below = data.draw(st.sampled_from((0, 0, 0, 2**39, 2**40 + 100)))
    decoder = Decoder(skip_below=Lsn(skip_below))
    model, reader = Model(skip_below), StreamReader(StreamState())
    for run in data.draw(ws.split(payloads)):
        own = _cut(*run)
        decoded = decoder.feed(*run)
        _assert_same(decoded, model.feed(own))
        for payload in own:
            reader.read(payload)
        assert decoder.open_transaction == reader.state.transaction
        assert (decoder.open_transaction is None) == (model.begin is None)
    ends = [p[35:43] for p in payloads if p[25:26] == b"C"]
    ends += [p[27:35] for p in payloads if p[25:27] == b"M\0"]
    assert reader.state.last_end_lsn == max(map(int.from_bytes, ends), default=0)


@given(st.data())
@settings(max_examples=examples(250), deadline=None)
def test_damaged_streams_decode_as_the_scalar_reader_says_or_not_at_all(
    data: st.DataObject,
) -> None:
    payloads = data.draw(ws.damaged(data.draw(ws.streams())))
    skip_below = Lsn(data.draw(st.sampled_from((0, 0, 2**39))))
    decoder = Decoder(skip_below=skip_below)
    model = Model(skip_below)
    reader = StreamReader(StreamState(), skip_below=skip_below)
    for run in data.draw(ws.split(payloads)):
        if not _judged_alike(run, decoder, reader, model):
            return


def _judged_alike(
    run: Gulp, decoder: Decoder, reader: StreamReader, model: Model
) -> bool:
    """Decoder and reader accept the run, and it decodes as the model says: True. Or both
    refuse it for the same reason: False."""
    own = _cut(*run)
    before = decoder.open_transaction
    try:
        for payload in own:
            reader.read(payload)
    except ProtocolViolation as expected:
        with pytest.raises(ProtocolViolation) as raised:
            decoder.feed(*run)
        assert raised.value.describe() == expected.describe()
        assert raised.value.offset == expected.offset
        assert decoder.open_transaction == before
        return False
    _assert_same(decoder.feed(*run), model.feed(own))
    assert decoder.open_transaction == reader.state.transaction
    return True


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_messages_or_a_protocol_violation(parts: list[bytes]) -> None:
    run = gulp([b"w" + bytes(24) + part for part in parts])
    try:
        Decoder().feed(*run)
    except ProtocolViolation as error:
        assert error.sqlstate == "08P01"


K = Relation(
    Oid(0x4057),
    "gv",
    "k",
    ReplicaIdentity.DEFAULT,
    (
        Column("id", Oid(23), -1, True),
        Column("v", Oid(25), -1, False),
    ),
)
BEGIN = xlogdata(Begin(Lsn(100), 5, Xid(7)))
COMMIT = xlogdata(Commit(Lsn(100), Lsn(120), 5))
DESCRIBED = xlogdata(RelationMessage(K))
ROW = xlogdata(Insert(K.relid, (b"1", b"a")), 90)


FULL = Relation(
    Oid(9), "gv", "f", ReplicaIdentity.FULL, (Column("x", Oid(16400), -1, True),)
)
OF_EVERY_KIND = [
    BEGIN,
    xlogdata(Origin(Lsn(3), "näme")),
    xlogdata(TypeMessage(Oid(16400), "s", "m")),
    xlogdata(RelationMessage(FULL)),
    DESCRIBED,
    ROW,
    xlogdata(Update(K.relid, OldTuple(OldKind.KEY, (b"1", None)), (b"2", UNCHANGED))),
    xlogdata(Update(FULL.relid, OldTuple(OldKind.FULL, (b"a",)), (None,))),
    xlogdata(Delete(K.relid, OldTuple(OldKind.KEY, (b"2", None)))),
    xlogdata(Truncate((K.relid, FULL.relid), True, False)),
    xlogdata(LogicalMessage(True, Lsn(5), "p", b"xy")),
    COMMIT,
    xlogdata(LogicalMessage(False, Lsn(125), "p", b"")),
    xlogdata(Begin(Lsn(125), 5, Xid(8))),
    xlogdata(Commit(Lsn(125), Lsn(130), 5)),
    xlogdata(LogicalMessage(False, Lsn(135), "pré", b"\0\xff")),
    xlogdata(Begin(Lsn(140), 5, Xid(9))),
    xlogdata(Update(K.relid, None, (BinaryValue(b"3"), b"")), 140),
]


def _judge(payloads: list[bytes], cut: int) -> None:
    """Feed the payloads in two runs."""
    decoder, reader, model = Decoder(), StreamReader(StreamState()), Model()
    for part in (payloads[:cut], payloads[cut:]):
        if not _judged_alike(gulp(part), decoder, reader, model):
            return


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(b"\0\xffn", id="extremes"),
        # What means something somewhere: a minute of work.
        pytest.param(b"\1\x7futNKOBC", id="letters", marks=pytest.mark.slow),
    ],
)
def test_each_byte_of_each_message_matters_to_both_decoders_alike(
    others: bytes,
) -> None:
    for at, payload in enumerate(OF_EVERY_KIND):
        for where in (0, *range(25, len(payload))):
            for byte in {payload[where] ^ 1, *others}:
                damaged = payload[:where] + bytes([byte]) + payload[where + 1 :]
                _judge([*OF_EVERY_KIND[:at], damaged, *OF_EVERY_KIND[at + 1 :]], at)


def test_each_cut_and_each_added_byte_is_refused_by_both_decoders_alike() -> None:
    for at, payload in enumerate(OF_EVERY_KIND):
        for where in range(len(payload) + 1):
            for damaged in (
                payload[:where],
                payload[:where] + b"\0" + payload[where:],
            ):
                everything = [*OF_EVERY_KIND[:at], damaged, *OF_EVERY_KIND[at + 1 :]]
                _judge(everything, len(everything))


def test_each_message_moved_lost_or_doubled_is_judged_alike() -> None:
    for source, payload in enumerate(OF_EVERY_KIND):
        rest = [*OF_EVERY_KIND[:source], *OF_EVERY_KIND[source + 1 :]]
        for target in range(len(rest) + 1):
            _judge([*rest[:target], payload, *rest[target:]], target)
            doubled = OF_EVERY_KIND.copy()
            doubled.insert(target, payload)
            _judge(doubled, len(doubled))
        _judge(rest, source)


def _transaction(lsn: int, *changes: Message) -> list[bytes]:
    return [
        xlogdata(Begin(Lsn(lsn), 5, Xid(7))),
        *(xlogdata(change) for change in changes),
        xlogdata(Commit(Lsn(lsn), Lsn(lsn + 10), 5)),
    ]


def test_an_insert_only_block_has_no_columns_that_it_does_not_need() -> None:
    decoded = _decode([BEGIN, DESCRIBED, ROW, COMMIT])
    (block,) = decoded.blocks
    assert block.batch.schema == pa.schema(
        [
            pa.field("commit_lsn", pa.int64(), nullable=False),
            pa.field("ordinal", pa.int64(), nullable=False),
            pa.field("op", pa.uint8(), nullable=False),
            pa.field("old", pa.uint8(), nullable=False),
            pa.field("c0", pa.binary()),
            pa.field("c1", pa.binary()),
        ]
    )
    assert decoded.last_end_lsn == Lsn(120)


def test_an_old_key_brings_only_the_key_columns() -> None:
    update = Update(K.relid, OldTuple(OldKind.KEY, (b"1", None)), (b"2", UNCHANGED))
    (block,) = _decode([DESCRIBED, *_transaction(100, update)]).blocks
    assert block.batch.to_pylist() == [
        {
            "commit_lsn": 100,
            "ordinal": 0,
            "op": ord("U"),
            "old": ord("K"),
            "c0": b"2",
            "c1": None,
            "u1": True,
            "o0": b"1",
        }
    ]


def test_the_relations_of_one_truncate_share_an_ordinal_and_keep_its_options() -> None:
    other = ws.with_columns(Relation(Oid(9), "gv", "f", ReplicaIdentity.FULL, ()), "x")
    decoded = _decode(
        [
            DESCRIBED,
            xlogdata(RelationMessage(other)),
            *_transaction(
                100,
                Insert(Oid(9), (b"x",)),
                Truncate((K.relid, Oid(9)), False, True),
                Insert(Oid(9), (b"y",)),
            ),
        ]
    )
    rows = {b.relation.name: b.batch.to_pylist() for b in decoded.blocks}
    assert [(r["op"], r["ordinal"], r["options"]) for r in rows["k"]] == [(84, 1, 2)]
    assert [(r["op"], r["ordinal"], r["options"], r["c0"]) for r in rows["f"]] == [
        (73, 0, 0, b"x"),
        (84, 1, 2, None),
        (73, 2, 0, b"y"),
    ]
    assert decoded.transactions.column("changes").to_pylist() == [3]


def test_a_relation_changed_and_changed_back_inside_a_transaction_has_two_blocks() -> (
    None
):
    wider = ws.with_columns(K, "id", "v", "w")
    decoded = _decode(
        [
            DESCRIBED,
            *_transaction(
                100,
                Insert(K.relid, (b"1", b"a")),
                RelationMessage(wider),
                Insert(K.relid, (b"2", b"b", b"c")),
                RelationMessage(K),
                Insert(K.relid, (b"3", b"d")),
            ),
        ]
    )
    assert [(b.relation, b.batch["ordinal"].to_pylist()) for b in decoded.blocks] == [
        (K, [0, 2]),
        (wider, [1]),
    ]


def test_a_repeated_description_is_the_same_version_in_the_next_feed_too() -> None:
    decoder = Decoder()
    first = _decode(
        [DESCRIBED, *_transaction(100, Insert(K.relid, (b"1", b"a")))], decoder
    )
    again = _decode(
        _transaction(
            200,
            Insert(K.relid, (b"2", b"a")),
            RelationMessage(K),
            Insert(K.relid, (b"3", b"a")),
        ),
        decoder,
    )
    assert [b.relation for b in (*first.blocks, *again.blocks)] == [K, K]
    assert again.blocks[0].batch.num_rows == 2


def test_a_renamed_type_starts_a_new_version() -> None:
    relation = Relation(
        Oid(5), "s", "t", ReplicaIdentity.DEFAULT, (Column("m", Oid(16400), -1, True),)
    )
    row = Insert(Oid(5), (b"ok",))
    decoded = _decode(
        _transaction(
            100,
            TypeMessage(Oid(16400), "s", "mood"),
            RelationMessage(relation),
            row,
            TypeMessage(Oid(16400), "s", "humour"),
            RelationMessage(relation),
            row,
        )
    )
    assert [b.type_names for b in decoded.blocks] == [
        {Oid(16400): "s.mood"},
        {Oid(16400): "s.humour"},
    ]


def test_a_transaction_that_spans_feeds_counts_on() -> None:
    decoder = Decoder()
    _decode([BEGIN, xlogdata(Origin(Lsn(3), "n")), DESCRIBED, ROW], decoder)
    (block,) = _decode([ROW, ROW], decoder).blocks
    assert block.batch["ordinal"].to_pylist() == [1, 2]
    assert block.batch["commit_lsn"].to_pylist() == [100, 100]
    assert decoder.open_transaction is not None
    assert decoder.open_transaction.next_ordinal == 3
    assert decoder.open_transaction.origin == "n"
    decoded = _decode([COMMIT], decoder)
    assert decoder.open_transaction is None
    assert decoded.transactions.to_pylist() == [
        {
            "xid": 7,
            "commit_lsn": 100,
            "end_lsn": 120,
            "commit_time": 5,
            "origin": "n",
            "origin_lsn": 3,
            "changes": 3,
        }
    ]


def test_an_origin_may_open_the_feed_after_its_begin() -> None:
    decoder = Decoder()
    _decode([BEGIN], decoder)
    decoded = _decode([xlogdata(Origin(Lsn(3), "n")), COMMIT], decoder)
    assert decoded.transactions["origin"].to_pylist() == ["n"]


def test_a_new_connection_forgets_the_open_transaction_and_the_relations() -> None:
    decoder = Decoder()
    _decode([BEGIN, DESCRIBED, ROW], decoder)
    decoder.start_connection()
    assert decoder.open_transaction is None
    with pytest.raises(ProtocolViolation, match="no relation map entry"):
        _decode([BEGIN, ROW], decoder)
    # The same transaction again, from its start.
    assert _decode([BEGIN, DESCRIBED, ROW, COMMIT], decoder).last_end_lsn == Lsn(120)


def test_rows_and_transactions_below_the_skip_point_are_dropped_but_counted() -> None:
    payloads = [
        DESCRIBED,
        *_transaction(100, Insert(K.relid, (b"1", b"a"))),
        *_transaction(200, Insert(K.relid, (b"2", b"a"))),
    ]
    decoded = _decode(payloads, Decoder(skip_below=Lsn(200)))
    (block,) = decoded.blocks
    assert block.batch["commit_lsn"].to_pylist() == [200]
    assert decoded.transactions["commit_lsn"].to_pylist() == [200]
    everything = _decode(payloads[:4], Decoder(skip_below=Lsn(200)))
    assert everything.blocks == []
    assert everything.last_end_lsn == Lsn(110)


def test_an_empty_feed_gives_nothing() -> None:
    decoded = _decode([])
    assert decoded.blocks == []
    assert decoded.last_end_lsn is None
    assert decoded.transactions.num_rows == 0
    assert decoded.transactions.schema == _decode([BEGIN, COMMIT]).transactions.schema


def test_the_batches_do_not_keep_the_received_bytes_alive() -> None:
    data, lengths = gulp([BEGIN, DESCRIBED, ROW])
    before = sys.getrefcount(data)
    decoder = Decoder()
    decoded = decoder.feed(data, lengths)
    assert sys.getrefcount(data) == before
    assert decoded.blocks[0].batch["c1"].to_pylist() == [b"a"]


@pytest.mark.parametrize(
    ("payloads", "problem"),
    [
        ([ROW], "message outside of a transaction"),
        ([COMMIT], "message outside of a transaction"),
        ([BEGIN, BEGIN], "BEGIN message inside of a transaction"),
        ([BEGIN, COMMIT, COMMIT], "message outside of a transaction"),
        ([BEGIN, ROW], "no relation map entry for remote relation ID 16471"),
        (
            [BEGIN, xlogdata(Truncate((K.relid,), False, False))],
            "no relation map entry for remote relation ID 16471",
        ),
        (
            [BEGIN, xlogdata(Commit(Lsn(99), Lsn(120), 5))],
            "incorrect commit LSN 0/63 in commit message (expected 0/64)",
        ),
        (
            [BEGIN, xlogdata(Commit(Lsn(100), Lsn(100), 5))],
            "end_lsn 0/64 in commit message is not after commit_lsn 0/64",
        ),
        (
            [BEGIN, COMMIT, xlogdata(Begin(Lsn(119), 5, Xid(8)))],
            "final_lsn 0/77 in begin message is before the end of the previous "
            "transaction, 0/78",
        ),
        (
            [xlogdata(Begin(Lsn(1), 5, Xid(8))).replace(b"\0" * 7 + b"\1", bytes(8))],
            "final_lsn not set in begin message",
        ),
        (
            [BEGIN, COMMIT[:26] + b"\1" + COMMIT[27:]],
            "unrecognized flags 1 in commit message",
        ),
        (
            [BEGIN, DESCRIBED, xlogdata(Origin(Lsn(1), "n"))],
            "ORIGIN message sent out of order",
        ),
        (
            [BEGIN, DESCRIBED, xlogdata(Insert(K.relid, (b"1",)))],
            "logical replication column 1 not found in tuple: only 1 column(s) received",
        ),
        (
            [BEGIN, DESCRIBED, xlogdata(Insert(K.relid, (b"1", b"2", b"3")))],
            "3 columns received for a relation of 2",
        ),
        ([BEGIN, DESCRIBED, ROW + b"\0"], "invalid message format"),
        ([BEGIN, DESCRIBED, ROW[:-1]], "insufficient data left in message"),
        ([BEGIN + b"\0"], "invalid message format"),
        (
            [xlogdata(StreamStart(Xid(7), True))],
            'invalid logical replication message type "??? (83)"',
        ),
        (
            [xlogdata(LogicalMessage(True, Lsn(1), "p", b""))],
            "message outside of a transaction",
        ),
        ([b"k" + bytes(17)], "expected XLogData, got Keepalive"),
        ([b""], "insufficient data left in message"),
        (
            [
                BEGIN,
                DESCRIBED,
                xlogdata(Delete(K.relid, OldTuple(OldKind.KEY, (b"1", UNCHANGED)))),
            ],
            "unrecognized data representation type 'u' in an old tuple",
        ),
    ],
)
def test_a_broken_rule_is_a_protocol_violation(
    payloads: list[bytes], problem: str
) -> None:
    with pytest.raises(ProtocolViolation) as raised:
        _decode(payloads)
    assert str(raised.value) == problem
    assert raised.value.context is not None


def test_a_violation_names_message_offset_and_lsn() -> None:
    with pytest.raises(ProtocolViolation) as raised:
        _decode([BEGIN, DESCRIBED, ROW[:-1]])
    assert raised.value.context == (
        'during message type "INSERT" at byte 19, in XLogData at 0/5A'
    )
    assert raised.value.offset == 19


def test_lengths_that_do_not_fit_the_data_are_our_own_bug() -> None:
    data, lengths = gulp([BEGIN, COMMIT])
    with pytest.raises(InternalError):
        Decoder().feed(data + b"x", lengths)


def test_many_relations_are_put_back_in_stream_order() -> None:
    relids = [Oid(n) for n in range(1, 40)]
    described = [
        xlogdata(
            RelationMessage(
                ws.with_columns(
                    Relation(r, "s", f"t{r}", ReplicaIdentity.DEFAULT, ()), "a"
                )
            )
        )
        for r in relids
    ]
    rng = np.random.default_rng(1)
    payloads = list(described)
    for n in range(500):
        relid = relids[int(rng.integers(len(relids)))]
        payloads += _transaction(100 + 20 * n, Insert(relid, (b"%d" % n,)))
    decoder, model = Decoder(), Model()
    _assert_same(_decode(payloads, decoder), model.feed(payloads))
