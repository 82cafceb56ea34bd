"""Asks a publisher, typed, everything that a subscriber needs to know. One method a question.

The statements are those of PostgreSQL's own subscriber (reference section 3), where it asks
the same; questions of ours stand beside them. What tables and types are is asked in ``tables`` and
``types``. Nothing here decides anything.
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
from wal2lake.pg.quoting import quote_ident, quote_literal, quote_literals
from wal2lake.pg.tables import (
    RemoteTable,
    describe_schemas,
    describe_tables,
    publication_marks,
    unique_columns,
)
from wal2lake.pg.types import describe_enums, describe_types
from wal2lake.pgtypes import RemoteType

_UNDEFINED_OBJECT: Final = "42704"

_UNKNOWN_FUNCTION: Final = ("42883", "0A000")
"""undefined_function, feature_not_supported."""


@dataclass(frozen=True, slots=True)
class Identity:
    """IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    position: Lsn
    database: str | None = None
    """The one that the session is connected to."""


@dataclass(frozen=True, slots=True)
class SlotCreated:
    """CREATE_REPLICATION_SLOT."""

    name: str
    consistent_point: Lsn
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class LockWaiter:
    """A session that waits for an ACCESS EXCLUSIVE lock, and one that keeps it waiting."""

    pid: int
    transaction: str
    """pg_locks.virtualtransaction: a session's next transaction has another one."""
    relation: int
    """OID of what is to be locked."""
    blocker: int
    """pid of one of our sessions; 0: the session that asks."""


