"""The apply worker of one subscription: sealed segments into table commits.

    segments ─▶ choose ─▶ divide by table ─▶ stage ─▶ (cut?) ─▶ commit ─▶ publish
    ──────────── here ────────────────────   ────────────── step/ ─────────────────

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
from wal2lake.lake.batch.batchport import BatchPort
from wal2lake.lake.staging.defaults import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Lsn, Oid
from wal2lake.observe import RepeatedErrors, failpoint, get_logger
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
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """``commit_lock`` is held while tables commit and the vector is published:
        writers at the front door hold it too, so that a vector is never torn.
        ``defaults``: of columns that the publisher does not send. ``published`` is called
        when readers see something new."""
        self._catalog = catalog
        self._settings = settings
        self._subid = subid
        self._progress = progress
        self._commit_lock = commit_lock
        directory = settings.log_directory / str(int(subid))
        # The receiver may come later than we do.
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
        """The subscription's, as the step in hand has found it."""
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
        self._repeated = RepeatedErrors()
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
        self._settings = self._applier.settings = settings
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
            self._applier.close()

    def _is_overtaken(self, error: Exception) -> bool:
        """Whether to try again at once: another writer of a table was faster."""
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
                " let that job wait, or make batches smaller (apply.batch_rows)."
            )
        return False

    def _report(self, error: Exception) -> None:
        """Say it in the server log and, if that can be written, in the catalog."""
        known = isinstance(error, Wal2LakeError)
        self._repeated.say(self._events, str(error) if known else "apply failed", error)
        try:
            self._catalog.note_error(
                self._subid, WorkerKind.APPLY, description_of(error), sqlstate_of(error)
            )
            self._catalog.disable_if_asked(self._subid, self._generation, error)
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
        self._generation = subscription.generation
        if change != self._seen_change:
            self._tables.refresh(subscription)
            self._seen_change = change
        floor = subscription.floor
        decided = self._publisher.decided(floor)
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
        """Where nothing is left to apply below ``reached``: columns that become NOT NULL, and
        what the receiver has noticed without a row."""
        self._schemas.refresh(subscription)
        rels = [t.rel for t in self._tables]
        due = self._schemas.relabelled(rels)
        due = due or self._schemas.due(rels, Lsn(reached + 1))
        if due is None:
            return False
        self._follow(subscription, due)
        return True

    def _settle(self, subscription: Subscription, reached: Lsn) -> bool:
        """Nothing to apply below ``reached``: let copied tables join, and publish what
        had been committed when a crash came."""
        if not self._tables.unseen(reached):
            if self._progress.word("applied") < subscription.floor:
                self._progress.set(applied=subscription.floor)
            return self._let_floor_follow(subscription.floor)
        with self._commit_lock:
            return not self._tables.are_members() or self._publisher.publish(reached)

    def _let_floor_follow(self, floor: Lsn) -> bool:
        """A table that held the floor below the vector may have left."""
        decided = self._publisher.decided(floor)
        tables = [int(t.rel.relid) for t in self._tables]
        if floor >= self._catalog.floor_bound(self._subid, decided, tables):
            return False
        with self._commit_lock:
            return not self._tables.are_members() or self._publisher.publish(decided)
