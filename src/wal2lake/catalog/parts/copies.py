"""``Catalog``'s methods about relation states and the copies of tables; see ``store``."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from wal2lake.catalog.database import take_oid
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


class Copies(CatalogPart):
    """From i to f."""

    def rels(self, subid: Oid | None = None) -> list[SubscriptionRel]:
        """Relation states of one subscription, or of all."""
        with self._database.reading() as connection:
            return subscriptions.rels_of(connection, subid)

    def add_rels(self, rels: Sequence[SubscriptionRel]) -> None:
        """New tables of a subscription."""
        with self._database.transaction() as transaction:
            subscriptions.add_rels(transaction, rels)

    def remove_rel(self, subid: Oid, relid: Oid) -> None:
        """A table leaves a subscription; its data stays, and the newest vector no longer
        pins it."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, subid, relid)
            snapshot_vectors.forget_version(transaction, subid, relid)
            subscriptions.remove_rel(transaction, subid, relid)

    def update_rel(self, subid: Oid, relid: Oid, **changes: Any) -> None:
        """Set fields of one relation state (a state of SyncState, an Lsn ...)."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, changes)

    def pause_table(self, subid: Oid, relid: Oid, position: Lsn, version: int) -> None:
        """A table stands apart from now on, at ``position`` and ``version``, and takes no part:
        neither the floor nor the log's retention passes it. The caller holds the
        subscription's commit lock."""
        with self._database.transaction() as transaction:
            for rel in subscriptions.rels_of(transaction, subid):
                if rel.relid == relid:
                    copies.pause(transaction, rel, position)
                    snapshot_vectors.stand_apart(
                        transaction, subid, relid, position, version
                    )

    def resume_table(self, subid: Oid, relid: Oid) -> None:
        """It takes part again, from where it stands; it is one of the others again once a
        published state has reached it."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, {"paused_at": None})

    def copy_table_anew(self, subid: Oid, relid: Oid) -> None:
        """One table waits for a copy that takes the place of its rows, paused or not. Readers
        have these until then, apart from the others. The caller holds the commit lock."""
        with self._database.transaction() as transaction:
            copy_anew(transaction, subid, relid)

    def begin_copies(self, started: Sequence[SubscriptionRel]) -> None:
        """Attempts begin: ``copy_plan``, ``rows_expected`` and ``lsn`` (the S that their
        commits may have) are stored, ranges that are not of the plan's snapshot are void.
        """
        with self._database.transaction() as transaction:
            for rel in started:
                copies.begin_copy(transaction, rel)

    def epoch(self, subid: Oid, relid: Oid) -> int | None:
        """Return the epoch of a table's copy; another copy has another epoch. None: the table has
        left."""
        with self._database.reading() as connection:
            return copies.epoch(connection, subid, relid)

    def record_ranges(self, done: Sequence[CopyRange]) -> None:
        """Finished ranges of copies, and their rows in the tables' progress."""
        with self._database.transaction() as transaction:
            for one in done:
                copies.record_range(transaction, one)

    def ranges(self, subid: Oid, relid: Oid) -> list[CopyRange]:
        """The finished ranges of a table's running copy."""
        with self._database.reading() as connection:
            return copies.ranges(connection, subid, relid)

    def end_attempts(
        self, ended: Sequence[tuple[SubscriptionRel, str | None, str | None, bool]]
    ) -> None:
        """Copies that have not reached f, each with its error (None: the one it has stays),
        the error's SQLSTATE, and whether its commit may have been made all the same: the
        floor still waits for that one's S."""
        with self._database.transaction() as transaction:
            for rel, error, sqlstate, made in ended:
                copies.end_attempt(transaction, rel, error, sqlstate, made=made)
                if error is not None:
                    subscriptions.count_error(transaction, rel.subid, WorkerKind.COPY)

    def finish_copies(self, copied: Sequence[SubscriptionRel]) -> set[Oid]:
        """Copies are committed (d -> f), each with its S as ``lsn``: what their ranges have
        changed is known, and the ranges are forgotten.

        Returns the tables that were waiting for just that: one that has left meanwhile,
        or has come back in another epoch, is as it is.
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
        """A receiver holds an exported snapshot for this subscription's copies. False, and
        nothing is recorded: the subscription's generation is no longer the one it streams
        with (None: whichever it is)."""
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, held.subid)
            if found is None or generation not in (None, found.generation):
                return False
            copies.hold_snapshot(transaction, held)
            subscriptions.clear_error(transaction, held.subid, WorkerKind.SNAPSHOT)
            return True

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """The snapshot that copies of this subscription may use now."""
        with self._database.reading() as connection:
            return copies.snapshot_held(connection, subid)

    def uncover(self, held: SyncSnapshot, relids: Collection[Oid]) -> None:
        """Copies of these tables cannot use the snapshot any more: what they would read is not
        what it had. The next snapshot covers them."""
        with self._database.transaction() as transaction:
            copies.uncover(transaction, held, relids)

    def release_snapshot(self, subid: Oid) -> None:
        """The snapshot is gone, or no longer needed."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, subid)


def copy_anew(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Let a table be copied again, as ``Copies.copy_table_anew`` describes; no effect if the table
    has left the subscription."""
    for rel in subscriptions.rels_of(connection, subid):
        if rel.relid != relid:
            continue
        if rel.state in (SyncState.SYNCDONE, SyncState.READY):
            snapshot_vectors.stand_apart(connection, subid, relid)
        epoch = int(take_oid(connection))
        copies.restart(connection, rel, epoch, trusted=rel.trusted)
