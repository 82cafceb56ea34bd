"""Rows of ``copy_range`` and ``sync_snapshot``: finished ranges and snapshots of copies.

In: a connection, and in writes a transaction on it. Out: ``CopyRange`` and ``SyncSnapshot``.
Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.published import coercions, conflicts, restarts
from wal2lake.catalog.published.coercions import from_json, to_json
from wal2lake.catalog.records import CopyRange, SubscriptionRel, SyncSnapshot
from wal2lake.model import Lsn, Oid, SyncState

HEALS: Final = "heals"
"""Key in ``Subscription.options`` that is no option: not empty while tables are about to be copied
anew by their differing rows only."""


def restart(
    connection: sqlite3.Connection,
    rel: SubscriptionRel,
    epoch: int,
    *,
    trusted: bool,
    paused: bool = False,
    heals: bool = False,
) -> None:
    """Set a table back to state i in another epoch, whose copy replaces all rows. Facts of the
    previous epoch are void. ``paused``: whether a paused table stays paused, to be copied once it
    is resumed. ``heals``: the copy writes differing rows only, if it can."""
    connection.execute(
        "delete from copy_range where subid = ? and relid = ?", (rel.subid, rel.relid)
    )
    coercions.forget_pending(connection, rel.subid, rel.relid)
    conflicts.forget_pending(connection, rel.subid, rel.relid)
    restarts.forget_pending(connection, rel.subid, rel.relid)
    connection.execute(
        "update subscription_rel set state = ?, lsn = null, epoch = ?, rows_copied = 0,"
        " rows_expected = null, bytes_copied = 0, error = null, copy_plan = null,"
        " trusted = ?, replaces = 1, heals = ?, paused_at = ?, rejoins = 0, begins = null"
        " where subid = ? and relid = ?",
        (
            SyncState.INIT.value,
            epoch,
            trusted,
            heals,
            rel.paused_at if paused else None,
            rel.subid,
            rel.relid,
        ),
    )


def pause(connection: sqlite3.Connection, rel: SubscriptionRel, position: Lsn) -> None:
    """Pause a table that is complete below ``position``: set state f, in which the floor waits for
    the table. The epoch stays."""
    connection.execute(
        "update subscription_rel set state = ?, lsn = ?, paused_at = ?, rejoins = ?"
        " where subid = ? and relid = ?",
        (
            SyncState.FINISHEDCOPY.value,
            position,
            datetime.now(UTC).isoformat(timespec="microseconds"),
            rel.rejoins or rel.state is not SyncState.FINISHEDCOPY,
            rel.subid,
            rel.relid,
        ),
    )


def advance_paused(connection: sqlite3.Connection, subid: Oid, lsn: Lsn) -> None:
    """Raise the positions of paused tables to ``lsn``, because changes below it are not needed any
    more."""
    connection.execute(
        "update subscription_rel set lsn = ?"
        " where subid = ? and paused_at is not null and lsn < ?",
        (lsn, subid, lsn),
    )


def void(connection: sqlite3.Connection, subid: Oid, relid: Oid, epoch: int) -> None:
    """Void a copy, whose rows have old columns, or values of sequences that will be used again. The
    copy begins anew in another epoch. The caller has ensured that it has not committed."""
    connection.execute(
        "delete from copy_range where subid = ? and relid = ?", (subid, relid)
    )
    coercions.forget_pending(connection, subid, relid)
    restarts.forget_pending(connection, subid, relid)
    connection.execute(
        "update subscription_rel set epoch = ?, lsn = null, copy_plan = null,"
        " rows_copied = 0, rows_expected = null, bytes_copied = 0"
        " where subid = ? and relid = ?",
        (epoch, subid, relid),
    )


def epoch(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> int | None:
    """Return the epoch of a table's copy; None if the table has left the subscription."""
    row = connection.execute(
        "select epoch from subscription_rel where subid = ? and relid = ?",
        (subid, relid),
    ).fetchone()
    return None if row is None else int(row["epoch"])


def begin_copy(connection: sqlite3.Connection, rel: SubscriptionRel) -> None:
    """Begin an attempt: record its plan, and the S that its commit may have."""
    snapshot = json.loads(rel.copy_plan or "{}").get("snapshot")
    connection.execute(
        "delete from copy_range where subid = ? and relid = ?"
        " and (snapshot is not ? or epoch <> ?)",
        (rel.subid, rel.relid, snapshot, rel.epoch),
    )
    rows = connection.execute(
        "select sum(rows) from copy_range where subid = ? and relid = ?",
        (rel.subid, rel.relid),
    ).fetchone()[0]
    connection.execute(
        "update subscription_rel set copy_plan = ?, rows_expected = ?, lsn = ?,"
        " copied_from = ?, published_as = ?, trusted = min(trusted, ?), rows_copied = ?,"
        " bytes_copied = case when ? then 0 else bytes_copied end"
        " where subid = ? and relid = ? and epoch = ?",
        (
            rel.copy_plan,
            rel.rows_expected,
            rel.lsn,
            rel.copied_from,
            rel.published_as,
            rel.trusted,
            rows or 0,
            rows is None,
            rel.subid,
            rel.relid,
            rel.epoch,
        ),
    )


