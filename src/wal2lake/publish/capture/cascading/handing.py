"""Hands on transactions that are prepared at a subscription's publisher.

    checkpoint of a spool     ──▶ PREPARE in the log, with rows               (``hand_on``)
    batch with its commit     ──▶ COMMIT PREPARED, if the changes are equal   (``ending``)
    no checkpoint, no commit  ──▶ ROLLBACK PREPARED                           (``end``)

A subscriber that has received a PREPARE locks its rows until the end, and an apply worker that
waits for such a row never reaches that end. So a PREPARE is *withdrawn*, by a ROLLBACK PREPARED,
before other changes of the same tables are sent that are not in the publisher's order, and if its
commit turns out to have other changes. The rows are then sent with its commit, as an ordinary
transaction. That is always correct: the rows are sent once as committed.

A PREPARE is handed on when everything below it is in the log, and only if its rows need no values
of the table and cannot conflict with its rows: every value was sent, and the tables have only the
publisher's rows. Otherwise, and if it ends before the receiver has made its checkpoint, the
transaction is sent only when it commits.

The receiver guarantees (``changelog.log``, ``seal``): a checkpoint is removed after the segment
with its commit exists, and before that segment may be removed; or, with ROLLBACK PREPARED, before
anything sent after it is sealed. So if a checkpoint still exists, and no segment has the commit,
then neither end is in the state that readers saw before the two checks.

Called by the capture thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.catalog import Catalog, SnapshotVector, Subscription, TableDef
from wal2lake.changelog import (
    HandedOn,
    LogReader,
    PreparedSpool,
    RowsFile,
    prepared_spools,
)
from wal2lake.changelog.manifest import encode_relation
from wal2lake.errors import Wal2LakeError
from wal2lake.lake import TablePort
from wal2lake.lake.capture import (
    ComparisonMemory,
    NotAsSent,
    SentTable,
    TableCommit,
    sent_changes,
)
from wal2lake.lake.staging import LsnRange
from wal2lake.model import Lsn, Oid, Relation, SyncState
from wal2lake.observe import get_logger
from wal2lake.pgtypes import remote_types_from_json
from wal2lake.publish.capture.cascading.cascade import Cascaded, source_file
from wal2lake.publish.capture.relations import key_of, relation_of
from wal2lake.publish.capture.writer import PublisherLogWriter

Shown = Callable[[TableDef, Relation], Relation]
"""Maps a table and its relation to the relation in the log."""

Key = tuple[int, int, Lsn]

_ENABLED: Final = "e"


class OtherwisePrepared(Exception):
    """Raised if a batch's transaction differs from its PREPARE in the log."""

    def __init__(self, transactions: Sequence[HandedOn]) -> None:
        super().__init__()
        self.transactions = transactions


