"""Rows of ``namespace``: pg_namespace.

In: a connection, and in writes a transaction on it. Out: records. Called by ``store``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from wal2lake.catalog.database import take_oid
from wal2lake.catalog.records import Namespace
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError
from wal2lake.model import Acl, Oid


def all_namespaces(connection: sqlite3.Connection) -> list[Namespace]:
    """Return all schemas of lake tables."""
    rows = connection.execute("select * from namespace order by oid")
    return [namespace_of(row) for row in rows]


def create_namespace(
    connection: sqlite3.Connection, name: str, owner: Oid
) -> Namespace:
    """Create a schema. Raises 42P06 if it exists."""
    try:
        oid = take_oid(connection)
        connection.execute(
            "insert into namespace (oid, name, owner) values (?, ?, ?)",
            (oid, name, owner),
        )
    except sqlite3.IntegrityError:
        raise DuplicateObjectError(
            f'schema "{name}" already exists', sqlstate="42P06"
        ) from None
    return Namespace(oid, name, owner)


def drop_namespace(connection: sqlite3.Connection, name: str) -> None:
    """Drop a schema. Raises 3F000 if it does not exist."""
    done = connection.execute("delete from namespace where name = ?", (name,))
    if done.rowcount == 0:
        raise UndefinedObjectError(f'schema "{name}" does not exist', sqlstate="3F000")


def namespace_of(row: sqlite3.Row | Mapping[str, Any]) -> Namespace:
    """Build the record of a row."""
    return Namespace(
        Oid(row["oid"]), row["name"], Oid(row["owner"]), Acl.decode(row["acl"])
    )