def end_attempt(
    connection: sqlite3.Connection,
    rel: SubscriptionRel,
    error: str | None,
    sqlstate: str | None,
    *,
    made: bool,
) -> None:
    """End an attempt that has not reached f. ``made``: whether its commit may have succeeded."""
    connection.execute(
        "update subscription_rel set error = coalesce(?, error),"
        " sqlstate = case when ? is null then sqlstate else ? end,"
        " lsn = case when ? then lsn end"
        " where subid = ? and relid = ? and epoch = ? and state in (?, ?)",
        (
            error,
            error,
            sqlstate,
            made,
            rel.subid,
            rel.relid,
            rel.epoch,
            SyncState.INIT.value,
            SyncState.DATASYNC.value,
        ),
    )


def finish_copy(connection: sqlite3.Connection, rel: SubscriptionRel) -> bool:
    """Set state f at ``rel.lsn``. Return False if the table is not in d, or has another epoch."""
    updated = connection.execute(
        "update subscription_rel set state = ?, lsn = ?, error = null"
        " where subid = ? and relid = ? and epoch = ? and state = ?",
        (
            SyncState.FINISHEDCOPY.value,
            rel.lsn,
            rel.subid,
            rel.relid,
            rel.epoch,
            SyncState.DATASYNC.value,
        ),
    )
    if updated.rowcount == 0:
        return False
    coercions.finish_copy(connection, rel.subid, rel.relid)
    connection.execute(
        "delete from copy_range where subid = ? and relid = ?", (rel.subid, rel.relid)
    )
    return True


def record_range(connection: sqlite3.Connection, copied_range: CopyRange) -> None:
    """Record a finished range, and add its rows to the table's progress. Has no effect if the table
    has left, or has another epoch."""
    rows = connection.execute(
        "select 1 from subscription_rel where subid = ? and relid = ? and epoch = ?",
        (copied_range.subid, copied_range.relid, copied_range.epoch),
    )
    if rows.fetchone() is None:
        return
    size = sum(int(add["size"]) for add in json.loads(copied_range.files))
    connection.execute(
        "insert or replace into copy_range (subid, relid, epoch, snapshot, number, rows,"
        " files, coercions) values (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            copied_range.subid,
            copied_range.relid,
            copied_range.epoch,
            copied_range.snapshot,
            copied_range.number,
            copied_range.rows,
            copied_range.files,
            to_json(copied_range.coercions),
        ),
    )
    connection.execute(
        "update subscription_rel set rows_copied = rows_copied + ?,"
        " bytes_copied = bytes_copied + ? where subid = ? and relid = ?",
        (copied_range.rows, size, copied_range.subid, copied_range.relid),
    )


def ranges(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> list[CopyRange]:
    """Return the finished ranges of a table's running copy, by number."""
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


def hold_snapshot(connection: sqlite3.Connection, held: SyncSnapshot) -> None:
    """Record the exported snapshot that a receiver holds, in place of an earlier one."""
    connection.execute(
        "insert or replace into sync_snapshot (subid, snapshot, lsn, holder, relids)"
        " values (?, ?, ?, ?, ?)",
        (held.subid, held.snapshot, held.lsn, held.holder, json.dumps(held.relids)),
    )


def snapshot_held(connection: sqlite3.Connection, subid: Oid) -> SyncSnapshot | None:
    """Return the snapshot that copies of this subscription may use now."""
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


def uncover(
    connection: sqlite3.Connection, held: SyncSnapshot, relids: Collection[Oid]
) -> None:
    """Exclude tables from a snapshot, and delete their ranges read under it. Has no effect if
    another snapshot is held."""
    now = snapshot_held(connection, held.subid)
    if now is None or now.identity != held.identity:
        return
    excluded = {int(relid) for relid in relids}
    connection.execute(
        "update sync_snapshot set relids = ? where subid = ?",
        (json.dumps([r for r in now.relids if r not in excluded]), held.subid),
    )
    for relid in relids:
        connection.execute(
            "delete from copy_range where subid = ? and relid = ? and snapshot = ?",
            (held.subid, relid, held.identity),
        )


def release_snapshot(connection: sqlite3.Connection, subid: Oid) -> None:
    """Delete the record of a snapshot that is gone or no longer needed."""
    connection.execute("delete from sync_snapshot where subid = ?", (subid,))
