"""Writes rows of the source over rows that differ from it, in one commit of their table.

Comes in: rows as they are at the source at an LSN, when the worker has published the state of that
LSN and has not begun the next batch. Goes out: one commit, published at the same position. Called
by the worker's thread (``nextbatch``).

The rows take the way of a batch: they become a file in log layout, whose rows commit at the LSN,
and are staged like those of a segment, so values are converted and checked alike. Rows are looked
up by the primary key. Whether a row is here does not matter: an UPDATE inserts a missing row, an
INSERT replaces one that is here, and a DELETE of a missing row does nothing.

The commit has a cursor of its own, and the subscription's stays: it counts the transactions that
the table has. A crash before the commit leaves nothing; one after it leaves a version that the next
worker publishes, like any that it finds unpublished. The commit says that its rows come from the
subscription's origin, as capture hands it on to subscribers of this node.

Source: docs/decisions/0037-repair.md; invariant 2.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.apply.failures import row_failure
from wal2lake.apply.local.histories import pending_of
from wal2lake.apply.participants import Participant, Participants
from wal2lake.apply.step.publishing import VectorPublisher
from wal2lake.apply.step.restarts import fills_of
from wal2lake.catalog import Catalog, Subscription
from wal2lake.changelog import (
    LogFile,
    RowsFile,
    VersionRows,
    describe_rows,
    encode_rows,
)
from wal2lake.errors import UsageError
from wal2lake.lake import BatchCommits, CommitConflict, Cursor, TableState
from wal2lake.lake.batch import BatchPort, RepairOrigin, Staged, StageRequest
from wal2lake.lake.staging import (
    NO_COMMITS,
    ColumnDefaults,
    ConversionRules,
    HistoryTarget,
    LogSource,
    LsnRange,
)
from wal2lake.model import ConflictType, Lsn, Oid, Relation, Resolution
from wal2lake.observe import OrderedLock, failpoint, get_logger
from wal2lake.pgtypes import Resolutions, ValuePolicies, remote_types_from_json
from wal2lake.settings import Settings

_PREREQUISITE: Final = "55000"

_UNIX_TO_POSTGRES_US: Final = 946_684_800_000_000

_AS_SENT: Final = Resolutions(
    {
        ConflictType.INSERT_EXISTS: Resolution.APPLY_REMOTE,
        ConflictType.UPDATE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
        ConflictType.UPDATE_MISSING: Resolution.APPLY_REMOTE,
        ConflictType.DELETE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
        ConflictType.DELETE_MISSING: Resolution.SKIP,
    }
)
"""The source's row is right, whatever is here."""


@dataclass(frozen=True, slots=True)
class RepairedRow:
    """A row as the source has it, or the key of one that it does not have."""

    op: str
    """I, U or D, as in the log."""
    values: tuple[str | None, ...]
    """Texts of the relation's columns; of a D only those of its key count."""


@dataclass(frozen=True, slots=True)
class RowRepair:
    """Rows of one table that are put right."""

    relid: Oid
    lsn: Lsn
    """LSN of the snapshot from which the rows are."""
    relation: Relation
    """The table at the source. Key columns are those of its primary key."""
    rows: tuple[RepairedRow, ...]


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
        self._defaults = defaults
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
            staged = self._staged(subscription, settings, repair, participant, state)
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

    # ---- staging ---------------------------------------------------------------------

    def _staged(
        self,
        subscription: Subscription,
        settings: Settings,
        repair: RowRepair,
        participant: Participant,
        state: TableState,
    ) -> Staged:
        definition = participant.definition
        version = _in_log_layout(repair)
        buffer, facts = encode_rows(version)
        file = describe_rows(LogFile("repair", buffer.size, 0), version, facts)
        now_us = time.time_ns() // 1000
        with tempfile.TemporaryDirectory(prefix="wal2lake-repair-") as directory:
            path = Path(directory) / "rows.parquet"
            path.write_bytes(buffer)
            request = StageRequest(
                namespace=definition.namespace,
                name=definition.name,
                state=state,
                key=definition.key,
                constraint=definition.index_name,
                sources=[_source(path, file)],
                span=LsnRange(repair.lsn),
                append=False,
                trusted=False,
                types=remote_types_from_json(subscription.remote_types),
                rules=ConversionRules(
                    ValuePolicies.parse(subscription.value_policies),
                    frozenset(c.name for c in definition.columns if c.not_null),
                    frozenset(definition.key),
                    settings.apply.max_value_bytes,
                    subscription.follows_schema,
                    definition.checks,
                    definition.generated,
                ),
                fills=fills_of(self._defaults, [file], definition, None),
                resolutions=_AS_SENT,
                nulls=frozenset(
                    c.name
                    for c in definition.columns
                    if c.default is None and not c.not_null
                ),
                commits=self._commits(settings, repair, now_us),
                deferrable=definition.key_deferral.deferrable,
                history=self._history(participant),
                repairs=RepairOrigin(
                    f"pg_{self._subid}", int(repair.lsn), now_us - _UNIX_TO_POSTGRES_US
                ),
            )
            return self._batches.stage(request)

    def _history(self, participant: Participant) -> HistoryTarget | None:
        state = self._tables.history_state(participant)
        return None if state is None else HistoryTarget(state, NO_COMMITS)

    def _commits(
        self, settings: Settings, repair: RowRepair, now_us: int
    ) -> BatchCommits | None:
        """Return the writer of the rows, if writers are tracked."""
        if not settings.apply.track_commit_timestamp:
            return None
        lsn, xid, time_us = (
            np.array([value], np.int64) for value in (int(repair.lsn), 0, now_us)
        )
        return BatchCommits(int(self._subid), lsn, xid, time_us)


def _source(path: Path, file: RowsFile) -> LogSource:
    return LogSource(str(path), file.relation, file.rows, file.file.size)


def _in_log_layout(repair: RowRepair) -> VersionRows:
    """Return the rows as the log would have them, all of one transaction."""
    count = len(repair.rows)
    deletes = np.array([row.op == "D" for row in repair.rows])
    columns: dict[str, pa.Array] = {
        "commit_lsn": pa.array(np.full(count, int(repair.lsn), np.int64)),
        "ordinal": pa.array(np.arange(count, dtype=np.int64)),
        "op": pa.array([ord(row.op) for row in repair.rows], pa.uint8()),
        "old": pa.array(np.where(deletes, ord("K"), 0).astype(np.uint8)),
    }
    for place, column in enumerate(repair.relation.columns):
        texts = [row.values[place] for row in repair.rows]
        columns[f"c{place}"] = _encoded(texts, ~deletes)
        if column.is_key and deletes.any():
            columns[f"o{place}"] = _encoded(texts, deletes)
    return VersionRows(repair.relation, {}, [pa.record_batch(columns)])


def _encoded(texts: Sequence[str | None], kept: np.ndarray) -> pa.Array:
    return pa.array(
        [
            text.encode() if is_kept and text is not None else None
            for text, is_kept in zip(texts, kept.tolist(), strict=True)
        ],
        pa.binary(),
    )
