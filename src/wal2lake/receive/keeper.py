"""The snapshot keeper: holds one exported snapshot while tables are being copied.

A thread of the receiver, so the snapshot survives the engine. When tables of the
subscription wait for their copy it

1. creates a temporary slot that exports its snapshot: its consistent point is S, and the
   log already holds, or will hold, every change after S, because the stream of the
   publications that contain these tables was running before;
2. imports the snapshot in a second connection, which takes ACCESS SHARE on each table:
   from now on nothing can rewrite a table and move its ctids;
3. checks that no table was rewritten between 1 and 2 (the file node seen through the
   snapshot is the present one), and only then publishes the snapshot in the catalog.

It lets go when every covered table is copied. If a connection breaks the snapshot is gone: the
catalog entry is withdrawn, unfinished tables start again under the next one.
A temporary slot disappears with its connection, so nothing can leak.

Source: DESIGN 6; tablesync.c; PostgreSQL manual 9.28.5 (snapshot synchronisation).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    Catalog,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    Worker,
)
from wal2lake.errors import PublisherError, Wal2LakeError
from wal2lake.model import Oid, SyncState
from wal2lake.observe import failpoint, get_logger
from wal2lake.pg import Publisher, Session, connect, nudged
from wal2lake.pg.publisher import quote_ident, quote_literal

_POLL_SECONDS: Final = 0.2
"""How soon a new table's wait is noticed; a guess, small beside a slot's creation."""

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(slots=True)
class _Held:
    exporter: Session
    holder: Session
    relids: frozenset[int]

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
        subid: Oid,
        streaming: threading.Event,
        *,
        retry_interval_seconds: float,
    ) -> None:
        """``streaming`` is set once the walsender has accepted START_REPLICATION with
        the publications; ``retry_interval_seconds`` throttles attempts after an error."""
        self._catalog = catalog
        self._subid = subid
        self._retry_seconds = retry_interval_seconds
        self._stop = threading.Event()
        self._streaming = streaming
        self._held: _Held | None = None
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
        log = get_logger()
        while not self._stop.is_set():
            if not self._streaming.wait(_POLL_SECONDS):
                continue
            try:
                self._step()
                self._stop.wait(_POLL_SECONDS)
            except Wal2LakeError as error:
                log.error("could not hold a snapshot for the copy", error=error)
                self._let_go()
                self._catalog.note_error(self._subid, Worker.SNAPSHOT, error.describe())
                self._stop.wait(self._retry_seconds)
        self._let_go()

    def _step(self) -> None:
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return
        waiting = [r for r in self._catalog.rels(self._subid) if r.state in _WAITING]
        if self._held is not None:
            covered = any(int(r.relid) in self._held.relids for r in waiting)
            if not covered:
                self._let_go()
            elif not self._held.alive():
                get_logger().warning("exported snapshot lost: connection is gone")
                self._let_go()
        if not waiting:
            self._catalog.note_error(self._subid, Worker.SNAPSHOT, None)
        elif self._held is None:
            self._take(subscription, waiting)

    def _take(self, subscription: Subscription, waiting: list[SubscriptionRel]) -> None:
        slot = f"pg_{subscription.oid}_sync_{self._catalog.system_identifier}"
        # From here on the floor may not pass what the snapshot will not contain
        # (Catalog.publish holds it while a table is in d).
        for rel in waiting:
            if rel.state is SyncState.INIT:
                self._catalog.update_rel(rel.subid, rel.relid, state=SyncState.DATASYNC)
        exporter = connect(
            subscription.conninfo, application_name=slot, replication=True
        )
        holder: Session | None = None
        try:
            holder = connect(subscription.conninfo, application_name=slot)
            with nudged(subscription.conninfo, slot):
                created = Publisher(exporter).create_slot(
                    slot, temporary=True, snapshot="export"
                )
            snapshot = str(created.snapshot)
            holder.execute(
                "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
            )
            holder.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")
            covered = [r for r in waiting if self._pin(holder, r)]
        except BaseException:
            if holder is not None:
                holder.close()
            exporter.close()
            raise
        if not covered:
            holder.close()
            exporter.close()
            self._stop.wait(self._retry_seconds)
            return
        self._held = _Held(exporter, holder, frozenset(int(r.relid) for r in covered))
        self._catalog.hold_snapshot(
            SyncSnapshot(
                subscription.oid,
                snapshot,
                created.consistent_point,
                f"{os.getpid()}",
                tuple(int(r.relid) for r in covered),
            )
        )
        get_logger().info(
            f"exported snapshot {snapshot} at {created.consistent_point}"
            f" for {len(covered)} tables"
        )
        failpoint("copy.snapshot_taken")

    def _pin(self, holder: Session, rel: SubscriptionRel) -> bool:
        """Lock one table and check that its rows are where the snapshot sees them."""
        name = f"{quote_ident(rel.remote_namespace)}.{quote_ident(rel.remote_name)}"
        holder.execute("SAVEPOINT pin")
        try:
            holder.execute(f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE")
            # pg_class is read through the snapshot, pg_relation_filenode is not.
            rows = holder.query(
                "SELECT c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)"
                " OR c.relkind = 'p'"
                " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
                " ON n.oid = c.relnamespace"
                f" WHERE n.nspname = {quote_literal(rel.remote_namespace)}"
                f" AND c.relname = {quote_literal(rel.remote_name)}"
            )
        except PublisherError as error:
            holder.execute("ROLLBACK TO SAVEPOINT pin")
            self._catalog.update_rel(
                rel.subid,
                rel.relid,
                error=f"could not start initial contents copy for"
                f' table "{rel.remote_namespace}.{rel.remote_name}": {error.message}',
            )
            get_logger().error(
                "could not lock table for its initial copy",
                table=f"{rel.remote_namespace}.{rel.remote_name}",
                error=error,
            )
            return False
        if not rows or rows[0][0] != "t":
            get_logger().warning(
                "table was rewritten while its snapshot was taken",
                table=f"{rel.remote_namespace}.{rel.remote_name}",
            )
            return False
        return True

    def _let_go(self) -> None:
        if self._held is not None:
            self._catalog.release_snapshot(self._subid)
            self._held.close()
            self._held = None
