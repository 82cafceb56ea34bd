"""Rows of ``sequence``: where the values of serial and identity columns come from.

In: a connection, and in writes a transaction on it. Out: ``OwnedSequence``; values. What was taken
is never given again, whatever becomes of the transaction that took it. Called by ``store``.

Source: src/backend/commands/sequence.c.
"""

from __future__ import annotations

import sqlite3

from wal2lake.catalog.records import OwnedSequence
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError
from wal2lake.model import Oid


def create(connection: sqlite3.Connection, one: OwnedSequence) -> None:
    """42P07 if there is one of that name."""
    try:
        connection.execute(
            "insert into sequence (oid, namespace, name, relid, type_oid, start, increment)"
            " values (?, ?, ?, ?, ?, ?, ?)",
            (
                one.oid,
                one.namespace,
                one.name,
                one.relid,
                one.type_oid,
                one.start,
                one.increment,
            ),
        )
    except sqlite3.IntegrityError:
        raise DuplicateObjectError(
            f'relation "{one.name}" already exists', sqlstate="42P07"
        ) from None


def all_of_them(connection: sqlite3.Connection) -> list[OwnedSequence]:
    """By OID."""
    return [
        OwnedSequence(
            Oid(row["oid"]),
            row["namespace"],
            row["name"],
            Oid(row["relid"]),
            Oid(row["type_oid"]),
            row["start"],
            row["increment"],
        )
        for row in connection.execute("select * from sequence order by oid")
    ]


def take(connection: sqlite3.Connection, oid: Oid, count: int) -> int:
    """The first of the next ``count`` values; 2200H if there are not so many."""
    one = next((one for one in all_of_them(connection) if one.oid == oid), None)
    if one is None:
        raise _missing()
    first, last = one.behind(last_value(connection, oid), count)
    set_last_value(connection, oid, last)
    return first


def last_value(connection: sqlite3.Connection, oid: Oid) -> int | None:
    """The last one that was taken, if one was."""
    row = connection.execute(
        "select last_value from sequence where oid = ?", (oid,)
    ).fetchone()
    if row is None:
        raise _missing()
    value: int | None = row["last_value"]
    return value


def set_last_value(connection: sqlite3.Connection, oid: Oid, last: int | None) -> None:
    """None: the next one is the first."""
    connection.execute("update sequence set last_value = ? where oid = ?", (last, oid))


def drop_owned(connection: sqlite3.Connection, relid: Oid) -> None:
    """Those of a table that goes."""
    connection.execute("delete from sequence where relid = ?", (relid,))


def _missing() -> UndefinedObjectError:
    return UndefinedObjectError("the sequence does not exist", sqlstate="42P01")
