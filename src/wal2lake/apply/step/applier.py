"""Applies one batch to all its tables: evaluate, cut below a failure, commit, publish.

    stage every table ─▶ (failure: cut below its transaction, stage again what reaches beyond)
          │
          ▼   a table with other columns from transaction A on: its part ends below A
    commit that table below A ─▶ alter it ─▶ stage the rest of its part ─▶ (failure: as above)
          │
          ▼
    commit every table ─▶ publish all of them at one position

A batch is evaluated whole before a table commits, so that all tables end below the same transaction
if one table fails. A followed ALTER TABLE cuts only the part of its own table: when everything
below its transaction has been evaluated, that table commits its part, unpublished, is altered, and
takes the rest. Alterations are carried out in the order of their transactions, so no commit lies
above a transaction that may still fail. Consecutive ones that only add columns are carried out at
once, if the rows between them have been evaluated without these columns and none fails. A crash in
between leaves the table ahead of the others, like any commit whose batch was not published.

In three cases an alteration is not carried out within a batch: if it would have to wait under the
commit lock (another subscription or a prepared transaction has the table), if the publisher has
renamed the table, or if a SKIP is to be decided. Then the batch ends below its transaction for all
tables, and ``ApplyWorker`` alters the table before the next batch.

Called by the worker's thread. Source: DESIGN 6 (Apply), invariants 2 and 6; worker.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from wal2lake.apply.batch import Batch, BatchBounds, divide
from wal2lake.apply.conflicts import (
    Transactions,
    batch_conflicts,
    conflict,
    log_conflicts,
)
from wal2lake.apply.failures import BatchFailure, first_failure, row_failure
from wal2lake.apply.local.histories import pending_of
from wal2lake.apply.measures import ApplyMeasures
from wal2lake.apply.participants import Participants
from wal2lake.apply.schema.additions import without_columns
from wal2lake.apply.schema.follow import DueAlteration, SchemaFollower
from wal2lake.apply.skipping import begin_skip
from wal2lake.apply.step.batchwork import BatchPart, BatchWork
from wal2lake.apply.step.publishing import VectorPublisher
from wal2lake.apply.step.restarts import Restart, find_restarts
from wal2lake.apply.step.tablestager import TableStager, is_unique
from wal2lake.apply.targets import check_others, check_targets, first_change_of_columns
from wal2lake.catalog import Catalog, Subscription, WorkerKind
from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.lake import CommitConflict, Cursor
from wal2lake.lake.batch import BatchPort, Staged
from wal2lake.lake.staging import ColumnDefaults
from wal2lake.model import INVALID_LSN, Lsn, Oid, Resolution
from wal2lake.observe import OrderedLock, failpoint
from wal2lake.settings import Settings

_PARALLEL_COMMITS: Final = 16
"""Tables of one batch that commit at once. A commit is a few waits for the disk, which serves many
fsyncs together."""


_TRIED_ROWS: Final = 20_000
"""Most rows that are evaluated once more for each ALTER TABLE that this spares; both take some
ten milliseconds."""


class _DividedAnewError(Exception):
    """Raised when a table has left the batch, so that the rest must be divided again."""


_NOT_NOW: Final = InternalError("a table is altered in a batch of its own")
"""Error of a ``BatchFailure`` that only ends a batch. It is never reported."""


class BatchApplier:
    """Applies the batches of one subscription."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        reader: LogReader,
        tables: Participants,
        schemas: SchemaFollower,
        batches: BatchPort,
        publisher: VectorPublisher,
        commit_lock: OrderedLock,
        defaults: ColumnDefaults,
        measures: ApplyMeasures,
    ) -> None:
        """``commit_lock`` is held from the evaluation of a batch until the batch is published.
        ``defaults``: defaults of columns that the publisher does not send."""
        self._catalog = catalog
        self._subid = subid
        self._reader = reader
        self._tables = tables
        self._schemas = schemas
        self._batches = batches
        self._publisher = publisher
        self._commit_lock = commit_lock
        self._defaults = defaults
        self._measures = measures
        self._stager = TableStager(
            catalog, settings, subid, reader, tables, batches, defaults
        )
        self._committers = ThreadPoolExecutor(_PARALLEL_COMMITS, f"commit-{int(subid)}")

    def reload(self, settings: Settings) -> None:
        """Use these settings from the next batch on."""
        self._stager.settings = settings

    def close(self) -> None:
        """Release the threads."""
        self._stager.close()
        self._committers.shutdown(wait=False)

    def apply(
        self, subscription: Subscription, batch: Batch, bounds: BatchBounds
    ) -> None:
        """Apply a batch within its bounds. A batch that catches up ends at the published vector.

        Raises the error of the first transaction that cannot be applied, once everything below it
        has been published.
        """
        skip = None
        if not bounds.catching_up:
            skip = begin_skip(
                self._catalog,
                subscription,
                self._tables,
                self._reader,
                batch,
                self._publisher.decided(subscription.floor),
            )
        elif bounds.decided < bounds.end:
            # Later transactions concern all tables, for instance if one is to be skipped.
            bounds = bounds.below(bounds.decided)
        work = BatchWork(
            subscription,
            batch,
            skip,
            skip is None and not bounds.catching_up,
            Transactions(self._reader, batch.manifests),
        )
        cutting: BatchFailure | None = None
        with self._commit_lock:
            failure = self._attempt(work, bounds)
            while failure is not None:
                # A later attempt may find a failure of an earlier transaction: each cut is below
                # the last.
                cutting, failure = failure, None
                if cutting.cut > subscription.floor or self._tables.unseen(cutting.cut):
                    failure = self._attempt(work, bounds.below(cutting.cut))
                else:
                    self._discard(work)
        log_conflicts(
            f"pg_{subscription.oid}",
            work.to_log,
            quotes=self._stager.quotes(subscription),
            exists=self._origin_exists,
        )
        if cutting is not None and not cutting.divides:
            raise self._explained(cutting, work).error
        self._catalog.note_error(self._subid, WorkerKind.APPLY, None)

    # ---- one attempt -------------------------------------------------------------------

    def _attempt(self, work: BatchWork, bounds: BatchBounds) -> BatchFailure | None:
        """Evaluate, commit and publish everything within ``bounds``, or return the failure below
        which to cut.

        After a failure ``work.staged`` keeps the staged changes below it.
        """
        if not self._tables.are_members():
            # The next step divides the batch again.
            self._discard(work)
            return None
        with ExitStack() as alone:
            return self._attempt_alone(work, bounds, alone)

    def _attempt_alone(
        self, work: BatchWork, bounds: BatchBounds, alone: ExitStack
    ) -> BatchFailure | None:
        """Make the attempt. ``alone`` locks the sequences that the batch restarts."""
        try:
            due, bounds = self._due(work, bounds)
            reached = bounds.reached
            parts = self._parts(work, due, bounds)
            self._restart(work, parts, alone)
            failure = self._evaluate(work, parts, bounds)
            while failure is None and due:
                first = min(due.values(), key=lambda alteration: alteration.lsn)
                failure = self._alter(work, due, first, bounds)
            if failure is not None:
                self._discard(work, failure.cut)
                return failure
            failpoint("apply.staged")
            self._expect(work, reached, work.staged)
        except _DividedAnewError:
            self._discard(work)
            self._tables.forget()
            return None
        except BaseException:
            self._discard(work)
            raise
        committed = self._commit_all(work, reached)
        failpoint("apply.tables_committed")
        for participant in self._tables:
            participant.passed(reached)
        decided = self._publisher.decided(work.subscription.floor)
        published = self._publisher.publish(
            reached,
            committed=committed,
            skip=work.skip,
            applied=work.transactions.end_below(reached),
        )
        if published:
            self._measures.published(work.batch.manifests, decided, reached, work.began)
        work.to_log += work.unpublished
        work.unpublished.clear()
        return None

    def _due(
        self, work: BatchWork, bounds: BatchBounds
    ) -> tuple[dict[Oid, DueAlteration], BatchBounds]:
        """Return the first alteration of each table within ``bounds``, and the new bounds, which
        end below the first alteration that cannot be carried out within the batch."""
        due: dict[Oid, DueAlteration] = {}
        rels = [table.rel for table in self._tables]
        self._schemas.agree(work.subscription, rels, bounds.reached)
        for table in self._tables:
            alteration = self._schemas.due([table.rel], bounds.reached)
            if alteration is not None:
                due[table.rel.relid] = alteration
        waiting = [
            alteration.lsn
            for relid, alteration in due.items()
            if not (work.follows and self._is_free(relid, alteration))
        ]
        if waiting:
            bounds = bounds.below(min(waiting))
            due = {
                k: alteration
                for k, alteration in due.items()
                if alteration.lsn < bounds.reached
            }
        # A row of a table without a key is identified by all columns that are sent.
        changed = first_change_of_columns(
            self._catalog,
            self._reader,
            [p.changes for p in self._parts(work, due, bounds)],
        )
        if changed is not None and (bounds.cut is None or changed < bounds.cut):
            bounds = bounds.below(changed)
            due = {
                k: alteration
                for k, alteration in due.items()
                if alteration.lsn < changed
            }
        return due, bounds

    def _is_free(self, relid: Oid, due: DueAlteration) -> bool:
        columns = self._tables[relid].definition.columns
        # The sequence value of a row depends on the restarts of the whole batch.
        numbered = any(column.sequence is not None for column in columns)
        return not numbered and self._schemas.is_free(due)

    def _restart(
        self, work: BatchWork, parts: Sequence[BatchPart], alone: ExitStack
    ) -> None:
        """Find the sequences that the parts restart, and lock them."""
        restarts: dict[Oid, Restart] = {}
        for part in parts:
            restarts |= find_restarts(
                self._catalog, self._reader, self._tables, [part.changes], part.until
            )
        work.restarts = restarts
        for relid in restarts:
            if relid in work.staged:
                self._batches.discard(work.staged.pop(relid)[1])
        sequences = {oid for part in restarts.values() for oid in part.lasts}
        alone.enter_context(self._defaults.restarting(sequences))

    def _parts(
        self, work: BatchWork, due: dict[Oid, DueAlteration], bounds: BatchBounds
    ) -> list[BatchPart]:
        """Return the part of each table below its first alteration."""
        parts = []
        for table in work.batch.tables:
            alteration = due.get(table.relid)
            until = bounds.cut if alteration is None else alteration.lsn
            parts.append(self._part(work, table.relid, until))
        return [part for part in parts if part.changes.files]

    def _part(self, work: BatchWork, relid: Oid, until: Lsn | None) -> BatchPart:
        """Return the changes of a table from its position to ``until``."""
        participant = self._tables[relid]
        (changes,) = (t for t in work.batch.tables if t.relid == relid)
        if relid in work.altered:
            rel = participant.rel
            again = divide(
                self._schemas.translated(work.batch.manifests),
                positions={
                    (rel.remote_namespace, rel.remote_name): (relid, changes.position)
                },
                end=work.batch.end,
            )
            changes = next(
                (t for t in again.tables if t.relid == relid),
                replace(changes, files=()),
            )
        after_skip = work.skip.position if work.skip is not None else None
        position = max(participant.cursor, after_skip or INVALID_LSN)
        changes = changes.behind(Lsn(position))
        if until is not None:
            # A table with nothing below the cut needs no commit: the floor covers it.
            files = changes.below(until)
            if changes.position >= until:
                files = ()
            changes = replace(changes, files=files)
        elif changes.position >= work.batch.end:
            changes = replace(changes, files=())
        return BatchPart(changes, until)

    def _evaluate(
        self, work: BatchWork, parts: list[BatchPart], bounds: BatchBounds
    ) -> BatchFailure | None:
        """Check and stage the parts; parts that are staged already stay."""
        parts = [
            part
            for part in parts
            if part.changes.relid not in work.staged
            or work.staged[part.changes.relid][0].changes != part.changes
        ]
        after_skip = work.skip.position if work.skip is not None else None
        decided = self._publisher.decided(work.subscription.floor)
        failures = [f for part in parts for f in self._target_failures(work, part)]
        failures += check_others(
            self._catalog,
            self._reader,
            work.batch.others,
            subid=self._subid,
            position=max(decided, after_skip or INVALID_LSN),
            cut=bounds.cut,
        )
        if failures:
            return first_failure(failures)
        if after_skip is not None:
            # Rows whose deletion is skipped may conflict with later inserts.
            for table in work.batch.tables:
                self._tables.distrust(self._tables[table.relid])
        staged = self._stager.stage(work, parts)
        for part, result in zip(parts, staged, strict=True):
            before = work.staged.pop(part.changes.relid, None)
            if before is not None:
                self._batches.discard(before[1])
            work.staged[part.changes.relid] = (part, result)
        return first_failure(
            row_failure(self._subid, self._tables[relid].definition, row)
            for relid, (_, result) in work.staged.items()
            for row in result.failures
        )

    def _alter(
        self,
        work: BatchWork,
        due: dict[Oid, DueAlteration],
        alteration: DueAlteration,
        bounds: BatchBounds,
    ) -> BatchFailure | None:
        """Carry out the first alteration, below which everything has been evaluated, and evaluate
        the rest of its table's changes."""
        relid = alteration.rel.relid
        participant = self._tables[relid]
        part, staged = work.staged.pop(relid, (None, None))
        if part is not None and staged is not None:
            try:
                self._expect(work, alteration.lsn, {relid: (part, staged)})
            except BaseException:
                self._batches.discard(staged)
                raise
            self._commit(relid, part, staged, alteration.lsn)
        through = self._joined(work, due, alteration, bounds)
        try:
            self._schemas.adopt(
                work.subscription,
                alteration,
                participant.definition,
                trusted=lambda: self._tables.is_ours_but_altered(participant),
                finishing=self._commit_lock,
                through=through,
            )
        except Wal2LakeError as error:
            # The next step tries again, when all tables have everything below.
            return BatchFailure(alteration.lsn, error, resumes=True)
        failpoint("apply.altered")
        if not self._tables.altered(relid):
            raise _DividedAnewError
        work.altered.add(relid)
        rel = self._tables[relid].rel
        self._schemas.agree(work.subscription, [rel], bounds.reached)
        following = self._schemas.due([rel], bounds.reached)
        if following is None:
            due.pop(relid)
        elif not self._is_free(relid, following):
            return BatchFailure(following.lsn, _NOT_NOW, resumes=True)
        else:
            due[relid] = following
        if not any(table.relid == relid for table in work.batch.tables):
            return None
        until = bounds.cut if following is None else following.lsn
        rest = self._part(work, relid, until)
        return self._evaluate(work, [rest], bounds) if rest.changes.files else None

    def _joined(
        self,
        work: BatchWork,
        due: dict[Oid, DueAlteration],
        first: DueAlteration,
        bounds: BatchBounds,
    ) -> Lsn:
        """Return the last of the alterations that can be carried out with the first one, because
        their columns take every value and no row between them fails without these columns."""
        participant = self._tables[first.rel.relid]
        table = participant.definition
        others = [a.lsn for a in due.values() if a is not first]
        end = min([bounds.reached, *others])
        run = self._schemas.additions(work.subscription, first, table, end)
        if len(run) < 2 or not table.key or participant.history is not None:
            return INVALID_LSN
        last = run[-1].sent.commit_lsn
        between = without_columns(work.batch.manifests, participant.rel, run)
        if not between.files:
            return last
        if between.rows > _TRIED_ROWS * (len(run) - 1):
            return INVALID_LSN
        part = BatchPart(between, last)
        try:
            if self._target_failures(work, part):
                return INVALID_LSN
            (staged,) = self._stager.stage(work, [part])
        except Wal2LakeError:
            # It is reported when the alterations are carried out one by one.
            return INVALID_LSN
        self._batches.discard(staged)
        return INVALID_LSN if staged.failures else last

    def _target_failures(self, work: BatchWork, part: BatchPart) -> list[BatchFailure]:
        return check_targets(
            self._catalog,
            self._reader,
            [part.changes],
            rights=self._catalog.target_rights(work.subscription),
            origin=f"pg_{work.subscription.oid}",
            cut=part.until,
            keeps_deleted=work.subscription.keeps_deleted,
        )

    def _discard(self, work: BatchWork, above: Lsn | None = None) -> None:
        """Discard staged changes with rows at or above ``above``; all of them if it is None."""
        for relid, (part, staged) in list(work.staged.items()):
            if above is None or staged.failures or part.reaches(above):
                del work.staged[relid]
                self._batches.discard(staged)

    # ---- stage and commit --------------------------------------------------------------

    def _expect(
        self, work: BatchWork, reached: Lsn, staged: dict[Oid, tuple[BatchPart, Staged]]
    ) -> None:
        """Record in the catalog, before the tables commit, which values the commits change and
        which changes they leave out."""
        for relid, (part, result) in staged.items():
            participant = self._tables[relid]
            if result.conflicts and not is_unique(part.changes, participant.definition):
                # The publisher sends old rows whole, and the local rows may differ from them now.
                self._tables.distrust(participant)
        conflicts = batch_conflicts(
            [
                (self._tables[relid].definition, result.conflicts)
                for relid, (_, result) in staged.items()
            ],
            work.transactions,
        )
        self._catalog.expect(
            self._subid,
            reached,
            {relid: part.changes.position for relid, (part, _) in staged.items()},
            {relid: result.coercions for relid, (_, result) in staged.items()},
            [found_conflict.conflict for found_conflict in conflicts],
            {
                relid: work.restarts[relid].lasts
                for relid in staged
                if relid in work.restarts
            },
            [
                pending_of(
                    relid,
                    history.definition,
                    self._cursor(relid, reached),
                    result.history,
                )
                for relid, (_, result) in staged.items()
                if result.history
                and (history := self._tables[relid].history) is not None
            ],
            {relid: self._tables[relid].cursor for relid in staged},
        )
        work.unpublished += conflicts
        for reported in conflicts:
            self._measures.conflicted(reported.table, reported.conflict)

    def _commit_all(self, work: BatchWork, reached: Lsn) -> list[Oid]:
        """Commit every table. Raise the first error after all commits have ended."""
        staged, work.staged = work.staged, {}
        running = [
            self._committers.submit(self._commit, relid, part, result, reached)
            for relid, (part, result) in staged.items()
        ]
        wait(running)
        for future in running:
            future.result()
        return list(staged)

    def _commit(
        self, relid: Oid, part: BatchPart, staged: Staged, reached: Lsn
    ) -> None:
        participant = self._tables[relid]
        cursor = self._cursor(relid, reached)
        try:
            done = self._batches.commit(staged, cursor)
        except CommitConflict:
            self._batches.discard(staged)
            raise
        if staged.history and participant.history is not None:
            failpoint("apply.history_waits")
            recorded = self._batches.record(staged, cursor)
            participant.history.version = recorded.version
        participant.committed(reached, done.version)
        if done.interlopers:
            self._tables.distrust(participant)
        self._measures.committed(
            participant.definition,
            part.changes.files,
            part.changes.position,
            part.until,
            done.method,
        )
        self._measures.coerced(participant.definition, staged.coercions)
        failpoint("apply.table_committed")

    def _cursor(self, relid: Oid, reached: Lsn) -> Cursor:
        rel = self._tables[relid].rel
        return Cursor(rel.cursor_name(self._catalog.system_identifier), int(reached))

    def _origin_exists(self, subid: int) -> bool:
        return self._catalog.subscription(Oid(subid)) is not None

    def _explained(self, failure: BatchFailure, work: BatchWork) -> BatchFailure:
        """Add the transaction to a failure that stops the subscription. A failure that is one of
        PostgreSQL's conflicts is recorded in the catalog."""
        lsn = int(failure.cut)
        transaction = work.transactions.at([lsn]).get(lsn)
        xid = None if transaction is None else transaction.xid
        if failure.message is not None:
            failure.error.context = failure.message.context(
                self._subid, xid, failure.cut
            )
        if failure.row is None:
            return failure
        table, row = failure.row
        if row.conflict is not None:
            stopping = conflict(
                table.oid, row.conflict, Resolution.ERROR, lsn, row.key, transaction
            )
            self._catalog.note_conflict(self._subid, stopping)
            self._measures.conflicted(table, stopping)
        return row_failure(
            self._subid,
            table,
            row,
            xid,
            self._origin_exists,
            values=self._stager.quotes(work.subscription)(table),
        )
