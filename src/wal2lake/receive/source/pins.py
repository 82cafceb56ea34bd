"""Holds locks on tables that wait for their copy, and yields to sessions that wait for them.

In: an ordinary session, tables. Out: the tables that cannot be copied, and the locked tables that
other sessions wait for. Called by the snapshot keeper, five times a second.

No session waits for a copy longer than ``subscription.max_lock_wait_ms``. Only ACCESS EXCLUSIVE
(ALTER TABLE, TRUNCATE, DROP, VACUUM FULL) conflicts with a reader's ACCESS SHARE; but all other
sessions, writers included, queue behind the session that waits for it. When the limit is over

    the session waits for                 then
    ---------------------                 ----
    a lock that is held here              the lock is released
    a session that reads the table        the reading session is ended, and retries later

The lock of a copied table is released at once. A session whose wait has reached the limit does not
wait again for the next table of its transaction.

A transaction cannot release a single lock. So a savepoint lies below all locks: a rollback to the
savepoint releases all of them, and the locks that are still needed are taken again. A lock that is
not available at once is not waited for: in the queue behind an exclusive lock, this session would
make others wait for all locks that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import SubscriptionRel
from wal2lake.errors import PublisherError
from wal2lake.model import Oid
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session
from wal2lake.pg.quoting import quote_ident, quote_literal

_LOCK_NOT_AVAILABLE: Final = "55P03"

_LOOK_SECONDS: Final = 0.2
"""Interval between two looks at waiters, the keeper's poll."""

_REMEMBERED_SECONDS: Final = 10.0
"""Time to remember a waiter. Its transaction may do other work between two tables. Chosen
arbitrarily."""


@dataclass(slots=True)
class _Waiter:
    since: float
    """Time when the waiter was first seen."""
    seen: float


