"""The apply worker of one subscription: sealed segments into table commits.

    segments ─▶ choose ─▶ divide by table ─▶ check ─▶ stage ─▶ (cut?) ─▶ commit ─▶ publish
                                                       all tables      all tables   floor
                                                       in parallel     in parallel  + vector

A loop over batches. What a crash leaves behind is found again from durable facts alone:
each table's cursor is in its own last commit, the floor in the catalog, the changes in
the log. A table that had committed when the crash came has a cursor above the floor and
skips what it has; the vector was not published, so no reader saw it alone. Its version is
published with the others', once they have caught up with it.

Positions. A table's position is the highest of its cursor, the floor, the newest vector's LSN if
readers see it, and the end of the last batch. A table that was just
copied joins with its cursor S; the batch starts at the lowest position, so it catches up
while the others skip. It turns visible (f -> s -> r) with the first vector whose LSN has
reached S. One that comes back from a pause does the same. As long as tables are behind the newest
vector, batches end there at the latest, and nothing is published: no state is older than the last.

Errors. A value, constraint or mapping that fails is located (commit LSN, ordinal): the batch is cut
below that transaction, what is before it is applied, and the error is reported with
PostgreSQL's context and the finish LSN; the worker tries again after
wal_retrieve_retry_interval. Other subscriptions are other workers.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Final

from wal2lake.apply.batch import Batch, TableChanges, choose, divide
from wal2lake.apply.conflicts import Transactions, conflict, met, tell
from wal2lake.apply.failures import Failure, first_failure, row_failure
from wal2lake.apply.participants import Participants
from wal2lake.apply.relationmap import has_unique_key
from wal2lake.apply.restarts import (
    Restart,
    fills_of,
    find_restarts,
    pending_restarts,
)
from wal2lake.apply.schema.follow import AlterTable, Due, SchemaFollower
from wal2lake.apply.skipping import Skip, begin_skip
from wal2lake.apply.targets import check_others, check_targets, first_change_of_columns
from wal2lake.catalog import (
    Catalog,
    ProgressFile,
    Subscription,
    TableDef,
    Worker,
)
from wal2lake.changelog import LogReader
from wal2lake.errors import Wal2LakeError, sqlstate_of
from wal2lake.lake import CommitConflict, Cursor, TablePort
from wal2lake.lake.batchport import BatchPort, Staged, StageRequest
from wal2lake.lake.origins import Commits
from wal2lake.lake.staging.convert import Rules
from wal2lake.lake.staging.defaults import NO_DEFAULTS, ColumnDefaults
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.model import INVALID_LSN, Lsn, Oid, Resolution
from wal2lake.observe import failpoint, get_logger
from wal2lake.pgtypes import (
    ConflictResolutions,
    RemoteTypes,
    ValuePolicies,
    check_tracked,
    remote_types_from_json,
)
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.02
"""How soon a new segment is noticed; small beside a table commit's 200 ms."""

_LOOK_SECONDS: Final = 1.0
_LOOK_PAUSES: Final = 50
"""Between two looks for commits of others, in seconds, and in times that a look takes: on an object
store it may be seconds."""

_ATTEMPTS: Final = 3
"""At a batch that other writers of a table overtake, before it is an error. Each has half as much
in it, and so half the time in which to be overtaken."""

_PARALLEL_TABLES: Final = 4
"""Tables of one batch that Spark works on at once: their driver-side steps overlap."""


