"""Rows of ``comment``: pg_description.

In: a connection, and in writes a transaction on it. Out: ``Comment``. Called by ``store``.
"""

from __future__ import annotations

import sqlite3

from wal2lake.catalog.records import Comment
from wal2lake.model import Oid


def all_comments(connection: sqlite3.Connection) -> list[Comment]:
    """Return all comments, by catalog and object."""
    rows = connection.execute("select * from comment order by classid, objid")
    return [Comment(Oid(r["classid"]), Oid(r["objid"]), r["description"]) for r in rows]


def set_comment(
    connection: sqlite3.Connection, classid: Oid, objid: Oid, text: str | None
) -> None:
    """Replace an object's comment. None or an empty text deletes it."""
    connection.execute(
        "delete from comment where classid = ? and objid = ?", (classid, objid)
    )
    if text:
        connection.execute(
            "insert into comment (classid, objid, description) values (?, ?, ?)",
            (classid, objid, text),
        )
