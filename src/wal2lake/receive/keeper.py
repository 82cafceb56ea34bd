"""The snapshot keeper holds one exported snapshot while tables are being copied.

The keeper is a thread of the receiver, so the snapshot survives a restart of the engine. When
tables of the subscription wait for their copy, the keeper

1. creates a temporary slot that exports its snapshot. The slot's consistent point is S. The log
   holds, or will hold, every change after S, because the stream of the publications that
   contain these tables was running before;
2. takes ACCESS SHARE on each table whose lock is available at once (``source.pins``), so that
   the copies finish even if sessions rewrite tables all the time;
3. publishes the snapshot in the catalog.

Copies are correct without the locks: each reader checks that its table is the one in the snapshot
(``tablesync.unaltered``). So a lock may be released whenever a session waits for it. A copy that
finds its table altered removes the table from the snapshot, and the table waits for the next
snapshot.

The keeper works for the subscription's generation that its receiver streams. Once the subscription
has another generation (for instance, other publications), the keeper takes and publishes no
snapshot: S would belong to the old stream, and changes above S could be missing from the new one.
The next receiver's keeper does it.

    the snapshot is released when              then
    -----------------------------              ----
    every covered table is copied              other waiting tables get the next snapshot
    a connection breaks                        unfinished tables start again under the next
                                               snapshot
    all remaining copies fail, and nothing     the publisher's VACUUM can proceed; the next
    was copied for a minute, or a session      snapshot is taken after a pause
    waits for one of the locks

Each table whose copy or lock fails has a pause of its own (``patience``).

The floor. A table in state d that no snapshot covers holds the floor, because its copy may be
committed at an S that the floor would pass. Each later snapshot moves the floor to its own S, so
the log does not grow for ever. A table that was in state i, and that the new snapshot does not
cover, goes back to i: its copy cannot have begun.

A temporary slot disappears with its connection, so nothing leaks at the publisher. A keeper that is
killed leaves a row in the catalog, which the next keeper deletes as it starts, and tables in state
d, which the next snapshot covers.

Source: DESIGN 6; tablesync.c; PostgreSQL manual 9.28.5 (snapshot synchronisation).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    Catalog,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    WorkerKind,
)
from wal2lake.errors import PublisherError, description_of, sqlstate_of
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe import RepeatedErrors, failpoint, get_logger
from wal2lake.pg import Publisher, Session, connect, nudged
from wal2lake.pg.publisher import SlotCreated
from wal2lake.receive.patience import Patience
from wal2lake.receive.source.pins import Pins

_POLL_SECONDS: Final = 0.2
"""Interval between looks for waiting tables. Chosen arbitrarily; small beside a slot's creation."""

_HELD_SECONDS: Final = 60.0
"""Time to hold a snapshot while all copies fail. PostgreSQL holds a snapshot for one attempt."""

_HURRIED_SECONDS: Final = 0.02
"""Poll interval after a waiter was let through: TRUNCATE of many tables waits for each of them in
turn."""

_MISSING: Final = ("42P01", "3F000")
"""undefined_table, invalid_schema_name: the table was dropped, renamed or moved."""

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(slots=True)
class _Held:
    snapshot: str
    exporter: Session
    pins: Pins
    tables: frozenset[tuple[Oid, int]]
    """Covered tables by relid and epoch. A table that left and came back has a new epoch: no stream
    has its earlier changes."""
    copied: tuple[object, ...] = ()
    """Progress of the covered tables at the last look."""
    copied_at: float = 0.0
    """Time of the last change of ``copied``."""

    def covers(self, rel: SubscriptionRel) -> bool:
        """Whether the snapshot is held for this table."""
        return (rel.relid, rel.epoch) in self.tables

    def alive(self) -> bool:
        return self.exporter.is_alive() and self.pins.alive()

    def close(self) -> None:
        self.pins.close()
        self.exporter.close()


