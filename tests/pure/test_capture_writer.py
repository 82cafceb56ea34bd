"""The publisher's log: each commit of a table is in it once, whatever is cut off where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of
from tests.fakes.xids import Numbers

from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError
from wal2lake.lake.capture.commitfacts import (
    CommitRemarks,
    Emitted,
    OriginMark,
    SentBatch,
    relation_mark,
    sent,
    with_remarks,
)
from wal2lake.lake.capture.commits import read_commit
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.writer import Change, PublisherLogWriter
from wal2lake.publish.decoding.decoded import (
    DecodedChange,
    DecodedMessage,
    Run,
    Transaction,
    Truncation,
    changes_of,
)
from wal2lake.publish.decoding.groups import Group
from wal2lake.publish.decoding.transactions import (
    one_by_one,
    transactions_of,
    truncations,
)

RELATION = Relation(
    Oid(16384),
    "s",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True), Column("v", Oid(25), -1, False)),
)
OTHER = Relation(
    Oid(16385),
    "s",
    "u",
    ReplicaIdentity.DEFAULT,
    (Column("id", Oid(23), -1, True),),
)


def inserts(relation: Relation, first: int, rows: int) -> pa.RecordBatch:
    columns = {
        f"c{i}": pa.array([f"{n} {i}".encode() for n in range(first, first + rows)])
        for i in range(len(relation.columns))
    }
    fixed = {
        "op": pa.array([ord("I")] * rows, pa.uint8()),
        "old": pa.array([0] * rows, pa.uint8()),
    }
    return pa.RecordBatch.from_pydict({**fixed, **columns})


def read(
    directory: Path, start: int = 0
) -> list[tuple[Transaction, list[DecodedChange | DecodedMessage]]]:
    """Each transaction with all that it has, in its order."""
    reader = LogReader(directory)
    found = []
    for one in transactions_of(reader, reader.above(Lsn(start)), Lsn(start)):
        if isinstance(one, DecodedMessage | Lsn):
            continue
        for transaction, runs in one_by_one(one) if isinstance(one, Group) else [one]:
            changes: list[DecodedChange | DecodedMessage] = []
            for run in runs:
                if isinstance(run, DecodedMessage):
                    changes.append(run)
                else:
                    changes += changes_of(transaction, run)
            found.append((transaction, changes))
    return found


def rows_of(changes: list[DecodedChange | DecodedMessage]) -> list[DecodedChange]:
    """The same: there is no message among them."""
    found = [change for change in changes if isinstance(change, DecodedChange)]
    assert len(found) == len(changes)
    return found


def said(directory: Path, start: int = 0) -> list[tuple[bool, str, bytes]]:
    """What is read of messages above ``start``: whether of a transaction, prefix, content."""
    found = []
    reader = LogReader(directory)
    for one in transactions_of(reader, reader.above(Lsn(start)), Lsn(start)):
        if isinstance(one, Lsn):
            continue
        assert not isinstance(one, Group)
        alone = isinstance(one, DecodedMessage)
        pieces = (one,) if isinstance(one, DecodedMessage) else one[1]
        found += [
            (not alone, m.prefix, m.content)
            for m in pieces
            if isinstance(m, DecodedMessage)
        ]
    return found


def test_what_is_sealed_early_says_which_versions_it_has(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=4096, xids=Numbers())
    writer.versions = {16384: 4}
    assert writer.seal(note=True) is not None

    def failing() -> Iterator[tuple[Relation, pa.RecordBatch | int]]:
        yield RELATION, inserts(RELATION, 500, 200)
        yield RELATION, inserts(RELATION, 700, 200)
        raise OSError("the disk is gone")

    whole = iter([(RELATION, inserts(RELATION, 0, 200))])
    assert writer.transaction(7, None, whole, 200, {16384: 5}) == 200
    with pytest.raises(OSError):
        writer.transaction(8, None, failing(), 400, {16384: 6})
    # Nobody has sealed; the first one was too large for memory.
    again = PublisherLogWriter(tmp_path / "log", segment_bytes=4096, xids=Numbers())
    assert again.versions == {16384: 5}
    (found,) = read(tmp_path / "log")
    assert (found[0].commit_time, len(found[1])) == (7, 200)

    # The other one comes again, whole, and above.
    whole = iter([(RELATION, inserts(RELATION, 500, 400))])
    again.transaction(8, ("pg_5", Lsn(77)), whole, 400, {16384: 6})
    again.seal(note=False)
    first, second = read(tmp_path / "log")
    assert second[0].commit_lsn > first[0].end_lsn
    assert second[0].xid == first[0].xid + 1
    assert (second[0].origin, second[0].origin_lsn) == ("pg_5", Lsn(77))
    assert [change.new[0] for change in rows_of(second[1]) if change.new] == [
        b"%d 0" % n for n in range(500, 900)
    ]
    assert read(tmp_path / "log", int(second[0].commit_lsn)) == [second]
    assert read(tmp_path / "log", int(second[0].end_lsn)) == []


def test_changes_of_several_tables_come_in_their_order(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    parts = [
        (RELATION, inserts(RELATION, 0, 2)),
        (OTHER, inserts(OTHER, 0, 3)),
        (RELATION, 0),
        (RELATION, inserts(RELATION, 9, 1)),
    ]
    writer.transaction(1, None, iter(parts), 100, {})
    writer.transaction(2, None, iter(parts[:1]), 100, {})
    writer.seal(note=False)
    first, second = read(tmp_path / "log")
    assert [(c.op, c.new and c.new[0]) for c in rows_of(first[1])] == [
        ("I", b"0 0"),
        ("I", b"1 0"),
        ("I", b"0 0"),
        ("I", b"1 0"),
        ("I", b"2 0"),
        ("T", None),
        ("I", b"9 0"),
    ]
    lsns = [change.lsn for change in first[1]]
    assert lsns == sorted(lsns) and lsns[-1] < first[0].commit_lsn
    assert len(second[1]) == 2


def test_truncates_with_the_same_options_are_one(tmp_path: Path) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    parts = [
        (RELATION, 1),
        (OTHER, 1),
        (RELATION, 3),
        (RELATION, inserts(RELATION, 9, 1)),
        (OTHER, 0),
    ]
    writer.transaction(1, None, iter(parts), 100, {})
    writer.seal(note=False)
    reader = LogReader(tmp_path / "log")
    found = next(transactions_of(reader, reader.above(Lsn(0)), Lsn(0)))
    assert not isinstance(found, DecodedMessage | Lsn | Group)
    pieces = list(truncations(found[1]))
    assert [
        ([one.name for one in piece.relations], piece.options, piece.ordinal)
        for piece in pieces
        if isinstance(piece, Truncation)
    ] == [(["t", "u"], 1, 0), (["t"], 3, 2), (["u"], 0, 4)]
    assert isinstance(pieces[2], Run) and pieces[2].rows.num_rows == 1
    assert len(pieces) == 4


def test_a_log_that_has_nothing_new_says_which_tables_have_joined(
    tmp_path: Path,
) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    writer.versions = {1: 3}
    assert writer.seal(note=False) is None
    sealed = writer.seal(note=True)
    assert sealed is not None and sealed.sealed_lsn == writer.end
    assert PublisherLogWriter(
        tmp_path / "log", segment_bytes=1 << 20, xids=Numbers()
    ).versions == {1: 3}
    assert read(tmp_path / "log") == []


def test_messages_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    writer = PublisherLogWriter(directory, segment_bytes=1 << 20, xids=Numbers())
    inside = [Emitted("p", b"first"), Emitted("p", b"\0second")]
    rows = (RELATION, inserts(RELATION, 0, 2))
    changes: list[Change | Emitted] = [inside[0], rows, inside[1], rows]
    alone = writer.message(Emitted("q", b"before"))
    assert writer.transaction(1, None, iter(changes), 100, {}) == 6
    between = writer.message(Emitted("q", b""))
    assert writer.transaction(2, None, iter(inside[:1]), 1, {}) == 1
    assert writer.transaction(3, None, iter(()), 0, {}) == 0
    writer.seal(note=False)
    last = writer.message(Emitted("q", b"last"))
    assert writer.seal(note=False) is not None and last < writer.sealed
    everything = [
        (False, "q", b"before"),
        (True, "p", b"first"),
        (True, "p", b"\0second"),
        (False, "q", b""),
        (True, "p", b"first"),
        (False, "q", b"last"),
    ]
    assert said(directory) == everything
    # Whoever has reached a message has it.
    assert said(directory, alone) == everything[1:]
    assert said(directory, between) == everything[4:]
    assert said(directory, last) == said(directory, writer.sealed) == []
    first, second = read(directory)
    assert "".join("mc"[isinstance(one, DecodedChange)] for one in first[1]) == "mccmcc"
    lsns = [one.lsn for one in first[1]]
    assert (
        alone < lsns[0] and lsns == sorted(set(lsns)) and lsns[-1] < first[0].commit_lsn
    )
    assert first[0].end_lsn < between < second[1][0].lsn < second[0].commit_lsn
    assert (
        PublisherLogWriter(directory, segment_bytes=1 << 20, xids=Numbers()).end
        == writer.sealed
    )


@pytest.mark.parametrize(
    "messages", [(), (Emitted("a with b", b"\xff\0"), Emitted("", b""))]
)
@pytest.mark.parametrize(
    "origin", [None, OriginMark(" with {}", 0, None), OriginMark("o", 1 << 63, -5)]
)
@pytest.mark.parametrize("options", [0, 3])
@pytest.mark.parametrize(
    "as_sent", [None, sent(1 << 40, 7, [RELATION, OTHER]), SentBatch(1, 2, (), False)]
)
def test_a_commit_carries_what_its_transaction_says(
    messages: tuple[Emitted, ...],
    origin: OriginMark | None,
    options: int,
    as_sent: SentBatch | None,
) -> None:
    said = CommitRemarks(messages, origin, options, sent=as_sent)
    text = with_remarks("truncate 7", said)
    commit = read_commit(1, [{"commitInfo": {"userMetadata": text}}])
    assert (commit.operation, commit.remarks) == ("truncate 7", said)
    assert commit.truncates


@pytest.mark.parametrize(
    "text",
    [
        "mine with yours",
        'x with {"messages": [["p", 1]]}',
        'x with {"truncate": "all"}',
        "x with 5",
        "x with {}}",
        'x with {"sent": [1, 2]}',
        'x with {"sent": [1, 2, ["a"], true]}',
    ],
)
def test_what_others_write_of_their_commit_is_no_message(text: str) -> None:
    commit = read_commit(1, [{"commitInfo": {"userMetadata": text}}])
    assert (commit.operation, commit.remarks) == (text, CommitRemarks())


@pytest.mark.parametrize("number", [-1, 0, 1 << 32, 1 << 70])
def test_what_is_no_transaction_number_is_none(number: int) -> None:
    text = f'x with {{"xid": {number}}}'
    commit = read_commit(1, [{"commitInfo": {"userMetadata": text}}])
    assert (commit.operation, commit.remarks) == ("x", CommitRemarks())


def test_versions_of_a_relation_have_marks_of_their_own() -> None:
    other_names = (Column("id", Oid(23), -1, True), Column("w", Oid(25), -1, False))
    marks = {
        relation_mark(one)
        for one in (
            RELATION,
            OTHER,
            replace(RELATION, name="u"),
            replace(RELATION, namespace="t"),
            replace(RELATION, relid=Oid(7)),
            replace(RELATION, columns=other_names),
        )
    }
    assert len(marks) == 6
    full = replace(RELATION, identity=ReplicaIdentity.FULL)
    assert relation_mark(full) == relation_mark(RELATION)


def theirs(*changes: int) -> pa.Table:
    """Transactions of another log."""
    commits = [1000 * (n + 1) for n in range(len(changes))]
    return pa.table(
        {
            "commit_lsn": commits,
            "end_lsn": [commit + 8 for commit in commits],
            "commit_time": [commit * 7 for commit in commits],
            "changes": pa.array(changes, pa.int64()),
        }
    )


def placed(batch: pa.RecordBatch, *places: tuple[int, int]) -> pa.RecordBatch:
    lsns, ordinals = zip(*places, strict=True)
    return batch.add_column(0, "ordinal", pa.array(ordinals)).add_column(
        0, "commit_lsn", pa.array(lsns)
    )


def test_transactions_of_another_log_have_positions_of_their_own(
    tmp_path: Path,
) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    before = writer.end
    rows = placed(inserts(RELATION, 0, 4), (1000, 0), (1000, 1), (3000, 0), (3000, 2))
    more = placed(inserts(OTHER, 9, 1), (3000, 1))
    changes = iter([(RELATION, rows), (OTHER, more)])
    assert writer.replay(theirs(2, 5, 3), "pg_9", changes, {16384: 3}) == 2
    assert writer.seal(note=False) is not None
    first, second = read(tmp_path / "log")
    assert [
        (one.origin, one.origin_lsn, one.commit_time) for one, _ in (first, second)
    ] == [
        ("pg_9", Lsn(1008), 7000),
        ("pg_9", Lsn(3008), 21000),
    ]
    assert [len(found) for _, found in (first, second)] == [2, 3]
    news = [one.new for one in second[1] if isinstance(one, DecodedChange)]
    assert news == [(b"2 0", b"2 1"), (b"9 0",), (b"3 0", b"3 1")]
    assert before == first[0].first_lsn and first[0].end_lsn <= second[0].first_lsn
    assert writer.versions == {16384: 3} and writer.end == second[0].end_lsn
    following = PublisherLogWriter(
        tmp_path / "log", segment_bytes=1 << 20, xids=Numbers()
    )
    assert following.end == writer.end
    assert following.transaction(7, None, iter([(OTHER, inserts(OTHER, 1, 1))]), 1, {})


@pytest.mark.parametrize("place", [(1500, 0), (9000, 0), (2000, 1)])
def test_a_change_of_no_transaction_adds_nothing(
    tmp_path: Path, place: tuple[int, int]
) -> None:
    writer = PublisherLogWriter(tmp_path / "log", segment_bytes=1 << 20, xids=Numbers())
    good = placed(inserts(OTHER, 0, 1), (1000, 0))
    changes = iter([(OTHER, good), (OTHER, placed(inserts(OTHER, 0, 1), place))])
    with pytest.raises(InternalError):
        writer.replay(theirs(1, 1), "pg_9", changes, {16385: 2})
    assert writer.seal(note=False) is None and writer.versions == {}
    assert read(tmp_path / "log") == []


class _OfAnEpoch(Numbers):
    """Numbers of 64 bits."""

    def take(self, count: int = 1) -> int:
        return (5 << 32) + super().take(count)


def test_transactions_keep_their_numbers_and_others_get_new_ones(
    tmp_path: Path,
) -> None:
    writer = PublisherLogWriter(tmp_path / "log", 1 << 20, _OfAnEpoch())
    writer.transaction(1, None, iter([(RELATION, inserts(RELATION, 0, 1))]), 1, {})
    rows = iter([(RELATION, inserts(RELATION, 1, 1))])
    writer.transaction(2, None, rows, 1, {}, xid=2000)
    writer.prepare(5, "g", 3, iter(()), 0, 2001)
    writer.empty(4)
    changes = iter([(RELATION, placed(inserts(RELATION, 2, 2), (1000, 0), (2000, 0)))])
    assert writer.replay(theirs(1, 1), "pg_5", changes, {}) == 2
    # Its end has the number of its PREPARE, whatever its commit says.
    writer.transaction(5, None, iter(()), 0, {}, prepared=5, xid=2002)
    assert writer.seal(note=False) is not None
    found = [int(one.xid) for one, _ in read(tmp_path / "log")]
    # The log has 32 bits of them.
    assert found == [1001, 2000, 2001, 1002, 1003, 1004, 2001]


def test_numbers_begin_above_a_log_that_an_earlier_version_has_counted(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Numbers()
    counting.begin_above(70_000)
    writer = PublisherLogWriter(tmp_path / "log", 1 << 20, counting)
    writer.transaction(1, None, iter([(RELATION, inserts(RELATION, 0, 1))]), 1, {})
    assert writer.seal(note=False) is not None
    node = PublishingNode(tmp_path, monkeypatch)
    host = FakeCaptureHost(lambda: (), lambda wanted: {})
    capture = capture_of(node.catalog, tmp_path, host)
    # Without a slot the thread does not open the log, and sessions write all the same.
    capture.start()
    assert node.catalog.xids.take() > 70_001
    capture.stop(10)
