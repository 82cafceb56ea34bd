"""``wal2lake check CONNINFO``: tells whether a subscription to this server will work, and how its
columns are stored. Changes nothing on the server.

``preflight`` asks and judges, ``report`` formats. Exit codes: 0 without problems, 1 if there are
problems (each with its remedy).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from wal2lake.cli.check.report import lines, summary
from wal2lake.cli.terminal.progress import late_spinner
from wal2lake.commands.preflight.ask import (
    ask_publications,
    ask_remotes,
    ask_server,
    ask_tables,
    ask_unpublished,
)
from wal2lake.commands.preflight.finding import Finding, Level, merge_findings
from wal2lake.commands.preflight.pooler import ask_pooler
from wal2lake.commands.preflight.server import (
    judge_extents,
    judge_publications,
    judge_server,
)
from wal2lake.commands.preflight.tablefindings import (
    judge_table,
    judge_toast,
    judge_unpublished,
)
from wal2lake.commands.preflight.values import ask_values
from wal2lake.errors import PublisherError
from wal2lake.pg import Publisher, Session, connect, limit_connecting, redact
from wal2lake.settings import SubscriptionSettings

_APPLICATION: Final = "wal2lake check"


def run(options: argparse.Namespace) -> int:
    """Examine the server and print the report."""
    conninfo: str = options.conninfo
    print(f"publisher: {redact(conninfo)}")
    limit_connecting(SubscriptionSettings().connect_timeout_ms)
    with contextlib.ExitStack() as stack:
        waiting = stack.enter_context(contextlib.ExitStack())
        waiting.enter_context(late_spinner("asking the server"))
        session = stack.enter_context(_ordinary(conninfo))
        pooler = ask_pooler(
            session, lambda seconds: _ordinary(conninfo, seconds), ordinary=True
        )
        server = ask_server(session, pooler=pooler)
        # Tried after counting walsenders, as its own would have been counted.
        server = replace(server, refusal=_replication_refusal(conninfo))
        chosen = judge_publications(ask_publications(session), options.publications)
        names = [p.name for p in chosen.publications]
        unpublished = judge_unpublished(ask_unpublished(session, names))
        findings: list[Finding] = [
            *judge_server(server),
            *chosen.findings,
            *merge_findings(unpublished),
            *judge_extents(_extents(session, names)),
        ]
        waiting.close()
        print("\n".join(lines(findings)), flush=True)
        with late_spinner("looking at the tables"):
            remotes = ask_remotes(Publisher(session), names)
            tables = ask_tables(session, remotes, names)
            values = ask_values(session, tables)
    for table in tables:
        table_values = [finding for finding in values if finding.table == table.name]
        table_findings = [
            finding.alone() for finding in (*judge_table(table), *table_values)
        ]
        findings.extend(table_findings)
        print("\n".join(lines(table_findings, table)))
    table_findings = judge_toast(tables)
    findings.extend(table_findings)
    print("\n".join(("", *lines(table_findings), summary(findings))))
    return 1 if any(f.level is Level.PROBLEM for f in findings) else 0


def _extents(session: Session, names: Sequence[str]) -> dict[str, int]:
    publisher = Publisher(session)
    return {name: len(publisher.published_tables((name,))) for name in names}


def _ordinary(conninfo: str, answer_seconds: float | None = None) -> Session:
    return connect(
        conninfo,
        application_name=_APPLICATION,
        answer_timeout_seconds=answer_seconds,
    )


def _replication_refusal(conninfo: str) -> str | None:
    """Return the reason for refusing a replication connection; None if it works.

    Only this attempt covers pg_hba.conf, a managed service's own roles, and a pooler, all at
    once.
    """
    try:
        with connect(
            conninfo, application_name=_APPLICATION, replication=True
        ) as session:
            Publisher(session).identify()
    except PublisherError as error:
        return error.message
    return None