class SnapshotKeeper:
    """Holds snapshots in a thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        streaming: threading.Event,
        *,
        retry_interval_seconds: float,
        max_lock_wait_seconds: float,
        count_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """``subscription`` is the version that the receiver streams. ``streaming`` is set once the
        walsender has accepted START_REPLICATION with its publications. ``retry_interval_seconds``
        throttles attempts after an error. ``max_lock_wait_seconds``: longest wait of other sessions
        for locks of copies; 0 means no limit."""
        self._catalog = catalog
        self._subscription = subscription
        self._subid = subscription.oid
        self._retry_seconds = retry_interval_seconds
        self._lock_seconds = max_lock_wait_seconds
        self._count_error = count_error
        self._stop = threading.Event()
        self._streaming = streaming
        self._held: _Held | None = None
        self._patience = Patience()
        self._repeated = RepeatedErrors()
        self._tables_repeated: defaultdict[tuple[Oid, int], RepeatedErrors] = (
            defaultdict(RepeatedErrors)
        )
        """Lock errors of tables, by relid and epoch."""
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Delete the snapshot of an earlier process, which ended with the process, and start the
        thread."""
        self._catalog.release_snapshot(self._subid)
        self._thread.start()

    def stop(self) -> None:
        """Release the snapshot and end the thread, within about one poll."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._streaming.wait(_POLL_SECONDS):
                continue
            try:
                self._step()
                self._repeated.passed(get_logger())
                hurried = self._held is not None and self._held.pins.hurried
                self._stop.wait(_HURRIED_SECONDS if hurried else _POLL_SECONDS)
            except Exception as error:
                # The report may fail, too, if the catalog's disk is full.
                self._report(error)
                self._stop.wait(self._retry_seconds)
        try:
            self._release()
        except Exception as error:
            get_logger().error("could not withdraw a snapshot", exc_info=error)

    def _report(self, error: Exception) -> None:
        text = "could not hold a snapshot for the copy"
        self._repeated.say(get_logger(), text, error)
        self._count_error(error)
        try:
            self._release()
            self._catalog.note_error(
                self._subid,
                WorkerKind.SNAPSHOT,
                description_of(error),
                sqlstate_of(error),
            )
        except Exception as again:
            get_logger().error("could not note an error", exc_info=again)

    def _step(self) -> None:
        now = self._catalog.subscription(self._subid)
        if now is None or now.generation != self._subscription.generation:
            # Another receiver is about to start.
            self._release()
            return
        waiting = [
            r
            for r in self._catalog.rels(self._subid)
            if r.state in _WAITING and not r.paused
        ]
        if self._held is not None:
            published = self._catalog.snapshot_held(self._subid)
            left = () if published is None else published.relids
            self._look_after(
                self._held,
                [r for r in waiting if self._held.covers(r) and int(r.relid) in left],
            )
        if not waiting:
            self._catalog.note_error(self._subid, WorkerKind.SNAPSHOT, None)
        elif self._held is None and (due := self._due(waiting)):
            self._take(due)

    def _look_after(self, held: _Held, covered: Sequence[SubscriptionRel]) -> None:
        """Release the snapshot or single locks once they are of no use."""
        if not covered:
            self._release()
            return
        if not held.alive():
            get_logger().warning("exported snapshot lost: connection is gone")
            self._release()
            return
        for rel in covered:
            repeated = self._tables_repeated.pop((rel.relid, rel.epoch), None)
            if repeated is not None:
                repeated.passed(get_logger())
        now = time.monotonic()
        copied = tuple((r.relid, r.rows_copied, r.bytes_copied) for r in covered)
        if copied != held.copied:
            held.copied, held.copied_at = copied, now
        left = {r.relid for r in covered}
        waited = held.pins.give_way(left, now)
        patience = max(_HELD_SECONDS, 2 * self._retry_seconds)
        # A running attempt has its S in ``lsn``, and the error of the previous attempt.
        failing = all(r.error and r.lsn is None for r in covered)
        if failing and (waited & left or now - held.copied_at >= patience):
            get_logger().warning(
                "released an exported snapshot: the copies of all its tables fail",
                tables=[f"{r.remote_namespace}.{r.remote_name}" for r in covered],
            )
            self._release()
            self._pause(covered, self._retry_seconds if waited & left else patience)

    def _due(self, waiting: Sequence[SubscriptionRel]) -> list[SubscriptionRel]:
        """Return the tables without a pause, or whose pause is over."""
        if not self._patience:
            return list(waiting)
        versions = self._versions()
        now = time.monotonic()
        return [
            r for r in waiting if self._patience.is_over(r, versions.get(r.relid), now)
        ]

    def _pause(self, rels: Sequence[SubscriptionRel], seconds: float) -> None:
        versions = self._versions()
        now = time.monotonic()
        for rel in rels:
            self._patience.failed(rel, versions.get(rel.relid), now, seconds)

    def _versions(self) -> dict[int, int]:
        """Return the table versions that readers see. A write by a session changes the version."""
        vector = self._catalog.newest_vector(self._subid)
        return {} if vector is None else vector.versions

    def _take(self, waiting: Sequence[SubscriptionRel]) -> None:
        """Take a snapshot for as many of the tables as possible."""
        # From here on the floor must not pass the snapshot's position: Catalog.publish holds the
        # floor while a table is in d.
        first = [r for r in waiting if r.state is SyncState.INIT]
        self._set(first, SyncState.DATASYNC)
        try:
            self._cover(waiting)
        finally:
            held = self._held
            self._set(
                [r for r in first if held is None or not held.covers(r)], SyncState.INIT
            )

    def _set(self, rels: Sequence[SubscriptionRel], state: SyncState) -> None:
        for rel in rels:
            self._catalog.update_rel(rel.subid, rel.relid, state=state)

    def _cover(self, waiting: Sequence[SubscriptionRel]) -> None:
        """Hold a snapshot, and publish it in the catalog for the tables that could be locked."""
        subscription, slot = self._subscription, self._slot
        exporter = self._connect(slot, replication=True)
        pins: Pins | None = None
        try:
            session = self._connect(slot)
            pins = Pins(session, slot, self._lock_seconds)
            created = self._export(session, exporter)
            self._check_point(created.consistent_point)
            covered = self._lock(pins, waiting)
            if not covered:
                pins.close()
                exporter.close()
                return
            snapshot = str(created.snapshot)
            held = _Held(
                snapshot,
                exporter,
                pins,
                frozenset((r.relid, r.epoch) for r in covered),
            )
            held.copied_at = time.monotonic()
            # Set first: if hold_snapshot() raises, the snapshot may be published all the same.
            self._held = held
            published = self._catalog.hold_snapshot(
                SyncSnapshot(
                    subscription.oid,
                    snapshot,
                    created.consistent_point,
                    f"{os.getpid()}",
                    tuple(int(r.relid) for r in covered),
                ),
                generation=subscription.generation,
            )
        except BaseException:
            if pins is not None:
                pins.close()
            exporter.close()
            raise
        if not published:
            self._held = None
            held.close()
            return
        get_logger().info(
            f"exported snapshot {snapshot} at {created.consistent_point}"
            f" for {len(covered)} tables"
        )
        failpoint("copy.snapshot_taken")

    def _export(self, session: Session, exporter: Session) -> SlotCreated:
        """Create the temporary slot, which exports its snapshot."""
        subscription = self._subscription
        if Publisher(session).in_recovery():
            get_logger().info(
                "publisher is a standby: to take a snapshot there may take until"
                " pg_log_standby_snapshot() is executed on its primary",
                subscription=subscription.name,
            )
        with nudged(
            subscription.conninfo,
            self._slot,
            must_use_password=self._catalog.must_use_password(subscription),
        ):
            return Publisher(exporter).create_slot(
                self._slot, temporary=True, snapshot="export"
            )

    def _lock(
        self, pins: Pins, waiting: Sequence[SubscriptionRel]
    ) -> list[SubscriptionRel]:
        """Lock tables. Return those that can be copied; the others pause."""
        refused = pins.begin(waiting)
        for rel in waiting:
            if (error := refused.get(rel.relid)) is not None:
                self._note_failure(rel, error)
        self._pause([r for r in waiting if r.relid in refused], self._retry_seconds)
        return [r for r in waiting if r.relid not in refused]

    def _check_point(self, point: Lsn) -> None:
        """Refuse a consistent point below the floor: changes between the two would be neither
        copied nor applied. The floor cannot move meanwhile, because a table is in state d without a
        snapshot."""
        now = self._catalog.subscription(self._subid)
        if now is not None and point < now.floor:
            raise PublisherError(
                f"snapshot for the copy is at {point}, below {now.floor}, up to where the"
                " subscription's tables are complete",
                sqlstate="55000",
                hint="The connection string has found another server than the one that"
                " streams: a standby that lags, perhaps. Let it name one.",
            )

    def _note_failure(self, rel: SubscriptionRel, error: PublisherError) -> None:
        """Record a failed lock as a failed attempt to copy the table."""
        name = f"{rel.remote_namespace}.{rel.remote_name}"
        text = (
            f'table "{name}" not found on publisher'
            if error.sqlstate in _MISSING
            else f'could not start initial contents copy for table "{name}":'
            f" {error.message}"
        )
        description = PublisherError(
            text, detail=error.detail, hint=error.hint
        ).describe()
        made = rel.lsn is not None
        self._catalog.end_attempts([(rel, description, error.sqlstate, made)])
        repeated = self._tables_repeated[rel.relid, rel.epoch]
        event = f'could not lock table "{name}" for its initial copy'
        repeated.say(get_logger(), event, error)

    @property
    def _slot(self) -> str:
        """Name of the temporary slot, and application name of the keeper's connections."""
        return self._catalog.sync_name(self._subid)

    def _connect(self, name: str, *, replication: bool = False) -> Session:
        return connect(
            self._subscription.conninfo,
            application_name=name,
            replication=replication,
            must_use_password=self._catalog.must_use_password(self._subscription),
        )

    def _release(self) -> None:
        """Release the snapshot, even if its row in the catalog cannot be deleted: copies notice
        that the snapshot is gone."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._catalog.release_snapshot(self._subid)
            finally:
                held.close()
