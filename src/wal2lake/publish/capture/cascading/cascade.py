"""Passes a subscription's batch on as the transactions of its publisher.

    tables' commits ──▶ exactly the sent changes? ──▶ the subscription's own log ──▶ transactions
                         (the commits' notes)           (its segments)                 (writer)

A batch of a subscription is one commit of each table that it touches, regardless of its number of
transactions. If each of these commits notes that it has exactly the sent changes
(``lake.capture.commitfacts.SentBatch``), downstream subscribers get each transaction by itself,
with its changes in order, its time and its position at the publisher, as PostgreSQL's subscribers
hand on what they apply. If a commit does not note that (conflicts, a skipped transaction, local
columns, values that a policy has changed), or the log does not have the segments any more, the
difference is sent as one transaction, as for all other writers.

Called by the capture thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.catalog import Catalog, TableDef
from wal2lake.changelog import LogReader, Manifest, RowsFile
from wal2lake.lake import TablePort
from wal2lake.lake.capture import (
    ComparisonMemory,
    NotAsSent,
    SentBatch,
    SentTable,
    relation_mark,
    sent_changes,
)
from wal2lake.lake.staging import LogSource, LsnRange
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.pgtypes import RemoteTypes, remote_types_from_json
from wal2lake.publish.capture.ordering import (
    BatchSource,
    CapturedTransaction,
    source_of,
)
from wal2lake.publish.capture.relations import key_of, relation_of

_TRANSACTION_COLUMNS: Final = ["xid", "commit_lsn", "end_lsn", "commit_time", "changes"]


@dataclass(frozen=True, slots=True)
class Cascaded:
    """The transactions of a batch."""

    transactions: pa.Table
    """The publisher's transactions: xid, commit_lsn, end_lsn, commit_time, changes."""
    changes: Iterator[tuple[Relation, pa.RecordBatch]]
    """Changes with the publisher's commit_lsn and ordinal. The iterator raises NotAsSent when they
    turn out to differ from the tables' changes."""


class Cascade:
    """Reads cascaded batches of one node. Used by the capture thread."""

    def __init__(
        self, catalog: Catalog, tables: TablePort, logs: Path, memory: ComparisonMemory
    ) -> None:
        """``logs``: directory of the subscriptions' logs, each named by its OID."""
        self._catalog = catalog
        self._tables = tables
        self._logs = logs
        self._memory = memory

    def read(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        shown: Callable[[TableDef, Relation], Relation],
    ) -> Cascaded | None:
        """Return the batch's transactions; None if the difference must be sent instead. ``shown``
        maps a table to its relation in the log."""
        source = transaction.source
        if source is None or not all(c.remarks.sent for _, c in transaction.commits):
            return None
        subscription = self._catalog.subscription(source.subid)
        directory = self._logs / str(int(source.subid))
        if subscription is None or not directory.is_dir():
            return None
        reader = LogReader(directory)
        segments = self._segments(reader, transaction, source)
        if not segments:
            return None
        types = remote_types_from_json(subscription.remote_types)
        transactions = pa.concat_tables(
            reader.read(segment.transactions_file, _TRANSACTION_COLUMNS)
            for segment in segments
        )
        below = pc.less(transactions.column("commit_lsn"), source.end)
        return Cascaded(
            transactions.filter(below),
            self._changes(reader, segments, transaction, tables, types, shown),
        )

    def _segments(
        self, reader: LogReader, transaction: CapturedTransaction, source: BatchSource
    ) -> Sequence[Manifest]:
        """Return the existing segments that may have changes of the batch; none if its newest one
        is missing. If an early segment is missing, the count of the changes shows it."""
        first = min(
            _sent(commit.remarks.sent).position for _, commit in transaction.commits
        )
        segments = reader.above(Lsn(first))
        if not segments or segments[-1].sealed_lsn < source.end:
            return ()
        return [
            segment for segment in segments if segment.first_commit_lsn < source.end
        ]

    def _changes(
        self,
        reader: LogReader,
        segments: Sequence[Manifest],
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        types: RemoteTypes,
        shown: Callable[[TableDef, Relation], Relation],
    ) -> Iterator[tuple[Relation, pa.RecordBatch]]:
        files = [
            (relation_mark(file.relation), file)
            for segment in segments
            for file in segment.files
        ]
        node = self._catalog.system_identifier
        for relid, commit in transaction.commits:
            note, source = _sent(commit.remarks.sent), source_of(commit, node)
            if source is None:
                raise NotAsSent("a commit is of no subscription")
            table_files = [file for mark, file in files if mark in note.relations]
            table = self._catalog.table_at(tables[relid], commit.version)
            state = self._tables.state_at(table.location, commit.version)
            relation = relation_of(table, state)
            part = SentTable(
                state,
                commit,
                relation,
                key_of(table, relation),
                note.found_whole,
                types,
                self._memory,
            )
            sent_relation, count = shown(table, relation), 0
            for batch in sent_changes(
                part,
                [source_file(reader, file) for file in table_files],
                LsnRange(note.position, source.end),
                has_unchanged=any(file.has_unchanged for file in table_files),
            ):
                count += batch.num_rows
                yield sent_relation, batch
            if count != note.changes:
                raise NotAsSent("the log has other changes than were applied")


def _sent(sent: SentBatch | None) -> SentBatch:
    assert sent is not None
    return sent


def source_file(reader: LogReader, file: RowsFile) -> LogSource:
    """Describe a file of a log for reading."""
    return LogSource(
        str(reader.path(file.file)),
        file.relation,
        file.rows,
        file.file.size,
        file.commit_lsn,
        file.rolled_back,
    )
