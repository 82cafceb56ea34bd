"""Passes a subscription's batch on as the transactions of its publisher.

    tables' commits ──▶ are they just what was sent? ──▶ the subscription's own log ──▶ transactions
                         (the commits' words)             (its segments)                 (writer)

A batch of a subscription is one commit of each table that it touches, whatever number of
transactions it is of. Where each of these commits says that it is just what was sent
(``lake.capture.messages.Sent``), downstream gets each transaction by itself, with its changes in
their order, its time and its position at the publisher, as PostgreSQL's subscribers hand on what
they apply. Where that cannot be said (conflicts, SKIP's neighbours, columns of our own, values that
a policy has changed), or where the log does not have it any more, the difference is told as one
transaction, as for all other writers.

Called by capture's thread.
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
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.capture.messages import Sent, relation_mark
from wal2lake.lake.capture.replay import NotAsSent, SentTable, sent_changes
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.pgtypes import RemoteTypes, remote_types_from_json
from wal2lake.publish.capture.ordering import (
    BatchSource,
    CapturedTransaction,
    source_of,
)
from wal2lake.publish.capture.relations import key_of, relation_of

_TOLD: Final = ["xid", "commit_lsn", "end_lsn", "commit_time", "changes"]


@dataclass(frozen=True, slots=True)
class Cascaded:
    """A batch's transactions."""

    transactions: pa.Table
    """All of the publisher's: xid, commit_lsn, end_lsn, commit_time, changes."""
    changes: Iterator[tuple[Relation, pa.RecordBatch]]
    """With the publisher's commit_lsn and ordinal; NotAsSent when it turns out that they are not
    what the tables have done."""


class Cascade:
    """Reads cascaded batches of one node. For capture's thread."""

    def __init__(
        self, catalog: Catalog, tables: TablePort, logs: Path, memory: ComparisonMemory
    ) -> None:
        """``logs``: where each subscription's log is, by its OID."""
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
        """The batch's transactions; None: the difference has to do. ``shown``: as which
        relation a table is in the log."""
        source = transaction.source
        if source is None or not all(c.more.sent for _, c in transaction.commits):
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
        found = pa.concat_tables(
            reader.read(one.transactions_file, _TOLD) for one in segments
        )
        below = pc.less(found.column("commit_lsn"), source.end)
        return Cascaded(
            found.filter(below),
            self._changes(reader, segments, transaction, tables, types, shown),
        )

    def _segments(
        self, reader: LogReader, transaction: CapturedTransaction, source: BatchSource
    ) -> Sequence[Manifest]:
        """All that are there and may have something of the batch; none, if the newest of it is not.
        Whether one of the first has gone the count of the changes tells."""
        first = min(
            _sent(commit.more.sent).position for _, commit in transaction.commits
        )
        found = reader.above(Lsn(first))
        if not found or found[-1].sealed_lsn < source.end:
            return ()
        return [one for one in found if one.first_commit_lsn < source.end]

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
            for one in segments
            for file in one.files
        ]
        node = self._catalog.system_identifier
        for relid, commit in transaction.commits:
            said, source = _sent(commit.more.sent), source_of(commit, node)
            if source is None:
                raise NotAsSent("a commit is of no subscription")
            own = [file for mark, file in files if mark in said.relations]
            table = self._catalog.table_at(tables[relid], commit.version)
            state = self._tables.state_at(table.location, commit.version)
            relation = relation_of(table, state)
            part = SentTable(
                state,
                commit,
                relation,
                key_of(table, relation),
                said.found_whole,
                types,
                self._memory,
            )
            told, count = shown(table, relation), 0
            for batch in sent_changes(
                part,
                [source_file(reader, file) for file in own],
                LsnRange(said.position, source.end),
                has_unchanged=any(file.has_unchanged for file in own),
            ):
                count += batch.num_rows
                yield told, batch
            if count != said.changes:
                raise NotAsSent("the log has other changes than were applied")


def _sent(found: Sent | None) -> Sent:
    assert found is not None
    return found


def source_file(reader: LogReader, file: RowsFile) -> LogSource:
    """A file of a log, to be read."""
    return LogSource(
        str(reader.path(file.file)),
        file.relation,
        file.rows,
        file.file.size,
        file.commit_lsn,
        file.rolled_back,
    )
