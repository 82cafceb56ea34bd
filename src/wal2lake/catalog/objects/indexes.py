"""Rows of ``table_index``: indexes that statements have made.

In: a connection, and in writes a transaction on it. Out: ``TableIndex``. As in PostgreSQL, an index
goes with its table and with each of its columns. Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from wal2lake.catalog.objects.tableindex import IndexedColumn, TableIndex
from wal2lake.errors import UndefinedObjectError
from wal2lake.model import Oid


def all_indexes(connection: sqlite3.Connection) -> list[TableIndex]:
    """Return all indexes, by OID."""
    rows = connection.execute("select * from table_index order by oid")
    return [_index(row) for row in rows]


def create(connection: sqlite3.Connection, index: TableIndex) -> None:
    """Record an index, whose name is free. Raises 42P01 if its table has been dropped."""
    if not connection.execute(
        "select 1 from relation where oid = ?", (index.relid,)
    ).fetchone():
        raise UndefinedObjectError(
            "the table has been dropped already", sqlstate="42P01"
        )
    _put(connection, index)


def drop(connection: sqlite3.Connection, oid: Oid) -> None:
    """Delete an index. Raises 42704 if it does not exist."""
    cursor = connection.execute("delete from table_index where oid = ?", (oid,))
    if not cursor.rowcount:
        raise UndefinedObjectError("the index has been dropped already")


def drop_of_table(connection: sqlite3.Connection, relid: Oid) -> None:
    """Delete the indexes of a dropped table."""
    connection.execute("delete from table_index where relid = ?", (relid,))


def rename(connection: sqlite3.Connection, oid: Oid, name: str) -> None:
    """Rename an index. The name is free."""
    connection.execute("update table_index set name = ? where oid = ?", (name, oid))


def follow_columns(
    connection: sqlite3.Connection,
    relid: Oid,
    renamed: Mapping[str, str],
    left: Collection[str],
) -> None:
    """Rename columns of a table's indexes, and delete indexes of dropped columns. ``left``: the
    names of the columns that the table has now."""
    rows = connection.execute("select * from table_index where relid = ?", (relid,))
    for index in [_index(row) for row in rows]:
        followed = replace(
            index,
            keys=tuple(
                replace(key, name=renamed.get(key.name, key.name)) for key in index.keys
            ),
            included=tuple(renamed.get(name, name) for name in index.included),
        )
        if not set(followed.columns) <= set(left):
            drop(connection, index.oid)
        elif followed != index:
            drop(connection, index.oid)
            _put(connection, followed)


def names_in(connection: sqlite3.Connection, namespace: str) -> set[str]:
    """Return the names of the indexes of a schema."""
    rows = connection.execute(
        "select table_index.name from table_index"
        " join relation on relation.oid = table_index.relid where namespace = ?",
        (namespace,),
    )
    return {row["name"] for row in rows}


def names_of(connection: sqlite3.Connection, relid: Oid) -> list[str]:
    """Return the names of a table's indexes."""
    rows = connection.execute(
        "select name from table_index where relid = ? order by oid", (relid,)
    )
    return [row["name"] for row in rows]


def _put(connection: sqlite3.Connection, index: TableIndex) -> None:
    connection.execute(
        "insert into table_index (oid, relid, name, method, keys, included, is_unique,"
        " parameters) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            index.oid,
            index.relid,
            index.name,
            index.method,
            json.dumps([asdict(key) for key in index.keys]),
            json.dumps(index.included),
            index.unique,
            json.dumps(index.parameters),
        ),
    )


def _index(row: sqlite3.Row) -> TableIndex:
    return TableIndex(
        Oid(row["oid"]),
        Oid(row["relid"]),
        row["name"],
        row["method"],
        tuple(IndexedColumn(**key) for key in json.loads(row["keys"])),
        tuple(json.loads(row["included"])),
        bool(row["is_unique"]),
        tuple(json.loads(row["parameters"])),
    )
