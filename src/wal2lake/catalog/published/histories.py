"""Rows of ``history_pending``: files of history tables, written before their batch is committed.

A batch commits to a mirrored table first, then to its history table. Between the two commits only
this record has the history: the mirrored table's cursor says whether the batch was committed, and
so whether the history must be, too. In: a connection, and in writes a transaction on it. Called by
``store``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence

from wal2lake.catalog.objects.historyrecords import PendingHistory
from wal2lake.model import Lsn, Oid


def any_pending(connection: sqlite3.Connection, subid: Oid) -> bool:
    """Whether a batch or a copy of the subscription has recorded a history."""
    rows = connection.execute(
        "select 1 from history_pending where subid = ? limit 1", (subid,)
    )
    return rows.fetchone() is not None


def expect(
    connection: sqlite3.Connection,
    subid: Oid,
    positions: Mapping[Oid, Lsn],
    histories: Sequence[PendingHistory],
) -> None:
    """Record the histories of a batch or a copy. Entries above ``positions``, which are the cursors
    of the tables' last commits, are deleted: the next commit's cursor would make them count."""
    for relid, position in positions.items():
        connection.execute(
            "delete from history_pending where subid = ? and relid = ? and reached > ?",
            (subid, relid, position),
        )
    connection.executemany(
        "insert or replace into history_pending"
        " (subid, relid, reached, cursor_name, history, files)"
        " values (?, ?, ?, ?, ?, ?)",
        [
            (
                subid,
                pending.relid,
                pending.reached,
                pending.cursor_name,
                pending.history,
                pending.files,
            )
            for pending in histories
        ],
    )


def publish(
    connection: sqlite3.Connection, subid: Oid, relids: Collection[int], reached: Lsn
) -> None:
    """Delete the entries of tables whose commits up to ``reached`` are published."""
    if any_pending(connection, subid):
        connection.executemany(
            "delete from history_pending"
            " where subid = ? and relid = ? and reached <= ?",
            [(subid, relid, reached) for relid in relids],
        )


def files_of(connection: sqlite3.Connection, history: Oid) -> list[str]:
    """Return the files of all entries of a history table."""
    rows = connection.execute(
        "select files from history_pending where history = ?", (history,)
    )
    return [str(row["files"]) for row in rows]


def pending(
    connection: sqlite3.Connection, subid: Oid, relid: Oid
) -> list[PendingHistory]:
    """Return the entries of a table, in the order of their positions."""
    return [
        PendingHistory(
            Oid(row["relid"]),
            Lsn(row["reached"]),
            row["cursor_name"],
            Oid(row["history"]),
            row["files"],
        )
        for row in connection.execute(
            "select * from history_pending where subid = ? and relid = ?"
            " order by reached",
            (subid, relid),
        )
    ]
