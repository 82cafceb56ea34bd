"""Rows of ``snapshot_vector``: the published states, and the floor that moves with them.

In: a connection, and in writes a transaction on it. Out: ``SnapshotVector``, the floor. ``publish``
has the one rule of the catalog that is more than a row: how far the floor may go. Called by
``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.records import PastState, SnapshotVector
from wal2lake.model import Lsn, Oid, SyncState

_VECTORS_KEPT: Final = 10_000
"""Published states kept per subscription for wal2lake.snapshots; a guess at a day's."""

_BYTES_KEPT: Final = 16 * 1024 * 1024
"""And no more than this: with hundreds of tables a state is many kilobytes."""


def publish(
    connection: sqlite3.Connection,
    subid: Oid,
    reached: Lsn,
    versions: Mapping[int, int],
    participants: Collection[int],
    joined: Sequence[int],
) -> Lsn:
    """Advance the floor and publish the tables' versions; see ``Catalog.publish``."""
    connection.execute(
        "update subscription set floor = max(floor, ?) where oid = ?",
        (floor_bound(connection, subid, reached, set(participants)), subid),
    )
    for relid in joined:
        connection.execute(
            "update subscription_rel set lsn = case state when 'f' then ?"
            " else lsn end, rejoins = 0, state = case state when 'f' then 's'"
            " when 's' then 'r' else state end where subid = ? and relid = ?",
            (reached, subid, relid),
        )
    row = _newest(connection, subid)
    apart = {} if row is None else _apart(row["apart"])
    for relid in joined:
        apart.pop(relid, None)
    _add(connection, subid, row, reached, versions, apart)
    floor = connection.execute(
        "select floor from subscription where oid = ?", (subid,)
    ).fetchone()
    return Lsn(floor[0] if floor is not None else 0)


def stand_apart(
    connection: sqlite3.Connection,
    subid: Oid,
    relid: Oid,
    lsn: Lsn | None = None,
    version: int | None = None,
) -> None:
    """A table leaves the common snapshot and stands at ``lsn`` (None: at the newest vector's),
    where readers have its ``version`` (None: the one that they have)."""
    row = _newest(connection, subid)
    if row is None:
        return
    reached = Lsn(row["lsn"])
    apart = {**_apart(row["apart"]), int(relid): reached if lsn is None else lsn}
    versions = {} if version is None else {int(relid): version}
    _add(connection, subid, row, reached, versions, apart)


def advance_apart(connection: sqlite3.Connection, subid: Oid, lsn: Lsn) -> None:
    """Raise the positions of paused tables to ``lsn``: changes below it are not wanted any more."""
    row = _newest(connection, subid)
    if row is None:
        return
    paused = {
        found["relid"]
        for found in connection.execute(
            "select relid from subscription_rel"
            " where subid = ? and paused_at is not null",
            (subid,),
        )
    }
    apart = {
        relid: Lsn(max(at, lsn)) if relid in paused else at
        for relid, at in _apart(row["apart"]).items()
    }
    _add(connection, subid, row, Lsn(row["lsn"]), {}, apart)


