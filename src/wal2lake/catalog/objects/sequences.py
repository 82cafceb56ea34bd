"""Rows of ``sequence``: sources of values of serial and identity columns.

In: a connection, and in writes a transaction on it. Out: ``OwnedSequence``; values. A value is
taken only once, even if the transaction that took it rolls back. Called by ``store``.

Source: src/backend/commands/sequence.c.
"""

from __future__ import annotations

import sqlite3

from wal2lake.catalog.objects import indexes
from wal2lake.catalog.objects.ownedsequence import OwnedSequence
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.model import Oid


def create(connection: sqlite3.Connection, sequence: OwnedSequence) -> None:
    """Create a sequence. Raises 42P07 if the name is taken."""
    refuse_taken(connection, sequence.namespace, sequence.name)
    connection.execute(
        "insert into sequence (oid, namespace, name, relid, type_oid, start, increment)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        (
            sequence.oid,
            sequence.namespace,
            sequence.name,
            sequence.relid,
            sequence.type_oid,
            sequence.start,
            sequence.increment,
        ),
    )


def all_of_them(connection: sqlite3.Connection) -> list[OwnedSequence]:
    """Return all sequences, by OID."""
    return [
        _sequence(row)
        for row in connection.execute("select * from sequence order by oid")
    ]


def last_values(connection: sqlite3.Connection) -> dict[Oid, int]:
    """Return the last value of each sequence, by OID. Sequences without a taken value are left
    out."""
    rows = connection.execute(
        "select oid, last_value from sequence"
        " where last_value is not null and is_called"
    )
    return {Oid(row["oid"]): row["last_value"] for row in rows}


def take(connection: sqlite3.Connection, oid: Oid, count: int) -> int:
    """Take ``count`` values and return the first. Raises 2200H if there are too few."""
    sequence = _sequence(_need(connection, oid))
    first, last = sequence.behind(last_value(connection, oid), count)
    set_last_value(connection, oid, last)
    return first


def last_value(connection: sqlite3.Connection, oid: Oid) -> int | None:
    """Return the value after which the next one is taken; None if the first one is next."""
    row = _need(connection, oid)
    last: int | None = row["last_value"]
    if last is None or row["is_called"]:
        return last
    return last - int(row["increment"])


def set_last_value(connection: sqlite3.Connection, oid: Oid, last: int | None) -> None:
    """Set the value after which the next one is taken; None for the first one."""
    _put(connection, oid, last, True)


def put(connection: sqlite3.Connection, oid: Oid, value: int, is_called: bool) -> None:
    """Carry out setval(): ``value`` is the last value, or the next one. Raises 22003."""
    sequence = _sequence(_need(connection, oid))
    least, most = sequence.limits
    if not least <= value <= most:
        raise UsageError(
            f'setval: value {value} is out of bounds for sequence "{sequence.name}"'
            f" ({least}..{most})",
            sqlstate="22003",
        )
    _put(connection, oid, value, is_called)


def state(connection: sqlite3.Connection, oid: Oid) -> tuple[int | None, bool]:
    """Return the last value, or the next one and False."""
    row = _need(connection, oid)
    return row["last_value"], bool(row["is_called"])


def restore(
    connection: sqlite3.Connection, oid: Oid, value: int | None, is_called: bool
) -> None:
    """Set what ``state`` has returned, if the sequence exists."""
    _put(connection, oid, value, is_called)


def drop_owned(connection: sqlite3.Connection, relid: Oid) -> None:
    """Delete the sequences of a dropped table."""
    connection.execute("delete from sequence where relid = ?", (relid,))


def drop(connection: sqlite3.Connection, oid: Oid) -> None:
    """Delete the sequence of a dropped column."""
    connection.execute("delete from sequence where oid = ?", (oid,))


def move_owned(connection: sqlite3.Connection, relid: Oid, namespace: str) -> None:
    """Move the sequences of a table to another schema. Raises 42P07 if a name is taken there."""
    for row in connection.execute(
        "select * from sequence where relid = ? and namespace <> ?", (relid, namespace)
    ).fetchall():
        refuse_taken(connection, namespace, row["name"])
        connection.execute(
            "update sequence set namespace = ? where oid = ?", (namespace, row["oid"])
        )


def refuse_taken(connection: sqlite3.Connection, namespace: str, name: str) -> None:
    """Raise 42P07 if a table, a sequence or an index has the name."""
    is_taken = name in indexes.names_in(connection, namespace) or any(
        connection.execute(
            f"select 1 from {table} where namespace = ? and name = ?", (namespace, name)
        ).fetchone()
        for table in ("relation", "sequence")
    )
    if is_taken:
        raise DuplicateObjectError(
            f'relation "{name}" already exists', sqlstate="42P07"
        )


def _sequence(row: sqlite3.Row) -> OwnedSequence:
    return OwnedSequence(
        Oid(row["oid"]),
        row["namespace"],
        row["name"],
        Oid(row["relid"]),
        Oid(row["type_oid"]),
        row["start"],
        row["increment"],
    )


def _put(
    connection: sqlite3.Connection, oid: Oid, value: int | None, is_called: bool
) -> None:
    connection.execute(
        "update sequence set last_value = ?, is_called = ? where oid = ?",
        (value, is_called, oid),
    )


def _need(connection: sqlite3.Connection, oid: Oid) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "select * from sequence where oid = ?", (oid,)
    ).fetchone()
    if row is None:
        raise UndefinedObjectError("the sequence does not exist", sqlstate="42P01")
    return row
