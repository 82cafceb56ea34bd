"""Passes transactions on that are prepared at a subscription's publisher.

    checkpoints of spools ──▶ PREPARE in the log, with rows     (``tell``)
    the batch that has it ──▶ COMMIT PREPARED, if it did just what was told  (``ending``)
    no checkpoint, no commit ──▶ ROLLBACK PREPARED              (``end``)

A subscriber that is told of a PREPARE holds its rows until the end, and an apply worker that waits
for such a row never comes to that end. So a PREPARE is *withdrawn*, by a ROLLBACK PREPARED, before
anything else is told of the same tables that is not the publisher's own order, and if its commit
has not changed just what was told. Its rows are then told with its COMMIT PREPARED, as an ordinary
transaction. That is always right: they are told once as committed.

A PREPARE is told when all below it is in the log, and only if its rows need nothing of the table
and can meet nothing in it: every value was sent, and the tables have nobody's rows but the
publisher's. Else nothing is told of it before its COMMIT PREPARED; so it is if it ends before the
receiver has made its checkpoint.

What the receiver promises (``changelog.log``, ``seal``): a checkpoint goes once the segment that
has its commit is there, and before that segment may go; or, with ROLLBACK PREPARED, before anything
is sealed that was sent behind it. So if a checkpoint is still there, and no segment has the commit,
neither end is in what readers were shown before both were looked for.

Called by capture's thread.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from wal2lake.publish.capture.cascade import Cascaded, source_file
from wal2lake.publish.capture.relations import key_of, relation_of
from wal2lake.publish.capture.writer import PublisherLogWriter

Shown = Callable[[TableDef, Relation], Relation]
"""Relation as which a table is in the log."""

Key = tuple[int, int, Lsn]

_ENABLED: Final = "e"


class OtherwisePrepared(Exception):
    """A batch's transaction is not what its PREPARE has told."""

    def __init__(self, ones: Sequence[HandedOn]) -> None:
        super().__init__()
        self.ones = ones


@dataclass(slots=True)
class _Search:
    """For the commit of a prepared transaction in the log of its subscription."""

    segment: int | None = None
    """The last that was looked at."""
    commit: Lsn | None = None
    end: Lsn | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """A prepared transaction."""

    one: HandedOn
    spool: PreparedSpool
    subscription: Subscription
    vector: SnapshotVector


