"""Reads of past table versions: ``wal2lake.as_of_lsn`` and ``wal2lake.as_of_time``.

Takes the session's setting and a table; returns the table version published at that point. One
object serves one statement: each subscription's states are looked up once, so all tables of a
subscription are read at one LSN. ``snapshots`` defines which published version of a table counts.

A state that is unavailable is an error, never another state: 55000 if it is not yet reached or was
never published, 72000 if it is no longer kept.

What a statement has looked up stays readable until it has ended (``Snapshots.held``).

Called by the backend's resolver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from wal2lake.catalog import PastState, SnapshotVector, TableDef
from wal2lake.errors import UsageError
from wal2lake.lake.retention import UnreadableLog, are_present
from wal2lake.lake.store import store_at
from wal2lake.local.ports import HasSnapshots
from wal2lake.model import Lsn, Oid
from wal2lake.pgtypes import zone_for
from wal2lake.sql.backend import Notice
from wal2lake.sql.parameters import AS_OF_LSN, AS_OF_TIME, moment

_LIST = "wal2lake.snapshots lists the published states."


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in the past that a session reads: either an LSN or a time."""

    lsn: Lsn | None = None
    time: datetime | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> AsOf | None:
        """Return the point that the session has set; None if the session reads the present."""
        lsn, time = parameters[AS_OF_LSN], parameters[AS_OF_TIME]
        if lsn and time:
            raise UsageError(
                f"{AS_OF_LSN} and {AS_OF_TIME} cannot both be set",
                hint=f"RESET {AS_OF_LSN}, or RESET {AS_OF_TIME}.",
            )
        if lsn:
            return cls(lsn=Lsn.parse(lsn))
        if time:
            return cls(time=moment(time, zone_for(parameters["TimeZone"])[1]))
        return None

    @property
    def setting(self) -> str:
        """Name of the parameter that was set."""
        return AS_OF_LSN if self.lsn is not None else AS_OF_TIME

    def __str__(self) -> str:
        if self.time is not None:
            return format_moment(self.time)
        return str(self.lsn)


def format_moment(moment: datetime) -> str:
    """Format a time as PostgreSQL does, in UTC."""
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return (text.rstrip("0") if "." in text else text) + "+00"


def refuse_to_write(as_of: AsOf | None, command: str) -> None:
    """Raise 25006 if the session reads the past, so it must not write."""
    if as_of is not None:
        raise UsageError(
            f"cannot execute {command} while {as_of.setting} is set",
            sqlstate="25006",
            hint=f"RESET {as_of.setting} first.",
        )