def _add(
    connection: sqlite3.Connection,
    subid: Oid,
    row: sqlite3.Row | None,
    reached: Lsn,
    versions: Mapping[int, int],
    apart: Mapping[int, Lsn],
) -> None:
    """The state that comes after the newest one (``row``), or takes its place if it is the same at
    another LSN."""
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    before = {} if row is None else _versions(row["versions"])
    merged = {**before, **{int(k): int(v) for k, v in versions.items()}}
    number, since = (0, int(reached)) if row is None else (row["number"], row["since"])
    if row is None or merged != before or apart != _apart(row["apart"]):
        number, since = number + 1, int(reached)
    else:
        now = row["committed_at"]
    text = json.dumps(merged, separators=(",", ":"))
    connection.execute(
        "insert or replace into snapshot_vector"
        " (subid, lsn, since, committed_at, versions, number, apart)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        (subid, reached, since, now, text, number, json.dumps(apart)),
    )
    kept = min(_VECTORS_KEPT, max(1, _BYTES_KEPT // len(text)))
    connection.execute(
        "delete from snapshot_vector where subid = ? and number <= ?",
        (subid, number - kept),
    )


def floor_bound(
    connection: sqlite3.Connection, subid: Oid, reached: Lsn, participants: set[int]
) -> Lsn:
    """The highest floor up to ``reached`` that every table allows."""
    held = connection.execute(
        "select lsn, relids from sync_snapshot where subid = ?", (subid,)
    ).fetchone()
    covered = set() if held is None else set(json.loads(held["relids"]))
    bound = int(reached)
    for row in connection.execute(
        "select relid, state, lsn from subscription_rel where subid = ?", (subid,)
    ):
        if row["relid"] in participants:
            continue
        if row["state"] == SyncState.INIT.value:
            # Its snapshot is still to come, and will be above all that is logged now.
            needed = bound
        elif row["state"] == SyncState.DATASYNC.value:
            # Not covered: a snapshot is about to be taken, no lower than the floor.
            needed = int(held["lsn"]) if row["relid"] in covered else 0
        else:
            needed = int(row["lsn"] or 0)
        if row["lsn"] is not None:
            # An attempt may have committed at this S, whatever snapshot is held now.
            needed = min(needed, int(row["lsn"]))
        bound = min(bound, needed)
    return Lsn(bound)


def hand_over(
    connection: sqlite3.Connection, subid: Oid, relid: Oid | None = None
) -> None:
    """A subscription leaves its tables, or one of them: what its readers have seen of them the
    other subscriptions of these tables publish from now on."""
    row = _newest(connection, subid)
    if row is None:
        return
    for place, version in _versions(row["versions"]).items():
        if relid is not None and place != int(relid):
            continue
        others = connection.execute(
            "select subid from subscription_rel where relid = ? and subid <> ?",
            (place, subid),
        ).fetchall()
        for (other,) in others:
            newest = newest_vector(connection, Oid(other))
            if newest is not None and newest.versions.get(place, version) < version:
                publish(connection, Oid(other), newest.lsn, {place: version}, (), ())


def forget_version(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """The newest vector no longer pins a table."""
    newest = newest_vector(connection, subid)
    if newest is None:
        return
    rest = {k: v for k, v in newest.versions.items() if k != int(relid)}
    apart = {k: v for k, v in newest.apart.items() if k != int(relid)}
    connection.execute(
        "update snapshot_vector set versions = ?, apart = ? where subid = ? and number ="
        " (select max(number) from snapshot_vector where subid = ?)",
        (json.dumps(rest), json.dumps(apart), subid, subid),
    )


def rebase(connection: sqlite3.Connection, subid: Oid, lsn: Lsn) -> None:
    """The newest state goes on as that of ``lsn``, in the WAL of another source or slot:
    positions before it say nothing about those after it."""
    row = _newest(connection, subid)
    connection.execute(
        "insert into snapshot_vector"
        " (subid, lsn, since, committed_at, versions, number, apart)"
        " values (?, ?, ?, ?, ?, ?, ?)",
        (
            subid,
            lsn,
            lsn,
            datetime.now(UTC).isoformat(timespec="microseconds"),
            "{}" if row is None else row["versions"],
            1 if row is None else int(row["number"]) + 1,
            "{}" if row is None else row["apart"],
        ),
    )


def newest_vector(connection: sqlite3.Connection, subid: Oid) -> SnapshotVector | None:
    """The newest state of one subscription."""
    row = _newest(connection, subid)
    return None if row is None else _vector(row)


def newest_vectors(connection: sqlite3.Connection) -> dict[Oid, SnapshotVector]:
    """The same of all subscriptions that have one."""
    rows = connection.execute(
        "select * from snapshot_vector v where number ="
        " (select max(number) from snapshot_vector where subid = v.subid)"
    )
    return {Oid(row["subid"]): _vector(row) for row in rows}


def past(
    connection: sqlite3.Connection, subid: Oid, *, lsn: Lsn | None, time: str | None
) -> PastState:
    """The newest state at or below a position, and at or before a time.

    A state that nothing has changed goes on to be that of later positions. Positions count back
    from the newest state as far as they fall: what is older stood in the WAL of another source or
    slot.
    """
    found: int | None = None
    newest: tuple[Lsn, str] | None = None
    oldest: tuple[Lsn, str] | None = None
    for row in connection.execute(
        "select number, lsn, since, committed_at from snapshot_vector where subid = ?"
        " order by number desc",
        (subid,),
    ):
        since, published = Lsn(row["since"]), str(row["committed_at"])
        if lsn is not None and oldest is not None and row["lsn"] > oldest[0]:
            break
        newest = newest or (Lsn(row["lsn"]), published)
        oldest = since, published
        if (lsn is None or since <= lsn) and (time is None or published <= time):
            found = int(row["number"])
            break
    if found is None:
        return PastState(None, newest, oldest)
    row = connection.execute(
        "select * from snapshot_vector where subid = ? and number = ?", (subid, found)
    ).fetchone()
    return PastState(_vector(row), newest, oldest)


def all_vectors(connection: sqlite3.Connection) -> list[SnapshotVector]:
    """All states that are kept, oldest first."""
    rows = connection.execute("select * from snapshot_vector order by subid, number")
    return [_vector(r) for r in rows]


def _newest(connection: sqlite3.Connection, subid: Oid) -> sqlite3.Row | None:
    row: sqlite3.Row | None = connection.execute(
        "select * from snapshot_vector where subid = ? order by number desc limit 1",
        (subid,),
    ).fetchone()
    return row


def _versions(text: str) -> dict[int, int]:
    return {int(k): int(v) for k, v in json.loads(text).items()}


def _apart(text: str) -> dict[int, Lsn]:
    return {int(k): Lsn(v) for k, v in json.loads(text).items()}


def _vector(row: sqlite3.Row) -> SnapshotVector:
    return SnapshotVector(
        subid=Oid(row["subid"]),
        lsn=Lsn(row["lsn"]),
        committed_at=row["committed_at"],
        versions=_versions(row["versions"]),
        apart=_apart(row["apart"]),
    )
