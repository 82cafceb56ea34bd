"""Rows of ``conflict``, and the counts in ``subscription_stats``.

In: a connection, and in writes a transaction on it. Out: ``NotedConflict``. Called by ``store``.

A change that a batch leaves out is recorded exactly once, like ``coercions``: it is written before
the batch's tables commit, with the position that the batch reaches, and takes effect in the
transaction that publishes that position. As in PostgreSQL, a conflict that stops a subscription is
counted at each attempt; it is listed once.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.records import NotedConflict
from wal2lake.model import Conflict, ConflictType, Lsn, Oid, Resolution

_KEPT: Final = 10_000
"""Number of listed conflicts of each subscription. The newest are kept."""


def any_pending(connection: sqlite3.Connection, subid: Oid) -> bool:
    """Whether there are conflicts that no publish has counted."""
    rows = connection.execute(
        "select 1 from conflict where subid = ? and reached is not null limit 1",
        (subid,),
    )
    return rows.fetchone() is not None


def expect(
    connection: sqlite3.Connection,
    subid: Oid,
    reached: Lsn,
    positions: Mapping[Oid, Lsn],
    conflicts: Iterable[Conflict],
) -> None:
    """Record pending conflicts of a batch, as ``Catalog.expect`` explains."""
    connection.executemany(
        "delete from conflict where subid = ? and relid = ? and reached > ?",
        [(subid, relid, position) for relid, position in positions.items()],
    )
    _insert(connection, subid, conflicts, reached)


def publish(connection: sqlite3.Connection, subid: Oid, reached: Lsn) -> None:
    """List and count the pending conflicts up to a published position."""
    rows = connection.execute(
        "select type, sum(count) as total from conflict"
        " where subid = ? and reached <= ? group by type",
        (subid, reached),
    ).fetchall()
    if not rows:
        return
    connection.execute(
        "update conflict set reached = null, noted_at = ?"
        " where subid = ? and reached <= ?",
        (_now(), subid, reached),
    )
    _count(connection, subid, {row["type"]: row["total"] for row in rows})
    _trim(connection, subid)


def note(connection: sqlite3.Connection, subid: Oid, conflict: Conflict) -> None:
    """Record a conflict that stops the subscription: count it each time, list it once."""
    connection.execute(
        "delete from conflict where subid = ? and relid = ? and type = ?"
        " and commit_lsn = ? and key is ? and resolution = ?",
        (
            subid,
            conflict.relid,
            conflict.type,
            conflict.commit_lsn,
            conflict.key,
            conflict.resolution,
        ),
    )
    _insert(connection, subid, [conflict], None)
    _count(connection, subid, {conflict.type: 1})
    _trim(connection, subid)


def forget_pending(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Delete a table's pending entries, because its unpublished commits will be replaced."""
    connection.execute(
        "delete from conflict where subid = ? and relid = ? and reached is not null",
        (subid, relid),
    )


def listed(connection: sqlite3.Connection) -> list[NotedConflict]:
    """Return the listed conflicts, oldest first."""
    rows = connection.execute(
        "select * from conflict where reached is null order by number"
    )
    return [
        NotedConflict(
            Oid(row["subid"]),
            Conflict(
                Oid(row["relid"]),
                ConflictType(row["type"]),
                Resolution(row["resolution"]),
                Lsn(row["commit_lsn"]),
                row["key"],
                row["xid"],
                row["origin"],
                None
                if row["committed_at"] is None
                else datetime.fromisoformat(row["committed_at"]),
                row["count"],
            ),
            row["noted_at"],
        )
        for row in rows
    ]


def counts(text: str) -> dict[ConflictType, int]:
    """Decode the counts of ``subscription_stats``."""
    return {ConflictType(kind): total for kind, total in json.loads(text).items()}


def _insert(
    connection: sqlite3.Connection,
    subid: Oid,
    conflicts: Iterable[Conflict],
    reached: Lsn | None,
) -> None:
    now = _now()
    connection.executemany(
        "insert into conflict (subid, relid, type, resolution, commit_lsn, key, xid,"
        " origin, committed_at, count, noted_at, reached)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                subid,
                c.relid,
                c.type,
                c.resolution,
                c.commit_lsn,
                c.key,
                c.xid,
                c.origin,
                None if c.committed_at is None else c.committed_at.isoformat(),
                c.count,
                now,
                reached,
            )
            for c in conflicts
        ],
    )


def _count(
    connection: sqlite3.Connection, subid: Oid, added: Mapping[str, int]
) -> None:
    row = connection.execute(
        "select conflicts from subscription_stats where subid = ?", (subid,)
    ).fetchone()
    if row is None:
        return
    total = Counter(json.loads(row["conflicts"]))
    total.update(added)
    connection.execute(
        "update subscription_stats set conflicts = ? where subid = ?",
        (json.dumps(dict(total)), subid),
    )


def _trim(connection: sqlite3.Connection, subid: Oid) -> None:
    connection.execute(
        "delete from conflict where subid = ? and reached is null and number <="
        " (select number from conflict where subid = ? and reached is null"
        " order by number desc limit 1 offset ?)",
        (subid, subid, _KEPT),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
