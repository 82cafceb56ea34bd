"""Rows of ``restart_pending``: sequences that a replicated TRUNCATE ... RESTART IDENTITY restarts.

In: a connection, and in writes a transaction on it. Called by ``store`` and
``catalog.replication.copies``.

A restart is recorded as *pending* before the batch's tables commit, with the position that the
batch reaches. Like ``coercions``, it takes effect in the transaction that publishes that position.
A crash in between loses no restart and repeats none.

After such a crash a session may take a value before the worker publishes. Then the restart is left
out, because rows after the TRUNCATE would get that value a second time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from wal2lake.catalog.objects import sequences
from wal2lake.model import Lsn, Oid


def any_pending(connection: sqlite3.Connection, subid: Oid) -> bool:
    """Whether there are restarts that no publish has made."""
    rows = connection.execute(
        "select 1 from restart_pending where subid = ? limit 1", (subid,)
    )
    return rows.fetchone() is not None


def expect(
    connection: sqlite3.Connection,
    subid: Oid,
    reached: Lsn,
    positions: Mapping[Oid, Lsn],
    restarted: Mapping[Oid, Mapping[Oid, int | None]],
) -> None:
    """Record pending restarts, as ``Catalog.expect`` explains. The caller holds the sequences'
    locks."""
    connection.executemany(
        "delete from restart_pending where subid = ? and relid = ? and reached > ?",
        [(subid, relid, position) for relid, position in positions.items()],
    )
    connection.executemany(
        "insert into restart_pending (subid, relid, reached, sequence, found, last)"
        " values (?, ?, ?, ?, ?, ?)",
        [
            (subid, relid, reached, oid, sequences.last_value(connection, oid), last)
            for relid, lasts in restarted.items()
            for oid, last in lasts.items()
        ],
    )


def pending(connection: sqlite3.Connection, subid: Oid, reached: Lsn) -> dict[Oid, Oid]:
    """Return the sequences that ``publish`` restarts, each with its table."""
    rows = connection.execute(
        "select sequence, relid from restart_pending where subid = ? and reached <= ?",
        (subid, reached),
    )
    return {Oid(row["sequence"]): Oid(row["relid"]) for row in rows}


def publish(connection: sqlite3.Connection, subid: Oid, reached: Lsn) -> None:
    """Make the restarts that are pending up to a published position. The caller holds the
    sequences' locks."""
    rows = connection.execute(
        "select * from restart_pending where subid = ? and reached <= ?"
        " order by sequence, reached",
        (subid, reached),
    ).fetchall()
    if not rows:
        return
    existing = {sequence.oid for sequence in sequences.all_of_them(connection)}
    newest = {Oid(row["sequence"]): row for row in rows}
    oldest = {Oid(row["sequence"]): row for row in reversed(rows)}
    for oid, row in newest.items():
        if (
            oid in existing
            and sequences.last_value(connection, oid) == oldest[oid]["found"]
        ):
            sequences.set_last_value(connection, oid, row["last"])
    connection.execute(
        "delete from restart_pending where subid = ? and reached <= ?", (subid, reached)
    )


def forget_pending(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Delete a table's pending entries, because its unpublished commits will be replaced."""
    connection.execute(
        "delete from restart_pending where subid = ? and relid = ?", (subid, relid)
    )
