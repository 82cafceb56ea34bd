"""The version of each table that a statement reads, or a whole transaction.

Takes a table; returns the version to read. A ``Snapshot`` reads every subscription's newest vector
at one moment, so all tables of a subscription are seen at one LSN. It also knows which local
commits had ended by then, so a transaction of several tables is seen completely or not at all.

If a subscription has published a table, the published version is read. A table may be in several
subscriptions, each of which publishes for itself; the newest of the published versions is read. It
contains what the others published before. Any other choice would hide rows while that subscription
is stopped by an error or a copy. A copy that has not joined does not count: its subscription's
vector has the version from before the copy. In consequence, a table of two subscriptions may show
changes of one of them before that subscription's other tables do. Two apply workers of PostgreSQL
behave alike, since each commits for itself.

For any other table the newest version is read, except that the version before a commit of this
node is read if the commit had not ended when the snapshot was taken.

A snapshot may be exported: other transactions read what its owner reads, under a name that is valid
until the owner's transaction ends. All of them use the same object, so a version that one looked up
holds for all, and versions are kept for them as for the owner.

Retention asks which versions are read, or may still be read (``held``). A reader of past states
(``commands.tables.past``) is registered here, too.

Called by the backend's resolver, and by transactions when they begin. Source of the errors:
src/backend/utils/time/snapmgr.c (ImportSnapshot).
"""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from wal2lake.catalog import Catalog, SnapshotVector, TableDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.lake import TablePort
from wal2lake.model import Oid

Publish = Callable[[Callable[[], None]], None]
"""Ends a commit: calls its argument, which makes the new versions visible, in one step."""

_IDENTIFIER: Final = re.compile("[0-9A-F-]*")


@dataclass(slots=True)
class _Commit:
    before: Mapping[str, int]
    """The versions before the commit, by location."""
    ended: int | None = None
    """The number of ended commits when this one had ended; None if it has not."""


class PastReader(Protocol):
    """A statement that reads past states."""

    def reads(self, location: str, relids: Collection[Oid]) -> Iterable[int]:
        """Return the versions of a table that the statement reads or may read."""
        ...


@dataclass(frozen=True, slots=True)
class Modes:
    """Modes of a transaction whose snapshot is exported or imported."""

    isolation: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class _Export:
    snapshot: Snapshot
    modes: Modes
    pid: int


class Snapshots:
    """Commits of this node that a live snapshot may be older than."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_up = threading.Condition(self._lock)
        self._looking_up: Counter[str] = Counter()
        """Look-ups of a version that are under way, by location."""
        self._past: weakref.WeakSet[PastReader] = weakref.WeakSet()
        self.past_lock = threading.Lock()
        """Held while a statement looks up a past state and records it."""
        self._ended = 0
        self._commits: list[_Commit] = []
        self._live: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._exports: dict[str, _Export] = {}
        self._names = itertools.count(1)

    def take(
        self,
        catalog: Catalog,
        tables: TablePort,
        versions: Mapping[str, int] | None = None,
    ) -> Snapshot:
        """Take a snapshot of the visible versions.

        ``versions``: versions of some tables, by location, as of an earlier snapshot."""
        with self._lock:
            taken = Snapshot(self, catalog, tables, self._ended, versions or {})
            self._live.add(taken)
            return taken

    def export(self, snapshot: Snapshot, modes: Modes, pid: int) -> str:
        """Export a snapshot and return its name, which is valid until ``withdraw``.

        ``modes`` and ``pid``: the exporting session's."""
        with self._lock:
            name = f"{pid:08X}-{next(self._names):08X}-1"
            self._exports[name] = _Export(snapshot, modes, pid)
            return name

    def withdraw(self, pid: int) -> None:
        """End the exports of a session; transactions that have imported a snapshot keep it."""
        with self._lock:
            self._exports = {n: e for n, e in self._exports.items() if e.pid != pid}

    def imported(self, name: str, modes: Modes) -> Snapshot:
        """Return an exported snapshot for a transaction of these modes.

        0A000 if the modes don't allow it, 22023 for a malformed name, 42704 for an unknown one."""
        if modes.isolation not in ("repeatable read", "serializable"):
            raise FeatureNotSupportedError(
                "a snapshot-importing transaction must have isolation level SERIALIZABLE"
                " or REPEATABLE READ"
            )
        if _IDENTIFIER.fullmatch(name) is None:
            raise UsageError(f'invalid snapshot identifier: "{name}"', sqlstate="22023")
        with self._lock:
            export = self._exports.get(name)
        if export is None:
            raise UndefinedObjectError(f'snapshot "{name}" does not exist')
        if modes.isolation == "serializable":
            if export.modes.isolation != "serializable":
                raise FeatureNotSupportedError(
                    "a serializable transaction cannot import a snapshot from a"
                    " non-serializable transaction"
                )
            if export.modes.read_only and not modes.read_only:
                raise FeatureNotSupportedError(
                    "a non-read-only serializable transaction cannot import a snapshot"
                    " from a read-only transaction"
                )
        return export.snapshot

    @contextmanager
    def committing(self, before: Mapping[str, int]) -> Iterator[Publish]:
        """Show readers the versions ``before`` until the commit inside is published."""
        commit = _Commit(before)
        with self._lock:
            self._commits.append(commit)

        def publish(make_visible: Callable[[], None]) -> None:
            with self._lock:
                make_visible()
                self._ended += 1
                commit.ended = self._ended

        try:
            yield publish
        finally:
            with self._lock:
                if commit.ended is None:
                    self._commits.remove(commit)
                self._forget_seen()

    def _forget_seen(self) -> None:
        """Forget commits that had ended when the oldest live snapshot was taken."""
        oldest = min((s.ended for s in self._live), default=self._ended)
        self._commits = [
            commit
            for commit in self._commits
            if commit.ended is None or commit.ended > oldest
        ]

    @contextmanager
    def looking_up(self, location: str) -> Iterator[None]:
        """Record that a snapshot looks up the version of a table."""
        with self._lock:
            self._looking_up[location] += 1
        try:
            yield
        finally:
            with self._looked_up:
                self._looking_up[location] -= 1
                if not self._looking_up[location]:
                    del self._looking_up[location]
                    self._looked_up.notify_all()

    def register_past(self, reader: PastReader) -> None:
        """Keep the versions that a statement reads, for as long as ``reader`` exists."""
        with self._lock:
            self._past.add(reader)

    def held(
        self, location: str, relids: Collection[Oid], timeout_seconds: float
    ) -> set[int] | None:
        """Return the versions of a table that live snapshots read or may read.

        A snapshot that is taken later reads none that is older than these and than the newest
        version before the call. ``relids``: the table's names. None if a look-up takes longer than
        the time limit."""
        with self.past_lock, self._looked_up:
            if not self._looked_up.wait_for(
                lambda: not self._looking_up[location], timeout_seconds
            ):
                return None
            self._forget_seen()
            versions = {
                commit.before[location]
                for commit in self._commits
                if location in commit.before
            }
            for snapshot in self._live:
                versions.update(snapshot.reads(location, relids))
            for reader in self._past:
                versions.update(reader.reads(location, relids))
        return versions

    def before(self, location: str, ended: int) -> int | None:
        """Return a table's version before the commits that follow ``ended``; None if none did."""
        with self._lock:
            for commit in self._commits:
                if commit.ended is None or commit.ended > ended:
                    version = commit.before.get(location)
                    if version is not None:
                        return version
        return None


