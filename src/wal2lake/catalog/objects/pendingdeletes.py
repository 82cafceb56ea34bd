"""Rows of ``pending_delete``: places whose files are to be removed.

In: a connection, and in writes a transaction on it. Out: places, each with the OID of its table. A
place has a row from before an open block makes a table there until the block commits it, and from
the commit of a DROP until the files are removed. Called by ``store``.

Source: PendingRelDelete in storage.c, whose list does not survive a crash.
"""

from __future__ import annotations

import sqlite3

from wal2lake.catalog import places
from wal2lake.model import Oid


def add(connection: sqlite3.Connection, location: str, relid: Oid) -> None:
    """Record a place, and the table that it belongs to."""
    connection.execute(
        "insert or replace into pending_delete (location, relid) values (?, ?)",
        (places.stored(connection, location), relid),
    )


def forget(connection: sqlite3.Connection, location: str) -> None:
    """Delete the row of a place whose files stay, or are gone."""
    connection.execute(
        "delete from pending_delete where location = ?",
        (places.stored(connection, location),),
    )


def all_of_them(connection: sqlite3.Connection) -> dict[str, Oid]:
    """Return the OIDs of the tables by place."""
    rows = connection.execute("select location, relid from pending_delete")
    return {
        places.resolved(connection, row["location"]): Oid(row["relid"]) for row in rows
    }