class PastVersions:
    """Versions of tables at one point in the past, for one statement."""

    def __init__(
        self,
        node: HasSnapshots,
        as_of: AsOf,
        notice: Callable[[Notice], None],
    ) -> None:
        """``notice`` receives a notice if no state has exactly the requested LSN."""
        self._catalog = node.catalog
        self._tables = node.tables
        self._snapshots = node.snapshots
        self._unsubscribed: dict[str, int] = {}
        """Versions of tables without a subscription, by location."""
        self._as_of = as_of
        self._notice = notice
        self._subids: defaultdict[Oid, list[Oid]] = defaultdict(list)
        for rel in node.catalog.rels():
            self._subids[rel.relid].append(rel.subid)
        for history, feed in node.catalog.histories().items():
            self._subids[history].append(feed.subid)
        self._vectors: dict[Oid, SnapshotVector | None] = {}
        node.snapshots.register_past(self)

    @classmethod
    def seen(
        cls,
        node: HasSnapshots,
        parameters: Mapping[str, str],
        notice: Callable[[Notice], None],
    ) -> PastVersions | None:
        """Return the versions that a session with these parameters reads; None: the present."""
        as_of = AsOf.of(parameters)
        return None if as_of is None else cls(node, as_of, notice)

    def of(self, table: TableDef) -> int:
        """Return the newest version of the table that any subscription had published.

        The table may have several names."""
        with self._snapshots.past_lock:
            return self._of(table)

    def reads(self, location: str, relids: Collection[Oid]) -> Iterator[int]:
        """Yield the versions of a table that the statement reads or may read."""
        if location in self._unsubscribed:
            yield self._unsubscribed[location]
        for vector in self._vectors.values():
            for relid in relids:
                if vector is not None and int(relid) in vector.versions:
                    yield vector.versions[int(relid)]

    def _of(self, table: TableDef) -> int:
        names = self._catalog.sharing(table)
        self._refuse_apart(table, names)
        versions = [
            vector.versions[int(relid)]
            for relid in names
            for vector in map(self._vector, self._subids[relid])
            if vector is not None and int(relid) in vector.versions
        ]
        if versions:
            return max(versions)
        is_local = not any(self._subids[relid] for relid in names)
        return self._unpublished(table, self._as_of, is_local=is_local)

    def _refuse_apart(self, table: TableDef, names: Sequence[Oid]) -> None:
        """Refuse a table that was paused or lagging at that point: it has no state there."""
        for relid in names:
            for vector in map(self._vector, self._subids[relid]):
                lsn = None if vector is None else vector.elsewhere(relid)
                if lsn is not None:
                    raise UsageError(
                        f'table "{table.qualified}" cannot be read as of {self._as_of}:'
                        f" it stood at {lsn} then, apart from the others",
                        sqlstate="55000",
                        hint=f"RESET {self._as_of.setting} to read it as it is now. {_LIST}",
                    )

    def _unpublished(self, table: TableDef, as_of: AsOf, *, is_local: bool) -> int:
        """Return the version at the time for a local table, which has its own history.

        Raise for any other table, since no vector of that time has it."""
        if not is_local or as_of.time is None:
            reason = (
                "it belongs to no subscription, so it has no LSN"
                if is_local
                else "it was not published then"
            )
            raise UsageError(
                f'table "{table.qualified}" cannot be read as of {as_of}: {reason}',
                sqlstate="55000",
                hint=f"RESET {as_of.setting} to read it as it is now."
                + (f" {AS_OF_TIME} reads every table." if is_local else f" {_LIST}"),
            )
        version = self._tables.version_at(table.location, as_of.time)
        if version is None or not _is_kept(table.location, version):
            raise UsageError(
                f'table "{table.qualified}" has no version as of {as_of}',
                sqlstate="72000",
                hint="It was created later, or its history has been cleaned up. RESET"
                f" {as_of.setting} to read it as it is now.",
            )
        self._unsubscribed[table.location] = version
        return version

    def _vector(self, subid: Oid) -> SnapshotVector | None:
        if subid not in self._vectors:
            self._vectors[subid] = self._past(subid, self._as_of)
        return self._vectors[subid]

    def _past(self, subid: Oid, as_of: AsOf) -> SnapshotVector | None:
        past = self._catalog.past_state(subid, lsn=as_of.lsn, time=as_of.time)
        if past.newest is None:
            return None
        subscription = self._catalog.subscription(subid)
        name = "" if subscription is None else f' of subscription "{subscription.name}"'
        lsn, _ = past.newest
        if as_of.lsn is not None and lsn < as_of.lsn:
            raise UsageError(
                f"the state{name} at {as_of} has not been reached",
                sqlstate="55000",
                detail=f"The newest published state is that of {lsn}.",
                hint=_LIST,
            )
        if past.vector is None:
            raise UsageError(
                f"the state{name} as of {as_of} is not kept",
                sqlstate="72000",
                detail=_oldest(past, as_of),
                hint=_LIST,
            )
        if as_of.lsn is not None and past.vector.lsn < as_of.lsn:
            self._notice(
                Notice(
                    f"reading the state{name} at {past.vector.lsn}, the newest published"
                    f" one at or below {as_of}",
                )
            )
        return past.vector


def _is_kept(location: str, version: int) -> bool:
    """Whether the files of a version are there. Its log may be kept for longer."""
    store = store_at(location)
    try:
        return store is None or are_present(store, version)
    except UnreadableLog:
        # Retention removes nothing of such a table.
        return True


def _oldest(past: PastState, as_of: AsOf) -> str | None:
    if past.oldest is None:
        return None
    lsn, time = past.oldest
    if as_of.lsn is not None:
        return f"The oldest is that of {lsn}."
    return f"The oldest is that of {format_moment(datetime.fromisoformat(time))}."