@dataclass(slots=True)
class _Search:
    """Search for the commit of a prepared transaction in its subscription's log."""

    segment: int | None = None
    """Last segment that was searched."""
    commit: Lsn | None = None
    end: Lsn | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A prepared transaction that may be handed on."""

    handed_on: HandedOn
    spool: PreparedSpool
    subscription: Subscription
    vector: SnapshotVector


@dataclass(frozen=True, slots=True)
class _Part:
    """The changes of one table in a prepared transaction."""

    table: SentTable
    relation: Relation
    """Relation as which the table is in the log."""
    files: list[RowsFile] = field(default_factory=list)


class HandingOn:
    """Hands on prepared transactions of one node."""

    def __init__(
        self, catalog: Catalog, tables: TablePort, logs: Path, memory: ComparisonMemory
    ) -> None:
        """``logs``: directory of the subscriptions' logs, each named by its OID."""
        self._catalog = catalog
        self._tables = tables
        self._logs = logs
        self._memory = memory
        self._searches: dict[Key, _Search] = {}
        self._refused: set[Key] = set()
        """Transactions that cannot be handed on before their commit."""

    def reached(self) -> Mapping[Oid, SnapshotVector]:
        """Return each subscription's newest vector. States read afterwards include it."""
        return self._catalog.newest_vectors()

    def end(self, writer: PublisherLogWriter, now_us: int) -> None:
        """Withdraw transactions that were rolled back. Called after the visible state was read,
        before any of it is added to the log."""
        for handed_on in list(writer.handed_on.values()):
            if self._is_open(handed_on):
                continue
            writer.withdraw(handed_on, now_us)
            writer.forget(handed_on)

    def _is_open(self, handed_on: HandedOn) -> bool:
        """Whether a transaction has not ended, or its commit is in a segment."""
        try:
            committed = self._commit_of(handed_on) is not None
            if self._has_checkpoint(handed_on):
                return True
            # The commit matters only if the PREPARE has no end in this node's log.
            return handed_on.two_phase is not None and (
                committed or self._commit_of(handed_on) is not None
            )
        except Wal2LakeError as error:
            _log_deferred(handed_on, error)
            return False

    def settle(
        self,
        writer: PublisherLogWriter,
        reached: Mapping[Oid, SnapshotVector],
        now_us: int,
    ) -> None:
        """Withdraw transactions whose commit is below the captured positions but was not
        captured."""
        for handed_on in list(writer.handed_on.values()):
            search, vector = (
                self._searches.get(handed_on.key),
                reached.get(Oid(handed_on.subid)),
            )
            if search is None or search.end is None:
                continue
            if vector is None or search.end <= vector.lsn:
                writer.withdraw(handed_on, now_us)

    def in_the_way(
        self, writer: PublisherLogWriter, tables: Collection[Oid], subid: Oid | None
    ) -> list[HandedOn]:
        """Return the transactions of other subscriptions than ``subid`` that were handed on for any
        of the tables."""
        names = {int(relid) for relid in tables}
        return [
            handed_on
            for handed_on in writer.handed_on.values()
            if handed_on.two_phase is not None
            and handed_on.subid != subid
            and not names.isdisjoint(handed_on.tables)
        ]

    def ending(
        self, writer: PublisherLogWriter, subid: Oid, end: int, batch: Cascaded
    ) -> tuple[dict[int, HandedOn], Cascaded]:
        """Return the handed-on transactions that commit in a batch that ends at ``end``, by commit,
        and the batch. The batch raises OtherwisePrepared after its last change if its changes
        differ. Raises OtherwisePrepared at once if a transaction commits below ``end`` that is not
        in the batch."""
        xids = batch.transactions.column("xid").to_numpy()
        lsns = batch.transactions.column("commit_lsn").to_numpy()
        ends, missed = {}, []
        for handed_on in writer.handed_on.values():
            if handed_on.subid != subid or handed_on.two_phase is None:
                continue
            matching_lsns = lsns[
                (xids == handed_on.xid) & (lsns > int(handed_on.prepare_lsn))
            ]
            search = self._searches.get(handed_on.key)
            if len(matching_lsns):
                ends[int(matching_lsns[0])] = handed_on
            elif search and search.commit is not None and search.commit < end:
                missed.append(handed_on)
        if missed:
            raise OtherwisePrepared(missed)
        if not ends:
            return {}, batch
        return ends, Cascaded(batch.transactions, _compared(batch.changes, ends))

    def hand_on(
        self,
        writer: PublisherLogWriter,
        tables: Mapping[Oid, TableDef],
        versions: Mapping[Oid, int],
        reached: Mapping[Oid, SnapshotVector],
        shown: Shown,
    ) -> None:
        """Hand on prepared transactions that are not in the log. Called after everything visible
        was captured."""
        present_keys = set(writer.handed_on)
        for subscription in self._catalog.subscriptions():
            vector = reached.get(subscription.oid)
            if subscription.two_phase != _ENABLED or vector is None:
                continue
            for spool in self._spools(subscription.oid):
                prepared = spool.transaction
                handed_on = HandedOn(
                    int(subscription.oid), int(prepared.xid), prepared.prepare_lsn, None
                )
                present_keys.add(handed_on.key)
                if (
                    handed_on.key in writer.handed_on
                    or handed_on.key in self._refused
                    or spool.end_lsn > vector.lsn
                    or not spool.has_rows
                ):
                    continue
                try:
                    if self._commit_of(handed_on) is None and spool.exists():
                        candidate = _Candidate(handed_on, spool, subscription, vector)
                        self._hand_on(writer, candidate, tables, versions, shown)
                except NotAsSent as reason:
                    self._refused.add(handed_on.key)
                    _log_deferred(handed_on, reason)
                except Wal2LakeError as error:
                    # The transaction has ended meanwhile, or its receiver reports the same error.
                    self._refused.add(handed_on.key)
                    _log_deferred(handed_on, error)
        self._refused &= present_keys
        self._searches = {k: s for k, s in self._searches.items() if k in present_keys}

    def _hand_on(
        self,
        writer: PublisherLogWriter,
        candidate: _Candidate,
        tables: Mapping[Oid, TableDef],
        versions: Mapping[Oid, int],
        shown: Shown,
    ) -> None:
        """Add a PREPARE to the log. Raises NotAsSent if its rows need values of the tables."""
        handed_on, spool = candidate.handed_on, candidate.spool
        subid = candidate.subscription.oid
        files = spool.rows()
        if any(file.has_unchanged for file in files):
            raise NotAsSent("a value was not sent")
        parts = self._parts(candidate, files, tables, versions, shown)
        if parts is None or self.in_the_way(writer, parts, subid):
            # It may be handed on later. While other transactions are in the way, a subscriber
            # would wait for locked rows, and never reach their end.
            return
        prepared = spool.transaction
        reader = LogReader(self._directory(subid))
        span = LsnRange(int(prepared.prepare_lsn))

        def changes() -> Iterator[tuple[Relation, pa.RecordBatch]]:
            for part in parts.values():
                sources = [source_file(reader, file) for file in part.files]
                for batch in sent_changes(
                    part.table, sources, span, has_unchanged=False
                ):
                    yield part.relation, batch

        transaction = pa.table(
            {
                "commit_lsn": [int(prepared.prepare_lsn)],
                "end_lsn": [int(spool.end_lsn)],
                "commit_time": [prepared.prepare_time],
                "changes": [spool.changes],
            }
        )
        with_tables = HandedOn(
            handed_on.subid,
            handed_on.xid,
            handed_on.prepare_lsn,
            None,
            tuple(sorted(int(relid) for relid in parts)),
            tuple(sorted({_sum(part.relation) for part in parts.values()})),
            sum(file.rows for file in files),
        )
        gid = f"pg_gid_{handed_on.subid}_{handed_on.xid}"
        origin = f"pg_{handed_on.subid}"
        writer.hand_on(with_tables, gid, transaction, origin, changes())

    def _parts(
        self,
        candidate: _Candidate,
        files: Sequence[RowsFile],
        tables: Mapping[Oid, TableDef],
        versions: Mapping[Oid, int],
        shown: Shown,
    ) -> dict[Oid, _Part] | None:
        """Divide the files by table; None if a table is not ready yet. Raises NotAsSent if a table
        has rows of other writers, or is not the subscription's."""
        subscription = candidate.subscription
        rels = {
            (rel.remote_namespace, rel.remote_name): rel
            for rel in self._catalog.rels(subscription.oid)
        }
        types = remote_types_from_json(subscription.remote_types)
        parts: dict[Oid, _Part] = {}
        for file in files:
            rel = rels.get((file.relation.namespace, file.relation.name))
            if rel is None or rel.relid not in tables or rel.relid not in versions:
                raise NotAsSent("a table is not the subscription's")
            if not rel.trusted:
                raise NotAsSent("a table has rows of its own")
            if (
                rel.state is not SyncState.READY
                or rel.paused
                or int(rel.relid) in candidate.vector.apart
            ):
                return None
            if rel.relid not in parts:
                version = versions[rel.relid]
                table = self._catalog.table_at(tables[rel.relid], version)
                state = self._tables.state_at(table.location, version)
                relation = relation_of(table, state)
                sent_table = SentTable(
                    state,
                    TableCommit(version, 0, "", {}, (), None),
                    relation,
                    key_of(table, relation),
                    True,
                    types,
                    self._memory,
                )
                parts[rel.relid] = _Part(sent_table, shown(table, relation))
            parts[rel.relid].files.append(file)
        return parts

    def _directory(self, subid: Oid | int) -> Path:
        return self._logs / str(int(subid))

    def _spools(self, subid: Oid | int) -> list[PreparedSpool]:
        try:
            return prepared_spools(self._directory(subid))
        except Wal2LakeError as error:
            # The receiver reports the error, too, and stops.
            get_logger().debug("could not read prepared transactions", error=error)
            return []

    def _has_checkpoint(self, handed_on: HandedOn) -> bool:
        return any(
            spool.transaction.xid == handed_on.xid
            and spool.transaction.prepare_lsn == handed_on.prepare_lsn
            for spool in self._spools(handed_on.subid)
        )

    def _commit_of(self, handed_on: HandedOn) -> Lsn | None:
        """Return the commit LSN of a transaction, if a segment has it."""
        search = self._searches.setdefault(handed_on.key, _Search())
        directory = self._directory(handed_on.subid)
        if search.commit is not None or not directory.is_dir():
            return search.commit
        reader = LogReader(directory)
        segments = (
            reader.above(handed_on.prepare_lsn)
            if search.segment is None
            else reader.after(search.segment)
        )
        for manifest in segments:
            rows = reader.read(
                manifest.transactions_file, ["xid", "commit_lsn", "end_lsn"]
            )
            xids = rows.column("xid").to_numpy()
            lsns = rows.column("commit_lsn").to_numpy()
            matching_rows = np.flatnonzero(
                (xids == handed_on.xid) & (lsns > int(handed_on.prepare_lsn))
            )
            if len(matching_rows):
                search.commit = Lsn(int(lsns[matching_rows[0]]))
                search.end = Lsn(rows.column("end_lsn")[int(matching_rows[0])].as_py())
                break
            search.segment = manifest.number
        return search.commit


