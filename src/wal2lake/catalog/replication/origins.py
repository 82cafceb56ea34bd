"""Rows of ``replication_origin``, origins without a subscription, and of ``applied_end``, the
positions of subscriptions' origins.

In: a connection, and in writes a transaction on it. Out: ``ReplicationOrigin``, positions. Called
by ``store``. Source: replorigin_create() and replorigin_advance() in origin.c.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from wal2lake.catalog.records import ReplicationOrigin
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.model import Lsn, Oid

_FIRST: Final = 0x8000
"""First number. Subscriptions' origins have lower numbers."""

_LAST: Final = 0xFFFE


def create(connection: sqlite3.Connection, name: str) -> int:
    """Create an origin and return its number. Raises 23505 if the name exists."""
    taken = {origin.number for origin in all_of_them(connection)}
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
    """Drop an origin. Raises 42704 if it does not exist."""
    deleted = connection.execute(
        "delete from replication_origin where name = ?", (name,)
    )
    if not deleted.rowcount:
        raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def all_of_them(connection: sqlite3.Connection) -> list[ReplicationOrigin]:
    """Return all origins, by number."""
    return [
        ReplicationOrigin(row["number"], row["name"], Lsn(row["remote_lsn"]))
        for row in connection.execute(
            "select * from replication_origin order by number"
        )
    ]


def advance(
    connection: sqlite3.Connection, name: str, lsn: int, *, back: bool = False
) -> None:
    """Set an origin's position to ``lsn``. A lower position is set only with ``back``."""
    connection.execute(
        "update replication_origin set remote_lsn = case when ? then ?"
        " else max(remote_lsn, ?) end where name = ?",
        (back, lsn, lsn, name),
    )


# ---- of subscriptions ----------------------------------------------------------------


def applied(connection: sqlite3.Connection) -> dict[Oid, Lsn]:
    """Return, for each subscription, the end of the last transaction that all its tables have."""
    return {
        Oid(row["subid"]): Lsn(row["remote_lsn"])
        for row in connection.execute("select subid, remote_lsn from applied_end")
    }


def note_applied(
    connection: sqlite3.Connection, subid: Oid, floor: Lsn, end: Lsn | None
) -> None:
    """Note the end of the last published transaction; None if it has not changed. The end becomes
    the origin's position once the floor has reached it."""
    if end is not None:
        connection.execute(
            "insert into applied_end (subid, remote_lsn, newest) values (?, 0, ?)"
            " on conflict (subid) do update set newest = max(newest, excluded.newest)",
            (subid, end),
        )
    connection.execute(
        "update applied_end set remote_lsn = newest"
        " where subid = ? and newest <= ? and remote_lsn <> newest",
        (subid, floor),
    )


def set_applied(connection: sqlite3.Connection, subid: Oid, lsn: Lsn) -> None:
    """Set the position of a subscription's origin. 0 means that nothing has been applied."""
    connection.execute(
        "insert or replace into applied_end (subid, remote_lsn, newest)"
        " values (?, ?, ?)",
        (subid, lsn, lsn),
    )
