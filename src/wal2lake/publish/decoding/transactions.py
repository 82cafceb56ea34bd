"""Reads transactions from segments.

In: the publisher's log, and a start position. Out: each ``Transaction``, in commit order, with its
changes as runs (consecutive rows of one relation, as a slice of the log's columns) and messages.
Single rows are taken from the runs. Small transactions are grouped (``groups``). Non-transactional
messages come between transactions.

Memory holds one row group of each relation of a segment, and the segment's messages.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.changelog import LogReader, Manifest
from wal2lake.model import Lsn, Relation
from wal2lake.publish.capture.positions import CHANGE_BYTES
from wal2lake.publish.decoding.decoded import (
    DecodedMessage,
    Run,
    Transaction,
    Truncation,
)
from wal2lake.publish.decoding.groups import Group, divided, transaction_of

_TRUNCATE: Final = ord("T")


Piece = Run | Truncation | DecodedMessage

Runs = Iterator[Run | DecodedMessage]

_Decoded = tuple[Transaction, Runs] | Group | DecodedMessage


def transactions_of(
    reader: LogReader, segments: Sequence[Manifest], start: Lsn
) -> Iterator[_Decoded | Lsn]:
    """Yield the transactions that commit at or above ``start``, and the non-transactional messages
    above it. After the contents of each segment, yield its end; a segment may have no contents.
    Many small transactions form a ``Group``. The changes of a transaction must be read or abandoned
    before the next one is requested."""
    for manifest in segments:
        inside, alone = _messages(reader, manifest, start)
        transactions: Iterator[_Decoded] = _of_segment(reader, manifest, start, inside)
        yield from heapq.merge(transactions, alone, key=_position)
        yield manifest.sealed_lsn


def _position(item: _Decoded) -> Lsn:
    if isinstance(item, DecodedMessage):
        return item.lsn
    return item.first_commit if isinstance(item, Group) else item[0].commit_lsn


def _messages(
    reader: LogReader, manifest: Manifest, start: Lsn
) -> tuple[dict[Lsn, list[DecodedMessage]], list[DecodedMessage]]:
    """Return the messages of transactions, by commit, and the non-transactional messages."""
    inside: defaultdict[Lsn, list[DecodedMessage]] = defaultdict(list)
    alone = []
    for file in manifest.messages_files:
        for row in reader.read(file.file).to_pylist():
            message = DecodedMessage(Lsn(row["lsn"]), row["prefix"], row["content"])
            if row["transactional"]:
                inside[Lsn(row["commit_lsn"])].append(message)
            elif message.lsn > start:
                alone.append(message)
    return inside, alone


def _of_segment(
    reader: LogReader,
    manifest: Manifest,
    start: Lsn,
    messages: dict[Lsn, list[DecodedMessage]],
) -> Iterator[_Decoded]:
    if manifest.last_commit_lsn < start:
        return
    sources = [
        _Rows(file.relation, reader.batches(file.file)) for file in manifest.files
    ]
    steps = {} if manifest.captured is None else manifest.captured.steps
    table = reader.read(manifest.transactions_file)
    first = np.searchsorted(table.column("commit_lsn").to_numpy(), int(start))
    table = table.slice(int(first))
    for begin, end, together in divided(manifest, table):
        range_rows = table.slice(begin, end - begin)
        if together:
            yield _group(sources, range_rows)
            continue
        for row in range_rows.to_pylist():
            commit = Lsn(row["commit_lsn"])
            transaction = transaction_of(row)
            if commit in steps:
                step, prepared = steps[commit]
                transaction = replace(transaction, step=step, two_phase=prepared)
            runs = _merged(sources, commit)
            emitted = messages.get(commit, [])
            yield (
                transaction,
                _with_messages(runs, emitted, transaction) if emitted else runs,
            )


def one_by_one(group: Group) -> Iterator[tuple[Transaction, Runs]]:
    """Yield the transactions of a group, each with its runs."""
    sources = [_Rows(run.relation, iter([run.rows])) for run in group.runs]
    for transaction in group.described():
        yield transaction, _merged(sources, transaction.commit_lsn)


def _group(sources: Sequence[_Rows], transactions: pa.Table) -> Group:
    commits = transactions.column("commit_lsn")
    first, last = commits[0].as_py(), commits[-1].as_py()
    runs = [
        Run(source.relation, rows)
        for source in sources
        for rows in source.between(first, last)
    ]
    return Group(transactions, runs)


class _Rows:
    """Rows of one relation version, read in order."""

    def __init__(self, relation: Relation, batches: Iterator[pa.RecordBatch]) -> None:
        self.relation = relation
        self._batches = batches
        self._held: Any = None

    def pieces(self, commit: Lsn) -> Iterator[tuple[int, pa.RecordBatch, Any]]:
        """Yield the rows of one transaction, in pieces: first ordinal, rows, ordinals. Rows of
        earlier transactions are skipped."""
        for rows in self.between(int(commit), int(commit)):
            ordinals = rows.column("ordinal").to_numpy()
            yield int(ordinals[0]), rows, ordinals

    def between(self, first_commit: int, last_commit: int) -> Iterator[Any]:
        """Yield the rows of several transactions. Earlier rows are skipped."""
        while True:
            if self._held is None or not self._held.num_rows:
                self._held = next(self._batches, None)
                if self._held is None:
                    return
            lsns = self._held.column("commit_lsn").to_numpy()
            first, last = np.searchsorted(lsns, [first_commit, last_commit + 1])
            rows = self._held.slice(int(first), int(last - first))
            reached_end = int(last) == len(lsns)
            self._held = self._held.slice(int(last))
            if rows.num_rows:
                yield rows
            if not reached_end:
                return


def _merged(sources: list[_Rows], commit: Lsn) -> Iterator[Run]:
    """Yield the changes of one transaction, ordered by ordinal."""
    waiting: list[tuple[int, int, pa.RecordBatch, Any]] = []
    pieces = [source.pieces(commit) for source in sources]

    def take(number: int) -> None:
        piece = next(pieces[number], None)
        if piece is not None:
            heapq.heappush(waiting, (piece[0], number, piece[1], piece[2]))

    for number in range(len(sources)):
        take(number)
    while waiting:
        _, number, rows, ordinals = heapq.heappop(waiting)
        if not waiting:
            yield Run(sources[number].relation, rows)
            take(number)
            continue
        # Up to the next row of another relation. The relations of one TRUNCATE may have the same
        # ordinal.
        end = max(1, int(np.searchsorted(ordinals, waiting[0][0])))
        yield Run(sources[number].relation, rows.slice(0, end))
        if end < len(ordinals):
            heapq.heappush(
                waiting,
                (int(ordinals[end]), number, rows.slice(end), ordinals[end:]),
            )
        else:
            take(number)


def _with_messages(
    runs: Iterator[Run], messages: list[DecodedMessage], transaction: Transaction
) -> Iterator[Run | DecodedMessage]:
    """Yield the changes of a transaction with its messages at their places."""
    first = transaction.first_lsn
    waiting = deque(
        ((emitted.lsn - first) // CHANGE_BYTES, emitted) for emitted in messages
    )
    for run in runs:
        rows: Any = run.rows
        ordinals = rows.column("ordinal").to_numpy()
        begin = 0
        while waiting and waiting[0][0] < ordinals[-1]:
            ordinal, message = waiting.popleft()
            end = int(np.searchsorted(ordinals, ordinal))
            if end > begin:
                yield Run(run.relation, rows.slice(begin, end - begin))
            yield message
            begin = end
        yield Run(run.relation, rows.slice(begin))
    for _, message in waiting:
        yield message


def truncations(runs: Iterator[Run | DecodedMessage]) -> Iterator[Piece]:
    """Combine consecutive TRUNCATEs with the same options."""
    waiting: list[Relation] = []
    ordinal = options = 0
    for piece in _pieces(runs):
        continues = isinstance(piece, Truncation) and piece.options == options
        if waiting and not continues:
            yield Truncation(tuple(waiting), ordinal, options)
            waiting = []
        if not isinstance(piece, Truncation):
            yield piece
            continue
        if not waiting:
            ordinal, options = piece.ordinal, piece.options
        waiting += [relation for relation in piece.relations if relation not in waiting]
    if waiting:
        yield Truncation(tuple(waiting), ordinal, options)


def _pieces(runs: Iterator[Run | DecodedMessage]) -> Iterator[Piece]:
    """Yield runs without TRUNCATEs, and each TRUNCATE by itself."""
    for run in runs:
        if isinstance(run, DecodedMessage):
            yield run
            continue
        rows: Any = run.rows
        begin = 0
        for place in np.flatnonzero(rows.column("op").to_numpy() == _TRUNCATE).tolist():
            if place > begin:
                yield Run(run.relation, rows.slice(begin, place - begin))
            has_options = "options" in rows.schema.names
            yield Truncation(
                (run.relation,),
                rows.column("ordinal")[place].as_py(),
                rows.column("options")[place].as_py() if has_options else 0,
            )
            begin = place + 1
        if begin < rows.num_rows:
            yield Run(run.relation, rows.slice(begin))
