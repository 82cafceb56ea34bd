"""Rows of ``prepared_commit``: what PREPARE TRANSACTION has left to be committed or rolled back.

In: a connection, and in writes a transaction on it. Out: ``PreparedCommit``. A row is there from
before the publisher's log may have the transaction until behind its end. Called by ``store``.
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


def record(connection: sqlite3.Connection, one: PreparedCommit) -> int | None:
    """A new row; its number. None: its gid is in use."""
    made = connection.execute(
        "insert into prepared_commit (gid, owner, prepared_at, state, xid, tables,"
        " messages) values (?, ?, ?, ?, ?, ?, ?) on conflict (gid) do nothing returning number",
        (
            one.gid,
            int(one.owner),
            one.prepared_at,
            one.state.value,
            one.xid,
            tables_to_json(connection, one.tables),
            json.dumps(messages_to_json(one.messages)),
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
    """Set the state; ``tables`` stay unless they are given."""
    text = None if tables is None else tables_to_json(connection, tables)
    connection.execute(
        "update prepared_commit set state = ?, tables = coalesce(?, tables)"
        " where number = ?",
        (state.value, text, number),
    )


def forget(connection: sqlite3.Connection, number: int) -> None:
    """It has ended."""
    connection.execute("delete from prepared_commit where number = ?", (number,))


def all_of_them(connection: sqlite3.Connection) -> list[PreparedCommit]:
    """Oldest first."""
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
