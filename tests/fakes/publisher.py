"""A publisher for the change log's tests, and a reader that turns the log back.

The publisher turns transactions (plain values) into gulps of XLogData; ``content`` reads
sealed segments back into transactions, so that a test can say ``content(log) == sent``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wal2lake.changelog import LogReader, Manifest
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.wire import pgoutput
from wal2lake.wire.copyboth import XLogData, write_xlogdata
from wal2lake.wire.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Truncate,
    Update,
)

Gulp = tuple[bytes, npt.NDArray[np.uint32]]


def relation(relid: int, columns: int = 2) -> Relation:
    """A table of text columns whose first is the key."""
    return Relation(
        Oid(relid),
        "public",
        f"t{relid}",
        ReplicaIdentity.DEFAULT,
        tuple(Column(f"a{i}", Oid(25), -1, i == 0) for i in range(columns)),
    )


@dataclass(frozen=True)
class Change:
    """One change: ``op`` I, U, D or T; ``key`` is the old key (U with one, D)."""

    relid: int
    op: str
    new: tuple[bytes | None, ...] = ()
    key: bytes | None = None
    unchanged: tuple[int, ...] = ()
    columns: int = 2


@dataclass(frozen=True)
class Transaction:
    """A committed transaction as the publisher has it."""

    commit_lsn: int
    changes: tuple[Change, ...]
    xid: int = 7
    messages: tuple[bytes, ...] = ()
    """Contents of its logical messages."""

    @property
    def end_lsn(self) -> int:
        return self.commit_lsn + 8


@dataclass(frozen=True)
class Emitted:
    """A logical message that belongs to no transaction."""

    commit_lsn: int
    """Where its WAL record begins; what a slot has confirmed above is not sent again."""
    content: bytes

    @property
    def end_lsn(self) -> int:
        return self.commit_lsn + 8


Event = Transaction | Emitted


def inserts(commit_lsn: int, count: int, relid: int = 1, size: int = 4) -> Transaction:
    """A transaction of ``count`` inserts."""
    rows = [
        Change(relid, "I", (b"%d" % i, b"%d:" % commit_lsn + b"x" * size))
        for i in range(count)
    ]
    return Transaction(commit_lsn, tuple(rows))


def xlogdata(message: pgoutput.Message, lsn: int = 0) -> bytes:
    """A message as XLogData."""
    return write_xlogdata(
        XLogData(Lsn(lsn), Lsn(lsn), 7, pgoutput.write_message(message))
    )


def payloads(
    transaction: Event, known: dict[int, Relation] | None = None
) -> list[bytes]:
    """The messages of one transaction; ``known`` are relations sent before."""
    known = {} if known is None else known
    if isinstance(transaction, Emitted):
        end = Lsn(transaction.end_lsn)
        return [xlogdata(LogicalMessage(False, end, "out", transaction.content), end)]
    lsn = transaction.commit_lsn
    xid = Xid(transaction.xid)
    out = [xlogdata(Begin(Lsn(lsn), 5, xid), lsn)]
    for change in transaction.changes:
        version = relation(change.relid, change.columns)
        if known.get(change.relid) != version:
            known[change.relid] = version
            out.append(xlogdata(pgoutput.RelationMessage(version)))
        out.append(xlogdata(_message(change), lsn - 1))
    for one in transaction.messages:
        out.append(xlogdata(LogicalMessage(True, Lsn(lsn - 1), "in", one), lsn - 1))
    end = Lsn(transaction.end_lsn)
    out.append(xlogdata(Commit(Lsn(lsn), end, 5), end))
    return out


def _message(change: Change) -> pgoutput.Message:
    relid = Oid(change.relid)
    if change.op == "T":
        return Truncate((relid,), cascade=False, restart_identity=True)
    new = tuple(
        pgoutput.UNCHANGED if i in change.unchanged else value
        for i, value in enumerate(change.new)
    )
    old = None
    if change.key is not None:
        rest = (None,) * (change.columns - 1)
        old = pgoutput.OldTuple(pgoutput.OldKind.KEY, (change.key, *rest))
    if change.op == "I":
        return Insert(relid, new)
    if change.op == "U":
        return Update(relid, old, new)
    assert old is not None
    return Delete(relid, old)


def gulp(messages: Sequence[bytes]) -> Gulp:
    """Payloads as one read of the socket brings them."""
    return b"".join(messages), np.array([len(m) for m in messages], np.uint32)


def gulps(transactions: Iterable[Event], size: int = 1000) -> list[Gulp]:
    """All messages of a connection, ``size`` of them per gulp."""
    known: dict[int, Relation] = {}
    messages = [m for t in transactions for m in payloads(t, known)]
    return [gulp(messages[i : i + size]) for i in range(0, len(messages), size)]


def content(directory: Path) -> list[Event]:
    """Everything that is sealed, in the log's order, after checking every file."""
    reader = LogReader(directory)
    found: list[Event] = []
    for manifest in reader.after(0):
        found.extend(segment(reader, manifest))
    return found