class ApplyWorker:
    """Runs in its own thread from ``start`` until it is told to stop."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        tables: TablePort,
        batches: BatchPort,
        progress: ProgressFile,
        commit_lock: threading.RLock,
        alter: AlterTable,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """``commit_lock`` is held while tables commit and the vector is published:
        writers at the front door hold it too, so that a vector is never torn.
        ``defaults``: of columns that the publisher does not send. ``published`` is called
        when readers see something new."""
        self._defaults = defaults
        self._published = published
        self._catalog = catalog
        self._settings = settings
        self._subid = subid
        self._port = tables
        self._batches = batches
        self._progress = progress
        self._commit_lock = commit_lock
        directory = settings.log_directory / str(int(subid))
        # The receiver may come later than we do.
        directory.mkdir(parents=True, exist_ok=True)
        self._reader = LogReader(directory)
        self._tables = Participants(catalog, tables, subid)
        self._schemas = SchemaFollower(catalog, subid, alter)
        self._seen_change = -1
        self._idle_at: tuple[Lsn, int] | None = None
        """Sealed position and catalog state at which there was nothing to do."""
        self._look_at = 0.0
        """When to look for commits of others again, on the monotonic clock."""
        self._overtaken = 0
        """Attempts that somebody else's commit has ended, less the batches since."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Try again, without waiting for the interval."""
        self._events = get_logger()
        self._pool = ThreadPoolExecutor(_PARALLEL_TABLES, f"apply-{int(subid)}")
        self._thread = threading.Thread(
            target=self._run, name=f"apply-{int(subid)}", daemon=True
        )

    # ---- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def request_stop(self) -> None:
        """End after the batch in hand."""
        self._stop.set()
        self._wake.set()

    def reload(self, settings: Settings) -> None:
        """Obey these from now on."""
        self._settings = settings
        self._wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end; False if that takes longer than the time."""
        self._thread.join(timeout_seconds)
        return not self.alive

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self._events.info(
            f"logical replication apply worker for subscription {self._subid}"
            " has started"
        )
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    if self._step():
                        self._overtaken = max(0, self._overtaken - 1)
                    else:
                        self._stop.wait(_POLL_SECONDS)
                except Exception as error:
                    if self._stop.is_set():
                        # What it stands on is being taken away: says nothing of the batch.
                        self._events.info("apply ended", reason=str(error))
                        break
                    self._tables.forget()
                    self._seen_change = -1
                    if self._is_overtaken(error):
                        continue
                    self._report(error)
                    if not self._stop.is_set():
                        retry = self._settings.subscription
                        self._wake.wait(retry.wal_retrieve_retry_interval_ms / 1000)
        finally:
            self._pool.shutdown(wait=False)

    def _is_overtaken(self, error: Exception) -> bool:
        """Whether to try again at once: another writer of a table was faster."""
        if not isinstance(error, CommitConflict):
            return False
        if self._overtaken < _ATTEMPTS:
            self._overtaken += 1
            self._events.info(
                "a batch is evaluated again: a table has changed meanwhile",
                reason=error.detail or str(error),
            )
            return True
        if error.hint is None:
            error.hint = (
                "Somebody else commits to the table more often than a batch can be applied:"
                " let that job wait, or make batches smaller (apply.batch_rows)."
            )
        return False

    def _report(self, error: Exception) -> None:
        """Say it in the server log and, if that can be written, in the catalog."""
        if isinstance(error, Wal2LakeError):
            self._events.error(error.message, error=error)
            text = error.describe()
        else:
            self._events.error("apply failed", exc_info=error)
            text = f"internal error: {error!r}"
        try:
            self._catalog.note_error(
                self._subid, Worker.APPLY, text, sqlstate_of(error)
            )
            self._catalog.disable_if_asked(self._subid, error)
        except Exception as unwritten:
            self._events.error("could not record an error", exc_info=unwritten)

    # ---- one batch ---------------------------------------------------------------------

    def _step(self) -> bool:
        """Apply the next batch; False if there was nothing to do."""
        # In this order: what is sealed now is in the listing that follows.
        sealed = Lsn(self._progress.word("sealed"))
        change = self._catalog.change_counter
        if (sealed, change) == self._idle_at:
            return self._look_for_others()
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return False
        if change != self._seen_change:
            self._tables.refresh(subscription)
            self._seen_change = change
        floor = subscription.floor
        decided = self._decided(floor)
        start = min((t.position(floor) for t in self._tables), default=decided)
        # A table may join above what has been looked at, which holds other relations.
        start = min(start, decided)
        waiting = self._reader.above(start)
        if not waiting:
            reached = max(sealed, decided)
            worked = self._settle(subscription, reached)
            worked = worked or self._follow_settled(subscription, reached)
            self._idle_at = None if worked else (sealed, change)
            return worked
        self._idle_at = None
        limits = self._settings.apply
        # A table that was ahead when a crash came must not be passed by a vector that
        # lacks what it already has: the batch reaches at least as far as the table.
        ahead = max((t.cursor for t in self._tables if t.visible), default=floor)
        # After the listing: what its segments need was noted before they were written.
        self._schemas.refresh(subscription)
        # Others catch up with the vector first, in batches of their own.
        catching_up = start < decided
        chosen = choose(
            self._schemas.translated(waiting),
            max_bytes=limits.batch_bytes >> self._overtaken,
            max_rows=limits.batch_rows >> self._overtaken,
            at_least=floor if catching_up else ahead,
        )
        end = chosen[-1].sealed_lsn
        batch = divide(chosen, positions=self._tables.positions(floor), end=end)
        due = self._schemas.due([t.rel for t in self._tables], end)
        if due is not None and due.at <= start:
            self._follow(subscription, due)
        else:
            self._apply(
                subscription,
                batch,
                altered=None if due is None else due.at,
                caught_up=decided if catching_up else None,
            )
        return True

    def _look_for_others(self) -> bool:
        """With nothing to do: publish what others, who tell nobody, have committed."""
        began = time.monotonic()
        if began < self._look_at:
            return False
        found = self._tables.written_by_others()
        if found:
            with self._commit_lock:
                if self._tables.take_notice(found):
                    self._idle_at = None
        took = time.monotonic() - began
        self._look_at = began + max(_LOOK_SECONDS, took * _LOOK_PAUSES)
        return self._idle_at is None

    def _follow(self, subscription: Subscription, due: Due) -> None:
        """Alter a table as its publisher has done."""
        if not self._tables.are_members():
            return
        table = self._tables[due.rel.relid]
        self._schemas.adopt(
            subscription,
            due,
            table.definition,
            trusted=lambda: self._tables.is_ours_but_altered(table),
            # Who writes the table meanwhile is seen by the one or by the other.
            finishing=self._commit_lock,
        )
        failpoint("apply.altered")
        # What is known of the table is not so any more.
        self._tables.forget()
        self._seen_change = -1

    def _follow_settled(self, subscription: Subscription, reached: Lsn) -> bool:
        """Columns that become NOT NULL once all below ``reached`` has been applied."""
        self._schemas.refresh(subscription)
        due = self._schemas.due([t.rel for t in self._tables], Lsn(reached + 1))
        if due is None or due.sent is not None:
            return False
        self._follow(subscription, due)
        return True

    def _decided(self, floor: Lsn) -> Lsn:
        """Below it every transaction has been applied, or skipped where it may be."""
        vector = self._catalog.newest_vector(self._subid)
        return floor if vector is None else Lsn(max(floor, vector.lsn))

    def _settle(self, subscription: Subscription, reached: Lsn) -> bool:
        """Nothing to apply below ``reached``: let copied tables join, and publish what
        had been committed when a crash came."""
        if not self._tables.unseen(reached):
            if self._progress.word("applied") < subscription.floor:
                self._progress.set(applied=subscription.floor)
            return self._let_floor_follow(subscription.floor)
        with self._commit_lock:
            return not self._tables.are_members() or self._publish(reached)

    def _let_floor_follow(self, floor: Lsn) -> bool:
        """A table that held the floor below the vector may have left."""
        decided = self._decided(floor)
        tables = [int(t.rel.relid) for t in self._tables]
        if floor >= self._catalog.floor_bound(self._subid, decided, tables):
            return False
        with self._commit_lock:
            return not self._tables.are_members() or self._publish(decided)

    def _apply(
        self,
        subscription: Subscription,
        batch: Batch,
        *,
        altered: Lsn | None,
        caught_up: Lsn | None,
    ) -> None:
        """``altered``: a transaction for which a table is to be altered first. ``caught_up``:
        tables that are behind the vector take this batch, up to there."""
        found = skip = None
        cuts = [
            first_change_of_columns(self._catalog, self._reader, batch.tables),
            altered,
        ]
        if caught_up is None:
            skip = begin_skip(
                self._catalog,
                subscription,
                self._tables,
                self._reader,
                batch,
                self._decided(subscription.floor),
            )
        elif caught_up < batch.end:
            # What comes next concerns all of them, a SKIP for instance.
            cuts.append(caught_up)
        cut = min((lsn for lsn in cuts if lsn is not None), default=None)
        failure = self._attempt(subscription, batch, cut, skip)
        while failure is not None:
            # What is found later in an attempt may lie before: each cut is below the last one.
            found, failure = failure, None
            if found.cut > subscription.floor or self._tables.unseen(found.cut):
                failure = self._attempt(subscription, batch, found.cut, skip)
        if found is not None and not found.divides:
            raise self._explained(found, batch).error
        self._catalog.note_error(self._subid, Worker.APPLY, None)

    def _explained(self, failure: Failure, batch: Batch) -> Failure:
        """What stops the subscription, with its transaction; noted, if it is one of PostgreSQL's
        conflicts."""
        lsn = int(failure.cut)
        known = Transactions(self._reader, batch.manifests).at([lsn]).get(lsn)
        xid = None if known is None else known.xid
        if failure.message is not None:
            failure.error.context = failure.message.context(
                self._subid, xid, failure.cut
            )
        if failure.row is None:
            return failure
        table, row = failure.row
        if row.conflict is not None:
            self._catalog.note_conflict(
                self._subid,
                conflict(
                    table.oid, row.conflict, Resolution.ERROR, lsn, row.key, known
                ),
            )
        return row_failure(
            self._subid,
            table,
            row,
            xid,
            self._origin_exists,
            values=self._settings.apply.log_conflict_values,
        )

    def _origin_exists(self, subid: int) -> bool:
        return self._catalog.subscription(Oid(subid)) is not None

    def _attempt(
        self,
        subscription: Subscription,
        batch: Batch,
        cut: Lsn | None,
        skip: Skip | None,
    ) -> Failure | None:
        """Stage all; commit all and publish if nothing failed."""
        reached = batch.end if cut is None else cut
        behind = skip.position if skip is not None else None
        parts = [t if behind is None else t.behind(behind) for t in batch.tables]
        parts = [t for t in parts if t.position < reached and t.files]
        if cut is not None:
            # The floor is enough for a table that has nothing below the cut.
            parts = [p for p in parts if any(f.min_commit_lsn < cut for f in p.files)]
        failures = check_targets(
            self._catalog,
            self._reader,
            parts,
            rights=self._catalog.target_rights(subscription),
            origin=f"pg_{subscription.oid}",
            cut=cut,
        )
        failures += check_others(
            self._catalog,
            self._reader,
            batch.others,
            subid=self._subid,
            position=max(self._decided(subscription.floor), behind or INVALID_LSN),
            cut=cut,
        )
        if failures:
            return first_failure(failures)
        with ExitStack() as alone:
            alone.enter_context(self._commit_lock)
            if not self._tables.are_members():
                # The batch is divided anew at the next step.
                return None
            restarts = find_restarts(
                self._catalog, self._reader, self._tables, parts, cut
            )
            sequences = {oid for one in restarts.values() for oid in one.lasts}
            alone.enter_context(self._defaults.restarting(sequences))
            if behind is not None:
                # What a table misses may be in the way of what is inserted.
                for table in batch.tables:
                    self._tables.distrust(self._tables[table.relid])
            transactions = Transactions(self._reader, batch.manifests)
            staged = self._stage_all(subscription, parts, cut, transactions, restarts)
            failure = first_failure(
                row_failure(self._subid, self._tables[part.relid].definition, row)
                for part, one in zip(parts, staged, strict=True)
                for row in one.failures
            )
            if failure is not None:
                for one in staged:
                    self._batches.discard(one)
                return failure
            failpoint("apply.staged")
            try:
                for part, one in zip(parts, staged, strict=True):
                    known = self._tables[part.relid]
                    if one.conflicts and not _is_unique(part, known.definition):
                        # Old rows come whole, and ours may not be those any more.
                        self._tables.distrust(known)
                conflicts = met(
                    [
                        (self._tables[part.relid].definition, one.conflicts)
                        for part, one in zip(parts, staged, strict=True)
                    ],
                    transactions,
                )
                self._catalog.expect(
                    self._subid,
                    reached,
                    {part.relid: part.position for part in parts},
                    {p.relid: s.coercions for p, s in zip(parts, staged, strict=True)},
                    [one.conflict for one in conflicts],
                    {relid: one.lasts for relid, one in restarts.items()},
                )
            except BaseException:
                for one in staged:
                    self._batches.discard(one)
                raise
            self._commit_all(parts, staged, reached)
            failpoint("apply.tables_committed")
            for known in self._tables:
                known.passed(reached)
            self._publish(reached, committed=[part.relid for part in parts], skip=skip)
        tell(
            f"pg_{subscription.oid}",
            conflicts,
            values=self._settings.apply.log_conflict_values,
            exists=self._origin_exists,
        )
        return None

    def _stage_all(
        self,
        subscription: Subscription,
        parts: list[TableChanges],
        cut: Lsn | None,
        transactions: Transactions,
        restarts: Mapping[Oid, Restart],
    ) -> list[Staged]:
        tracked = self._settings.apply.track_commit_timestamp
        check_tracked(subscription.conflict_resolution, tracked=tracked)
        commits = transactions.commits(self._subid) if tracked and parts else None
        resolutions = ConflictResolutions.parse(subscription.conflict_resolution)
        types = remote_types_from_json(subscription.remote_types)
        policies = ValuePolicies.parse(subscription.value_policies)
        running = [
            self._pool.submit(
                self._stage,
                part,
                cut,
                types,
                policies,
                resolutions,
                commits,
                restarts.get(part.relid),
                follows=subscription.follows_schema,
            )
            for part in parts
        ]
        wait(running)
        if any(one.exception() is not None for one in running):
            for one in running:
                if one.exception() is None:
                    self._batches.discard(one.result())
        return [one.result() for one in running]

    def _stage(
        self,
        part: TableChanges,
        cut: Lsn | None,
        types: RemoteTypes,
        policies: ValuePolicies,
        resolutions: ConflictResolutions,
        commits: Commits | None,
        restart: Restart | None,
        *,
        follows: bool,
    ) -> Staged:
        known = self._tables[part.relid]
        state = self._tables.look(known)
        definition = known.definition
        # What the publisher's own constraint does not rule out is looked up.
        trusted = known.trusted and _is_unique(part, definition)
        files = part.below(cut)
        inserts = itertools.accumulate((f.inserts for f in files), initial=0)
        request = StageRequest(
            namespace=definition.namespace,
            name=definition.name,
            state=state,
            key=definition.key,
            constraint=definition.index_name,
            sources=[
                LogSource(
                    str(self._reader.path(f.file)),
                    f.relation,
                    f.rows,
                    f.commit_lsn,
                    f.rolled_back,
                    before,
                    f.constants,
                )
                for f, before in zip(files, inserts, strict=False)
            ],
            span=LsnRange(part.position, cut),
            append=part.insert_only and (trusted or not definition.key),
            trusted=trusted,
            types=types,
            rules=Rules(
                policies,
                frozenset(c.name for c in definition.columns if c.not_null),
                frozenset(definition.key),
                self._settings.apply.max_value_bytes,
                follows,
            ),
            fills=fills_of(self._defaults, files, definition, restart),
            shows_rows=self._settings.apply.log_conflict_values,
            resolutions=resolutions.of(definition.namespace, definition.name),
            nulls=frozenset(
                c.name
                for c in definition.columns
                if c.default is None and not c.not_null
            ),
            commits=commits,
            has_their_rows=known.trusted,
        )
        return self._batches.stage(request)

    def _commit_all(
        self, parts: list[TableChanges], staged: list[Staged], reached: Lsn
    ) -> None:
        """Commit every table; the first error once all of them have ended."""
        running = [
            self._pool.submit(self._commit, part, one, reached)
            for part, one in zip(parts, staged, strict=True)
        ]
        wait(running)
        for one in running:
            one.result()

    def _commit(self, part: TableChanges, staged: Staged, reached: Lsn) -> None:
        known = self._tables[part.relid]
        name = known.rel.cursor_name(self._catalog.system_identifier)
        try:
            done = self._batches.commit(staged, Cursor(name, int(reached)))
        except CommitConflict:
            self._batches.discard(staged)
            raise
        known.committed(reached, done.version)
        if done.interlopers:
            self._tables.distrust(known)
        failpoint("apply.table_committed")

    def _publish(
        self,
        reached: Lsn,
        committed: Collection[Oid] = (),
        skip: Skip | None = None,
    ) -> bool:
        """Floor, vector, states; then the word that feedback and retention watch.

        The caller holds the commit lock, and has committed to the tables ``committed``
        under it. The others were read without it: the front door may have written them
        since, and whoever made their newest version may have died before its sync.

        False, and nothing, if a table that readers see is ahead of ``reached``, or if all
        of them are: others catch up.
        """
        if any(t.visible and t.cursor > reached for t in self._tables):
            return False
        vector = self._catalog.newest_vector(self._subid)
        if vector is not None and reached < vector.lsn:
            return False
        unseen = self._tables.unseen(reached)
        for table in unseen:
            if table.rel.relid not in committed:
                version = self._tables.look(table).version
                self._port.sync(table.definition.location, version)
        skipped = skip.decided(reached) if skip is not None else None
        sequences, voided = pending_restarts(
            self._catalog, self._port, self._subid, reached
        )
        with self._defaults.restarting(sequences):
            floor = self._catalog.publish(
                self._subid,
                reached,
                {int(t.rel.relid): t.version for t in unseen},
                participants=[int(t.rel.relid) for t in self._tables],
                joined=[int(t.rel.relid) for t in unseen if not t.ready],
                skipped=skipped,
                voided=voided,
            )
        if skip is not None and skipped is not None:
            skip.report()
        for table in unseen:
            table.unpublished = False
        failpoint("apply.vector_recorded")
        self._progress.set(applied=floor)
        self._published()
        return True


def _is_unique(part: TableChanges, table: TableDef) -> bool:
    """The publisher's own constraint has the table's key."""
    return all(has_unique_key(f.relation, table.key) for f in part.files)
