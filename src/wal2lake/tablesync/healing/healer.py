"""Copies a table by its differing rows (REFRESH PUBLICATION WITH (heal = true)).

Comes in: a planned copy whose table has rows already. Goes out: ONE commit with the copy's cursor
S, after which the table has exactly the rows of the snapshot; or nothing, and the table is copied
whole.

    compare   digests of blocks, in the snapshot and in the newest version here (``verify``)
    read      the rows of keys that differ, in the snapshot
    commit    these rows, as a batch that commits at S, and the cursor S; only the cursor if all
              rows are equal

Nothing is durable before the commit, so a crash repeats the attempt; after it, the table's cursor
says that the copy is done, as after any copy. The version that was compared is the one on which the
commit is based: if another writer has committed meanwhile, the attempt fails and is repeated.

A table is copied whole if VERIFY could not compare it, if it has no primary key, or not the one of
the source, if it keeps deleted rows, if value policies change a row, if a row cannot be stored
(the copy then says why), or if too many rows differ.

Called by ``group``. Source: docs/decisions/0039-heal.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.local.histories import (
    finish_histories,
    fitted,
    histories_of,
    pending_of,
)
from wal2lake.apply.step.repairs.sourcerows import (
    RepairedRow,
    RowRepair,
    SourceRows,
    keyed_relation,
)
from wal2lake.catalog import Catalog, TableDef
from wal2lake.errors import PublisherError, StorageError
from wal2lake.lake import CommitConflict, Cursor, TablePort, TableState
from wal2lake.lake.batch import BatchPort, Staged
from wal2lake.lake.staging import NO_DEFAULTS, ColumnDefaults
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import RemoteTable, Session
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted
from wal2lake.tablesync.copy import CopyTask, in_snapshot, open_reader
from wal2lake.verify import (
    CopyPair,
    DifferingRows,
    NotComparable,
    check_hashes,
    differing_rows,
    pair,
)

_MOST_ROWS: Final = 1_000_000
_MOST_CHARACTERS: Final = 128 << 20
"""Rows that are written, and characters of their values, which are in memory. With more differences
a copy is not much dearer."""

_TEMPORARY: Final = ("08", "40", "53", "55", "57")
"""Classes of SQLSTATEs after which the attempt is repeated: a lost connection, a lock that is not
free, a server that shuts down. Another error would come again, so the table is copied whole."""

_MOST_ROWS_ON_CLUSTER: Final = 250_000
_MOST_CHARACTERS_ON_CLUSTER: Final = 12 << 20
"""The same if executors do not see this machine's files: so many are converted in this process."""


@dataclass(frozen=True, slots=True)
class HealedTable:
    """A copy that may be made by differing rows."""

    attempt: Attempt
    table: TableDef
    remote: RemoteTable
    cursor: Cursor


