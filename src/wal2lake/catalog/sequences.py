"""Rows of ``sequence``: where the values of serial and identity columns come from.

In: a connection, and in writes a transaction on it. Out: ``OwnedSequence``; values. What was taken
is never given again, whatever becomes of the transaction that took it. Called by ``store``.

Source: src/backend/commands/sequence.c.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from wal2lake.catalog.records import OwnedSequence
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.model import Oid

_BITS: Final = {21: 15, 23: 31, 20: 63}
"""Of the greatest value, by type."""


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
    row = _need(connection, oid)
    first = next_of(row["last_value"], row["start"], row["increment"])
    last = first + (count - 1) * row["increment"]
    bits = _BITS.get(row["type_oid"], 63)
    if not -(1 << bits) <= last < 1 << bits:
        least = row["increment"] < 0
        limit = -(1 << bits) if least else (1 << bits) - 1
        raise UsageError(
            f"nextval: reached {'minimum' if least else 'maximum'} value of sequence"
            f' "{row["name"]}" ({limit})',
            sqlstate="2200H",
        )
    connection.execute("update sequence set last_value = ? where oid = ?", (last, oid))
    return first


def peek(connection: sqlite3.Connection, oid: Oid) -> int:
    """The value that would be taken next."""
    row = _need(connection, oid)
    return next_of(row["last_value"], row["start"], row["increment"])


def restart(connection: sqlite3.Connection, relid: Oid) -> None:
    """TRUNCATE ... RESTART IDENTITY."""
    connection.execute(
        "update sequence set last_value = null where relid = ?", (relid,)
    )


def drop_owned(connection: sqlite3.Connection, relid: Oid) -> None:
    """Those of a table that goes."""
    connection.execute("delete from sequence where relid = ?", (relid,))


def next_of(last: int | None, start: int, increment: int) -> int:
    """Behind the last one that was taken, if one was."""
    return start if last is None else last + increment


def _need(connection: sqlite3.Connection, oid: Oid) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "select * from sequence where oid = ?", (oid,)
    ).fetchone()
    if row is None:
        raise UndefinedObjectError("the sequence does not exist", sqlstate="42P01")
    return row
