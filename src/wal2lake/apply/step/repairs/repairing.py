"""Writes rows of the source over rows that differ from it, in one commit of their table.

Comes in: rows as they are at the source at an LSN, when the worker has published the state of that
LSN and has not begun the next batch. Goes out: one commit, published at the same position. Called
by the worker's thread (``nextbatch``).

The commit has a cursor of its own, and the subscription's stays: it counts the transactions that
the table has. A crash before the commit leaves nothing; one after it leaves a version that the next
worker publishes, like any that it finds unpublished.

Source: docs/decisions/0037-repair.md; invariant 2.
"""

from __future__ import annotations

from typing import Final

from wal2lake.apply.failures import row_failure
from wal2lake.apply.local.histories import pending_of
from wal2lake.apply.participants import Participant, Participants
from wal2lake.apply.step.publishing import VectorPublisher
from wal2lake.apply.step.repairs.sourcerows import RowRepair, SourceRows
from wal2lake.catalog import Catalog, Subscription
from wal2lake.errors import UsageError
from wal2lake.lake import CommitConflict, Cursor
from wal2lake.lake.batch import BatchPort, Staged
from wal2lake.lake.staging import ColumnDefaults
from wal2lake.model import Lsn, Oid
from wal2lake.observe import OrderedLock, failpoint, get_logger
from wal2lake.settings import Settings

_PREREQUISITE: Final = "55000"


class RowRepairs:
    """Writes repairs for the tables of one subscription."""

    def __init__(
        self,
        catalog: Catalog,
        subid: Oid,
        tables: Participants,
        batches: BatchPort,
        publisher: VectorPublisher,
        commit_lock: OrderedLock,
        defaults: ColumnDefaults,
    ) -> None:
        """The arguments are those of ``BatchApplier``."""
        self._catalog = catalog
        self._subid = subid
        self._tables = tables
        self._batches = batches
        self._publisher = publisher
        self._commit_lock = commit_lock
        self._rows = SourceRows(batches, defaults)
        self._cursor_name = f"wal2lake:{catalog.system_identifier}:repair"

    def write(
        self, subscription: Subscription, settings: Settings, repair: RowRepair
    ) -> None:
        """Write and publish the rows. The worker has published the state of the repair's LSN.

        Raises UsageError (55000) if the table has left or is not at that state, and the error of a
        row that the table cannot take; then nothing has been written."""
        with self._commit_lock:
            participant = self._participant(repair)
            state = self._tables.read_state(participant)
            staged = self._rows.stage(
                subscription,
                settings,
                repair,
                participant.definition,
                state,
                self._tables.history_state(participant),
            )
            cursor = Cursor(
                self._cursor_name, (state.cursor(self._cursor_name) or 0) + 1
            )
            try:
                self._check(participant, staged)
                self._expect(participant, staged, cursor)
                failpoint("repair.staged")
            except BaseException:
                self._batches.discard(staged)
                raise
            try:
                done = self._batches.commit(staged, cursor)
            except CommitConflict:
                self._batches.discard(staged)
                raise
            failpoint("repair.committed")
            if staged.history and participant.history is not None:
                recorded = self._batches.record(staged, cursor)
                participant.history.version = recorded.version
            participant.version, participant.unpublished = done.version, True
            if done.interlopers:
                self._tables.distrust(participant)
            decided = self._publisher.decided(subscription.floor)
            self._publisher.publish(decided, committed=[repair.relid])
        get_logger().info(
            "rows repaired",
            table=participant.definition.qualified,
            rows=len(repair.rows),
            lsn=repair.lsn,
        )

    def _participant(self, repair: RowRepair) -> Participant:
        participant = next(
            (t for t in self._tables if t.rel.relid == repair.relid), None
        )
        if participant is None or not self._tables.are_members():
            raise UsageError(
                "the table has left its subscription, or was altered",
                sqlstate=_PREREQUISITE,
            )
        if not participant.ready or participant.cursor > repair.lsn:
            raise UsageError(
                f"the table is not at {repair.lsn}, from which its rows are",
                sqlstate=_PREREQUISITE,
            )
        return participant

    def _check(self, participant: Participant, staged: Staged) -> None:
        """Raise the error of a row that the table cannot take as it is."""
        if staged.failures:
            failure = row_failure(
                self._subid, participant.definition, staged.failures[0]
            )
            raise failure.error
        if staged.coercions:
            columns = sorted({coercion.column for coercion in staged.coercions})
            raise UsageError(
                f"value policies would change values of {', '.join(columns)}",
                sqlstate=_PREREQUISITE,
            )

    def _expect(self, participant: Participant, staged: Staged, cursor: Cursor) -> None:
        """Record the history that the commit needs, which a crash behind it leaves to be made."""
        if not staged.history or participant.history is None:
            return
        pending = pending_of(
            participant.rel.relid,
            participant.history.definition,
            cursor,
            staged.history,
        )
        self._catalog.expect(
            self._subid, Lsn(cursor.version), {}, {}, recorded=[pending]
        )
