"""Rows of ``replication_origin``: origins that do not belong to a subscription.

In: a connection, and in writes a transaction on it. Out: ``ReplicationOrigin``. Called by
``store``. Source: replorigin_create() and replorigin_advance() in origin.c.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from wal2lake.catalog.records import ReplicationOrigin
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.model import Lsn

_FIRST: Final = 0x8000
"""Subscriptions' origins are numbered below."""

_LAST: Final = 0xFFFE


def create(connection: sqlite3.Connection, name: str) -> int:
    """Its number; 23505 if there is one of that name."""
    taken = {one.number for one in all_of_them(connection)}
    number = next((n for n in range(_FIRST, _LAST) if n not in taken), None)
    if number is None:
        raise UsageError("could not find free replication origin ID", sqlstate="54000")
    try:
        connection.execute(
            "insert into replication_origin (number, name) values (?, ?)",
            (number, name),
        )
    except sqlite3.IntegrityError:
        raise DuplicateObjectError(
            "duplicate key value violates unique constraint"
            ' "pg_replication_origin_roname_index"',
            sqlstate="23505",
            detail=f"Key (roname)=({name}) already exists.",
        ) from None
    return number


def drop(connection: sqlite3.Connection, name: str) -> None:
    """42704 if there is none."""
    gone = connection.execute("delete from replication_origin where name = ?", (name,))
    if not gone.rowcount:
        raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def all_of_them(connection: sqlite3.Connection) -> list[ReplicationOrigin]:
    """By number."""
    return [
        ReplicationOrigin(row["number"], row["name"], Lsn(row["remote_lsn"]))
        for row in connection.execute(
            "select * from replication_origin order by number"
        )
    ]


def advance(
    connection: sqlite3.Connection, name: str, lsn: int, *, back: bool = False
) -> None:
    """It is at ``lsn``, and with ``back`` also if it was further."""
    connection.execute(
        "update replication_origin set remote_lsn = case when ? then ?"
        " else max(remote_lsn, ?) end where name = ?",
        (back, lsn, lsn, name),
    )
