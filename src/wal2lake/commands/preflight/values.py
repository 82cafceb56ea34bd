"""Which columns of the source hold values today that are not like others here.

Infinities and years outside 1-9999 are stored exactly, but not every reader of the lake's files
shows them (docs/arch/11_types.md); timestamps after January 294247 and NaN in numeric(p,s) stop a
subscription, or are what value_policies make of them.

Comes in: a session at the publisher, its tables. Goes out: findings. Each table is read once, as
long as ``_PATIENCE_MS``: what is not known then is said. Called by ``wal2lake check`` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.commands.preflight.finding import Level, TableFinding
from wal2lake.commands.preflight.tables import Table
from wal2lake.errors import PublisherError
from wal2lake.pg import RemoteColumn, Session
from wal2lake.pg.quoting import quote_ident
from wal2lake.pgtypes.mapping import ConversionKind, mapping_for

_PATIENCE_MS: Final = 10_000
"""For one table; a guess at what somebody who waits for the report puts up with."""

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
    """Ask for values in the tables that may be read, and judge them."""
    found: list[TableFinding] = []
    session.execute(f"SET statement_timeout = {_PATIENCE_MS}")
    try:
        for table in tables:
            if table.readable:
                found += _table(session, table)
    finally:
        session.execute("RESET statement_timeout")
    return found


def _table(session: Session, table: Table) -> list[TableFinding]:
    asked = [
        (column.name, *questions)
        for column in table.remote.columns
        if (questions := _questions(column)) is not None
    ]
    if not asked:
        return []
    items = ", ".join(f"{far}, {beyond}" for _, far, beyond in asked)
    relation = ".".join(map(quote_ident, (table.remote.namespace, table.remote.name)))
    try:
        (row,) = session.query(f"SELECT {items} FROM {relation}")
    except PublisherError as error:
        text = "was not looked through for infinite and far dates and NaN"
        return [_finding(Level.INFO, table, f"{text}: {error.message}", text, None)]
    names = [name for name, _, _ in asked]
    found = []
    for level, answers, what, hint in (
        (Level.NOTE, row[0::2], "infinite dates or years outside 1-9999", _FAR_HINT),
        (
            Level.NOTE,
            row[1::2],
            "timestamps after 294247-01-10 or NaN, which their types here do not hold",
            _BEYOND_HINT,
        ),
    ):
        those = [f'"{n}"' for n, yes in zip(names, answers, strict=True) if yes == "t"]
        if those:
            one = f"has {what}, in column {', '.join(those)}"
            found.append(_finding(level, table, one, f"have {what}", hint))
    return found


def _finding(
    level: Level, table: Table, one: str, many: str, hint: str | None
) -> TableFinding:
    return TableFinding(level, table.name, one, many, hint, hint)


def _questions(column: RemoteColumn) -> tuple[str, str] | None:
    """Return two conditions on a column: values that other readers may not show, and values that
    are not stored. None: the type has no such values."""
    known = mapping_for(
        column.type_oid,
        column.typmod,
        type_name=column.type_name,
        attndims=column.dimensions,
    )
    name = quote_ident(column.name)
    if known.kind is ConversionKind.DECIMAL:
        return "false", f"pg_catalog.bool_or({name} = 'NaN')"
    if known.kind not in _MOMENTS:
        return None
    # Both infinities are beyond these.
    far = f"pg_catalog.bool_or({name} >= '10000-01-01' OR {name} < '0001-01-01')"
    if known.kind is ConversionKind.DATE:
        return far, "false"
    beyond = (
        f"pg_catalog.bool_or({name} > '294247-01-10 04:00:54.775806'"
        f" AND {name} < 'infinity')"
    )
    return far, beyond