class Pins:
    """Locks of one snapshot. Not thread-safe."""

    def __init__(self, session: Session, mark: str, limit_seconds: float) -> None:
        """``session`` is closed with this object. ``mark``: application name of the sessions that
        read. ``limit_seconds``: longest wait of other sessions; 0 means no limit."""
        self._session = session
        self._publisher = Publisher(session)
        self._mark = mark
        self._limit = limit_seconds
        self._asks = self._publisher.knows_waiters
        if self._asks:
            # Sessions of a receiver that was killed: their results are of no use.
            self._publisher.end_marked(mark)
        self._locked: dict[Oid, tuple[SubscriptionRel, int]] = {}
        """Locked tables, each with its OID at the publisher."""
        self._waiters: dict[tuple[int, str], _Waiter] = {}
        self.hurried = False
        """Whether a waiter was let through that may already wait for the next lock."""

    def alive(self) -> bool:
        """Whether the locks are still held."""
        return self._session.is_alive()

    def close(self) -> None:
        """Release all locks, and end the sessions that read, because the snapshot ends, too."""
        if self._asks and self._session.is_alive():
            try:
                self._publisher.end_marked(self._mark)
            except PublisherError as error:
                get_logger().info("could not end sessions of copies", error=error)
        self._session.close()

    def begin(self, rels: Sequence[SubscriptionRel]) -> dict[Oid, PublisherError]:
        """Lock the tables that are available at once. Return the errors of tables that cannot be
        copied at all."""
        # In milliseconds; 0 would mean no limit.
        self._session.execute("SET lock_timeout = 1")
        self._session.execute("BEGIN TRANSACTION READ ONLY")
        self._session.execute("SAVEPOINT pins")
        locked, refused = self._lock(rels)
        oids = self._oids([r for r in rels if r.relid not in refused], refused)
        if not locked.isdisjoint(refused):
            self._session.execute("ROLLBACK TO SAVEPOINT pins")
            locked, _ = self._lock([r for r in rels if r.relid not in refused])
        self._locked = {
            r.relid: (r, oids[r.relid])
            for r in rels
            if r.relid in locked and r.relid in oids
        }
        return refused

    def give_way(self, left: Collection[Oid], now: float) -> set[Oid]:
        """Release locks that other sessions wait for, by the module's rules. ``left``: tables that
        are not copied yet. Return the locked tables that are waited for."""
        self.hurried = False
        if not self._asks:
            return set()
        by_oid = {oid: relid for relid, (_, oid) in self._locked.items()}
        waited: set[Oid] = set()
        unpinned: set[Oid] = set()
        ended: set[int] = set()
        waits = self._publisher.lock_waiters(self._mark)
        for wait in waits:
            key = (wait.pid, wait.transaction)
            # The wait may have begun just after the last look, and the limit may pass before the
            # next look.
            waiter = self._waiters.setdefault(key, _Waiter(now - _LOOK_SECONDS, now))
            waiter.seen = now
            over = 0 < self._limit <= now - waiter.since + _LOOK_SECONDS
            relid = by_oid.get(wait.relation)
            if wait.blocker and over:
                ended.add(wait.blocker)
            elif not wait.blocker and relid is not None:
                waited.add(relid)
                if over or relid not in left:
                    unpinned.add(relid)
            self.hurried |= over
        self._waiters = {
            key: waiter
            for key, waiter in self._waiters.items()
            if now - waiter.seen < _REMEMBERED_SECONDS
        }
        for pid in ended:
            get_logger().info(
                "ended a copy's session that other sessions wait for", pid=pid
            )
            self._publisher.end_session(pid)
        if unpinned:
            self._unpin(unpinned, left)
        return waited

    def _unpin(self, relids: set[Oid], left: Collection[Oid]) -> None:
        """Release the locks of ``relids``, and those of copied tables."""
        kept = {
            relid: pinned
            for relid, pinned in self._locked.items()
            if relid in left and relid not in relids
        }
        get_logger().info(
            "released locks of tables that other sessions wait for",
            tables=[
                f"{rel.remote_namespace}.{rel.remote_name}"
                for relid, (rel, _) in self._locked.items()
                if relid in relids
            ],
        )
        self._session.execute("ROLLBACK TO SAVEPOINT pins")
        locked, _ = self._lock([rel for rel, _ in kept.values()])
        self._locked = {r: pinned for r, pinned in kept.items() if r in locked}

    def _lock(
        self, rels: Sequence[SubscriptionRel]
    ) -> tuple[set[Oid], dict[Oid, PublisherError]]:
        """Lock tables. Return the locked tables, and the errors of tables that cannot be locked for
        other reasons than a conflicting lock."""
        locked: set[Oid] = set()
        refused: dict[Oid, PublisherError] = {}
        for rel in rels:
            self._session.execute("SAVEPOINT pin")
            try:
                # Analysing a query locks the table before privileges are checked. The query is
                # not planned: that would lock the indexes, too, and a REINDEX that waits for an
                # index blocks the table's writers.
                name = f"{quote_ident(rel.remote_namespace)}.{quote_ident(rel.remote_name)}"
                self._session.analyse(f"SELECT 1 FROM ONLY {name}")
            except PublisherError as error:
                if not self._session.is_alive():
                    raise
                self._session.execute("ROLLBACK TO SAVEPOINT pin")
                if error.sqlstate != _LOCK_NOT_AVAILABLE:
                    refused[rel.relid] = error
            else:
                self._session.execute("RELEASE SAVEPOINT pin")
                locked.add(rel.relid)
        return locked, refused

    def _oids(
        self, rels: Sequence[SubscriptionRel], refused: dict[Oid, PublisherError]
    ) -> dict[Oid, int]:
        """Return the publisher's OIDs of tables. Tables that may not be read are added to
        ``refused``."""
        if not rels:
            return {}
        pairs = ", ".join(
            f"({quote_literal(r.remote_namespace)}, {quote_literal(r.remote_name)})"
            for r in rels
        )
        rows = self._session.query(
            "SELECT n.nspname, c.relname, c.oid,"
            " pg_catalog.has_any_column_privilege(c.oid, 'SELECT')"
            " FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            f" WHERE (n.nspname, c.relname) IN ({pairs})"
        )
        by_name = {(str(r[0]), str(r[1])): (int(str(r[2])), r[3] == "t") for r in rows}
        oids: dict[Oid, int] = {}
        for rel in rels:
            # A missing table has just been dropped. Its copy will report that.
            oid, readable = by_name.get(
                (rel.remote_namespace, rel.remote_name), (0, True)
            )
            oids[rel.relid] = oid
            if not readable:
                refused[rel.relid] = PublisherError(
                    f"permission denied for table {rel.remote_name}",
                    sqlstate="42501",
                    hint="Grant SELECT on its published columns to the role of the"
                    " connection.",
                )
        return oids
