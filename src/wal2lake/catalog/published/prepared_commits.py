"""Rows of ``prepared_commit``: transactions prepared by PREPARE TRANSACTION.

In: a connection, and in writes a transaction on it. Out: ``PreparedCommit``. A row exists from
before the publisher's log may have the transaction until after the transaction's end. Called by
``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from wal2lake.catalog.published.local_commits import (
    messages_from_json,
    messages_to_json,
    tables_from_json,
    tables_to_json,
)
from wal2lake.catalog.records import PreparedCommit, PreparedState, TableChange
from wal2lake.model import Oid


def record(connection: sqlite3.Connection, prepared: PreparedCommit) -> int | None:
    """Add a row. Return its number; None if its gid is in use."""
    made = connection.execute(
        "insert into prepared_commit (gid, owner, prepared_at, state, xid, tables,"
        " messages) values (?, ?, ?, ?, ?, ?, ?) on conflict (gid) do nothing returning number",
        (
            prepared.gid,
            int(prepared.owner),
            prepared.prepared_at,
            prepared.state.value,
            prepared.xid,
            tables_to_json(connection, prepared.tables),
            json.dumps(messages_to_json(prepared.messages)),
        ),
    ).fetchone()
    return None if made is None else int(made[0])


def move(
    connection: sqlite3.Connection,
    number: int,
    state: PreparedState,
    *,
    tables: Sequence[TableChange] | None = None,
) -> None:
    """Set the state. ``tables``: None to leave them."""
    text = None if tables is None else tables_to_json(connection, tables)
    connection.execute(
        "update prepared_commit set state = ?, tables = coalesce(?, tables)"
        " where number = ?",
        (state.value, text, number),
    )


def forget(connection: sqlite3.Connection, number: int) -> None:
    """Delete the row of a transaction that has ended."""
    connection.execute("delete from prepared_commit where number = ?", (number,))


def all_of_them(connection: sqlite3.Connection) -> list[PreparedCommit]:
    """Return all prepared transactions, oldest first."""
    return [
        PreparedCommit(
            row["number"],
            row["gid"],
            Oid(row["owner"]),
            row["prepared_at"],
            tables_from_json(connection, row["tables"]),
            messages_from_json(json.loads(row["messages"])),
            PreparedState(row["state"]),
            row["xid"],
        )
        for row in connection.execute("select * from prepared_commit order by number")
    ]
