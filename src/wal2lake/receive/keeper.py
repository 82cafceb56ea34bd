"""The snapshot keeper: holds one exported snapshot while tables are being copied.

A thread of the receiver, so the snapshot survives the engine. When tables of the
subscription wait for their copy it

1. creates a temporary slot that exports its snapshot: its consistent point is S, and the
   log already holds, or will hold, every change after S, because the stream of the
   publications that contain these tables was running before;
2. imports the snapshot in a second connection, which takes ACCESS SHARE on each table:
   from now on nothing can rewrite a table and move its ctids. SELECT on one of the columns is
   enough, as for the copy itself; LOCK TABLE would ask for all of them;
3. checks that no table was rewritten between 1 and 2 (the file node seen through the
   snapshot is the present one), and only then publishes the snapshot in the catalog.

It works for the subscription as its receiver streams it. Once that has another generation
(other publications, say) nothing more is taken and nothing published: S would lie under the old
stream, and the changes above it would come from where the new one begins. The receiver that
follows does it.

    it lets go when                            then
    ---------------                            ----
    every covered table is copied              the others' turn
    a connection breaks                        the snapshot is gone: unfinished tables start
                                               again under the next one
    all that is left to copy fails, and        the publisher's VACUUM and ALTER TABLE go on; a
    nothing was copied for a minute, or        next snapshot is taken after a pause
    somebody waits for one of the locks

Who waits for a table that is copied already gets it while the others are held: a transaction lets
no single lock go, so a third connection imports the snapshot, locks what is left, and the second
one ends.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    Catalog,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    Worker,
)
from wal2lake.errors import PublisherError, Wal2LakeError, sqlstate_of
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Publisher, Session, connect, nudged
from wal2lake.pg.quoting import quote_ident, quote_literal
from wal2lake.receive.patience import Patience

_POLL_SECONDS: Final = 0.2
"""How soon a new table's wait is noticed; a guess, small beside a slot's creation."""

_HELD_SECONDS: Final = 60.0
"""How long nothing but failures is worth a snapshot: PostgreSQL's holds for one attempt."""

_LOOK_SECONDS: Final = 1.0
"""How often the publisher is asked who waits for a lock of ours."""

_AGAIN_SECONDS: Final = 10.0
"""After an attempt to lock what is left, which somebody may wait for, too. A guess."""

