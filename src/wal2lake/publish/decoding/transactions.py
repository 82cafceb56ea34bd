"""From segments to transactions.

In: the publisher's log, and from where on. Out: ``Transaction`` after ``Transaction``, in commit
order, each with its changes by runs: neighbouring rows of one relation, as a slice of the log's own
columns, and messages. Whoever wants single rows takes them from there. Between transactions come
the messages that belong to none.

Memory is that of one row group of each relation of a segment, and of the segment's messages.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.changelog import LogReader, Manifest, RowsFile, Step, TwoPhase
from wal2lake.model import Lsn, Relation, Xid
from wal2lake.publish.capture.positions import CHANGE_BYTES, start_of

_KEY: Final = ord("K")
_TRUNCATE: Final = ord("T")


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring changes of one relation."""

    relation: Relation
    rows: pa.RecordBatch
    """In the log's layout."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """TRUNCATE of several relations at once."""

    relations: tuple[Relation, ...]
    ordinal: int
    """Of the first."""
    options: int = 0
    """1 CASCADE, 2 RESTART IDENTITY."""


Values = tuple[bytes | None, ...]
"""Of one row, as PostgreSQL's text, in the order of the relation's columns; None is NULL."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row's."""

    op: str
    """I, U or D."""
    lsn: Lsn
    new: Values | None
    """The row as it is now."""
    old: Values | None
    """The row as it was, or only its key (the others NULL); None: not known."""
    is_key: bool
    """``old`` is only a key."""


@dataclass(frozen=True, slots=True)
class Message:
    """What pg_logical_emit_message was given."""

    lsn: Lsn
    """Its own. One that belongs to no transaction has been read by whoever has reached it."""
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Transaction:
    """One, without its changes."""

    xid: Xid
    first_lsn: Lsn
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    """Microseconds since 2000-01-01 UTC."""
    origin: str | None
    """The replication origin through which it came; None: it began here."""
    origin_lsn: Lsn
    changes: int
    """Its messages among them."""
    step: Step | None = None
    """What it is to a transaction that was prepared, which ``two_phase`` says more of."""
    two_phase: TwoPhase | None = None

    @property
    def prepared(self) -> TwoPhase:
        """``two_phase``, of one that has a step."""
        assert self.two_phase is not None
        return self.two_phase


Piece = Run | Truncation | Message

_Found = tuple[Transaction, Iterator[Run | Message]] | Message


def transactions_of(
    reader: LogReader, segments: Sequence[Manifest], start: Lsn
) -> Iterator[_Found | Lsn]:
    """Those of the segments that commit at or above ``start``, and the messages of none that are
    above; behind those of a segment, where that ends: it may have none. The changes of one must be
    read, or left, before the next is asked for."""
    for manifest in segments:
        inside, alone = _messages(reader, manifest, start)
        transactions: Iterator[_Found] = _of_segment(reader, manifest, start, inside)
        yield from heapq.merge(transactions, alone, key=_position)
        yield manifest.sealed_lsn


def _position(found: _Found) -> Lsn:
    return found.lsn if isinstance(found, Message) else found[0].commit_lsn


def _messages(
    reader: LogReader, manifest: Manifest, start: Lsn
) -> tuple[dict[Lsn, list[Message]], list[Message]]:
    """Of transactions, by commit, and of none."""
    inside: defaultdict[Lsn, list[Message]] = defaultdict(list)
    alone = []
    for file in manifest.messages_files:
        for found in reader.read(file.file).to_pylist():
            message = Message(Lsn(found["lsn"]), found["prefix"], found["content"])
            if found["transactional"]:
                inside[Lsn(found["commit_lsn"])].append(message)
            elif message.lsn > start:
                alone.append(message)
    return inside, alone


def _of_segment(
    reader: LogReader,
    manifest: Manifest,
    start: Lsn,
    messages: dict[Lsn, list[Message]],
) -> Iterator[tuple[Transaction, Iterator[Run | Message]]]:
    if manifest.last_commit_lsn < start:
        return
    sources = [_Rows(reader, file) for file in manifest.files]
    steps = {} if manifest.captured is None else manifest.captured.steps
    for found in reader.read(manifest.transactions_file).to_pylist():
        commit = Lsn(found["commit_lsn"])
        if commit < start:
            continue
        transaction = Transaction(
            Xid(found["xid"]),
            start_of(commit, found["changes"]),
            commit,
            Lsn(found["end_lsn"]),
            found["commit_time"],
            found["origin"],
            Lsn(found["origin_lsn"] or 0),
            found["changes"],
            *steps.get(commit, (None, None)),
        )
        runs = _merged(sources, commit)
        emitted = messages.get(commit, [])
        yield (
            transaction,
            _with_messages(runs, emitted, transaction) if emitted else runs,
        )