def segment(reader: LogReader, manifest: Manifest) -> list[Event]:
    """The transactions and messages of one segment."""
    rows: dict[int, list[tuple[int, Change]]] = {}
    for one in manifest.files:
        reader.verify(one.file)
        columns = len(one.relation.columns)
        table = reader.read(one.file).to_pylist()
        if one.streamed:
            assert {row["xid"] for row in table} >= set(one.rolled_back)
            table = [row for row in table if row["xid"] not in one.rolled_back]
            assert one.min_commit_lsn == one.max_commit_lsn == one.commit_lsn
        assert len(table) == one.rows
        for row in table:
            lsn = row["commit_lsn"] if one.commit_lsn is None else int(one.commit_lsn)
            change = _change(one.relation.relid, columns, row)
            rows.setdefault(lsn, []).append((row["ordinal"], change))
    reader.verify(manifest.transactions_file)
    ended = reader.read(manifest.transactions_file).to_pylist()
    assert len(ended) == manifest.transactions
    assert set(rows) <= {one["commit_lsn"] for one in ended}
    messages: dict[int, list[bytes]] = {}
    result: list[Event] = []
    for held in manifest.messages_files:
        reader.verify(held.file)
        table = reader.read(held.file).to_pylist()
        assert len(table) == held.messages
        assert sum(len(one["content"]) for one in table) == held.content_bytes
        inside = [one["commit_lsn"] for one in table if one["transactional"]]
        assert held.max_commit_lsn == max(inside, default=0)
        for one in table:
            assert one["prefix"] == ("in" if one["transactional"] else "out")
            if one["transactional"]:
                messages.setdefault(one["commit_lsn"], []).append(one["content"])
            else:
                assert one["commit_lsn"] is None
                result.append(Emitted(one["lsn"] - 8, one["content"]))
    assert set(messages) <= {one["commit_lsn"] for one in ended}
    for one in ended:
        changes = sorted(rows.get(one["commit_lsn"], ()), key=lambda pair: pair[0])
        ordinals = [ordinal for ordinal, _ in changes]
        # A rolled back subtransaction leaves a gap.
        assert ordinals == sorted(set(ordinals) & set(range(one["changes"])))
        result.append(
            Transaction(
                one["commit_lsn"],
                tuple(c for _, c in changes),
                one["xid"],
                tuple(messages.get(one["commit_lsn"], ())),
            )
        )
    result.sort(key=lambda event: event.commit_lsn)
    if result:
        # Above: a Prepare, or a rollback of one, has been reached.
        assert manifest.sealed_lsn >= result[-1].end_lsn
    return result


def _change(relid: int, columns: int, row: dict[str, Any]) -> Change:
    op = chr(row["op"])
    if op == "T":
        assert row["options"] == 2
        return Change(relid, op, columns=columns)
    key = row["o0"] if row["old"] else None
    if op == "D":
        return Change(relid, op, (), key, (), columns)
    unchanged = tuple(i for i in range(columns) if row.get(f"u{i}"))
    new = tuple(row[f"c{i}"] for i in range(columns))
    return Change(relid, op, new, key, unchanged, columns)
