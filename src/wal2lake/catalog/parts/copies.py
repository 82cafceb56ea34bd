"""``Catalog``'s methods about relation states and the copies of tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from wal2lake.catalog.database import take_oid
from wal2lake.catalog.objects import histories
from wal2lake.catalog.parts.part import CatalogPart
from wal2lake.catalog.published import snapshot_vectors
from wal2lake.catalog.records import (
    CopyRange,
    SubscriptionRel,
    SyncSnapshot,
    WorkerKind,
)
from wal2lake.catalog.replication import copies, subscriptions
from wal2lake.model import Lsn, Oid, SyncState


def leave(transaction: sqlite3.Connection, subid: Oid, relids: Collection[Oid]) -> None:
    """Remove tables from a subscription. The newest vector no longer pins them, nor their history
    tables, which end with that."""
    ended = [
        history
        for history, feed in (histories.feeds(transaction) if relids else {}).items()
        if feed.subid == subid and feed.relid in relids
    ]
    for relid in relids:
        snapshot_vectors.hand_over(transaction, subid, relid)
        subscriptions.remove_rel(transaction, subid, relid)
    for oid in (*relids, *ended):
        snapshot_vectors.forget_version(transaction, subid, oid)


class Copies(CatalogPart):
    """Relation states, and copies of tables from state i to f."""

    def rels(self, subid: Oid | None = None) -> list[SubscriptionRel]:
        """Return the relation states of one subscription, or of all."""
        with self._database.reading() as connection:
            return subscriptions.rels_of(connection, subid)

    def add_rels(self, rels: Sequence[SubscriptionRel]) -> None:
        """Add tables to a subscription."""
        with self._database.transaction() as transaction:
            subscriptions.add_rels(transaction, rels)

    def remove_rel(self, subid: Oid, relid: Oid) -> None:
        """Remove a table from a subscription. Its data stays, and the newest vector no longer pins
        it."""
        with self._database.transaction() as transaction:
            leave(transaction, subid, [relid])

    def update_rel(self, subid: Oid, relid: Oid, **changes: Any) -> None:
        """Set fields of one relation state (a state of SyncState, an Lsn ...)."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, changes)

    def pause_table(self, subid: Oid, relid: Oid, position: Lsn, version: int) -> None:
        """Pause a table at ``position`` and ``version``. It stands apart and takes no part; neither
        the floor nor the log's retention passes its position. The caller holds the subscription's
        commit lock."""
        with self._database.transaction() as transaction:
            for rel in subscriptions.rels_of(transaction, subid):
                if rel.relid == relid:
                    copies.pause(transaction, rel, position)
                    snapshot_vectors.stand_apart(
                        transaction, subid, relid, position, version
                    )

    def resume_table(self, subid: Oid, relid: Oid) -> None:
        """Resume a table from its position. It joins the other tables once a published state has
        reached that position."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, {"paused_at": None})

    def copy_table_anew(self, subid: Oid, relid: Oid) -> None:
        """Let a table, paused or not, wait for a copy that replaces its rows. Until then readers
        see the old rows, apart from the other tables. The caller holds the commit lock."""
        with self._database.transaction() as transaction:
            copy_anew(transaction, subid, relid)

    def begin_copies(self, started: Sequence[SubscriptionRel]) -> None:
        """Begin attempts: store ``copy_plan``, ``rows_expected`` and ``lsn`` (the S that their
        commits may have), and delete ranges of other snapshots.
        """
        with self._database.transaction() as transaction:
            for rel in started:
                copies.begin_copy(transaction, rel)

    def epoch(self, subid: Oid, relid: Oid) -> int | None:
        """Return the epoch of a table's copy. Another copy has another epoch. None if the table has
        left the subscription."""
        with self._database.reading() as connection:
            return copies.epoch(connection, subid, relid)

    def record_ranges(self, done: Sequence[CopyRange]) -> None:
        """Record finished ranges of copies, and add their rows to the tables' progress."""
        with self._database.transaction() as transaction:
            for copied_range in done:
                copies.record_range(transaction, copied_range)

    def ranges(self, subid: Oid, relid: Oid) -> list[CopyRange]:
        """Return the finished ranges of a table's running copy."""
        with self._database.reading() as connection:
            return copies.ranges(connection, subid, relid)

    def end_attempts(
        self, ended: Sequence[tuple[SubscriptionRel, str | None, str | None, bool]]
    ) -> None:
        """End attempts that have not reached f. Each has its error (None to keep the previous one),
        the error's SQLSTATE, and whether its commit may have succeeded, so that the floor still
        waits for its S."""
        with self._database.transaction() as transaction:
            for rel, error, sqlstate, made in ended:
                copies.end_attempt(transaction, rel, error, sqlstate, made=made)
                if error is not None:
                    subscriptions.count_error(transaction, rel.subid, WorkerKind.COPY)

    def finish_copies(self, copied: Sequence[SubscriptionRel]) -> set[Oid]:
        """Finish committed copies (d -> f), each with its S as ``lsn``. The coercions of their
        ranges are counted, and the ranges deleted.

        Returns the finished tables. A table that has left meanwhile, or has another epoch, does not
        change.
        """
        finished = set()
        with self._database.transaction() as transaction:
            for rel in copied:
                if copies.finish_copy(transaction, rel):
                    finished.add(rel.relid)
        return finished

    def hold_snapshot(
        self, held: SyncSnapshot, *, generation: int | None = None
    ) -> bool:
        """Record the exported snapshot that a receiver holds for the subscription's copies. Return
        False, and record nothing, if the subscription no longer has the ``generation`` that the
        receiver streams; None for any generation."""
        with self._database.transaction() as transaction:
            subscription = subscriptions.subscription_by_oid(transaction, held.subid)
            if subscription is None or generation not in (
                None,
                subscription.generation,
            ):
                return False
            copies.hold_snapshot(transaction, held)
            subscriptions.clear_error(transaction, held.subid, WorkerKind.SNAPSHOT)
            return True

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """Return the snapshot that copies of this subscription may use now."""
        with self._database.reading() as connection:
            return copies.snapshot_held(connection, subid)

    def uncover(self, held: SyncSnapshot, relids: Collection[Oid]) -> None:
        """Exclude tables from the snapshot, because they have changed since. The next snapshot
        covers them."""
        with self._database.transaction() as transaction:
            copies.uncover(transaction, held, relids)

    def release_snapshot(self, subid: Oid) -> None:
        """Delete the record of a snapshot that is gone or no longer needed."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, subid)


def copy_anew(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Let a table be copied again, as ``Copies.copy_table_anew`` describes. Has no effect if the
    table has left the subscription."""
    for rel in subscriptions.rels_of(connection, subid):
        if rel.relid != relid:
            continue
        if rel.state in (SyncState.SYNCDONE, SyncState.READY):
            snapshot_vectors.stand_apart(connection, subid, relid)
        epoch = int(take_oid(connection))
        copies.restart(connection, rel, epoch, trusted=rel.trusted)