class Healer:
    """Copies tables by their differing rows. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        batches: BatchPort,
        defaults: ColumnDefaults = NO_DEFAULTS,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._port = tables
        self._batches = batches
        self._rows = SourceRows(batches, defaults)
        self._events = get_logger()

    def heal(
        self,
        healed: HealedTable,
        task: CopyTask,
        committing: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        """Make the table equal to the snapshot. Return False if it has to be copied whole.

        ``task``: a reader's task, for the snapshot. ``committing``: surrounds the commit; it raises
        if the attempt has ended. Raises CommitConflict if another writer was faster."""
        try:
            return self._heal(healed, task, committing)
        except NotComparable as error:
            reason = error.message
        self._events.info(
            "table cannot be healed and is copied whole",
            table=healed.table.qualified,
            reason=reason,
        )
        return False

    def _heal(
        self,
        healed: HealedTable,
        task: CopyTask,
        committing: Callable[[], AbstractContextManager[None]],
    ) -> bool:
        attempt, table = healed.attempt, healed.table
        if attempt.subscription.keeps_deleted:
            raise NotComparable("it keeps deleted rows (delete_mode = soft)")
        state = self._port.state(table.location)
        with open_reader(task) as session, in_snapshot(session, task):
            check_hashes(session)
            paired = self._paired(session, healed, state)
            differing = self._differing(paired)
        if differing.removed or differing.written:
            self._write(healed, state, _repair(healed, paired, differing), committing)
        else:
            with committing():
                self._check_unwritten(table, state)
                self._commit_cursor(healed, state)
        self._events.info(
            "table healed",
            table=table.qualified,
            lsn=attempt.snapshot.lsn,
            blocks=differing.blocks,
            differing_blocks=differing.differing_blocks,
            rows_read=len(differing.written),
            rows_removed=len(differing.removed),
        )
        return True

    def _differing(self, paired: CopyPair) -> DifferingRows:
        limits = (_MOST_ROWS, _MOST_CHARACTERS)
        if not self._settings.spark.is_local:
            limits = (_MOST_ROWS_ON_CLUSTER, _MOST_CHARACTERS_ON_CLUSTER)
        try:
            differing = differing_rows(paired.source, paired.copy, *limits)
        except StorageError as error:
            raise NotComparable(f"its rows cannot be read: {error.message}") from None
        except PublisherError as error:
            if error.sqlstate[:2] in _TEMPORARY:
                raise
            raise NotComparable(f"the source says: {error.message}") from None
        if differing is None:
            raise NotComparable("too many rows differ")
        return differing

    def _commit_cursor(self, healed: HealedTable, state: TableState) -> None:
        """Commit that the table is complete at S, without a change."""
        self._port.commit_files(
            healed.table.location,
            (),
            healed.cursor,
            read_version=state.version,
            operation="COPY",
        )
        failpoint("heal.committed")

    def _paired(
        self, session: Session, healed: HealedTable, state: TableState
    ) -> CopyPair:
        attempt, table, remote = healed.attempt, healed.table, healed.remote
        names = {column.name for column in remote.columns}
        if not remote.key:
            raise NotComparable("it has no primary key")
        if set(remote.key) != set(table.key) or not set(remote.key) <= names:
            raise NotComparable("its primary key is not that of the source")

        def progress(rows: int) -> None:
            if attempt.over:
                raise Halted
            attempt.received()

        return pair(session, remote, self._port, table, state.version, progress)

    def _check_unwritten(self, table: TableDef, state: TableState) -> None:
        """Raise CommitConflict if the table has another version than the one that was compared."""
        if self._port.state(table.location).version != state.version:
            raise CommitConflict(
                f'table "{table.qualified}" has been written while it was compared'
            )

    # ---- the commit ----------------------------------------------------------------------

    def _write(
        self,
        healed: HealedTable,
        state: TableState,
        repair: RowRepair,
        committing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        attempt, table, cursor = healed.attempt, healed.table, healed.cursor
        history = self._history(healed, state)
        staged = self._rows.stage(
            attempt.subscription,
            self._settings,
            repair,
            table,
            state,
            None if history is None else history[1],
        )
        is_committing = False
        try:
            self._check(staged)
            with committing():
                self._check_unwritten(table, state)
                if staged.history and history is not None:
                    rel = attempt.rel
                    pending = pending_of(rel.relid, history[0], cursor, staged.history)
                    self._catalog.expect_history(rel.subid, [pending])
                failpoint("heal.staged")
                is_committing = True
                done = self._batches.commit(staged, cursor)
                if done.version == state.version:
                    # The rows are stored as they are, although their texts differ.
                    self._commit_cursor(healed, state)
                else:
                    failpoint("heal.committed")
        except BaseException as error:
            # If it is not certain that no commit names the files, they stay.
            if not is_committing or isinstance(error, CommitConflict):
                self._batches.discard(staged)
            raise
        if staged.history:
            self._batches.record(staged, cursor)

    def _check(self, staged: Staged) -> None:
        if staged.failures:
            raise NotComparable("a row cannot be stored")
        if staged.coercions:
            raise NotComparable("value policies change values of a row")

    def _history(
        self, healed: HealedTable, state: TableState
    ) -> tuple[TableDef, TableState] | None:
        """Return the table that records the changes, and its state; None if there is none."""
        rel = healed.attempt.rel
        subscription = (
            self._catalog.subscription(rel.subid) or healed.attempt.subscription
        )
        oid = histories_of(self._catalog, subscription).get(rel.relid)
        history = None if oid is None else self._catalog.table_by_oid(oid)
        if history is None:
            return None
        finish_histories(self._catalog, self._port, rel.subid, rel.relid, state)
        fitting = fitted(self._catalog, self._port, history, healed.table)
        return self._catalog.table_by_oid(history.oid) or history, fitting


def _repair(
    healed: HealedTable, paired: CopyPair, differing: DifferingRows
) -> RowRepair:
    """Return the rows as a repair: keys that go first, then the rows of the source."""
    rows: list[RepairedRow] = []
    for key in differing.removed:
        texts: list[str | None] = [None] * len(paired.columns)
        for place, text in zip(paired.key, key, strict=True):
            texts[place] = text
        rows.append(RepairedRow("D", tuple(texts)))
    # An UPDATE keeps the values of columns that only the lake table has, and inserts a missing row.
    rows += [RepairedRow("U", row) for row in differing.written]
    return RowRepair(
        healed.attempt.rel.relid,
        healed.attempt.snapshot.lsn,
        keyed_relation(healed.remote),
        tuple(rows),
    )
