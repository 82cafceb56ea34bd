"""The snapshot keeper: holds one exported snapshot while tables are being copied.

A thread of the receiver, so the snapshot survives the engine. When tables of the
subscription wait for their copy it

1. creates a temporary slot that exports its snapshot: its consistent point is S, and the
   log already holds, or will hold, every change after S, because the stream of the
   publications that contain these tables was running before;
2. takes ACCESS SHARE on each table that it can have at once (``source.pins``), so that the
   copies come to their end beside sessions that rewrite tables all the time;
3. publishes the snapshot in the catalog.

The locks are not what makes a copy right: each reader looks itself whether its table is what the
snapshot has (``tablesync.unaltered``). So a lock may go whenever somebody waits for it, and a table
that has changed by the time of its turn is taken out of the snapshot by its copy, and waits for
the next one.

It works for the subscription as its receiver streams it. Once that has another generation
(other publications, say) nothing more is taken and nothing published: S would lie under the old
stream, and the changes above it would come from where the new one begins. The receiver that
follows does it.

    it lets go when                            then
    ---------------                            ----
    every covered table is copied              the others' turn
    a connection breaks                        the snapshot is gone: unfinished tables start
                                               again under the next one
    all that is left to copy fails, and        the publisher's VACUUM goes on; a next snapshot is
    nothing was copied for a minute, or        taken after a pause
    somebody waits for one of the locks

A table that fails (its copy, or its lock) pauses for itself (``patience``).

The floor. A table in d that no snapshot covers holds it where it is, for its copy may be committed
at an S that the floor would pass. Each next snapshot takes the floor to its own S, so the log does
not grow for ever. A table that was in i, and that no snapshot came to cover, goes back to i: no
copy of it can have begun.

A temporary slot disappears with its connection, so nothing can leak. Killed at any moment, it
leaves a row in the catalog, which the next one withdraws as it starts, and tables in d, which the
next snapshot covers.

Source: DESIGN 6; tablesync.c; PostgreSQL manual 9.28.5 (snapshot synchronisation).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
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
from wal2lake.receive.patience import Patience
from wal2lake.receive.source.pins import Pins

_POLL_SECONDS: Final = 0.2
"""How soon a new table's wait is noticed; a guess, small beside a slot's creation."""

_HELD_SECONDS: Final = 60.0
"""How long nothing but failures is worth a snapshot: PostgreSQL's holds for one attempt."""

_HURRIED_SECONDS: Final = 0.02
"""The same while somebody at the publisher has waited for long enough: TRUNCATE of many tables
waits for each of them in turn."""

_MISSING: Final = ("42P01", "3F000")
"""undefined_table, invalid_schema_name: it was dropped, renamed or moved."""

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(slots=True)
class _Held:
    snapshot: str
    exporter: Session
    pins: Pins
    tables: frozenset[tuple[Oid, int]]
    """By relid and epoch: one that has left and come back is another one, whose changes before
    that are in no stream."""
    copied: tuple[object, ...] = ()
    """State of these tables when they were last looked at and copied."""
    copied_at: float = 0.0
    """When that was another one before."""

    def covers(self, rel: SubscriptionRel) -> bool:
        """Is it held for this table?"""
        return (rel.relid, rel.epoch) in self.tables

    def alive(self) -> bool:
        return self.exporter.is_alive() and self.pins.alive()

    def close(self) -> None:
        self.pins.close()
        self.exporter.close()


