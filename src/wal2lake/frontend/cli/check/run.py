"""``wal2lake check CONNINFO``: will a subscription to this server work, and what becomes
of its columns? Changes nothing on the server.

This module asks; ``findings`` judges and prints. Exit codes: 0 nothing
stands in the way, 1 there are problems (each with its remedy).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.frontend.cli.check.findings import (
    Level,
    Publication,
    Server,
    Table,
    judge_publications,
    judge_server,
    judge_table,
    judge_toast,
    lines,
    summary,
)
from wal2lake.pg import Publisher, Session, connect, limit_connecting, redact
from wal2lake.settings import SubscriptionSettings

_APPLICATION: Final = "wal2lake check"

_SETTINGS: Final = (
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "server_encoding",
)


def run(options: argparse.Namespace) -> int:
    """Look at the server and print the report."""
    print(f"publisher: {redact(options.conninfo)}")
    limit_connecting(SubscriptionSettings().connect_timeout_ms)
    with connect(options.conninfo, application_name=_APPLICATION) as session:
        server = ask_server(session, options.conninfo)
        findings = judge_server(server)
        publications = ask_publications(session)
        chosen = judge_publications(publications, options.publications)
        findings.extend(chosen.findings)
        print("\n".join(lines(findings)))
        tables = ask_tables(session, chosen.found)
    for table in tables:
        found = judge_table(table)
        findings.extend(found)
        print("\n".join(lines(found, table)))
    found = judge_toast(tables)
    findings.extend(found)
    print("\n".join(("", *lines(found), summary(findings))))
    return 1 if any(f.level is Level.PROBLEM for f in findings) else 0


def ask_server(session: Session, conninfo: str) -> Server:
    """Facts of the server and of the role that we are."""
    publisher = Publisher(session)
    counts = session.query(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_replication_slots),"
        " (SELECT count(*) FROM pg_catalog.pg_stat_replication),"
        " (SELECT count(*) FROM pg_catalog.pg_prepared_xacts)"
    )[0]
    role = session.query(
        "SELECT rolname, rolsuper, rolreplication, pg_catalog.pg_is_in_recovery()"
        " FROM pg_catalog.pg_roles WHERE rolname = current_user"
    )[0]
    return Server(
        version=session.server_version,
        version_text=publisher.setting("server_version") or "",
        database=session.value("SELECT pg_catalog.current_database()") or "",
        settings={name: publisher.setting(name) for name in _SETTINGS},
        slots=int(counts[0] or 0),
        senders=int(counts[1] or 0),
        prepared=int(counts[2] or 0),
        role=role[0] or "",
        superuser=role[1] == "t",
        replication=role[2] == "t",
        in_recovery=role[3] == "t",
        refusal=_replication_refusal(conninfo),
    )


def _replication_refusal(conninfo: str) -> str | None:
    """Why a replication connection is refused; None: it works.

    The only question that pg_hba.conf, a managed service's own roles and a pooler in
    between cannot answer differently later.
    """
    try:
        with connect(
            conninfo, application_name=_APPLICATION, replication=True
        ) as session:
            Publisher(session).identify()
    except PublisherError as error:
        return error.message
    return None


def ask_publications(session: Session) -> list[Publication]:
    """All publications of the database."""
    rows = session.query(
        "SELECT pubname, pubinsert, pubupdate, pubdelete, pubtruncate"
        " FROM pg_catalog.pg_publication ORDER BY pubname"
    )
    return [
        Publication(str(r[0]), r[1] == "t", r[2] == "t", r[3] == "t", r[4] == "t")
        for r in rows
    ]


def ask_tables(session: Session, publications: Sequence[Publication]) -> list[Table]:
    """Every table of these publications."""
    if not publications:
        return []
    names = tuple(p.name for p in publications)
    publisher = Publisher(session)
    updates = any(p.update or p.delete for p in publications)
    found = []
    for namespace, name in publisher.published_tables(names):
        remote = publisher.table(namespace, name, names)
        rights = session.query(
            f"SELECT pg_catalog.has_table_privilege({int(remote.oid)}, 'SELECT'),"
            f" pg_catalog.row_security_active({int(remote.oid)}::pg_catalog.oid)"
        )[0]
        found.append(Table(remote, updates, rights[0] == "t", rights[1] == "t"))
    return found