class Snapshot:
    """The visible versions at one moment."""

    def __init__(
        self,
        commits: Snapshots,
        catalog: Catalog,
        tables: TablePort,
        ended: int,
        versions: Mapping[str, int],
    ) -> None:
        """``ended``: number of ended commits; ``versions``: fixed versions by location.

        Only ``Snapshots.take`` creates snapshots."""
        self.ended = ended
        self._commits = commits
        self._catalog = catalog
        self._tables = tables
        self._known: dict[str, int] = dict(versions)
        self._vectors = catalog.newest_vectors()
        self._subids: defaultdict[Oid, list[Oid]] = defaultdict(list)
        if self._vectors:
            for rel in catalog.rels():
                self._subids[rel.relid].append(rel.subid)
            for history, feed in catalog.histories().items():
                self._subids[history].append(feed.subid)

    def published(self, *relids: Oid) -> int | None:
        """Return the newest version of a table that any subscription has published.

        ``relids``: the table's names. None if it is not published."""
        versions = [
            self._vectors[subid].versions[int(relid)]
            for relid in relids
            for subid in self._subids[relid]
            if subid in self._vectors and int(relid) in self._vectors[subid].versions
        ]
        return max(versions, default=None)

    def apart(self, *relids: Oid) -> tuple[SnapshotVector, Oid] | None:
        """Return the vector in which a table, by one of its names, is apart, and that name.

        None if the table is at its subscriptions' common positions."""
        for relid in relids:
            for subid in self._subids[relid]:
                vector = self._vectors.get(subid)
                if vector is not None and int(relid) in vector.apart:
                    return vector, relid
        return None

    def of(self, table: TableDef) -> int:
        """Return the version to read, which stays the same for the snapshot's lifetime."""
        version = self._known.get(table.location)
        if version is None:
            with self._commits.looking_up(table.location):
                version = self._known.setdefault(table.location, self._version(table))
        return version

    def reads(self, location: str, relids: Collection[Oid]) -> Iterator[int]:
        """Yield the versions of a table that the snapshot reads or may read."""
        version = self._known.get(location)
        if version is not None:
            yield version
        for vector in self._vectors.values():
            for relid in relids:
                if int(relid) in vector.versions:
                    yield vector.versions[int(relid)]

    def _version(self, table: TableDef) -> int:
        published = self.published(*self._catalog.sharing(table))
        if published is not None:
            return published
        # In this order, so that a commit that begins in between is found.
        newest = self._tables.state(table.location).version
        before = self._commits.before(table.location, self.ended)
        return newest if before is None else before
