"""Rows of ``local_commit``: commits of sessions' transactions to several tables.

In: a connection, and in writes a transaction on it. Out: ``LocalCommit``. ALTER TABLE has such a
row, too, with the new definition of its table. A row exists from the decision to commit until all
tables have the commit and readers see it. Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from wal2lake.catalog import places
from wal2lake.catalog.definitions import history
from wal2lake.catalog.records import Altered, LocalCommit, TableChange
from wal2lake.model import Oid


def record(
    connection: sqlite3.Connection,
    tables: Sequence[TableChange],
    altered: Sequence[Altered] = (),
) -> int:
    """Add a row and return its number."""
    made = connection.execute(
        "insert into local_commit (tables, altered) values (?, ?)",
        (tables_to_json(connection, tables), history.to_json(altered)),
    )
    assert made.lastrowid is not None
    return made.lastrowid


def decide(
    connection: sqlite3.Connection, number: int, tables: Sequence[TableChange]
) -> None:
    """Set the changes of a commit that was recorded without any."""
    connection.execute(
        "update local_commit set tables = ? where number = ?",
        (tables_to_json(connection, tables), number),
    )


def forget(connection: sqlite3.Connection, number: int) -> None:
    """Delete the row of a finished commit."""
    connection.execute("delete from local_commit where number = ?", (number,))


def pending(connection: sqlite3.Connection) -> list[LocalCommit]:
    """Return all unfinished commits, oldest first."""
    rows = connection.execute("select * from local_commit order by number")
    return [_commit(connection, row) for row in rows]


def origin_of(
    connection: sqlite3.Connection, number: int
) -> tuple[str, int, int | None] | None:
    """Return the replication origin of a commit."""
    row = connection.execute(
        "select * from local_commit where number = ?", (number,)
    ).fetchone()
    tables = () if row is None else _commit(connection, row).tables
    return tables[0].origin if tables else None


def altered_by(connection: sqlite3.Connection, number: int) -> tuple[Altered, ...]:
    """Return the definitions that change with a commit."""
    row = connection.execute(
        "select * from local_commit where number = ?", (number,)
    ).fetchone()
    return () if row is None else history.from_json(row["altered"])


def _commit(connection: sqlite3.Connection, row: sqlite3.Row) -> LocalCommit:
    return LocalCommit(
        row["number"],
        tables_from_json(connection, row["tables"]),
        history.from_json(row["altered"]),
    )


def tables_to_json(
    connection: sqlite3.Connection, tables: Sequence[TableChange]
) -> str:
    """Encode changes of tables."""
    encoded = [_to_json(connection, table) for table in tables]
    return json.dumps(encoded, separators=(",", ":"))


def tables_from_json(
    connection: sqlite3.Connection, text: str
) -> tuple[TableChange, ...]:
    """Decode the result of ``tables_to_json``."""
    return tuple(_from_json(connection, recorded) for recorded in json.loads(text))


def _to_json(connection: sqlite3.Connection, table: TableChange) -> dict[str, object]:
    return {
        "relid": int(table.relid),
        "location": places.stored(connection, table.location),
        "table_id": table.table_id,
        "read_version": table.read_version,
        "cursor": table.cursor,
        "actions": list(table.actions),
        "truncates": table.truncates,
        "messages": messages_to_json(table.messages),
        "origin": table.origin,
        "truncate_options": table.truncate_options,
        "moved": table.moved,
        "updated": table.updated,
        "statements": table.statements,
        "xid": table.xid,
    }


def _from_json(connection: sqlite3.Connection, recorded: dict[str, Any]) -> TableChange:
    values = {
        **recorded,
        "location": places.resolved(connection, recorded["location"]),
        "relid": Oid(recorded["relid"]),
        "messages": messages_from_json(recorded.get("messages", ())),
        "origin": _origin(recorded.get("origin")),
    }
    return TableChange(**values)


def _origin(recorded: Any) -> tuple[str, int, int | None] | None:
    return None if recorded is None else (recorded[0], recorded[1], recorded[2])


def messages_to_json(messages: Sequence[tuple[str, bytes]]) -> list[tuple[str, str]]:
    """Encode messages."""
    return [(prefix, content.hex()) for prefix, content in messages]


def messages_from_json(recorded: Any) -> tuple[tuple[str, bytes], ...]:
    """Decode the result of ``messages_to_json``."""
    return tuple((prefix, bytes.fromhex(content)) for prefix, content in recorded)