class Publisher:
    """Questions over one session. Replication commands need a replication session."""

    def __init__(self, session: Session) -> None:
        """``session`` stays the caller's to close."""
        self.session = session

    # ---- the server ------------------------------------------------------------

    def identify(self) -> Identity:
        """IDENTIFY_SYSTEM; needs a replication session."""
        row = self.session.query("IDENTIFY_SYSTEM")[0]
        return Identity(str(row[0]), int(str(row[1])), Lsn.parse(str(row[2])), row[3])

    def started(self) -> str | None:
        """When the server was started, to the microsecond: as long as it is the same text, it is
        the same running server."""
        return self.session.value("SELECT pg_catalog.pg_postmaster_start_time()")

    def timeline_history(self, timeline: int) -> str:
        """The content of the timeline's history file; needs a replication session."""
        rows = self.session.query(f"TIMELINE_HISTORY {timeline}")
        return str(rows[0][1] or "")

    def setting(self, name: str) -> str | None:
        """current_setting, None if the server does not know it."""
        return self.session.value(
            f"SELECT pg_catalog.current_setting({quote_literal(name)}, true)"
        )

    def flushed_lsn(self) -> Lsn:
        """How far the server's WAL is durable (replayed, on a standby)."""
        text = self.session.value(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END"
        )
        return Lsn.parse(str(text))

    def in_recovery(self) -> bool:
        """Is the server a standby?"""
        return self.session.value("SELECT pg_catalog.pg_is_in_recovery()") == "t"

    def timeline(self) -> int:
        """The one that is written now; an error on a standby."""
        name = self.session.value(
            "SELECT pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())"
        )
        return int(str(name)[:8], 16)

    def log_running_transactions(self) -> bool:
        """Have the server log them, as it does every 15 s; False: it is too old to be
        asked (before 16). On a standby an error: its primary logs them."""
        if self.session.server_version < 160000:
            return False
        self.session.query("SELECT pg_catalog.pg_log_standby_snapshot()")
        return True

    # ---- locks ---------------------------------------------------------------------

    def mark_transaction(self, name: str) -> None:
        """Have ``lock_waiters`` and ``end_marked`` find this session under ``name`` until its
        transaction ends. The mark is a shared advisory lock: application_name is the user's,
        and pg_stat_activity shows little of other roles' sessions. A server without advisory
        locks (another node) has no marked sessions."""
        first, second = _mark(name)
        self.session.execute("SAVEPOINT mark")
        try:
            # Of the transaction: a pooler gives its next one another session.
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
        """Can ``lock_waiters`` be asked? Not on another node. Not inside a transaction."""
        try:
            self.session.query("SELECT pg_catalog.pg_blocking_pids(0)")
        except PublisherError as error:
            if error.sqlstate not in _UNKNOWN_FUNCTION:
                raise
            return False
        return True

    def lock_waiters(self, name: str) -> list[LockWaiter]:
        """Sessions that wait for this session, or for one that is marked ``name``, with an
        ACCESS EXCLUSIVE lock: the only kind that readers stand in the way of."""
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
        """pg_terminate_backend."""
        self.session.query(f"SELECT pg_catalog.pg_terminate_backend({pid})")

    def end_marked(self, name: str) -> None:
        """End all sessions that are marked ``name``."""
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
        """CREATE_REPLICATION_SLOT ... LOGICAL pgoutput; snapshot: nothing|export|use."""
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        if self.session.server_version >= 150000:
            first = "TWO_PHASE, " if two_phase else ""
            first += "FAILOVER, " if failover else ""
            option = f"({first}SNAPSHOT '{snapshot}')"
        else:
            # The server says that it does not know failover.
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
        # It waits for every transaction that runs.
        row = self.session.query(
            f"CREATE_REPLICATION_SLOT {quote_ident(name)} {kind} pgoutput {option}",
            patient=True,
        )[0]
        return SlotCreated(str(row[0]), Lsn.parse(str(row[1])), row[2])

    def alter_slot(
        self, name: str, *, failover: bool | None = None, two_phase: bool | None = None
    ) -> None:
        """ALTER_REPLICATION_SLOT; None leaves an option. Publishers know failover from
        PostgreSQL 17 on, two_phase from 18 on."""
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
        """DROP_REPLICATION_SLOT ... WAIT; False if it was not there. Needs a replication
        session."""
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
        """The same on an ordinary session, which takes no walsender; 55006 if somebody
        uses it, 42704 if it was not there."""
        self.session.query(
            f"SELECT pg_catalog.pg_drop_replication_slot({quote_literal(name)})"
        )

    def slot(self, name: str) -> dict[str, str | None] | None:
        """pg_replication_slots of one slot: plugin, database, active_pid, wal_status,
        confirmed_flush_lsn, restart_lsn, the command of the session that uses it
        (``query``), slot_type, invalidation_reason (PostgreSQL 17 on); None if there is
        none."""
        told = self.session.server_version >= 170000
        reason = "s.invalidation_reason" if told else "NULL"
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

    # ---- publications ----------------------------------------------------------------

    def existing_publications(self, names: tuple[str, ...]) -> set[str]:
        """Return those of ``names`` that exist."""
        rows = self.session.query(
            "SELECT t.pubname FROM pg_catalog.pg_publication t"
            f" WHERE t.pubname IN ({quote_literals(names)})"
        )
        return {str(r[0]) for r in rows}

    def publish_everything(self, names: tuple[str, ...]) -> bool:
        """Do the publications together publish all four operations?"""
        answer = self.session.value(
            "SELECT COALESCE(pg_catalog.bool_and(p.pubinsert AND p.pubupdate"
            " AND p.pubdelete AND p.pubtruncate), true)"
            " FROM pg_catalog.pg_publication p"
            f" WHERE p.pubname IN ({quote_literals(names)})"
        )
        return answer == "t"

    @property
    def knows_origin(self) -> bool:
        """Has its pgoutput the option ``origin``?"""
        return self.session.server_version >= 160000

    def publications_written_to(
        self, names: tuple[str, ...], known: tuple[tuple[str, str], ...]
    ) -> list[str]:
        """Return those of ``names`` with a table that a subscription of the publisher's own writes
        to; ``known`` tables, (schema, table), do not count. PostgreSQL 16 on."""
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
                for schema, table in known
            )
            + " ORDER BY 1"
        )
        return [str(r[0]) for r in rows]

    def published_tables(self, names: tuple[str, ...]) -> list[tuple[str, str]]:
        """(schema, table) of every table of the publications, once each.

        Raises PublisherError (0A000) as PostgreSQL does when two publications give
        one table different column lists.
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
        found = sorted((str(r[0]), str(r[1])) for r in rows)
        for before, after in pairwise(found):
            if before == after:
                raise PublisherError(
                    'cannot use different column lists for table "{}.{}" in'
                    " different publications".format(*after),
                    sqlstate="0A000",
                )
        return found

    def table(
        self, namespace: str, name: str, publications: tuple[str, ...]
    ) -> RemoteTable:
        """All about one published table; PublisherError (42P01) if it is gone."""
        found = self.tables([(namespace, name)], publications)
        if not found:
            raise PublisherError(
                f'table "{namespace}.{name}" not found on publisher', sqlstate="42P01"
            )
        return found[namespace, name]

    def tables(
        self, names: Sequence[tuple[str, str]], publications: tuple[str, ...]
    ) -> dict[tuple[str, str], RemoteTable]:
        """The same of many, (schema, table), by their names: those that are there."""
        return describe_tables(self.session, names, publications)

    def unique_columns(
        self, relids: Sequence[Oid]
    ) -> dict[Oid, tuple[frozenset[str], ...]]:
        """By which columns the rows of tables, by OID, are unique in the session's snapshot."""
        return unique_columns(self.session, relids)

    @contextmanager
    def seeing(self, snapshot: str) -> Iterator[None]:
        """A transaction that sees an exported snapshot; the session is in none before and
        afterwards."""
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
        """Return, by OID, how existing tables are published; see the function."""
        return publication_marks(self.session, relids, publications)

    def schemas(self, relids: Sequence[Oid]) -> dict[Oid, RemoteSchema]:
        """Tables by OID, those that are there: what following their changes takes. Waits for
        nobody."""
        return describe_schemas(self.session, relids)

    def enums(self, relids: Sequence[Oid]) -> EnumColumns:
        """Enum types below the columns of tables, and their labels. Waits for nobody."""
        return describe_enums(self.session, relids)

    def position(self) -> Lsn:
        """Return a position above every commit that others can see now."""
        # A standby shows a commit before it says that it has replayed it.
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
        """(schema, table, column, type) of every published column, once each."""
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
        """Every type that is not built in; and money, with its format."""
        return describe_types(self.session)

    def file_node(self, relid: Oid) -> str | None:
        """pg_relation_filenode now."""
        return self.session.value(
            f"SELECT pg_catalog.pg_relation_filenode({int(relid)})"
        )


def _mark(name: str) -> tuple[int, int]:
    """The two keys of the advisory lock."""
    first, second = struct.unpack(
        "=ii", hashlib.blake2b(name.encode(), digest_size=8).digest()
    )
    return first, second


def _marked(name: str) -> str:
    """A query for the pids of sessions that hold it. pg_locks has the keys as OIDs."""
    first, second = (key % 2**32 for key in _mark(name))
    return (
        "SELECT m.pid FROM pg_catalog.pg_locks m WHERE m.locktype = 'advisory'"
        f" AND m.classid = {first} AND m.objid = {second} AND m.objsubid = 2"
        " AND m.granted"
    )
