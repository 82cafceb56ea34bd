"""Typed queries of a publisher, one method for each query.

Where PostgreSQL's own subscriber runs the same query (reference section 3), its statement is
used. ``publishedtables`` and ``types`` read tables and types. This module decides nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.model import EnumColumns, Lsn, Oid, RemoteSchema
from wal2lake.pg.connection import Session
from wal2lake.pg.publishedtables import (
    RemoteTable,
    describe_schemas,
    describe_tables,
    publication_marks,
    unique_columns,
)
from wal2lake.pg.quoting import quote_ident, quote_literal, quote_literals
from wal2lake.pg.types import describe_enums, describe_types
from wal2lake.pgtypes import RemoteType

_UNDEFINED_OBJECT: Final = "42704"

_UNKNOWN_FUNCTION: Final = ("42883", "0A000")
"""undefined_function, feature_not_supported."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The row of IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    position: Lsn
    database: str | None = None
    """The session's database."""


@dataclass(frozen=True, slots=True)
class SlotCreated:
    """The row of CREATE_REPLICATION_SLOT."""

    name: str
    consistent_point: Lsn
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class SlotWal:
    """A slot and the WAL that the server keeps for it."""

    wal_lsn: Lsn
    """Flush position of the server's WAL; on a standby, the replay position."""
    exists: bool
    """False: the server has no such slot, and the fields below say nothing."""
    is_active: bool = False
    wal_status: str | None = None
    restart_lsn: Lsn | None = None
    confirmed_lsn: Lsn | None = None
    safe_bytes: int | None = None
    """WAL that can be written before the slot may be lost; None without a limit."""
    limit_bytes: int | None = None
    """max_slot_wal_keep_size; None without a limit."""

    @property
    def retained_bytes(self) -> int | None:
        """WAL that the slot holds; None if it holds none."""
        if self.restart_lsn is None:
            return None
        return max(0, int(self.wal_lsn) - int(self.restart_lsn))


@dataclass(frozen=True, slots=True)
class LockWaiter:
    """A session that waits for an ACCESS EXCLUSIVE lock, and a session that blocks it."""

    pid: int
    transaction: str
    """pg_locks.virtualtransaction; it differs for each transaction of a session."""
    relation: int
    """OID of the relation to be locked."""
    blocker: int
    """pid of the blocking session; 0: the session that runs this query."""


