"""Rows of ``copy_range`` and ``sync_snapshot``: what running copies have done and stand on.

In: a connection, and in writes a transaction on it. Out: ``CopyRange`` and ``SyncSnapshot``.
Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3

from wal2lake.catalog.published.coercions import from_json, to_json
from wal2lake.catalog.records import CopyRange, SyncSnapshot
from wal2lake.model import Lsn, Oid


def record_range(connection: sqlite3.Connection, done: CopyRange) -> None:
    """A finished range, and its rows in the table's progress."""
    size = sum(int(add["size"]) for add in json.loads(done.files))
    connection.execute(
        "insert or replace into copy_range (subid, relid, epoch, snapshot, number, rows,"
        " files, coercions) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            done.subid,
            done.relid,
            done.epoch,
            done.snapshot,
            done.number,
            done.rows,
            done.files,
            to_json(done.coercions),
        ),
    )
    connection.execute(
        "update subscription_rel set rows_copied = rows_copied + ?,"
        " bytes_copied = bytes_copied + ? where subid = ? and relid = ?",
        (done.rows, size, done.subid, done.relid),
    )


def ranges(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> list[CopyRange]:
    """The finished ranges of a table's running copy, by number."""
    rows = connection.execute(
        "select * from copy_range where subid = ? and relid = ? order by number",
        (subid, relid),
    )
    return [
        CopyRange(
            Oid(r["subid"]),
            Oid(r["relid"]),
            r["epoch"],
            r["snapshot"],
            r["number"],
            r["rows"],
            r["files"],
            from_json(r["coercions"]),
        )
        for r in rows
    ]


def forget_ranges(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """The copy is committed, or starts again."""
    connection.execute(
        "delete from copy_range where subid = ? and relid = ?", (subid, relid)
    )


def hold_snapshot(connection: sqlite3.Connection, held: SyncSnapshot) -> None:
    """A receiver holds an exported snapshot; it replaces an earlier one."""
    connection.execute(
        "insert or replace into sync_snapshot (subid, snapshot, lsn, holder, relids)"
        " values (?, ?, ?, ?, ?)",
        (held.subid, held.snapshot, held.lsn, held.holder, json.dumps(held.relids)),
    )


def snapshot_held(connection: sqlite3.Connection, subid: Oid) -> SyncSnapshot | None:
    """The snapshot that copies of this subscription may use now."""
    row = connection.execute(
        "select * from sync_snapshot where subid = ?", (subid,)
    ).fetchone()
    if row is None:
        return None
    return SyncSnapshot(
        Oid(row["subid"]),
        row["snapshot"],
        Lsn(row["lsn"]),
        row["holder"],
        tuple(json.loads(row["relids"])),
    )


def release_snapshot(connection: sqlite3.Connection, subid: Oid) -> None:
    """The snapshot is gone, or no longer needed."""
    connection.execute("delete from sync_snapshot where subid = ?", (subid,))