def _compared(
    changes: Iterator[tuple[Relation, pa.RecordBatch]], ends: Mapping[int, HandedOn]
) -> Iterator[tuple[Relation, pa.RecordBatch]]:
    """Yield the changes, and raise OtherwisePrepared at the end if they differ from ``ends``."""
    counts = dict.fromkeys(ends, 0)
    relations: dict[int, set[int]] = {lsn: set() for lsn in ends}
    for relation, batch in changes:
        lsns = batch.column("commit_lsn").to_numpy()
        for lsn in ends:
            count = int(np.count_nonzero(lsns == lsn))
            if count:
                counts[lsn] += count
                relations[lsn].add(_sum(relation))
        yield relation, batch
    different = [
        handed_on
        for lsn, handed_on in ends.items()
        if (counts[lsn], tuple(sorted(relations[lsn])))
        != (handed_on.changes, handed_on.relations)
    ]
    if different:
        raise OtherwisePrepared(different)


def _log_deferred(handed_on: HandedOn, reason: Exception) -> None:
    get_logger().debug(
        "a prepared transaction is handed on when it commits",
        subid=handed_on.subid,
        xid=handed_on.xid,
        reason=str(reason),
    )


def _sum(relation: Relation) -> int:
    return zlib.crc32(json.dumps(encode_relation(relation)).encode())