class SnapshotKeeper:
    """Runs in its own thread from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        streaming: threading.Event,
        *,
        retry_interval_seconds: float,
        max_lock_wait_seconds: float,
    ) -> None:
        """``subscription`` is what the receiver streams; ``streaming`` is set once the
        walsender has accepted START_REPLICATION with its publications;
        ``retry_interval_seconds`` throttles attempts after an error;
        ``max_lock_wait_seconds``: so long others wait for locks of copies, 0: for ever."""
        self._catalog = catalog
        self._subscription = subscription
        self._subid = subscription.oid
        self._retry_seconds = retry_interval_seconds
        self._lock_seconds = max_lock_wait_seconds
        self._stop = threading.Event()
        self._streaming = streaming
        self._held: _Held | None = None
        self._patience = Patience()
        self._repeated = RepeatedErrors()
        self._tables_repeated: defaultdict[tuple[Oid, int], RepeatedErrors] = (
            defaultdict(RepeatedErrors)
        )
        """By relid and epoch: errors of tables that could not be locked."""
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """A snapshot of an earlier process died with it: withdraw it, then begin."""
        self._catalog.release_snapshot(self._subid)
        self._thread.start()

    def stop(self) -> None:
        """Let go and end the thread; bounded by one poll."""
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
                # The catalog's disk may be full: then even this cannot be told there.
                self._report(error)
                self._stop.wait(self._retry_seconds)
        try:
            self._let_go()
        except Exception as error:
            get_logger().error("could not withdraw a snapshot", exc_info=error)

    def _report(self, error: Exception) -> None:
        text = "could not hold a snapshot for the copy"
        self._repeated.say(get_logger(), text, error)
        try:
            self._let_go()
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
            # Another receiver is about to take over.
            self._let_go()
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
        """Let go of what is of no more use."""
        if not covered:
            self._let_go()
            return
        if not held.alive():
            get_logger().warning("exported snapshot lost: connection is gone")
            self._let_go()
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
        # An attempt at work has its S in ``lsn``, and the error of the one before.
        failing = all(r.error and r.lsn is None for r in covered)
        if failing and (waited & left or now - held.copied_at >= patience):
            get_logger().warning(
                "let an exported snapshot go: every table that it is held for fails",
                tables=[f"{r.remote_namespace}.{r.remote_name}" for r in covered],
            )
            self._let_go()
            self._pause(covered, self._retry_seconds if waited & left else patience)

    def _due(self, waiting: Sequence[SubscriptionRel]) -> list[SubscriptionRel]:
        """Return the tables that need not wait for the end of a pause."""
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
        """Return the versions of the tables that readers see. A write by a session makes another
        one."""
        vector = self._catalog.newest_vector(self._subid)
        return {} if vector is None else vector.versions

    def _take(self, waiting: Sequence[SubscriptionRel]) -> None:
        """Take a snapshot for as many of them as possible."""
        # From here on the floor may not pass what the snapshot will not contain
        # (Catalog.publish holds it while a table is in d).
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
        """Hold it, and publish it in the catalog for the tables that could be locked."""
        subscription, slot = self._subscription, self._slot
        exporter = self._connect(slot, replication=True)
        pins: Pins | None = None
        try:
            session = self._connect(slot)
            pins = Pins(session, slot, self._lock_seconds)
            if Publisher(session).in_recovery():
                get_logger().info(
                    "publisher is a standby: to take a snapshot there may take until"
                    " pg_log_standby_snapshot() is executed on its primary",
                    subscription=subscription.name,
                )
            with nudged(
                subscription.conninfo,
                slot,
                must_use_password=self._catalog.must_use_password(subscription),
            ):
                created = Publisher(exporter).create_slot(
                    slot, temporary=True, snapshot="export"
                )
            self._check_point(created.consistent_point)
            refused = pins.begin(waiting)
            for rel in waiting:
                if (error := refused.get(rel.relid)) is not None:
                    self._failed(rel, error)
            covered = [r for r in waiting if r.relid not in refused]
            self._pause([r for r in waiting if r.relid in refused], self._retry_seconds)
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
            # Before it is known to be published: whatever happens then, it may be.
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

    def _check_point(self, point: Lsn) -> None:
        """Refuse a consistent point below the floor: changes between the two would be neither
        copied nor applied. The floor stands still, because a table is in state d that no snapshot
        covers."""
        now = self._catalog.subscription(self._subid)
        if now is not None and point < now.floor:
            raise PublisherError(
                f"snapshot for the copy is at {point}, below {now.floor}, up to where the"
                " subscription's tables are complete",
                sqlstate="55000",
                hint="The connection string has found another server than the one that"
                " streams: a standby that lags, perhaps. Let it name one.",
            )

    def _failed(self, rel: SubscriptionRel, error: PublisherError) -> None:
        """An attempt to copy it that has ended before it began, counted like any other."""
        name = f"{rel.remote_namespace}.{rel.remote_name}"
        text = (
            f'table "{name}" not found on publisher'
            if error.sqlstate in _MISSING
            else f'could not start initial contents copy for table "{name}":'
            f" {error.message}"
        )
        told = PublisherError(text, detail=error.detail, hint=error.hint).describe()
        made = rel.lsn is not None
        self._catalog.end_attempts([(rel, told, error.sqlstate, made)])
        repeated = self._tables_repeated[rel.relid, rel.epoch]
        said = f'could not lock table "{name}" for its initial copy'
        repeated.say(get_logger(), said, error)

    @property
    def _slot(self) -> str:
        """The temporary slot, and what the server's views call our connections."""
        return self._catalog.sync_name(self._subid)

    def _connect(self, name: str, *, replication: bool = False) -> Session:
        return connect(
            self._subscription.conninfo,
            application_name=name,
            replication=replication,
            must_use_password=self._catalog.must_use_password(self._subscription),
        )

    def _let_go(self) -> None:
        """Also if it cannot be withdrawn in the catalog: copies notice by themselves."""
        held, self._held = self._held, None
        if held is not None:
            try:
                self._catalog.release_snapshot(self._subid)
            finally:
                held.close()