_MISSING: Final = ("42P01", "3F000")
"""undefined_table, invalid_schema_name: it was dropped, renamed or moved."""

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(slots=True)
class _Held:
    snapshot: str
    exporter: Session
    holder: Session
    tables: frozenset[tuple[Oid, int]]
    """By relid and epoch: one that has left and come back is another one, whose changes before
    that are in no stream."""
    locked: dict[Oid, Oid]
    """The publisher's OIDs of what ``holder`` has locked, by ours."""
    look_at: float = 0.0
    """When to ask again who waits."""
    copied: tuple[object, ...] = ()
    """What was copied of these tables when last looked at."""
    copied_at: float = 0.0
    """When that was another one before."""

    def covers(self, rel: SubscriptionRel) -> bool:
        """Is it held for this table?"""
        return (rel.relid, rel.epoch) in self.tables

    def alive(self) -> bool:
        return self.exporter.is_alive() and self.holder.is_alive()

    def close(self) -> None:
        self.holder.close()
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
    ) -> None:
        """``subscription`` is what the receiver streams; ``streaming`` is set once the
        walsender has accepted START_REPLICATION with its publications;
        ``retry_interval_seconds`` throttles attempts after an error."""
        self._catalog = catalog
        self._subscription = subscription
        self._subid = subscription.oid
        self._retry_seconds = retry_interval_seconds
        self._stop = threading.Event()
        self._streaming = streaming
        self._held: _Held | None = None
        self._patience = Patience()
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
                self._stop.wait(_POLL_SECONDS)
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
        described = f"internal error: {error!r}"
        if isinstance(error, Wal2LakeError):
            described = error.describe()
            get_logger().error(text, error=error)
        else:
            get_logger().error(text, exc_info=error)
        try:
            self._let_go()
            self._catalog.note_error(
                self._subid, Worker.SNAPSHOT, described, sqlstate_of(error)
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
            self._look_after(self._held, [r for r in waiting if self._held.covers(r)])
        if not waiting:
            self._catalog.note_error(self._subid, Worker.SNAPSHOT, None)
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
        now = time.monotonic()
        copied = tuple((r.relid, r.rows_copied, r.bytes_copied) for r in covered)
        if copied != held.copied:
            held.copied, held.copied_at = copied, now
        waited = self._waited_for(held, now)
        left = {r.relid for r in covered}
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
        elif waited - left:
            self._lock_only(held, covered, now)

    def _waited_for(self, held: _Held, now: float) -> set[Oid]:
        """Tables that somebody wants for himself, and cannot have before us."""
        if now < held.look_at or not held.locked:
            return set()
        held.look_at = now + _LOOK_SECONDS
        ours = {int(remote): relid for relid, remote in held.locked.items()}
        rows = held.holder.query(
            "SELECT DISTINCT l.relation FROM pg_catalog.pg_locks l"
            " WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
            " AND NOT l.granted AND l.database = (SELECT d.oid"
            " FROM pg_catalog.pg_database d"
            " WHERE d.datname = pg_catalog.current_database())"
            f" AND l.relation IN ({', '.join(map(str, ours))})"
        )
        return {ours[int(str(row[0]))] for row in rows}

    def _lock_only(
        self, held: _Held, covered: Sequence[SubscriptionRel], now: float
    ) -> None:
        """Let the locks go of all other tables. Those of ``covered`` are never without one."""
        holder = self._connect(self._slot)
        try:
            holder.execute(f"SET lock_timeout = {int(_LOOK_SECONDS * 1000)}")
            _import(holder, held.snapshot)
            locked = {}
            for rel in covered:
                _lock(holder, rel)
                locked[rel.relid] = held.locked[rel.relid]
        except PublisherError as error:
            # Somebody waits for one of these, perhaps, and it will be his turn with them.
            holder.close()
            held.look_at = now + _AGAIN_SECONDS
            get_logger().info("could not let single locks go", error=error)
            return
        except BaseException:
            holder.close()
            raise
        before, held.holder, held.locked = held.holder, holder, locked
        before.close()

    def _due(self, waiting: Sequence[SubscriptionRel]) -> list[SubscriptionRel]:
        """Those that need not wait for the end of a pause."""
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
        """Of the tables as readers see them: a write at the front door makes another."""
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
        holder: Session | None = None
        try:
            holder = self._connect(slot)
            if Publisher(holder).in_recovery():
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
            snapshot = str(created.snapshot)
            _import(holder, snapshot)
            pinned = {r.relid: self._pin(holder, r) for r in waiting}
            locked = {relid: oid for relid, oid in pinned.items() if oid is not None}
            covered = [r for r in waiting if r.relid in locked]
            self._pause(
                [r for r in waiting if r.relid not in locked], self._retry_seconds
            )
            if not covered:
                holder.close()
                exporter.close()
                return
            held = _Held(
                snapshot,
                exporter,
                holder,
                frozenset((r.relid, r.epoch) for r in covered),
                locked,
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
            if holder is not None:
                holder.close()
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
        """What lies between a lower S and the floor would be neither copied nor applied. The
        floor stands still: a table is in d that no snapshot covers."""
        now = self._catalog.subscription(self._subid)
        if now is not None and point < now.floor:
            raise PublisherError(
                f"snapshot for the copy is at {point}, below {now.floor}, up to where the"
                " subscription's tables are complete",
                sqlstate="55000",
                hint="The connection string has found another server than the one that"
                " streams: a standby that lags, perhaps. Let it name one.",
            )

    def _pin(self, holder: Session, rel: SubscriptionRel) -> Oid | None:
        """Lock one table and check that its rows are where the snapshot sees them. Returns the
        publisher's OID of it; None: it cannot be copied now."""
        holder.execute("SAVEPOINT pin")
        try:
            _lock(holder, rel)
            # pg_class is read through the snapshot, pg_relation_filenode is not.
            rows = holder.query(
                "SELECT c.oid, c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)"
                " OR c.relkind = 'p',"
                " pg_catalog.has_any_column_privilege(c.oid, 'SELECT')"
                " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
                " ON n.oid = c.relnamespace"
                f" WHERE n.nspname = {quote_literal(rel.remote_namespace)}"
                f" AND c.relname = {quote_literal(rel.remote_name)}"
            )
            if rows and rows[0][2] != "t":
                raise PublisherError(
                    f"permission denied for table {rel.remote_name}",
                    sqlstate="42501",
                    hint="Grant SELECT on its published columns to the role of the"
                    " connection.",
                )
        except PublisherError as error:
            holder.execute("ROLLBACK TO SAVEPOINT pin")
            self._failed(rel, error)
            return None
        if not rows or rows[0][1] != "t":
            holder.execute("ROLLBACK TO SAVEPOINT pin")
            get_logger().warning(
                "table was rewritten while its snapshot was taken",
                table=f"{rel.remote_namespace}.{rel.remote_name}",
            )
            return None
        holder.execute("RELEASE SAVEPOINT pin")
        return Oid(int(str(rows[0][0])))

    def _failed(self, rel: SubscriptionRel, error: PublisherError) -> None:
        """An attempt to copy it that has ended before it began, counted like any other."""
        name = f"{rel.remote_namespace}.{rel.remote_name}"
        text = (
            f'could not start initial contents copy for table "{name}": {error.message}'
        )
        if error.sqlstate in _MISSING:
            text = f'table "{name}" not found on publisher'
        made = rel.lsn is not None
        self._catalog.end_attempts([(rel, text, error.sqlstate, made)])
        get_logger().error(
            "could not lock table for its initial copy", table=name, error=error
        )

    @property
    def _slot(self) -> str:
        """The temporary slot, and what the server's views call our connections."""
        return f"pg_{self._subid}_sync_{self._catalog.system_identifier}"

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


def _import(holder: Session, snapshot: str) -> None:
    holder.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    holder.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")


def _lock(holder: Session, rel: SubscriptionRel) -> None:
    """ACCESS SHARE on one table, until the transaction ends.

    Analysing a query takes it, before anybody asks for a privilege. The query is not planned: that
    would lock the indexes, too, and a REINDEX that waits for one keeps the table's writers out.
    """
    name = f"{quote_ident(rel.remote_namespace)}.{quote_ident(rel.remote_name)}"
    holder.analyse(f"SELECT 1 FROM ONLY {name}")
