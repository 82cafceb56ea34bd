"""Locks on tables that wait for their copy, and who at the publisher waits because of a copy.

Comes in: an ordinary session, tables. Goes out: which tables cannot be copied, and which of the
locked ones somebody waits for. Called by the snapshot keeper, five times a second.

Nobody waits for us longer than ``subscription.max_lock_wait_ms``. Only ACCESS EXCLUSIVE (ALTER
TABLE, TRUNCATE, DROP, VACUUM FULL) conflicts with a reader's ACCESS SHARE; behind the session that
waits for it all others queue, its writers too. Once a second of waiting is over

    he waits for                          then
    ------------                          ----
    a lock that is held here              that lock is let go
    a session that reads the table        the session is ended, and comes again later

A table that is copied already is let go at once. A session that has waited for so long does not
wait again for the next table of the same transaction.

One savepoint lies below all locks: a transaction lets no single lock go, so rolling back to it lets
all go, and those that are still wanted are taken again. A lock that cannot be had at once is not
waited for: behind an exclusive lock we would keep others waiting for all that we hold.
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
"""The time between two looks at waiters, as the keeper polls."""

_REMEMBERED_SECONDS: Final = 10.0
"""A waiter's transaction may do something else between two tables. A guess."""


@dataclass(slots=True)
class _Waiter:
    since: float
    """When it was first seen."""
    seen: float


class Pins:
    """Not thread-safe."""

    def __init__(self, session: Session, mark: str, limit_seconds: float) -> None:
        """The session is closed with this. ``mark``: what sessions that read are known by;
        ``limit_seconds``: the longest wait of others, 0: for ever."""
        self._session = session
        self._publisher = Publisher(session)
        self._mark = mark
        self._limit = limit_seconds
        self._asks = self._publisher.knows_waiters
        if self._asks:
            # Of a receiver that was killed: what they read is nobody's.
            self._publisher.end_marked(mark)
        self._locked: dict[Oid, tuple[SubscriptionRel, int]] = {}
        """Each with its OID at the publisher."""
        self._waiters: dict[tuple[int, str], _Waiter] = {}
        self.hurried = False
        """Somebody was let through who may wait for the next lock by now."""

    def alive(self) -> bool:
        """The locks are still held."""
        return self._session.is_alive()

    def close(self) -> None:
        """Let all locks go, and end the sessions that read: the snapshot goes, too."""
        if self._asks and self._session.is_alive():
            try:
                self._publisher.end_marked(self._mark)
            except PublisherError as error:
                get_logger().info("could not end sessions of copies", error=error)
        self._session.close()

    def begin(self, rels: Sequence[SubscriptionRel]) -> dict[Oid, PublisherError]:
        """Lock what can be locked at once. Returns why tables cannot be copied at all."""
        # In milliseconds; 0 is for ever.
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
        """Release locks that others wait for; the module has the rules. ``left``: tables that are
        not copied yet. Returns the locked tables that somebody waits for."""
        self.hurried = False
        if not self._asks:
            return set()
        by_oid = {oid: relid for relid, (_, oid) in self._locked.items()}
        waited: set[Oid] = set()
        unpinned: set[Oid] = set()
        ended: set[int] = set()
        found = self._publisher.lock_waiters(self._mark)
        for one in found:
            key = (one.pid, one.transaction)
            # He may have begun to wait just behind the last look, and the next one is too
            # late if his time is over before it.
            waiter = self._waiters.setdefault(key, _Waiter(now - _LOOK_SECONDS, now))
            waiter.seen = now
            over = 0 < self._limit <= now - waiter.since + _LOOK_SECONDS
            relid = by_oid.get(one.relation)
            if one.blocker and over:
                ended.add(one.blocker)
            elif not one.blocker and relid is not None:
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
            get_logger().info("end a copy's session that others wait for", pid=pid)
            self._publisher.end_session(pid)
        if unpinned:
            self._unpin(unpinned, left)
        return waited

    def _unpin(self, relids: set[Oid], left: Collection[Oid]) -> None:
        """Let go of these, and of what is copied."""
        kept = {
            relid: pinned
            for relid, pinned in self._locked.items()
            if relid in left and relid not in relids
        }
        get_logger().info(
            "let locks of tables go that others wait for",
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
        """Lock tables. Return those that are locked now, and the errors of those that cannot be
        locked for another reason than that somebody else holds them."""
        locked: set[Oid] = set()
        refused: dict[Oid, PublisherError] = {}
        for rel in rels:
            self._session.execute("SAVEPOINT pin")
            try:
                # Analysing a query locks the table before anybody asks for a privilege. The
                # query is not planned: that would lock the indexes, too, and a REINDEX that
                # waits for one keeps the table's writers out.
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
        """The publisher's OIDs of tables; adds those to ``refused`` that may not be read."""
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
        known = {(str(r[0]), str(r[1])): (int(str(r[2])), r[3] == "t") for r in rows}
        oids: dict[Oid, int] = {}
        for rel in rels:
            # One that is not there has just been dropped: its copy says so.
            oid, readable = known.get(
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
