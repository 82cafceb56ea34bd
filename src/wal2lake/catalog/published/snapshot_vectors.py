"""Rows of ``snapshot_vector``: the published states, and the floor that moves with them.

In: a connection, and in writes a transaction on it. Out: ``SnapshotVector``, the floor. ``publish``
has the only rule of the catalog that concerns several rows: the limit of the floor. Called by
``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog.records import PastState, SnapshotVector
from wal2lake.model import Lsn, Oid, SyncState

_VECTORS_KEPT: Final = 10_000
"""Published states kept per subscription for wal2lake.snapshots. Estimated as the states of a
day."""

_BYTES_KEPT: Final = 16 * 1024 * 1024
"""Maximum bytes of kept states. With hundreds of tables, a state has many kilobytes."""

_VECTORS_SEARCHED: Final = 2_000
"""Published states that are searched for the versions of one table. A guess: some tens of
milliseconds."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table that readers have seen."""

    version: int
    lsn: Lsn
    """Position from which the version holds."""
    committed_at: str
    """Time when the first state with the version was published: ISO 8601, UTC."""
    apart: bool
    """Whether the table has left the common snapshot, at ``lsn``."""


def publish(
    connection: sqlite3.Connection,
    subid: Oid,
    reached: Lsn,
    versions: Mapping[int, int],
    participants: Collection[int],
    joined: Sequence[int],
) -> Lsn:
    """Advance the floor and publish the tables' versions, as ``Catalog.publish`` describes."""
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
    """Let a table leave the common snapshot and stand at ``lsn`` (None: the newest vector's), where
    readers see its ``version`` (None: the present one)."""
    row = _newest(connection, subid)
    if row is None:
        return
    reached = Lsn(row["lsn"])
    apart = {**_apart(row["apart"]), int(relid): reached if lsn is None else lsn}
    versions = {} if version is None else {int(relid): version}
    _add(connection, subid, row, reached, versions, apart)


