"""The apply worker of one subscription turns sealed segments into table commits.

    segments ─▶ choose ─▶ divide by table ─▶ stage ─▶ (cut?) ─▶ commit ─▶ publish
    ──────────── here ────────────────────   ────────────── step/ ─────────────────

The worker loops over batches. After a crash it recovers from durable facts alone: each table's
cursor is in the table's last commit, the floor in the catalog, the changes in the log. A table that
committed before the crash has a cursor above the floor and skips the changes below the cursor. Its
vector was not published, so no reader saw the table alone. Its version is published with the
others' once they have caught up.

Positions. A table's position is the highest of its cursor, the floor, the newest vector's LSN if
readers see the table, and the end of the last batch. A newly copied table joins with its cursor S.
The batch starts at the lowest position, so the new table catches up while the others skip. The
table becomes visible (f -> s -> r) with the first vector whose LSN has reached S. A table that
comes back from a pause does the same. While tables are behind the newest vector, batches end at
that vector at the latest and nothing is published, so readers never see an older state.

Errors. If a value, constraint or mapping fails, the failure is located (commit LSN, ordinal) and
the batch is cut below its transaction. The changes before it are applied, and the error is reported
with PostgreSQL's context and the finish LSN. The worker tries again after
wal_retrieve_retry_interval. Each subscription has a worker of its own.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wal2lake.apply.batch import BatchBounds, choose, divide
from wal2lake.apply.participants import Participants
from wal2lake.apply.schema.follow import Due, SchemaFollower, TableAlteration
from wal2lake.apply.step.applier import BatchApplier
from wal2lake.apply.step.publishing import VectorPublisher
from wal2lake.catalog import (
    Catalog,
    ProgressFile,
    Subscription,
    WorkerKind,
)
from wal2lake.changelog import LogReader
from wal2lake.errors import Wal2LakeError, description_of, sqlstate_of
from wal2lake.lake import CommitConflict, TablePort
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.staging import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Lsn, Oid
from wal2lake.observe import OrderedLock, RepeatedErrors, failpoint, get_logger
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.02
"""Interval between looks for new segments; small beside the 200 ms of a table commit."""

_LOOK_SECONDS: Final = 1.0
_LOOK_PAUSES: Final = 50
"""Pause between two looks for commits of other writers: at least ``_LOOK_SECONDS``, and at least
``_LOOK_PAUSES`` times the duration of a look, which may take seconds on an object store."""

_ATTEMPTS: Final = 3
"""Attempts at a batch while other writers commit to its tables first; then it is an error. Each
attempt halves the limits of the batch, and thereby the time in which others can commit."""


class ApplyWorker:
    """Applies batches in a thread of its own from ``start`` until it is stopped."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        tables: TablePort,
        batches: BatchPort,
        progress: ProgressFile,
        commit_lock: OrderedLock,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """``commit_lock`` is held while tables commit and the vector is published. Sessions that
        write hold it, too, so that a vector is never torn. ``defaults``: defaults of columns that
        the publisher does not send. ``published`` is called when readers see a new version."""
        self._catalog = catalog
        self._settings = settings
        self._subid = subid
        self._progress = progress
        self._commit_lock = commit_lock
        directory = settings.log_directory / str(int(subid))
        # The receiver may start later than this worker.
        directory.mkdir(parents=True, exist_ok=True)
        self._reader = LogReader(directory)
        self._tables = Participants(catalog, tables, subid)
        self._schemas = SchemaFollower(catalog, subid, alter)
        self._publisher = VectorPublisher(
            catalog, subid, self._tables, tables, progress, defaults, published
        )
        self._applier = BatchApplier(
            catalog,
            settings,
            subid,
            self._reader,
            self._tables,
            self._schemas,
            batches,
            self._publisher,
            commit_lock,
            defaults,
        )
        self._seen_change = -1
        self._generation = 0
        """Generation of the subscription at the beginning of the current step."""
        self._idle_at: tuple[Lsn, int] | None = None
        """Sealed position and catalog counter of the last step that had nothing to do."""
        self._look_at = 0.0
        """Time of the next look for commits of other writers, on the monotonic clock."""
        self._overtaken = 0
        """Attempts that another writer's commit has ended, less the batches applied since."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Set to retry without waiting for the interval."""
        self._events = get_logger()
        self._repeated = RepeatedErrors()
        self._thread = threading.Thread(
            target=self._run, name=f"apply-{int(subid)}", daemon=True
        )

    # ---- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask the worker to end after its current batch."""
        self._stop.set()
        self._wake.set()

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = self._applier.settings = settings
        self._wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end. Return False on a time-out."""
        self._thread.join(timeout_seconds)
        return not self.alive

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    if self._step():
                        self._overtaken = max(0, self._overtaken - 1)
                        self._repeated.passed(self._events)
                    else:
                        self._stop.wait(_POLL_SECONDS)
                except Exception as error:
                    if self._stop.is_set():
                        # Other parts of the engine are shutting down, so the error says nothing
                        # about the batch.
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
            self._applier.close()

    def _is_overtaken(self, error: Exception) -> bool:
        """Whether to retry at once, because another writer of a table was faster."""
        if not isinstance(error, CommitConflict):
            return False
        if self._overtaken < _ATTEMPTS:
            self._overtaken += 1
            self._events.info(
                "a batch is evaluated again: a table has changed meanwhile",
                reason=str(error.__cause__ or error).split("\n")[0],
            )
            return True
        if error.hint is None:
            error.hint = (
                "Somebody else commits to the table more often than a batch can be applied:"
                ' let that job wait, or lower "batch_rows" under [apply] in wal2lake.toml'
                " and restart the node."
            )
        return False

    def _report(self, error: Exception) -> None:
        """Report an error in the server log and, if possible, in the catalog."""
        is_ours = isinstance(error, Wal2LakeError)
        self._repeated.say(
            self._events, str(error) if is_ours else "apply failed", error
        )
        try:
            self._catalog.note_error(
                self._subid, WorkerKind.APPLY, description_of(error), sqlstate_of(error)
            )
            self._catalog.disable_if_asked(self._subid, self._generation, error)
        except Exception as unwritten:
            self._events.error("could not record an error", exc_info=unwritten)

    # ---- one batch ---------------------------------------------------------------------

    def _step(self) -> bool:
        """Apply the next batch. Return False if there was nothing to do."""
        # Read before the listing, which then contains every segment sealed so far.
        sealed = Lsn(self._progress.word("sealed"))
        change = self._catalog.change_counter
        if (sealed, change) == self._idle_at:
            return self._look_for_others()
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return False
        self._generation = subscription.generation
        if change != self._seen_change:
            self._tables.refresh(subscription)
            self._seen_change = change
        floor = subscription.floor
        decided = self._publisher.decided(floor)
        start = min((t.position(floor) for t in self._tables), default=decided)
        # A table may join above segments that hold rows of other relations only.
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
        # If a crash left a table ahead of the others, the next vector must contain all that the
        # table has, so the batch reaches at least the table's cursor.
        ahead = max((t.cursor for t in self._tables if t.visible), default=floor)
        # Refreshed after the listing: schemas are recorded before the segments that need them.
        self._schemas.refresh(subscription)
        # Tables behind the vector catch up first, in batches of their own.
        chosen = choose(
            waiting,
            max_bytes=limits.batch_bytes >> self._overtaken,
            max_rows=limits.batch_rows >> self._overtaken,
            at_least=floor if start < decided else ahead,
        )
        bounds = BatchBounds(start, decided, chosen[-1].sealed_lsn)
        rels = [t.rel for t in self._tables]
        due = self._schemas.relabelled(rels) or self._schemas.due(rels, bounds.end)
        if due is not None and due.at <= bounds.start:
            self._follow(subscription, due)
            return True
        positions = self._tables.positions(floor)
        batch = divide(
            self._schemas.translated(chosen), positions=positions, end=bounds.end
        )
        self._applier.apply(subscription, replace(batch, manifests=chosen), bounds)
        return True

    def _look_for_others(self) -> bool:
        """While idle, publish commits of other writers, which do not announce them."""
        began = time.monotonic()
        if began < self._look_at:
            return False
        written = self._tables.written_by_others()
        if written:
            with self._commit_lock:
                if self._tables.take_notice(written):
                    self._idle_at = None
        took = time.monotonic() - began
        self._look_at = began + max(_LOOK_SECONDS, took * _LOOK_PAUSES)
        return self._idle_at is None

    def _follow(self, subscription: Subscription, due: Due) -> None:
        """Alter a table as its publisher did."""
        if not self._tables.are_members():
            return
        table = self._tables[due.rel.relid]
        self._schemas.adopt(
            subscription,
            due,
            table.definition,
            trusted=lambda: self._tables.is_ours_but_altered(table),
            # Another writer's commit is seen either by ``trusted`` or, later, under this lock.
            finishing=self._commit_lock,
        )
        failpoint("apply.altered")
        # The cached facts about the table are out of date.
        self._tables.forget()
        self._seen_change = -1

    def _follow_settled(self, subscription: Subscription, reached: Lsn) -> bool:
        """Follow alterations when nothing is left to apply below ``reached``: columns that become
        NOT NULL, and changes that the receiver noticed without a row."""
        self._schemas.refresh(subscription)
        rels = [t.rel for t in self._tables]
        due = self._schemas.relabelled(rels)
        due = due or self._schemas.due(rels, Lsn(reached + 1))
        if due is None:
            return False
        self._follow(subscription, due)
        return True

    def _settle(self, subscription: Subscription, reached: Lsn) -> bool:
        """With nothing to apply below ``reached``, let copied tables join, and publish versions
        that were committed before a crash."""
        if not self._tables.unseen(reached):
            if self._progress.word("applied") < subscription.floor:
                self._progress.set(applied=subscription.floor)
            return self._let_floor_follow(subscription.floor)
        with self._commit_lock:
            return not self._tables.are_members() or self._publisher.publish(reached)

    def _let_floor_follow(self, floor: Lsn) -> bool:
        """Raise the floor if a table that held it below the vector has left."""
        decided = self._publisher.decided(floor)
        tables = [int(t.rel.relid) for t in self._tables]
        if floor >= self._catalog.floor_bound(self._subid, decided, tables):
            return False
        with self._commit_lock:
            return not self._tables.are_members() or self._publisher.publish(decided)
