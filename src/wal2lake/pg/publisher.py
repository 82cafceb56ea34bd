"""What a subscriber asks a publisher, typed. One method a question.

The statements are those of PostgreSQL's own subscriber (reference section 3), where it asks
the same; questions of ours (row estimates, page counts, unchanged file nodes) stand beside
them. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.model import Lsn, Oid, ReplicaIdentity
from wal2lake.pg.connection import Session
from wal2lake.pgtypes import FIRST_NORMAL_OID, MONEY_SAMPLES, RemoteType, money_type

_UNDEFINED_OBJECT: Final = "42704"

_TYPE_NAME: Final = (
    "CASE WHEN {1}.nspname = 'pg_catalog' THEN {0}.typname"
    " ELSE {1}.nspname || '.' || {0}.typname END"
)


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
class RemoteColumn:
    """A published column as the publisher's catalog has it."""

    name: str
    type_oid: Oid
    """Of a domain, here and below: the type under it, through any number of domains."""
    typmod: int
    type_name: str
    """``schema.name`` of a type that is not built in, else the plain name."""
    type_kind: str
    """pg_type.typtype: b base, e enum, c composite, r range, m multirange."""
    dimensions: int
    """pg_attribute.attndims: 0 for a scalar."""
    not_null: bool
    default: str | None
    is_identity_key: bool
    toastable: bool
    domain: str | None = None
    """``schema.name`` if the column is declared with a domain."""


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A published table as the publisher's catalog has it."""

    oid: Oid
    namespace: str
    name: str
    kind: str
    """pg_class.relkind: r or p."""
    identity: ReplicaIdentity
    columns: tuple[RemoteColumn, ...]
    key: tuple[str, ...]
    """The primary key's columns in key order; empty: none."""
    identity_key: tuple[str, ...]
    """The replica identity index's columns; empty: none."""
    row_filters: tuple[str, ...]
    """Expressions, OR-ed; empty: all rows."""
    estimated_rows: int | None
    pages: int
    file_node: str | None
    """pg_relation_filenode: another one means that the rows have moved."""
    persistence: str
    """pg_class.relpersistence: p, u or t."""
    row_security: bool

    @property
    def qualified(self) -> str:
        """``schema.table`` quoted as needed."""
        return f"{quote_ident(self.namespace)}.{quote_ident(self.name)}"