def advance_apart(connection: sqlite3.Connection, subid: Oid, lsn: Lsn) -> None:
    """Raise the positions of paused tables to ``lsn``, because changes below it are not needed any
    more."""
    row = _newest(connection, subid)
    if row is None:
        return
    paused = {
        rel["relid"]
        for rel in connection.execute(
            "select relid from subscription_rel"
            " where subid = ? and paused_at is not null",
            (subid,),
        )
    }
    apart = {
        relid: Lsn(max(position, lsn)) if relid in paused else position
        for relid, position in _apart(row["apart"]).items()
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
    """Add the state after the newest one (``row``). If only the LSN differs, the new state replaces
    it."""
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
    """Return the highest floor up to ``reached`` that every table allows."""
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
            # Its snapshot will be taken later, above everything that is logged now.
            needed = bound
        elif row["state"] == SyncState.DATASYNC.value:
            # If the table is not covered, a snapshot is about to be taken, no lower than the
            # floor.
            needed = int(held["lsn"]) if row["relid"] in covered else 0
        else:
            needed = int(row["lsn"] or 0)
        if row["lsn"] is not None:
            # An attempt may have committed at this S, even if another snapshot is held now.
            needed = min(needed, int(row["lsn"]))
        bound = min(bound, needed)
    return Lsn(bound)


def hand_over(
    connection: sqlite3.Connection, subid: Oid, relid: Oid | None = None
) -> None:
    """Publish the versions that a subscription's readers see in the other subscriptions of its
    tables, or of one table, because the subscription leaves the tables."""
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
        for (other_subid,) in others:
            newest = newest_vector(connection, Oid(other_subid))
            if newest is not None and newest.versions.get(place, version) < version:
                publish(
                    connection, Oid(other_subid), newest.lsn, {place: version}, (), ()
                )


def forget_version(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Remove a table from the newest vector."""
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
    """Let the newest state continue at ``lsn``, in the WAL of another source or slot, whose
    positions cannot be compared with earlier ones."""
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
    """Return the newest state of a subscription."""
    row = _newest(connection, subid)
    return None if row is None else _vector(row)


def newest_vectors(connection: sqlite3.Connection) -> dict[Oid, SnapshotVector]:
    """Return the newest states of all subscriptions that have one."""
    rows = connection.execute(
        "select * from snapshot_vector v where number ="
        " (select max(number) from snapshot_vector where subid = v.subid)"
    )
    return {Oid(row["subid"]): _vector(row) for row in rows}


def past(
    connection: sqlite3.Connection, subid: Oid, *, lsn: Lsn | None, time: str | None
) -> PastState:
    """Return the newest state at or below a position, and at or before a time.

    A state holds for later positions until it changes. States are searched backwards from the
    newest while positions decrease: a higher position belongs to the WAL of an earlier source or
    slot.
    """
    number: int | None = None
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
            number = int(row["number"])
            break
    if number is None:
        return PastState(None, newest, oldest)
    row = connection.execute(
        "select * from snapshot_vector where subid = ? and number = ?", (subid, number)
    ).fetchone()
    return PastState(_vector(row), newest, oldest)


def all_vectors(connection: sqlite3.Connection) -> list[SnapshotVector]:
    """Return the kept states, oldest first."""
    rows = connection.execute("select * from snapshot_vector order by subid, number")
    return [_vector(r) for r in rows]


def table_versions(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, limit: int
) -> list[TableVersion]:
    """Return the newest published versions of one table, the newest first. SQLite takes the
    versions out of the states: as Python's objects, all states of many tables would be large."""
    rows = connection.execute(
        "select since, committed_at, json_extract(versions, ?) as version, apart"
        " from snapshot_vector where subid = ? order by number desc limit ?",
        (f'$."{int(relid)}"', subid, _VECTORS_SEARCHED),
    )
    versions: list[TableVersion] = []
    for row in rows:
        if row["version"] is None:
            break
        position = _apart(row["apart"]).get(int(relid))
        apart = position is not None
        if versions and (versions[-1].version, versions[-1].apart) == (
            row["version"],
            apart,
        ):
            versions.pop()
        elif len(versions) == limit:
            break
        versions.append(
            TableVersion(
                int(row["version"]),
                Lsn(row["since"]) if position is None else position,
                row["committed_at"],
                apart,
            )
        )
    return versions


def expired(
    connection: sqlite3.Connection, cutoff: str, subids: Collection[int] | None
) -> dict[int, int]:
    """Return, by subscription, the number up to which states had a successor before ``cutoff``
    (ISO 8601, UTC). The newest state never counts. ``subids``: None for all subscriptions."""
    numbers: dict[int, int] = {}
    waiting: dict[int, tuple[int, bool]] = {}
    for row in connection.execute(
        "select subid, number, committed_at from snapshot_vector order by subid, number"
    ):
        subid, successor = int(row["subid"]), str(row["committed_at"])
        if subids is not None and subid not in subids:
            continue
        before, unbroken = waiting.get(subid, (0, True))
        # States go from the oldest on, without gaps: a look-up takes the state below a gap.
        unbroken = unbroken and (not before or successor < cutoff)
        if before and unbroken:
            numbers[subid] = before
        waiting[subid] = int(row["number"]), unbroken
    return numbers


def unreadable(
    connection: sqlite3.Connection, readable: Mapping[int, int]
) -> dict[int, int]:
    """Return, by subscription, the number up to which a state names a version of a table below its
    first ``readable`` one. The newest state never counts."""
    numbers: dict[int, int] = {}
    for relid, version in readable.items():
        for subid, number in connection.execute(
            "select subid, max(number) from snapshot_vector v, json_each(v.versions) e"
            " where e.key = ? and e.value < ? and number < (select max(number)"
            " from snapshot_vector where subid = v.subid) group by subid",
            (str(relid), version),
        ):
            numbers[int(subid)] = max(int(number), numbers.get(int(subid), 0))
    return numbers


def count_through(connection: sqlite3.Connection, numbers: Mapping[int, int]) -> int:
    """Return how many states of each subscription there are up to a number, together."""
    return sum(
        int(
            connection.execute(
                "select count(*) from snapshot_vector where subid = ? and number <= ?",
                (subid, number),
            ).fetchone()[0]
        )
        for subid, number in numbers.items()
    )


def remove_through(connection: sqlite3.Connection, numbers: Mapping[int, int]) -> int:
    """Delete the states of each subscription up to a number; return how many they were."""
    return sum(
        connection.execute(
            "delete from snapshot_vector where subid = ? and number <= ?",
            (subid, number),
        ).rowcount
        for subid, number in numbers.items()
    )


def oldest_versions(
    connection: sqlite3.Connection, above: Mapping[int, int]
) -> dict[int, int]:
    """Return the lowest version of each table that the states name which are ``above`` a number of
    their subscription."""
    oldest: dict[int, int] = {}
    for (subid,) in connection.execute(
        "select distinct subid from snapshot_vector"
    ).fetchall():
        for relid, version in connection.execute(
            "select e.key, min(e.value) from snapshot_vector v, json_each(v.versions) e"
            " where subid = ? and number > ? group by e.key",
            (subid, above.get(int(subid), 0)),
        ):
            oldest[int(relid)] = min(int(version), oldest.get(int(relid), int(version)))
    return oldest


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
        since=Lsn(row["since"]),
    )
