"""One step of an apply worker: chooses the next batch, or finds other work, and does it.

    nothing sealed above the tables   publish committed versions, let copied tables join, follow
                                      alterations without rows, look for commits of other writers
    an alteration is due at once      alter the table (``schema.follow``)
    otherwise                         choose a batch, divide it by table, apply it (``applier``)

Positions. A table's position is the highest of its cursor, the floor, the newest vector's LSN if
readers see the table, and the end of the last batch. A newly copied table joins with its cursor S.
The batch starts at the lowest position, so the new table catches up while the others skip. The
table becomes visible (f -> s -> r) with the first vector whose LSN has reached S. A table that
comes back from a pause does the same. While tables are behind the newest vector, batches end at
that vector at the latest and nothing is published, so readers never see an older state.

A session that compares tables with their source marks a position (``statemarks``). The batch that
would pass it ends there. A session that repairs rows has the worker write them at that state
(``repairing``), before the next batch.

Called by the worker's thread. Source: DESIGN 6 (Apply), invariants 1 and 2; worker.c.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from wal2lake.apply.batch import BatchBounds, choose, divide
from wal2lake.apply.measures import ApplyMeasures
from wal2lake.apply.participants import Participants
from wal2lake.apply.schema.follow import DueAlteration, SchemaFollower, TableAlteration
from wal2lake.apply.step.applier import BatchApplier
from wal2lake.apply.step.publishing import VectorPublisher
from wal2lake.apply.step.repairs.repairing import RowRepairs
from wal2lake.apply.step.statemarks import HOLD_SECONDS, StateMark, StateMarks
from wal2lake.apply.step.visiblepositions import VisiblePositions
from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError
from wal2lake.lake import TablePort
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.staging import ColumnDefaults
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.observe import OrderedLock, failpoint
from wal2lake.observe.telemetry import Telemetry
from wal2lake.settings import Settings

_LOOK_SECONDS: Final = 1.0
_LOOK_PAUSES: Final = 50
"""Pause between two looks for commits of other writers: at least ``_LOOK_SECONDS``, and at least
``_LOOK_PAUSES`` times the duration of a look, which may take seconds on an object store."""


_RECORDED_ROWS: Final = 250_000
"""Most row changes in a batch whose changes are recorded one by one: the rows before and after each
are in memory. A larger transaction is a batch by itself."""


class ApplyStep:
    """Makes the steps of one subscription's apply worker."""

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
        defaults: ColumnDefaults,
        published: Callable[[], None],
        telemetry: Telemetry,
        positions: VisiblePositions,
    ) -> None:
        """The arguments are those of ``ApplyWorker``."""
        self.settings = settings
        self._catalog = catalog
        self._subid = subid
        self._progress = progress
        self._commit_lock = commit_lock
        directory = settings.log_directory / str(int(subid))
        # The receiver may start later than this worker.
        directory.mkdir(parents=True, exist_ok=True)
        self._reader = LogReader(directory)
        self.measures = ApplyMeasures(telemetry, self._reader)
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
            self.measures,
        )
        self._repairs = RowRepairs(
            catalog,
            subid,
            self._tables,
            batches,
            self._publisher,
            commit_lock,
            defaults,
        )
        self.marks = StateMarks()
        """Positions whose state sessions wait for."""
        self._positions = positions
        self.generation = 0
        """Generation of the subscription at the beginning of the last step."""
        self._seen_change = -1
        self._idle_at: tuple[Lsn, int] | None = None
        """Sealed position and catalog counter of the last step that had nothing to do."""
        self._look_at = 0.0
        """Time of the next look for commits of other writers, on the monotonic clock."""

    @property
    def is_idle(self) -> bool:
        """Whether the last step had nothing to do."""
        return self._idle_at is not None

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self._applier.reload(settings)

    def forget(self) -> None:
        """Read the tables' facts again in the next step."""
        self._tables.forget()
        self._seen_change = -1

    def close(self) -> None:
        """Release the threads."""
        self._applier.close()

    def run(self, overtaken: int) -> bool:
        """Apply the next batch. Return False if there was nothing to do. ``overtaken``: attempts
        that other writers' commits have ended; each halves the limits of the batch."""
        # Read before the listing, which then contains every segment sealed so far.
        sealed = Lsn(self._progress.word("sealed"))
        change = self._catalog.change_counter
        if (sealed, change) == self._idle_at and not self.marks:
            return self._look_for_others()
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return False
        self.generation = subscription.generation
        self.measures.subscription = subscription.name
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
            if not worked:
                self._settle_marks(reached)
                self._say_reached(reached)
            return worked
        self._idle_at = None
        limits = self.settings.apply
        # If a crash left a table ahead of the others, the next vector must contain all that the
        # table has, so the batch reaches at least the table's cursor.
        ahead = max((t.cursor for t in self._tables if t.visible), default=floor)
        # Refreshed after the listing: schemas are recorded before the segments that need them.
        self._schemas.refresh(subscription)
        most_rows = limits.batch_rows
        if subscription.history:
            most_rows = min(most_rows, _RECORDED_ROWS)
        # Tables behind the vector catch up first, in batches of their own.
        chosen = choose(
            waiting,
            max_bytes=limits.batch_bytes >> overtaken,
            max_rows=most_rows >> overtaken,
            at_least=floor if start < decided else ahead,
        )
        bounds = BatchBounds(start, decided, chosen[-1].sealed_lsn)
        rels = [t.rel for t in self._tables]
        due = self._schemas.relabelled(rels) or self._schemas.due(rels, bounds.end)
        if due is not None and due.lsn <= bounds.start:
            self._follow(subscription, due)
            return True
        positions = self._tables.positions(floor)
        batch = divide(
            self._schemas.translated(chosen), positions=positions, end=bounds.end
        )
        marked = self.marks.next_between(decided, bounds.end)
        if marked is not None and not bounds.catching_up and marked > ahead:
            bounds = bounds.below(marked)
        self._applier.apply(subscription, replace(batch, manifests=chosen), bounds)
        self._settle_marks(INVALID_LSN)
        return True

    def _settle_marks(self, reached: Lsn) -> None:
        """Give sessions the state that they wait for. ``reached``: nothing is left to apply
        below."""
        if not self.marks:
            return
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return
        decided = self._decided(subscription, reached)
        held = self.marks.settle(
            decided, lambda: self._catalog.newest_vector(self._subid)
        )
        for mark in held:
            self._repair(subscription, mark)

    def _repair(self, subscription: Subscription, mark: StateMark) -> None:
        """Write the rows for which a mark holds the state, once the session has read them."""
        repair = mark.taken(HOLD_SECONDS, lambda: self.marks.worker_stops)
        if repair is None:
            return
        try:
            self._repairs.write(subscription, self.settings, repair)
        except Exception as error:
            self.forget()
            mark.finish(error)
        except BaseException:
            mark.finish(InternalError("the apply worker has ended"))
            raise
        else:
            mark.finish(None)

    def _say_reached(self, reached: Lsn) -> None:
        """Tell waiting sessions up to where readers see everything."""
        subscription = self._catalog.subscription(self._subid)
        if subscription is not None:
            decided = self._decided(subscription, reached)
            self._positions.set_reached(self._subid, self.generation, decided)

    def _decided(self, subscription: Subscription, reached: Lsn) -> Lsn:
        """Return the position below which readers see everything. ``reached``: nothing is left to
        apply below."""
        decided = self._publisher.decided(subscription.floor)
        if not self._tables.unseen(reached) and self._is_level(subscription.floor):
            return Lsn(max(decided, reached))
        return decided

    def _is_level(self, floor: Lsn) -> bool:
        """Whether no table is behind the published vector."""
        decided = self._publisher.decided(floor)
        return all(t.position(floor) >= decided for t in self._tables)

    def _look_for_others(self) -> bool:
        """While idle, publish commits of other writers, which do not announce them."""
        began = time.monotonic()
        if began < self._look_at:
            return False
        written = self._tables.written_by_others()
        # Without the wait for the lock, which a session may hold for seconds.
        duration = time.monotonic() - began
        self._look_at = began + max(_LOOK_SECONDS, duration * _LOOK_PAUSES)
        if written:
            with self._commit_lock:
                if self._tables.take_notice(written):
                    self._idle_at = None
        return self._idle_at is None

    def _follow(self, subscription: Subscription, due: DueAlteration) -> None:
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
        self.forget()

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