def quote_ident(name: str) -> str:
    """An identifier, always safe to paste into a statement."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string constant, standard_conforming_strings on or off."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted


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

    def log_running_transactions(self) -> bool:
        """Have the server log them, as it does every 15 s; False: it is too old to be
        asked (before 16). On a standby an error: its primary logs them."""
        if self.session.server_version < 160000:
            return False
        self.session.query("SELECT pg_catalog.pg_log_standby_snapshot()")
        return True

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
        row = self.session.query(
            f"CREATE_REPLICATION_SLOT {quote_ident(name)} {kind} pgoutput {option}"
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
        self.session.execute(f"ALTER_REPLICATION_SLOT {quote_ident(name)} ( {shown} )")

    def drop_slot(self, name: str, *, missing_ok: bool = False) -> bool:
        """DROP_REPLICATION_SLOT ... WAIT; False if it was not there. Needs a replication
        session."""
        try:
            self.session.execute(f"DROP_REPLICATION_SLOT {quote_ident(name)} WAIT")
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
        """Those of ``names`` that exist."""
        rows = self.session.query(
            "SELECT t.pubname FROM pg_catalog.pg_publication t"
            f" WHERE t.pubname IN ({_literals(names)})"
        )
        return {str(r[0]) for r in rows}

    def publish_everything(self, names: tuple[str, ...]) -> bool:
        """Do the publications together publish all four operations?"""
        answer = self.session.value(
            "SELECT COALESCE(pg_catalog.bool_and(p.pubinsert AND p.pubupdate"
            " AND p.pubdelete AND p.pubtruncate), true)"
            " FROM pg_catalog.pg_publication p"
            f" WHERE p.pubname IN ({_literals(names)})"
        )
        return answer == "t"

    @property
    def knows_origin(self) -> bool:
        """Has its pgoutput the option ``origin``?"""
        return self.session.server_version >= 160000

    def publications_written_to(
        self, names: tuple[str, ...], known: tuple[tuple[str, str], ...]
    ) -> list[str]:
        """Those of ``names`` with a table that a subscription of the publisher's own
        writes to; ``known`` tables, (schema, table), do not count. PostgreSQL 16 on."""
        rows = self.session.query(
            "SELECT DISTINCT p.pubname FROM pg_catalog.pg_publication p,"
            " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt"
            " JOIN pg_catalog.pg_subscription_rel ps ON (gpt.relid = ps.srrelid OR"
            " gpt.relid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(ps.srrelid)"
            " UNION SELECT relid FROM pg_catalog.pg_partition_tree(ps.srrelid))),"
            " pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            f" WHERE c.oid = gpt.relid AND p.pubname IN ({_literals(names)})"
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
                f" WHERE pubname IN ({_literals(names)})) AS gpt"
                " ON gpt.relid = c.oid"
            )
        else:
            columns = ", t.attnames" if version >= 150000 else ""
            rows = self.session.query(
                f"SELECT DISTINCT t.schemaname, t.tablename{columns}"
                " FROM pg_catalog.pg_publication_tables t"
                f" WHERE t.pubname IN ({_literals(names)})"
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
        """The same of many, (schema, table), by their names: those that are there.

        As many questions as for one table.
        """
        if not names:
            return {}
        pairs = ", ".join(f"({quote_literal(s)}, {quote_literal(t)})" for s, t in names)
        rows = self.session.query(
            "SELECT c.oid, c.relreplident, c.relkind, c.reltuples::bigint,"
            " pg_catalog.pg_relation_size(c.oid)"
            " / pg_catalog.current_setting('block_size')::bigint,"
            " pg_catalog.pg_relation_filenode(c.oid), c.relpersistence,"
            " c.relrowsecurity, n.nspname, c.relname"
            " FROM pg_catalog.pg_class c"
            " INNER JOIN pg_catalog.pg_namespace n ON (c.relnamespace = n.oid)"
            f" WHERE (n.nspname, c.relname) IN ({pairs})"
        )
        if not rows:
            return {}
        relids = tuple(_oid(row[0]) for row in rows)
        published = self._published(relids, publications)
        columns = self._columns(relids, published)
        indexes = self._index_columns(relids)
        found = {}
        for relid, row in sorted(
            zip(relids, rows, strict=True), key=lambda one: one[1][8:]
        ):
            _, identity, kind, tuples, pages, node, persistence, security, *name = row
            namespace, table = map(str, name)
            key, identity_key = indexes[relid]
            found[namespace, table] = RemoteTable(
                oid=relid,
                namespace=namespace,
                name=table,
                kind=str(kind),
                identity=ReplicaIdentity(identity),
                columns=columns.get(relid, ()),
                key=key,
                identity_key=identity_key,
                row_filters=published[relid].filters,
                estimated_rows=None
                if tuples is None or int(tuples) < 0
                else int(tuples),
                pages=int(pages or 0),
                file_node=node,
                persistence=str(persistence),
                row_security=security == "t",
            )
        return found

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
            f" WHERE t.pubname IN ({_literals(names)}) AND {published}"
            " ORDER BY 1, 2, 3"
        )
        return [(str(r[0]), str(r[1]), str(r[2]), Oid(int(str(r[3])))) for r in rows]

    def remote_types(self) -> tuple[RemoteType, ...]:
        """Every type that is not built in, for the decoders of its binary form; and money,
        with its format.

        Row types of tables are left out unless some column is of that type.
        """
        rows = self.session.query(
            "SELECT t.oid, n.nspname || '.' || t.typname,"
            # A domain has the output function of its base type.
            " CASE WHEN t.typtype <> 'd'"
            " AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc"
            " THEN 'a'"
            # Somebody's own type may be called citext.
            " WHEN t.typtype = 'b' AND EXISTS (SELECT FROM pg_catalog.pg_depend d"
            " JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid"
            " WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass"
            " AND d.objid = t.oid AND d.deptype = 'e'"
            " AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass"
            " AND x.extname = t.typname) THEN 'x'"
            " ELSE t.typtype END,"
            " t.typsend <> 0, CASE t.typtype WHEN 'd' THEN t.typbasetype"
            " WHEN 'r' THEN r.rngsubtype WHEN 'm' THEN m.rngtypid"
            " ELSE t.typelem END,"
            " (SELECT pg_catalog.string_agg(a.atttypid::pg_catalog.text, ' '"
            " ORDER BY a.attnum) FROM pg_catalog.pg_attribute a"
            " WHERE a.attrelid = t.typrelid AND a.attnum > 0"
            " AND NOT a.attisdropped), t.typdelim"
            " FROM pg_catalog.pg_type t"
            " JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace"
            " LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid"
            " LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid"
            " LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem"
            f" WHERE t.oid >= {FIRST_NORMAL_OID} AND t.typtype <> 'p'"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_type own ON own.oid = c.reltype"
            " WHERE c.relkind <> 'c'"
            " AND c.oid = COALESCE(NULLIF(t.typrelid, 0), e.typrelid)"
            " AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a"
            " WHERE a.atttypid IN (own.oid, own.typarray)))"
            " ORDER BY t.oid"
        )
        return self._money(), *(
            RemoteType(
                oid=Oid(int(str(r[0]))),
                name=str(r[1]),
                kind=str(r[2]),
                sent=r[3] == "t",
                part=Oid(int(r[4] or 0)),
                attributes=tuple(Oid(int(a)) for a in (r[5] or "").split()),
                delimiter=str(r[6]),
            )
            for r in rows
        )

    def _money(self) -> RemoteType:
        amounts = (f"({n})::pg_catalog.int8::pg_catalog.money" for n in MONEY_SAMPLES)
        (samples,) = self.session.query(f"SELECT {', '.join(amounts)}")
        return money_type([str(text) for text in samples])

    def file_node(self, relid: Oid) -> str | None:
        """pg_relation_filenode now."""
        return self.session.value(
            f"SELECT pg_catalog.pg_relation_filenode({int(relid)})"
        )

    def _columns(
        self, relids: Sequence[Oid], published: Mapping[Oid, _Published]
    ) -> dict[Oid, tuple[RemoteColumn, ...]]:
        rows = self.session.query(
            "WITH RECURSIVE below(relid, attnum, typid, typmod, dimensions) AS ("
            "SELECT a.attrelid, a.attnum, a.atttypid, a.atttypmod,"
            " a.attndims::pg_catalog.int4"
            " FROM pg_catalog.pg_attribute a"
            " WHERE a.attnum > 0::pg_catalog.int2 AND NOT a.attisdropped"
            f" AND a.attrelid IN ({_numbers(relids)})"
            " UNION ALL SELECT below.relid, below.attnum,"
            " t.typbasetype, t.typtypmod, t.typndims"
            " FROM below JOIN pg_catalog.pg_type t ON t.oid = below.typid"
            " WHERE t.typtype = 'd')"
            " SELECT a.attnum, a.attname, t.oid, below.typmod,"
            f" {_TYPE_NAME.format('t', 'tn')}, t.typtype, below.dimensions,"
            " a.attnotnull, pg_catalog.pg_get_expr(d.adbin, d.adrelid),"
            " COALESCE(a.attnum = ANY(i.indkey), false), a.attstorage <> 'p',"
            f" CASE WHEN t.oid <> a.atttypid THEN {_TYPE_NAME.format('o', 'own')} END,"
            " a.attrelid, a.attgenerated"
            " FROM below JOIN pg_catalog.pg_attribute a"
            " ON a.attrelid = below.relid AND a.attnum = below.attnum"
            " JOIN pg_catalog.pg_type t"
            " ON t.oid = below.typid AND t.typtype <> 'd'"
            " JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace"
            " JOIN pg_catalog.pg_type o ON o.oid = a.atttypid"
            " JOIN pg_catalog.pg_namespace own ON own.oid = o.typnamespace"
            " LEFT JOIN pg_catalog.pg_attrdef d"
            " ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
            " AND a.attgenerated = ''"
            # OFFSET 0: asked once for each table, not for each pair with an index.
            " LEFT JOIN (SELECT r.relid, x.indkey FROM (SELECT c.oid AS relid,"
            " pg_catalog.pg_get_replica_identity_index(c.oid) AS identity"
            f" FROM pg_catalog.pg_class c WHERE c.oid IN ({_numbers(relids)})"
            " OFFSET 0) r JOIN pg_catalog.pg_index x ON x.indexrelid = r.identity) i"
            " ON i.relid = a.attrelid"
            " ORDER BY a.attrelid, a.attnum"
        )
        found: dict[Oid, list[RemoteColumn]] = {}
        for r in rows:
            relid, generated = _oid(r[12]), r[13] != ""
            listed = published[relid].columns
            # A column list has generated columns only if they are published.
            if generated if listed is None else int(str(r[0])) not in listed:
                continue
            found.setdefault(relid, []).append(
                RemoteColumn(
                    name=str(r[1]),
                    type_oid=Oid(int(str(r[2]))),
                    typmod=int(str(r[3])),
                    type_name=str(r[4]),
                    type_kind=str(r[5]),
                    dimensions=int(str(r[6])),
                    not_null=r[7] == "t",
                    default=r[8],
                    is_identity_key=r[9] == "t",
                    toastable=r[10] == "t",
                    domain=r[11],
                )
            )
        return {relid: tuple(columns) for relid, columns in found.items()}

    def _index_columns(
        self, relids: Sequence[Oid]
    ) -> dict[Oid, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Columns of the primary key, and of the replica identity index."""
        rows = self.session.query(
            "SELECT i.indrelid, i.indisprimary, i.indisreplident, a.attname"
            " FROM pg_catalog.pg_index i,"
            " pg_catalog.unnest(i.indkey::pg_catalog.int2[])"
            " WITH ORDINALITY AS k(attnum, position),"
            " pg_catalog.pg_attribute a"
            f" WHERE i.indrelid IN ({_numbers(relids)})"
            " AND (i.indisprimary OR i.indisreplident) AND i.indisvalid"
            " AND k.position <= i.indnkeyatts AND a.attrelid = i.indrelid"
            " AND a.attnum = k.attnum ORDER BY k.position"
        )
        keys: dict[Oid, list[str]] = {}
        identities: dict[Oid, list[str]] = {}
        for relid, primary, identity, name in rows:
            if primary == "t":
                keys.setdefault(_oid(relid), []).append(str(name))
            if identity == "t":
                identities.setdefault(_oid(relid), []).append(str(name))
        return {
            relid: (tuple(keys.get(relid, ())), tuple(identities.get(relid, ())))
            for relid in relids
        }

    def _published(
        self, relids: Sequence[Oid], publications: tuple[str, ...]
    ) -> dict[Oid, _Published]:
        """What the publications say of tables: columns and rows."""
        version = self.session.server_version
        found = dict.fromkeys(relids, _Published(None, ()))
        if version < 150000:
            return found
        # Before 18 no generated column can be published; since then the list is whole, with
        # those of publish_generated_columns.
        listed = (
            "COALESCE(gpt.attrs, '')"
            if version >= 180000
            else "CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)"
            " THEN NULL ELSE gpt.attrs END"
        )
        rows = self.session.query(
            f"SELECT DISTINCT c.oid, {listed},"
            " pg_catalog.pg_get_expr(gpt.qual, gpt.relid)"
            " FROM pg_catalog.pg_publication p,"
            " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt,"
            " pg_catalog.pg_class c"
            f" WHERE c.oid IN ({_numbers(relids)}) AND c.oid = gpt.relid"
            f" AND p.pubname IN ({_literals(publications)})"
        )
        by_table: dict[Oid, list[tuple[str | None, str | None]]] = {}
        for relid, columns, condition in rows:
            by_table.setdefault(_oid(relid), []).append((columns, condition))
        for oid, said in by_table.items():
            columns = said[0][0]
            filters = list(dict.fromkeys(condition for _, condition in said))
            found[oid] = _Published(
                None if columns is None else tuple(map(int, columns.split())),
                # One publication without a filter publishes every row.
                () if None in filters else tuple(map(str, filters)),
            )
        return found


@dataclass(frozen=True, slots=True)
class _Published:
    """What is published of one table."""

    columns: tuple[int, ...] | None
    """Attribute numbers; None: all that are not generated."""
    filters: tuple[str, ...]


def _oid(text: str | None) -> Oid:
    return Oid(int(str(text)))


def _numbers(relids: Sequence[Oid]) -> str:
    return ", ".join(str(int(relid)) for relid in relids)


def _literals(names: tuple[str, ...]) -> str:
    return ", ".join(quote_literal(name) for name in names)
