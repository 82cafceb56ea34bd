"""``Catalog``'s methods about published states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

from wal2lake.catalog.database import take_oid
from wal2lake.catalog.definitions import history
from wal2lake.catalog.objects.historyrecords import PendingHistory
from wal2lake.catalog.parts.part import CatalogPart
from wal2lake.catalog.published import (
    coercions,
    conflicts,
    histories,
    local_commits,
    prepared_commits,
    restarts,
    snapshot_vectors,
    verifications,
)
from wal2lake.catalog.published.snapshot_vectors import TableVersion
from wal2lake.catalog.published.verifications import (
    ComparedTable,
    NotedDifference,
    Verification,
)
from wal2lake.catalog.records import (
    Altered,
    CoercionTotal,
    LocalCommit,
    NotedConflict,
    PastState,
    PreparedCommit,
    PreparedState,
    SnapshotVector,
    TableChange,
)
from wal2lake.catalog.replication import copies, origins, subscriptions
from wal2lake.model import Coercion, Conflict, Lsn, Oid


class PublishedStates(CatalogPart):
    """The part of the catalog about published states and the floor."""

    def publish(
        self,
        subid: Oid,
        reached: Lsn,
        versions: Mapping[int, int],
        *,
        participants: Collection[int] = (),
        joined: Sequence[int] = (),
        skipped: Lsn | None = None,
        voided: Collection[tuple[Oid, Oid]] = (),
        applied: Lsn | None = None,
    ) -> Lsn:
        """Advance the floor and publish the tables' versions, in one transaction.

        ``versions`` has only the changed tables; the others keep their versions. If no version
        changes, the newest vector moves to the new LSN.

        The subscription's floor follows ``reached`` but never goes back, and never passes a
        position that a table still needs of the log: the snapshot of a table that is being copied,
        or the position of a table that is not among ``participants`` (the tables that are complete
        below ``reached``).

        Tables in ``joined`` take their next step to ready: f -> s at ``reached``, s -> r.
        ``skipped``: finish LSN of a transaction below ``reached`` that ALTER SUBSCRIPTION ... SKIP
        has left out; the skip-LSN is cleared. Sequences with a pending restart up to ``reached``
        restart; copies ``voided`` (subscription, table), which may have taken earlier values, begin
        anew in another epoch. ``applied``: end of the last transaction below ``reached``, if it was
        not published before. Returns the floor.
        """
        with self._database.transaction() as transaction:
            if skipped is not None:
                subscriptions.clear_skip(transaction, subid, skipped)
            coercions.publish(transaction, subid, reached)
            conflicts.publish(transaction, subid, reached)
            restarts.publish(transaction, subid, reached)
            histories.publish(transaction, subid, versions.keys(), reached)
            for copying, relid in voided:
                copies.void(transaction, copying, relid, int(take_oid(transaction)))
            floor = snapshot_vectors.publish(
                transaction, subid, reached, versions, participants, joined
            )
            origins.note_applied(transaction, subid, floor, applied)
            return floor

    def floor_bound(
        self, subid: Oid, reached: Lsn, participants: Collection[int]
    ) -> Lsn:
        """Return the floor that ``publish`` would set."""
        with self._database.reading() as connection:
            return snapshot_vectors.floor_bound(
                connection, subid, reached, set(participants)
            )

    def expect(
        self,
        subid: Oid,
        reached: Lsn,
        positions: Mapping[Oid, Lsn],
        changed: Mapping[Oid, Sequence[Coercion]],
        left_out: Sequence[Conflict] = (),
        restarted: Mapping[Oid, Mapping[Oid, int | None]] = MappingProxyType({}),
        recorded: Sequence[PendingHistory] = (),
        cursors: Mapping[Oid, Lsn] = MappingProxyType({}),
    ) -> None:
        """Record pending facts of a batch that ends at ``reached``, before its tables commit.
        ``publish`` makes them count.

        ``changed``: values changed by policies. ``left_out``: changes that the batch leaves out.
        ``positions``: positions of its tables; pending facts above them are deleted, because
        nothing above was committed. ``restarted``: by table, the sequences that a TRUNCATE
        restarts, each with its last value after the batch. ``recorded``: histories of the
        tables. ``cursors``: cursors of the tables' last commits. A position may be above, for
        transactions that were skipped, and histories in between belong to no commit."""
        with self._database.reading() as connection:
            pending = coercions.any_pending(connection, subid)
            pending = pending or conflicts.any_pending(connection, subid)
            pending = pending or restarts.any_pending(connection, subid)
            pending = pending or histories.any_pending(connection, subid)
        noted = left_out or restarted or recorded or any(changed.values())
        if pending or noted:
            with self._database.transaction() as transaction:
                coercions.expect(transaction, subid, reached, positions, changed)
                conflicts.expect(transaction, subid, reached, positions, left_out)
                restarts.expect(transaction, subid, reached, positions, restarted)
                histories.expect(transaction, subid, {**positions, **cursors}, recorded)
        if recorded:
            self._secure()

    def expected_restarts(self, subid: Oid, reached: Lsn) -> dict[Oid, Oid]:
        """Return the sequences that ``publish`` would restart at ``reached``, each with its
        table."""
        with self._database.reading() as connection:
            return restarts.pending(connection, subid, reached)

    def note_conflict(self, subid: Oid, conflict: Conflict) -> None:
        """Record a conflict that stops the subscription."""
        with self._database.transaction() as transaction:
            conflicts.note(transaction, subid, conflict)

    def conflicts(self) -> list[NotedConflict]:
        """Return the listed conflicts, oldest first."""
        with self._database.reading() as connection:
            return conflicts.listed(connection)

    def coercions(self) -> list[CoercionTotal]:
        """Return the values that policies have changed in published states."""
        with self._database.reading() as connection:
            return coercions.totals(connection)

    def note_widened(self, subid: Oid, relid: Oid, widened: Sequence[Coercion]) -> None:
        """Record columns of a table that are about to become text for values of a copy."""
        with self._database.transaction() as transaction:
            coercions.note_widened(transaction, subid, relid, widened)

    def forget_widened(self, subid: Oid, relid: Oid, columns: Sequence[str]) -> None:
        """Delete the record of columns that did not become text."""
        with self._database.transaction() as transaction:
            coercions.forget_widened(transaction, subid, relid, columns)

    def newest_vector(self, subid: Oid) -> SnapshotVector | None:
        """Return the state that a SELECT sees."""
        with self._database.reading() as connection:
            return snapshot_vectors.newest_vector(connection, subid)

    def newest_vectors(self) -> dict[Oid, SnapshotVector]:
        """Return the states that a SELECT sees, of all subscriptions at one moment."""
        with self._database.reading() as connection:
            return snapshot_vectors.newest_vectors(connection)

    # ---- transactions of the front door -------------------------------------------

    def begin_local_commit(
        self, tables: Sequence[TableChange], altered: Sequence[Altered] = ()
    ) -> int:
        """Decide to commit a transaction to tables, whose new files exist. Return its number, for
        ``publish_local``. ``altered``: definitions that change with the commit."""
        with self._database.transaction() as transaction:
            return local_commits.record(transaction, tables, altered)

    def local_commits(self) -> list[LocalCommit]:
        """Return the commits that are not published yet."""
        with self._database.reading() as connection:
            return local_commits.pending(connection)

    def publish_local(
        self,
        versions: Mapping[Oid, Mapping[Oid, int]],
        written: Collection[tuple[Oid, Oid]] = (),
        number: int | None = None,
        altered_at: int | None = None,
        voided: Collection[tuple[Oid, Oid]] = (),
        *,
        taken_back: bool = False,
    ) -> None:
        """Publish a local transaction: ``versions`` of tables by subscription, at the newest
        vector's LSN.

        ``written``: (subscription, table) pairs, into which inserts may meet rows of other writers
        from now on. ``number``: number of the commit, which ends here. Unless it is
        ``taken_back``, its replication origin advances to the transaction. ``altered_at``: version
        with which its recorded definition begins. Copies ``voided`` (subscription, table) begin
        anew in another epoch."""
        with self._database.transaction() as transaction:
            if number is not None and altered_at is not None:
                altered = local_commits.altered_by(transaction, number)
                history.alter(transaction, altered, altered_at)
            for subid, relid in voided:
                copies.void(transaction, subid, relid, int(take_oid(transaction)))
            for subid, relid in written:
                subscriptions.update_rel(transaction, subid, relid, {"trusted": False})
            for subid, changed in versions.items():
                newest = snapshot_vectors.newest_vector(transaction, subid)
                if newest is not None:
                    snapshot_vectors.publish(
                        transaction,
                        subid,
                        newest.lsn,
                        {int(relid): version for relid, version in changed.items()},
                        (),
                        (),
                    )
            if number is not None:
                origin = local_commits.origin_of(transaction, number)
                if origin is not None and not taken_back:
                    origins.advance(transaction, origin[0], origin[1])
                local_commits.forget(transaction, number)

    def begin_prepare(self, prepared: PreparedCommit) -> int | None:
        """Record a PREPARE TRANSACTION, whose files exist. Return its number; None if its gid is in
        use."""
        with self._database.transaction() as transaction:
            return prepared_commits.record(transaction, prepared)

    def prepared_commits(self) -> list[PreparedCommit]:
        """Return the prepared transactions that have not ended, oldest first."""
        with self._database.reading() as connection:
            return prepared_commits.all_of_them(connection)

    def move_prepared(
        self,
        number: int,
        state: PreparedState,
        *,
        tables: Sequence[TableChange] | None = None,
    ) -> None:
        """Set the state of a prepared transaction. ``tables``: new changes of its tables."""
        with self._database.transaction() as transaction:
            prepared_commits.move(transaction, number, state, tables=tables)

    def end_prepared(self, number: int) -> None:
        """Delete a prepared transaction that has committed or rolled back."""
        with self._database.transaction() as transaction:
            prepared_commits.forget(transaction, number)

    # ---- comparisons with the source --------------------------------------------------

    def note_verification(
        self, subid: Oid, relid: Oid, compared: ComparedTable
    ) -> None:
        """Record what a comparison of a table with its source has found."""
        with self._database.transaction() as transaction:
            verifications.note(transaction, subid, relid, compared)

    def note_repaired(
        self, subid: Oid, relid: Oid, repaired: Sequence[NotedDifference]
    ) -> None:
        """Count listed rows that have been repaired, and take them from the list."""
        with self._database.transaction() as transaction:
            verifications.note_repaired(transaction, subid, relid, repaired)

    def verifications(self) -> list[Verification]:
        """Return what the last comparison of each table has found."""
        with self._database.reading() as connection:
            return verifications.verifications(connection)

    def differences(self) -> list[NotedDifference]:
        """Return the listed differences between tables and their sources."""
        with self._database.reading() as connection:
            return verifications.differences(connection)

    # ---- retention --------------------------------------------------------------------

    def expired_states(
        self, cutoff: datetime, subids: Collection[int] | None = None
    ) -> dict[int, int]:
        """Return, by subscription, the number of the last state that had a successor before
        ``cutoff``, as had all before it. ``subids``: None for all subscriptions."""
        text = cutoff.astimezone(UTC).isoformat(timespec="microseconds")
        with self._database.reading() as connection:
            return snapshot_vectors.expired(connection, text, subids)

    def unreadable_states(self, readable: Mapping[int, int]) -> dict[int, int]:
        """Return, by subscription, the number of the last state that names a version of a table
        below its first ``readable`` one (by OID)."""
        with self._database.reading() as connection:
            return snapshot_vectors.unreadable(connection, readable)

    def count_states(self, numbers: Mapping[int, int]) -> int:
        """Return how many states ``remove_states`` would delete."""
        with self._database.reading() as connection:
            return snapshot_vectors.count_through(connection, numbers)

    def remove_states(self, numbers: Mapping[int, int]) -> int:
        """Delete the states of each subscription up to a number, durably; return how many they
        were."""
        if not numbers:
            return 0
        with self._database.transaction() as transaction:
            return snapshot_vectors.remove_through(transaction, numbers)

    def oldest_versions(self, above: Mapping[int, int]) -> dict[int, int]:
        """Return the lowest version of each table (by OID) that the states name which are
        ``above`` a number of their subscription."""
        with self._database.reading() as connection:
            return snapshot_vectors.oldest_versions(connection, above)

    def past_state(
        self, subid: Oid, *, lsn: Lsn | None = None, time: datetime | None = None
    ) -> PastState:
        """Return the newest published state at or below ``lsn``, or at or before ``time``."""
        text = None
        if time is not None:
            text = time.astimezone(UTC).isoformat(timespec="microseconds")
        with self._database.reading() as connection:
            return snapshot_vectors.past(connection, subid, lsn=lsn, time=text)

    def vectors(self) -> list[SnapshotVector]:
        """Return the kept published states, oldest first."""
        with self._database.reading() as connection:
            return snapshot_vectors.all_vectors(connection)

    def table_versions(self, subid: Oid, relid: Oid, limit: int) -> list[TableVersion]:
        """Return the newest published versions of one table, the newest first."""
        with self._database.reading() as connection:
            return snapshot_vectors.table_versions(connection, subid, relid, limit)