class HandingOn:
    """Passes prepared transactions on, for one node."""

    def __init__(
        self, catalog: Catalog, tables: TablePort, logs: Path, memory: ComparisonMemory
    ) -> None:
        """``logs``: where each subscription's log is, by its OID."""
        self._catalog = catalog
        self._tables = tables
        self._logs = logs
        self._memory = memory
        self._searches: dict[Key, _Search] = {}
        self._refused: set[Key] = set()
        """Transactions whose rows do not tell their changes."""

    def reached(self) -> Mapping[Oid, SnapshotVector]:
        """Where each subscription stands; what readers are asked to see afterwards has it."""
        return self._catalog.newest_vectors()

    def end(self, writer: PublisherLogWriter, now_us: int) -> None:
        """Withdraw what was rolled back. Behind what readers see was asked for, before any of it
        is in the log."""
        for one in list(writer.handed_on.values()):
            if self._is_open(one):
                continue
            writer.withdraw(one, now_us)
            writer.forget(one)

    def _is_open(self, one: HandedOn) -> bool:
        """It waits for its end, or that is in a segment."""
        try:
            committed = self._commit_of(one) is not None
            if self._is_here(one):
                return True
            # Only what has no end here waits for what is in segments.
            return one.two_phase is not None and (
                committed or self._commit_of(one) is not None
            )
        except Wal2LakeError as error:
            _say(one, error)
            return False

    def settle(
        self,
        writer: PublisherLogWriter,
        reached: Mapping[Oid, SnapshotVector],
        now_us: int,
    ) -> None:
        """Withdraw what commits below all that was captured and was not in it."""
        for one in list(writer.handed_on.values()):
            search, vector = self._searches.get(one.key), reached.get(Oid(one.subid))
            if search is None or search.end is None:
                continue
            if vector is None or search.end <= vector.lsn:
                writer.withdraw(one, now_us)

    def in_the_way(
        self, writer: PublisherLogWriter, tables: Collection[Oid], subid: Oid | None
    ) -> list[HandedOn]:
        """Return the transactions that others than ``subid`` have passed on for any of the
        tables."""
        names = {int(relid) for relid in tables}
        return [
            one
            for one in writer.handed_on.values()
            if one.two_phase is not None
            and one.subid != subid
            and not names.isdisjoint(one.tables)
        ]

    def ending(
        self, writer: PublisherLogWriter, subid: Oid, end: int, batch: Cascaded
    ) -> tuple[dict[int, HandedOn], Cascaded]:
        """Return the transactions passed on that commit in a batch that ends at ``end``, by commit;
        and the batch, which raises OtherwisePrepared behind its last change if it is not what was
        passed on. OtherwisePrepared at once, if one commits below its end that it does not have."""
        xids = batch.transactions.column("xid").to_numpy()
        lsns = batch.transactions.column("commit_lsn").to_numpy()
        ends, missed = {}, []
        for one in writer.handed_on.values():
            if one.subid != subid or one.two_phase is None:
                continue
            found = lsns[(xids == one.xid) & (lsns > int(one.prepare_lsn))]
            search = self._searches.get(one.key)
            if len(found):
                ends[int(found[0])] = one
            elif search and search.commit is not None and search.commit < end:
                missed.append(one)
        if missed:
            raise OtherwisePrepared(missed)
        if not ends:
            return {}, batch
        return ends, Cascaded(batch.transactions, _compared(batch.changes, ends))

    def tell(
        self,
        writer: PublisherLogWriter,
        tables: Mapping[Oid, TableDef],
        versions: Mapping[Oid, int],
        reached: Mapping[Oid, SnapshotVector],
        shown: Shown,
    ) -> None:
        """Hand on what is prepared and is not in the log. Behind all that was captured."""
        looked = set(writer.handed_on)
        for subscription in self._catalog.subscriptions():
            vector = reached.get(subscription.oid)
            if subscription.two_phase != _ENABLED or vector is None:
                continue
            for spool in self._spools(subscription.oid):
                known = spool.transaction
                one = HandedOn(
                    int(subscription.oid), int(known.xid), known.prepare_lsn, None
                )
                looked.add(one.key)
                if (
                    one.key in writer.handed_on
                    or one.key in self._refused
                    or spool.end_lsn > vector.lsn
                    or not spool.has_rows
                ):
                    continue
                try:
                    if self._commit_of(one) is None and spool.exists():
                        found = _Found(one, spool, subscription, vector)
                        self._tell(writer, found, tables, versions, shown)
                except NotAsSent as reason:
                    self._refused.add(one.key)
                    _say(one, reason)
                except Wal2LakeError as error:
                    # It has ended meanwhile, or its receiver says the same.
                    self._refused.add(one.key)
                    _say(one, error)
        self._refused &= looked
        self._searches = {k: s for k, s in self._searches.items() if k in looked}

    def _tell(
        self,
        writer: PublisherLogWriter,
        found: _Found,
        tables: Mapping[Oid, TableDef],
        versions: Mapping[Oid, int],
        shown: Shown,
    ) -> None:
        one, spool, subscription = found.one, found.spool, found.subscription
        reader = LogReader(self._directory(subscription.oid))
        files = spool.rows()
        if any(file.has_unchanged for file in files):
            raise NotAsSent("a value was not sent")
        rels = {
            (rel.remote_namespace, rel.remote_name): rel
            for rel in self._catalog.rels(subscription.oid)
        }
        types = remote_types_from_json(subscription.remote_types)
        parts: dict[Oid, tuple[SentTable, Relation, list[RowsFile]]] = {}
        for file in files:
            rel = rels.get((file.relation.namespace, file.relation.name))
            if rel is None or rel.relid not in tables or rel.relid not in versions:
                raise NotAsSent("a table is not the subscription's")
            if not rel.trusted:
                raise NotAsSent("a table has rows of its own")
            if (
                rel.state is not SyncState.READY
                or rel.paused
                or int(rel.relid) in found.vector.apart
            ):
                # It may be later.
                return
            if rel.relid not in parts:
                version = versions[rel.relid]
                table = self._catalog.table_at(tables[rel.relid], version)
                state = self._tables.state_at(table.location, version)
                relation = relation_of(table, state)
                part = SentTable(
                    state,
                    TableCommit(version, 0, "", {}, (), None),
                    relation,
                    key_of(table, relation),
                    True,
                    types,
                    self._memory,
                )
                parts[rel.relid] = part, shown(table, relation), []
            parts[rel.relid][2].append(file)
        if self.in_the_way(writer, parts, subscription.oid):
            # A subscriber would wait for these rows before it comes to their end.
            return
        known = spool.transaction
        span = LsnRange(int(known.prepare_lsn))

        def changes() -> Iterator[tuple[Relation, pa.RecordBatch]]:
            for part, relation, own in parts.values():
                sources = [source_file(reader, file) for file in own]
                for batch in sent_changes(part, sources, span, has_unchanged=False):
                    yield relation, batch

        transaction = pa.table(
            {
                "commit_lsn": [int(known.prepare_lsn)],
                "end_lsn": [int(spool.end_lsn)],
                "commit_time": [known.prepare_time],
                "changes": [spool.changes],
            }
        )
        told = HandedOn(
            one.subid,
            one.xid,
            one.prepare_lsn,
            None,
            tuple(sorted(int(relid) for relid in parts)),
            tuple(sorted({_sum(relation) for _, relation, _ in parts.values()})),
            sum(file.rows for file in files),
        )
        gid = f"pg_gid_{one.subid}_{one.xid}"
        writer.hand_on(told, gid, transaction, f"pg_{one.subid}", changes())

    def _directory(self, subid: Oid | int) -> Path:
        return self._logs / str(int(subid))

    def _spools(self, subid: Oid | int) -> list[PreparedSpool]:
        try:
            return prepared_spools(self._directory(subid))
        except Wal2LakeError as error:
            # Its receiver says it, too, and goes no further.
            get_logger().debug("what is prepared cannot be read", error=error)
            return []

    def _is_here(self, one: HandedOn) -> bool:
        return any(
            spool.transaction.xid == one.xid
            and spool.transaction.prepare_lsn == one.prepare_lsn
            for spool in self._spools(one.subid)
        )

    def _commit_of(self, one: HandedOn) -> Lsn | None:
        """Where it commits, if a segment has that."""
        search = self._searches.setdefault(one.key, _Search())
        directory = self._directory(one.subid)
        if search.commit is not None or not directory.is_dir():
            return search.commit
        reader = LogReader(directory)
        found = (
            reader.above(one.prepare_lsn)
            if search.segment is None
            else reader.after(search.segment)
        )
        for manifest in found:
            rows = reader.read(
                manifest.transactions_file, ["xid", "commit_lsn", "end_lsn"]
            )
            xids = rows.column("xid").to_numpy()
            lsns = rows.column("commit_lsn").to_numpy()
            at = np.flatnonzero((xids == one.xid) & (lsns > int(one.prepare_lsn)))
            if len(at):
                search.commit = Lsn(int(lsns[at[0]]))
                search.end = Lsn(rows.column("end_lsn")[int(at[0])].as_py())
                break
            search.segment = manifest.number
        return search.commit


def _compared(
    changes: Iterator[tuple[Relation, pa.RecordBatch]], ends: Mapping[int, HandedOn]
) -> Iterator[tuple[Relation, pa.RecordBatch]]:
    """The same; see ``HandingOn.ending``."""
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
    other = [
        one
        for lsn, one in ends.items()
        if (counts[lsn], tuple(sorted(relations[lsn]))) != (one.changes, one.relations)
    ]
    if other:
        raise OtherwisePrepared(other)


def _say(one: HandedOn, reason: Exception) -> None:
    get_logger().debug(
        "what is prepared is handed on when it commits",
        subid=one.subid,
        xid=one.xid,
        reason=str(reason),
    )


def _sum(relation: Relation) -> int:
    return zlib.crc32(json.dumps(encode_relation(relation)).encode())
