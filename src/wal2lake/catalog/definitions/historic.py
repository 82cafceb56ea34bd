"""Rows of ``definition_history``: definitions of publications and tables, by log position.

In: a connection, and in writes a transaction on it. Out: ``HistoricDefinitions``. PostgreSQL
decodes a change with the catalogs as of the change; the publisher's log has only the table's
columns. A row says: from ``lsn`` of that log on, the row ``oid`` of the catalog's table ``kind``
has this definition, or is deleted. Called by ``store``, for capture (which records) and decoding
(which reads).

Source: SetupHistoricSnapshot() in snapmgr.c, and its callers in reorderbuffer.c.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.catalog.definitions.publications import Publication, put_together
from wal2lake.catalog.objects.namespaces import namespace_of
from wal2lake.catalog.objects.tables import table_of
from wal2lake.catalog.records import Namespace, TableDef
from wal2lake.model import Lsn

_KINDS: Final = (
    "namespace",
    "relation",
    "publication",
    "publication_rel",
    "publication_namespace",
)

_NEEDLESS: Final = (
    "lsn <= ?1 and definition is null or lsn < (select max(lsn) from definition_history"
    " as later where later.kind = definition_history.kind"
    " and later.oid = definition_history.oid and later.lsn <= ?1)"
)
"""Condition for definitions that are replaced or deleted at the position."""

Noted = dict[tuple[str, int], str]
"""Definitions as JSON, by kind and OID."""


@dataclass(frozen=True, slots=True)
class HistoricDefinitions:
    """Definitions at one position of the log."""

    publications: Sequence[Publication]
    tables: Sequence[TableDef]
    namespaces: Sequence[Namespace]


def present(connection: sqlite3.Connection) -> Noted:
    """Return the present definitions."""
    return {
        (kind, row["oid"]): json.dumps(dict(row), separators=(",", ":"))
        for kind in _KINDS
        for row in connection.execute(f"select * from {kind}")
    }


def newest(connection: sqlite3.Connection) -> Noted:
    """Return the definitions recorded last."""
    return _at(connection, None)


def note(connection: sqlite3.Connection, lsn: Lsn, before: Noted, now: Noted) -> None:
    """Record the definitions ``now`` from ``lsn`` on, where they differ from ``before``."""
    changed = [
        (*key, lsn, now.get(key))
        for key in before.keys() | now.keys()
        if before.get(key) != now.get(key)
    ]
    connection.executemany(
        "insert or replace into definition_history (kind, oid, lsn, definition)"
        " values (?, ?, ?, ?)",
        changed,
    )


def forget(connection: sqlite3.Connection, above: Lsn) -> None:
    """Delete definitions recorded above the end of the log."""
    connection.execute("delete from definition_history where lsn > ?", (above,))


def trim(connection: sqlite3.Connection, below: Lsn) -> None:
    """Delete definitions that are not needed to read the log from a position on."""
    connection.execute(f"delete from definition_history where {_NEEDLESS}", (below,))


def can_trim(connection: sqlite3.Connection, below: Lsn) -> bool:
    """Whether ``trim`` would delete definitions."""
    rows = connection.execute(
        f"select 1 from definition_history where {_NEEDLESS} limit 1", (below,)
    )
    return rows.fetchone() is not None


def has_past(connection: sqlite3.Connection) -> bool:
    """Whether there are definitions other than the present ones."""
    rows = connection.execute(
        "select 1 from definition_history group by kind, oid"
        " having count(*) > 1 or max(definition is null) limit 1"
    )
    return rows.fetchone() is not None


def positions(connection: sqlite3.Connection) -> list[Lsn]:
    """Return the positions at which definitions change, in order."""
    rows = connection.execute(
        "select distinct lsn from definition_history order by lsn"
    )
    return [Lsn(row["lsn"]) for row in rows]


def definitions_at(
    connection: sqlite3.Connection, lsn: Lsn | None
) -> HistoricDefinitions:
    """Return the definitions at a position; the present ones if it is None."""
    noted = present(connection) if lsn is None else _at(connection, lsn)
    by_kind: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in _KINDS}
    for (kind, _), text in sorted(noted.items()):
        by_kind[kind].append(json.loads(text))
    return HistoricDefinitions(
        put_together(
            by_kind["publication"],
            by_kind["publication_rel"],
            by_kind["publication_namespace"],
        ),
        [table_of(connection, row) for row in by_kind["relation"]],
        [namespace_of(row) for row in by_kind["namespace"]],
    )


def _at(connection: sqlite3.Connection, lsn: Lsn | None) -> Noted:
    # With max(), SQLite returns the other columns of the row that has the maximum.
    rows = connection.execute(
        "select kind, oid, definition, max(lsn) from definition_history"
        " where ?1 is null or lsn <= ?1 group by kind, oid",
        (lsn,),
    )
    return {
        (row["kind"], row["oid"]): row["definition"]
        for row in rows
        if row["definition"] is not None
    }
