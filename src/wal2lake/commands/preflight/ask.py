"""Queries at a publisher: its state, its publications, our privileges on their tables.

Takes an ordinary or a replication session. Returns facts, which ``server`` and ``tablefindings``
judge. The number of queries does not depend on the number of tables. No query writes.

Source: PostgreSQL manual, chapter 52 (system catalogs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wal2lake.commands.preflight.pooler import Pooler
from wal2lake.commands.preflight.server import Server, SourcePublication
from wal2lake.commands.preflight.tablefindings import Table, UnpublishedTable
from wal2lake.pg import Publisher, RemoteTable, Session
from wal2lake.pg.quoting import quote_literals

_SETTINGS: Final = (
    "wal_level",
    "effective_wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "idle_replication_slot_timeout",
    "hot_standby_feedback",
    "server_encoding",
)


def ask_server(
    session: Session, *, pooler: Pooler | None = None, own_senders: int = 0
) -> Server:
    """Ask for facts about the server and our role.

    ``own_senders``: our own walsenders that will have ended when the subscription begins."""
    settings = session.query(
        "SELECT name, setting FROM pg_catalog.pg_settings"
        f" WHERE name IN ({quote_literals(_SETTINGS)})"
    )
    (facts,) = session.query(
        "SELECT pg_catalog.current_setting('server_version'),"
        " pg_catalog.current_database(), pg_catalog.pg_is_in_recovery(),"
        " (SELECT count(*) FROM pg_catalog.pg_replication_slots),"
        " (SELECT count(*) FROM pg_catalog.pg_stat_replication),"
        " (SELECT count(*) FROM pg_catalog.pg_prepared_xacts),"
        " r.rolname, r.rolsuper, r.rolreplication"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
    )
    version, database, recovery, slots, senders, prepared, *role = facts
    return Server(
        version=session.server_version,
        version_text=str(version),
        database=str(database),
        settings={str(name): value for name, value in settings},
        slots=int(str(slots)),
        senders=max(0, int(str(senders)) - own_senders),
        prepared=int(str(prepared)),
        role=str(role[0]),
        superuser=role[1] == "t",
        replication=role[2] == "t",
        in_recovery=recovery == "t",
        refusal=None,
        pooler=pooler,
    )


def ask_publications(session: Session) -> list[SourcePublication]:
    """Ask for all publications of the database."""
    rows = session.query(
        "SELECT pubname, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot"
        " FROM pg_catalog.pg_publication ORDER BY pubname"
    )
    return [
        SourcePublication(str(name), *(flag == "t" for flag in flags))
        for name, *flags in rows
    ]


def ask_tables(
    session: Session,
    remotes: Mapping[tuple[str, str], RemoteTable],
    publications: Sequence[str],
) -> list[Table]:
    """Ask for everything that judging tables of these publications needs beyond ``remotes``."""
    if not remotes:
        return []
    relids = ", ".join(str(int(remote.oid)) for remote in remotes.values())
    rights = session.query(
        "SELECT c.oid, pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')"
        " AND pg_catalog.has_table_privilege(c.oid, 'SELECT'),"
        " pg_catalog.row_security_active(c.oid), c.relispartition"
        f" FROM pg_catalog.pg_class c WHERE c.oid IN ({relids})"
    )
    operations = session.query(
        "SELECT t.schemaname, t.tablename, pg_catalog.bool_or(p.pubinsert),"
        " pg_catalog.bool_or(p.pubupdate), pg_catalog.bool_or(p.pubdelete),"
        " pg_catalog.bool_or(p.pubtruncate)"
        " FROM pg_catalog.pg_publication_tables t"
        " JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname"
        f" WHERE p.pubname IN ({quote_literals(tuple(publications))}) GROUP BY 1, 2"
    )
    columns = session.query(
        "SELECT attrelid, attname, attgenerated FROM pg_catalog.pg_attribute"
        f" WHERE attrelid IN ({relids}) AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attrelid, attnum"
    )
    filtered = _filtered(session, publications, relids)
    allowed = {row[0]: row[1:] for row in rights}
    published = {(row[0], row[1]): row[2:] for row in operations}
    named: dict[str, list[tuple[str, bool]]] = {}
    for relid, name, generated in columns:
        named.setdefault(str(relid), []).append((str(name), generated != ""))
    names = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
    tables = []
    for key, remote in remotes.items():
        oid = str(int(remote.oid))
        if oid not in allowed:
            # The table has been dropped since it was listed.
            continue
        flags = published.get(key, ("t",) * len(names))
        readable, row_security, partition = (f == "t" for f in allowed[oid])
        every = named.get(oid, [])
        tables.append(
            Table(
                remote,
                frozenset(n for n, f in zip(names, flags, strict=True) if f == "t"),
                readable=readable,
                row_security=row_security,
                is_partition=partition,
                columns=tuple(name for name, generated in every if not generated),
                generated=tuple(name for name, generated in every if generated),
                filtered=filtered.get(oid, ()),
            )
        )
    return tables


def _filtered(
    session: Session, publications: Sequence[str], relids: str
) -> dict[str, tuple[str, ...]]:
    """Return, by relation, the columns in row filters of publications of UPDATE or DELETE."""
    if session.server_version < 150000:
        return {}
    # A filter covers one row of one table, so all its variables are columns of that table.
    # pg_depend cannot be used, as it includes the columns of the column list.
    rows = session.query(
        "SELECT DISTINCT r.prrelid, a.attnum, a.attname"
        " FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = r.prrelid AND a.attnum > 0"
        " WHERE r.prqual::pg_catalog.text"
        " LIKE '%:varattno ' || a.attnum::pg_catalog.text || ' %'"
        " AND (p.pubupdate OR p.pubdelete)"
        f" AND p.pubname IN ({quote_literals(tuple(publications))})"
        f" AND r.prrelid IN ({relids}) ORDER BY 1, 2"
    )
    columns: dict[str, tuple[str, ...]] = {}
    for relid, _, name in rows:
        columns[str(relid)] = (*columns.get(str(relid), ()), str(name))
    return columns


def ask_unpublished(
    session: Session, publications: Sequence[str]
) -> list[UnpublishedTable]:
    """Ask for tables that publications cover but the server cannot publish.

    Such a table is covered by ALL TABLES, by its schema or by its partitioned table."""
    if not publications:
        return []
    names = quote_literals(tuple(publications))
    in_schema = (
        " OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace x"
        " JOIN pg_catalog.pg_publication p ON p.oid = x.pnpubid"
        f" WHERE x.pnnspid = c.relnamespace AND p.pubname IN ({names}))"
        if session.server_version >= 150000
        else ""
    )
    rows = session.query(
        "SELECT n.nspname, c.relname, c.relkind = 'f' FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE (c.relkind = 'f' OR c.relkind IN ('r', 'p') AND c.relpersistence = 'u')"
        " AND c.oid >= 16384::pg_catalog.oid"
        " AND (EXISTS (SELECT FROM pg_catalog.pg_publication p"
        f" WHERE p.puballtables AND p.pubname IN ({names})){in_schema}"
        " OR c.relispartition AND EXISTS (SELECT"
        " FROM pg_catalog.pg_partition_ancestors(c.oid) a"
        " JOIN pg_catalog.pg_publication_rel x ON x.prrelid = a.relid"
        " JOIN pg_catalog.pg_publication p ON p.oid = x.prpubid"
        f" WHERE p.pubname IN ({names}))) ORDER BY 1, 2"
    )
    return [UnpublishedTable(str(row[0]), str(row[1]), row[2] == "t") for row in rows]


def ask_remotes(
    publisher: Publisher, publications: Sequence[str]
) -> dict[tuple[str, str], RemoteTable]:
    """Describe every table of these publications."""
    names = tuple(publications)
    if not names:
        return {}
    return publisher.tables(publisher.published_tables(names), names)