class _Rows:
    """One rows file, read in order."""

    def __init__(self, reader: LogReader, file: RowsFile) -> None:
        self.relation = file.relation
        self._batches = reader.batches(file.file)
        self._held: Any = None

    def pieces(self, commit: Lsn) -> Iterator[tuple[int, pa.RecordBatch, Any]]:
        """Rows of one transaction, in pieces: first ordinal, rows, ordinals. Those of earlier
        ones are passed over."""
        while True:
            if self._held is None or not self._held.num_rows:
                self._held = next(self._batches, None)
                if self._held is None:
                    return
            lsns = self._held.column("commit_lsn").to_numpy()
            first, last = np.searchsorted(lsns, [int(commit), int(commit) + 1])
            rows = self._held.slice(int(first), int(last - first))
            more = int(last) == len(lsns)
            self._held = self._held.slice(int(last))
            if rows.num_rows:
                ordinals = rows.column("ordinal").to_numpy()
                yield int(ordinals[0]), rows, ordinals
            if not more:
                return


def _merged(sources: list[_Rows], commit: Lsn) -> Iterator[Run]:
    """The changes of one transaction by their ordinals."""
    waiting: list[tuple[int, int, pa.RecordBatch, Any]] = []
    pieces = [source.pieces(commit) for source in sources]

    def take(number: int) -> None:
        found = next(pieces[number], None)
        if found is not None:
            heapq.heappush(waiting, (found[0], number, found[1], found[2]))

    for number in range(len(sources)):
        take(number)
    while waiting:
        _, number, rows, ordinals = heapq.heappop(waiting)
        if not waiting:
            yield Run(sources[number].relation, rows)
            take(number)
            continue
        # Up to where another relation goes on.
        end = int(np.searchsorted(ordinals, waiting[0][0]))
        yield Run(sources[number].relation, rows.slice(0, end))
        if end < len(ordinals):
            heapq.heappush(
                waiting,
                (int(ordinals[end]), number, rows.slice(end), ordinals[end:]),
            )
        else:
            take(number)


def _with_messages(
    runs: Iterator[Run], messages: list[Message], transaction: Transaction
) -> Iterator[Run | Message]:
    """The changes of a transaction with its messages where they are among them."""
    first = transaction.first_lsn
    waiting = deque(((one.lsn - first) // CHANGE_BYTES, one) for one in messages)
    for run in runs:
        rows: Any = run.rows
        ordinals = rows.column("ordinal").to_numpy()
        begin = 0
        while waiting and waiting[0][0] < ordinals[-1]:
            at, message = waiting.popleft()
            end = int(np.searchsorted(ordinals, at))
            if end > begin:
                yield Run(run.relation, rows.slice(begin, end - begin))
            yield message
            begin = end
        yield Run(run.relation, rows.slice(begin))
    for _, message in waiting:
        yield message


def truncations(runs: Iterator[Run | Message]) -> Iterator[Piece]:
    """The same, TRUNCATEs that follow each other with the same options together."""
    waiting: list[Relation] = []
    ordinal = options = 0
    for piece in _pieces(runs):
        same = isinstance(piece, Truncation) and piece.options == options
        if waiting and not same:
            yield Truncation(tuple(waiting), ordinal, options)
            waiting = []
        if not isinstance(piece, Truncation):
            yield piece
            continue
        if not waiting:
            ordinal, options = piece.ordinal, piece.options
        waiting += [one for one in piece.relations if one not in waiting]
    if waiting:
        yield Truncation(tuple(waiting), ordinal, options)


def _pieces(runs: Iterator[Run | Message]) -> Iterator[Piece]:
    """Each TRUNCATE by itself."""
    for run in runs:
        if isinstance(run, Message):
            yield run
            continue
        rows: Any = run.rows
        begin = 0
        for at in np.flatnonzero(rows.column("op").to_numpy() == _TRUNCATE).tolist():
            if at > begin:
                yield Run(run.relation, rows.slice(begin, at - begin))
            known = "options" in rows.schema.names
            yield Truncation(
                (run.relation,),
                rows.column("ordinal")[at].as_py(),
                rows.column("options")[at].as_py() if known else 0,
            )
            begin = at + 1
        if begin < rows.num_rows:
            yield Run(run.relation, rows.slice(begin))


def changes_of(transaction: Transaction, run: Run) -> Iterator[tuple[str, Change]]:
    """The rows of a run, one by one; T for a TRUNCATE."""
    rows: Any = run.rows
    names = set(rows.schema.names)
    count = len(run.relation.columns)
    ops = rows.column("op").to_pylist()
    kinds = rows.column("old").to_pylist()
    ordinals = rows.column("ordinal").to_pylist()
    nothing: list[bytes | None] = [None] * rows.num_rows
    new = [
        rows.column(f"c{i}").to_pylist() if f"c{i}" in names else nothing
        for i in range(count)
    ]
    old = [
        rows.column(f"o{i}").to_pylist() if f"o{i}" in names else nothing
        for i in range(count)
    ]
    for n, (op, kind, ordinal) in enumerate(zip(ops, kinds, ordinals, strict=True)):
        lsn = Lsn(transaction.first_lsn + CHANGE_BYTES * ordinal)
        letter = chr(op)
        yield (
            letter,
            Change(
                letter,
                lsn,
                tuple(c[n] for c in new) if letter in "IU" else None,
                tuple(c[n] for c in old) if kind else None,
                kind == _KEY,
            ),
        )