class Publisher:
    """Queries over one session. Replication commands need a replication session."""

    def __init__(self, session: Session) -> None:
        """Use ``session``, which the caller closes."""
        self.session = session

    # ---- the server ------------------------------------------------------------

    def identify(self) -> Identity:
        """Run IDENTIFY_SYSTEM. Needs a replication session."""
        row = self.session.query("IDENTIFY_SYSTEM")[0]
        return Identity(str(row[0]), int(str(row[1])), Lsn.parse(str(row[2])), row[3])

    def started(self) -> str | None:
        """Return the start time, to the microsecond, as text.

        The same text means that the server has not been restarted in between.
        """
        return self.session.value("SELECT pg_catalog.pg_postmaster_start_time()")

    def timeline_history(self, timeline: int) -> str:
        """Return the content of the timeline's history file. Needs a replication session."""
        rows = self.session.query(f"TIMELINE_HISTORY {timeline}")
        return str(rows[0][1] or "")

    def setting(self, name: str) -> str | None:
        """Return current_setting(name); None if the server does not know the setting."""
        return self.session.value(
            f"SELECT pg_catalog.current_setting({quote_literal(name)}, true)"
        )

    def flushed_lsn(self) -> Lsn:
        """Return the flush position of the server's WAL (on a standby, the replay position)."""
        text = self.session.value(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END"
        )
        return Lsn.parse(str(text))

    def in_recovery(self) -> bool:
        """Return True if the server is a standby."""
        return self.session.value("SELECT pg_catalog.pg_is_in_recovery()") == "t"

    def timeline(self) -> int:
        """Return the timeline that is being written. Fails on a standby."""
        name = self.session.value(
            "SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())"
        )
        return int(str(name)[:8], 16)

    def log_running_transactions(self) -> bool:
        """Have the server log the running transactions, as it does every 15 s by itself.

        Returns False if the server is too old to do so on request (before 16). Fails on a
        standby, whose primary logs them.
        """
        if self.session.server_version < 160000:
            return False
        self.session.query("SELECT pg_catalog.pg_log_standby_snapshot()")
        return True

    # ---- locks ---------------------------------------------------------------------

    def mark_transaction(self, name: str) -> None:
        """Mark this session with ``name`` until its transaction ends.

        ``lock_waiters`` and ``end_marked`` find marked sessions. The mark is a shared advisory
        lock, because the user may set application_name, and pg_stat_activity shows little of
        other roles' sessions. A server without advisory locks (another node) has no marked
        sessions.
        """
        first, second = _mark(name)
        self.session.execute("SAVEPOINT mark")
        try:
            # A transaction-level lock, since a pooler may run the next transaction in
            # another session.
            self.session.query(
                f"SELECT pg_catalog.pg_advisory_xact_lock_shared({first}, {second})"
            )
        except PublisherError as error:
            if error.sqlstate not in _UNKNOWN_FUNCTION:
                raise
            self.session.execute("ROLLBACK TO SAVEPOINT mark")
        else:
            self.session.execute("RELEASE SAVEPOINT mark")

    @property
    def knows_waiters(self) -> bool:
        """True if the server supports ``lock_waiters``; a node does not.

        Must not be used inside a transaction.
        """
        try:
            self.session.query("SELECT pg_catalog.pg_blocking_pids(0)")
        except PublisherError as error:
            if error.sqlstate not in _UNKNOWN_FUNCTION:
                raise
            return False
        return True

    def lock_waiters(self, name: str) -> list[LockWaiter]:
        """Return the sessions that wait for this session or for one that is marked ``name``.

        Only waits for ACCESS EXCLUSIVE locks are returned: readers block no other mode.
        """
        rows = self.session.query(
            "SELECT w.pid, w.virtualtransaction, w.relation,"
            " NULLIF(b.pid, pg_catalog.pg_backend_pid())"
            " FROM pg_catalog.pg_locks w,"
            " LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) AS b(pid)"
            " WHERE NOT w.granted AND w.locktype = 'relation'"
            " AND w.mode = 'AccessExclusiveLock'"
            " AND w.database = (SELECT d.oid FROM pg_catalog.pg_database d"
            " WHERE d.datname = pg_catalog.current_database())"
            f" AND (b.pid = pg_catalog.pg_backend_pid() OR b.pid IN ({_marked(name)}))"
        )
        return [
            LockWaiter(
                int(str(pid)), str(transaction), int(str(relation)), int(blocker or 0)
            )
            for pid, transaction, relation, blocker in rows
        ]

    def end_session(self, pid: int) -> None:
        """Call pg_terminate_backend."""
        self.session.query(f"SELECT pg_catalog.pg_terminate_backend({pid})")

    def end_marked(self, name: str) -> None:
        """Terminate all sessions that are marked ``name``."""
        self.session.query(
            f"SELECT pg_catalog.pg_terminate_backend(m.pid) FROM ({_marked(name)}) AS m"
        )

    # ---- slots ---------------------------------------------------------------------

    def create_slot(
        self,
        name: str,
        *,
        temporary: bool = False,
        snapshot: str = "nothing",
        two_phase: bool = False,
        failover: bool = False,
    ) -> SlotCreated:
        """Run CREATE_REPLICATION_SLOT ... LOGICAL pgoutput.

        ``snapshot`` is nothing, export or use.
        """
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        if self.session.server_version >= 150000:
            first = "TWO_PHASE, " if two_phase else ""
            first += "FAILOVER, " if failover else ""
            option = f"({first}SNAPSHOT '{snapshot}')"
        else:
            # Before 17 the server itself rejects failover.
            first = "TWO_PHASE " if two_phase else ""
            first += "FAILOVER " if failover else ""
            option = (
                first
                + {
                    "nothing": "NOEXPORT_SNAPSHOT",
                    "export": "EXPORT_SNAPSHOT",
                    "use": "USE_SNAPSHOT",
                }[snapshot]
            )
        # The command waits for every running transaction.
        row = self.session.query(
            f"CREATE_REPLICATION_SLOT {quote_ident(name)} {kind} pgoutput {option}",
            patient=True,
        )[0]
        return SlotCreated(str(row[0]), Lsn.parse(str(row[1])), row[2])

    def alter_slot(
        self, name: str, *, failover: bool | None = None, two_phase: bool | None = None
    ) -> None:
        """Run ALTER_REPLICATION_SLOT; None leaves an option unchanged.

        Publishers support failover since PostgreSQL 17, two_phase since 18.
        """
        options = {"FAILOVER": failover, "TWO_PHASE": two_phase}
        shown = ", ".join(
            f"{option} {'true' if value else 'false'}"
            for option, value in options.items()
            if value is not None
        )
        self.session.execute(
            f"ALTER_REPLICATION_SLOT {quote_ident(name)} ( {shown} )", patient=True
        )

    def drop_slot(self, name: str, *, missing_ok: bool = False) -> bool:
        """Run DROP_REPLICATION_SLOT ... WAIT. Needs a replication session.

        Returns False if the slot does not exist and ``missing_ok`` is set.
        """
        try:
            self.session.execute(
                f"DROP_REPLICATION_SLOT {quote_ident(name)} WAIT", patient=True
            )
        except PublisherError as error:
            if missing_ok and error.sqlstate == _UNDEFINED_OBJECT:
                return False
            raise
        return True

    def drop_idle_slot(self, name: str) -> None:
        """Drop a slot on an ordinary session, which needs no walsender.

        Raises PublisherError: 55006 if the slot is in use, 42704 if it does not exist.
        """
        self.session.query(
            f"SELECT pg_catalog.pg_drop_replication_slot({quote_literal(name)})"
        )

    def slot(self, name: str) -> dict[str, str | None] | None:
        """Return a slot's row of pg_replication_slots; None if there is no such slot.

        The keys are plugin, database, active_pid, wal_status, confirmed_flush_lsn,
        restart_lsn, ``query`` (the command of the session that uses the slot), slot_type and
        invalidation_reason (since PostgreSQL 17).
        """
        has_reason = self.session.server_version >= 170000
        reason = "s.invalidation_reason" if has_reason else "NULL"
        rows = self.session.query(
            "SELECT s.plugin, s.database, s.active_pid, s.wal_status,"
            " s.confirmed_flush_lsn, s.restart_lsn, a.query, s.slot_type,"
            f" {reason}"
            " FROM pg_catalog.pg_replication_slots s"
            " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid"
            f" WHERE s.slot_name = {quote_literal(name)}"
        )
        if not rows:
            return None
        names = (
            "plugin",
            "database",
            "active_pid",
            "wal_status",
            "confirmed_flush_lsn",
            "restart_lsn",
            "query",
            "slot_type",
            "invalidation_reason",
        )
        return dict(zip(names, rows[0], strict=True))

    def slot_wal(self, name: str) -> SlotWal:
        """Describe a slot and the WAL that is kept for it."""
        wal_lsn = self.flushed_lsn()
        rows = self.session.query(
            "SELECT s.active, s.wal_status, s.restart_lsn, s.confirmed_flush_lsn,"
            " s.safe_wal_size FROM pg_catalog.pg_replication_slots s"
            f" WHERE s.slot_name = {quote_literal(name)}"
        )
        if not rows:
            return SlotWal(wal_lsn, exists=False)
        active, status, restart, confirmed, safe = rows[0]
        megabytes = self.session.value(
            "SELECT s.setting FROM pg_catalog.pg_settings s"
            " WHERE s.name = 'max_slot_wal_keep_size'"
        )
        limit = int(megabytes or -1)
        return SlotWal(
            wal_lsn,
            exists=True,
            is_active=active == "t",
            wal_status=status,
            restart_lsn=None if restart is None else Lsn.parse(restart),
            confirmed_lsn=None if confirmed is None else Lsn.parse(confirmed),
            safe_bytes=None if safe is None else int(safe),
            limit_bytes=None if limit < 0 else limit << 20,
        )

    # ---- publications ----------------------------------------------------------------

    def existing_publications(self, names: tuple[str, ...]) -> set[str]:
        """Return the publications of ``names`` that exist."""
        rows = self.session.query(
            "SELECT t.pubname FROM pg_catalog.pg_publication t"
            f" WHERE t.pubname IN ({quote_literals(names)})"
        )
        return {str(r[0]) for r in rows}

    def publish_everything(self, names: tuple[str, ...]) -> bool:
        """Return True if each of the publications publishes all four operations."""
        answer = self.session.value(
            "SELECT COALESCE(pg_catalog.bool_and(p.pubinsert AND p.pubupdate"
            " AND p.pubdelete AND p.pubtruncate), true)"
            " FROM pg_catalog.pg_publication p"
            f" WHERE p.pubname IN ({quote_literals(names)})"
        )
        return answer == "t"

    @property
    def knows_origin(self) -> bool:
        """True if the server's pgoutput has the option ``origin``."""
        return self.session.server_version >= 160000

    def publications_written_to(
        self, names: tuple[str, ...], excluded: tuple[tuple[str, str], ...]
    ) -> list[str]:
        """Return the publications of ``names`` with a table that the publisher itself subscribes
        to.

        ``excluded`` tables, (schema, table), do not count. Needs PostgreSQL 16.
        """
        rows = self.session.query(
            "SELECT DISTINCT p.pubname FROM pg_catalog.pg_publication p,"
            " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt"
            " JOIN pg_catalog.pg_subscription_rel ps ON (gpt.relid = ps.srrelid OR"
            " gpt.relid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(ps.srrelid)"
            " UNION SELECT relid FROM pg_catalog.pg_partition_tree(ps.srrelid))),"
            " pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            f" WHERE c.oid = gpt.relid AND p.pubname IN ({quote_literals(names)})"
            + "".join(
                f" AND NOT (n.nspname = {quote_literal(schema)}"
                f" AND c.relname = {quote_literal(table)})"
                for schema, table in excluded
            )
            + " ORDER BY 1"
        )
        return [str(r[0]) for r in rows]

    def published_tables(self, names: tuple[str, ...]) -> list[tuple[str, str]]:
        """Return (schema, table) of every table of the publications, once each.

        Raises PublisherError (0A000), as PostgreSQL does, if two publications have different
        column lists for one table.
        """
        version = self.session.server_version
        if version >= 160000:
            rows = self.session.query(
                "SELECT DISTINCT n.nspname, c.relname, gpt.attrs"
                " FROM pg_catalog.pg_class c"
                " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
                " JOIN (SELECT (pg_catalog.pg_get_publication_tables("
                "VARIADIC array_agg(pubname::text))).*"
                " FROM pg_catalog.pg_publication"
                f" WHERE pubname IN ({quote_literals(names)})) AS gpt"
                " ON gpt.relid = c.oid"
            )
        else:
            columns = ", t.attnames" if version >= 150000 else ""
            rows = self.session.query(
                f"SELECT DISTINCT t.schemaname, t.tablename{columns}"
                " FROM pg_catalog.pg_publication_tables t"
                f" WHERE t.pubname IN ({quote_literals(names)})"
            )
        tables = sorted((str(r[0]), str(r[1])) for r in rows)
        for before, after in pairwise(tables):
            if before == after:
                raise PublisherError(
                    'cannot use different column lists for table "{}.{}" in'
                    " different publications".format(*after),
                    sqlstate="0A000",
                )
        return tables

    def table(
        self, namespace: str, name: str, publications: tuple[str, ...]
    ) -> RemoteTable:
        """Describe one published table. Raises PublisherError (42P01) if it does not exist."""
        tables = self.tables([(namespace, name)], publications)
        if not tables:
            raise PublisherError(
                f'table "{namespace}.{name}" not found on publisher', sqlstate="42P01"
            )
        return tables[namespace, name]

    def tables(
        self, names: Sequence[tuple[str, str]], publications: tuple[str, ...]
    ) -> dict[tuple[str, str], RemoteTable]:
        """Describe published tables, (schema, table), by name; missing ones are left out."""
        return describe_tables(self.session, names, publications)

    def unique_columns(
        self, relids: Sequence[Oid]
    ) -> dict[Oid, tuple[frozenset[str], ...]]:
        """Return, by OID, the column sets that are unique in the session's snapshot."""
        return unique_columns(self.session, relids)

    @contextmanager
    def seeing(self, snapshot: str) -> Iterator[None]:
        """Run a transaction that uses an exported snapshot.

        The session must not be in a transaction; it is in none afterwards.
        """
        session = self.session
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            session.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")
            yield
        finally:
            session.execute("ROLLBACK")

    def publication_marks(
        self, relids: Sequence[Oid], publications: tuple[str, ...]
    ) -> dict[Oid, str]:
        """Return the publication marks of existing tables by OID; see the function."""
        return publication_marks(self.session, relids, publications)

    def schemas(self, relids: Sequence[Oid]) -> dict[Oid, RemoteSchema]:
        """Describe tables by OID, as replication of their changes needs it.

        Missing tables are left out. Takes no lock, so it waits for no other session.
        """
        return describe_schemas(self.session, relids)

    def enums(self, relids: Sequence[Oid]) -> EnumColumns:
        """Return the enum types that columns of tables contain, and their labels.

        Takes no lock, so it waits for no other session.
        """
        return describe_enums(self.session, relids)

    def position(self) -> Lsn:
        """Return a position above every commit that other sessions can see now."""
        # On a standby a commit is visible before the replay position includes it.
        text = self.session.value(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN"
            " GREATEST(pg_catalog.pg_last_wal_receive_lsn(),"
            " pg_catalog.pg_last_wal_replay_lsn())"
            " ELSE pg_catalog.pg_current_wal_insert_lsn() END"
        )
        return Lsn.parse(str(text))

    def published_types(
        self, names: tuple[str, ...]
    ) -> list[tuple[str, str, str, Oid]]:
        """Return (schema, table, column, type) of every published column, once each."""
        version = self.session.server_version
        published = "a.attname = ANY(t.attnames)" if version >= 150000 else "true"
        if version < 180000:
            published += " AND a.attgenerated = ''"
        rows = self.session.query(
            "SELECT DISTINCT n.nspname, c.relname, a.attname, a.atttypid"
            " FROM pg_catalog.pg_publication_tables t"
            " JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname"
            " JOIN pg_catalog.pg_class c"
            " ON c.relnamespace = n.oid AND c.relname = t.tablename"
            " JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid"
            " AND a.attnum > 0 AND NOT a.attisdropped"
            f" WHERE t.pubname IN ({quote_literals(names)}) AND {published}"
            " ORDER BY 1, 2, 3"
        )
        return [(str(r[0]), str(r[1]), str(r[2]), Oid(int(str(r[3])))) for r in rows]

    def remote_types(self) -> tuple[RemoteType, ...]:
        """Return every type that is not built in, and money with its format."""
        return describe_types(self.session)

    def file_node(self, relid: Oid) -> str | None:
        """Return the current pg_relation_filenode."""
        return self.session.value(
            f"SELECT pg_catalog.pg_relation_filenode({int(relid)})"
        )


def _mark(name: str) -> tuple[int, int]:
    """Return the two keys of the mark's advisory lock."""
    first, second = struct.unpack(
        "=ii", hashlib.blake2b(name.encode(), digest_size=8).digest()
    )
    return first, second


def _marked(name: str) -> str:
    """Return a query for the pids of marked sessions. pg_locks shows the keys as OIDs."""
    first, second = (key % 2**32 for key in _mark(name))
    return (
        "SELECT m.pid FROM pg_catalog.pg_locks m WHERE m.locktype = 'advisory'"
        f" AND m.classid = {first} AND m.objid = {second} AND m.objsubid = 2"
        " AND m.granted"
    )
