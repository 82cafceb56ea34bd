"""The report of ``wal2lake check`` as lines. Pure.

    ok       wal_level is logical
    problem  publication "p" does not exist on the publisher
             hint: CREATE PUBLICATION p FOR ALL TABLES;

A *problem* stops the subscription, or makes the source refuse its own writes. A *note* is worth
knowing. An *info* is true of most publishers.

Called by: ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wal2lake.cli.terminal.print import table as aligned
from wal2lake.commands.preflight.finding import Finding, Level
from wal2lake.commands.preflight.tablefindings import Table
from wal2lake.pg import RemoteColumn
from wal2lake.pgtypes.mapping import mapping_for


def lines(findings: Sequence[Finding], table: Table | None = None) -> Iterator[str]:
    """Yield the report, or one table's part of it with the mapping of its columns."""
    if table is not None:
        yield ""
        yield _headline(table)
    for finding in findings:
        yield f"{finding.level.value:<9}{finding.text}"
        for label in ("detail", "hint"):
            text = getattr(finding, label)
            if text:
                yield f"{'':<9}{label}: {text}"
    if table is not None:
        yield from aligned(
            ("column", "PostgreSQL", "lakehouse", "note"),
            [_column(c) for c in table.remote.columns],
        )


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line."""
    problems = sum(f.level is Level.PROBLEM for f in findings)
    notes = sum(f.level is Level.NOTE for f in findings)
    counts = "no problems" if problems == 0 else f"{problems} problem"
    if problems > 1:
        counts += "s"
    return f"{counts}, {notes} note{'' if notes == 1 else 's'}"


def _headline(table: Table) -> str:
    remote = table.remote
    key = f"key ({', '.join(remote.key)})" if remote.key else "no primary key"
    rows = (
        "rows unknown (never analyzed)"
        if remote.estimated_rows is None
        else f"about {remote.estimated_rows} rows"
    )
    return f'table "{table.name}": {key}, {rows}'


def _column(column: RemoteColumn) -> tuple[str, str, str, str]:
    mapping = mapping_for(
        column.type_oid,
        column.typmod,
        type_name=column.type_name,
        attndims=column.dimensions,
    )
    shown = mapping.type_name
    if column.domain is not None:
        shown = f"{column.domain} ({shown})"
    return (
        column.name,
        shown + (" not null" if column.not_null else ""),
        mapping.spark_ddl.lower(),
        mapping.note or "",
    )
