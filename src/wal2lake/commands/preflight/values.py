"""Finds columns of the source with values that are treated specially here.

Infinities and years outside 1-9999 are stored exactly, but not every reader of the lake's files
shows them (docs/arch/11_types.md). Timestamps after January 294247 and NaN in numeric(p,s) stop a
subscription, unless value_policies handle them.

Takes a session at the publisher and its tables; returns findings. Each table is read once, for at
most ``_PATIENCE_MS``; a finding says so if that was too short. Called by ``wal2lake check`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.commands.preflight.finding import Level, TableFinding
from wal2lake.commands.preflight.tablefindings import Table
from wal2lake.errors import PublisherError
from wal2lake.pg import RemoteColumn, Session
from wal2lake.pg.quoting import quote_ident
from wal2lake.pgtypes.mapping import ConversionKind, mapping_for

_PATIENCE_MS: Final = 10_000
"""Timeout for one table. Chosen arbitrarily, for a user who waits for the report."""

_MOMENTS: Final = frozenset(
    (ConversionKind.DATE, ConversionKind.TIMESTAMP, ConversionKind.TIMESTAMPTZ)
)

_FAR_HINT: Final = (
    "They are stored as they are, and the node shows them so; other readers of the files may not:"
    " see docs/arch/11_types.md."
)
_BEYOND_HINT: Final = (
    "They stop the subscription unless value_policies say what becomes of them; with the policy"
    ' "text" such columns are created as text.'
)


def ask_values(session: Session, tables: Sequence[Table]) -> list[TableFinding]:
    """Ask for such values in the readable tables, and judge them."""
    findings: list[TableFinding] = []
    session.execute(f"SET statement_timeout = {_PATIENCE_MS}")
    try:
        for table in tables:
            if table.readable:
                findings += _table(session, table)
    finally:
        session.execute("RESET statement_timeout")
    return findings


def _table(session: Session, table: Table) -> list[TableFinding]:
    queries = [
        (column.name, *questions)
        for column in table.remote.columns
        if (questions := _questions(column)) is not None
    ]
    if not queries:
        return []
    items = ", ".join(f"{far}, {beyond}" for _, far, beyond in queries)
    relation = ".".join(map(quote_ident, (table.remote.namespace, table.remote.name)))
    try:
        (row,) = session.query(f"SELECT {items} FROM {relation}")
    except PublisherError as error:
        text = "was not looked through for infinite and far dates and NaN"
        return [_finding(Level.INFO, table, f"{text}: {error.message}", text, None)]
    names = [name for name, _, _ in queries]
    findings = []
    for level, answers, what, hint in (
        (Level.NOTE, row[0::2], "infinite dates or years outside 1-9999", _FAR_HINT),
        (
            Level.NOTE,
            row[1::2],
            "timestamps after 294247-01-10 or NaN, which their types here do not hold",
            _BEYOND_HINT,
        ),
    ):
        columns = [
            f'"{n}"' for n, yes in zip(names, answers, strict=True) if yes == "t"
        ]
        if columns:
            singular = f"has {what}, in column {', '.join(columns)}"
            findings.append(_finding(level, table, singular, f"have {what}", hint))
    return findings


def _finding(
    level: Level, table: Table, singular: str, plural: str, hint: str | None
) -> TableFinding:
    return TableFinding(level, table.name, singular, plural, hint, hint)


def _questions(column: RemoteColumn) -> tuple[str, str] | None:
    """Return two conditions on a column, or None if its type has no such values.

    The first selects values that other readers may not show, the second those that cannot be
    stored."""
    mapping = mapping_for(
        column.type_oid,
        column.typmod,
        type_name=column.type_name,
        attndims=column.dimensions,
    )
    name = quote_ident(column.name)
    if mapping.kind is ConversionKind.DECIMAL:
        return "false", f"pg_catalog.bool_or({name} = 'NaN')"
    if mapping.kind not in _MOMENTS:
        return None
    # The condition includes both infinities.
    far = f"pg_catalog.bool_or({name} >= '10000-01-01' OR {name} < '0001-01-01')"
    if mapping.kind is ConversionKind.DATE:
        return far, "false"
    beyond = (
        f"pg_catalog.bool_or({name} > '294247-01-10 04:00:54.775806'"
        f" AND {name} < 'infinity')"
    )
    return far, beyond
