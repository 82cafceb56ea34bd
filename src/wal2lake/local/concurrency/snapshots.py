"""Which version of each table a statement reads, or a whole transaction.

In: a table. Out: the version to read. A ``Snapshot`` has looked at every subscription's newest
vector at one moment, so all tables of a subscription are seen at one LSN, and it knows which local
commits had ended by then, so a transaction of several tables is seen whole or not at all.

Of a table that a subscription has published, the published version. A table may be in several
subscriptions, and each publishes for itself: the newest of the published versions is read. It
contains what the others published before it, while any other choice hides rows for as long as that
subscription stands still (its error, its copy). A copy that has not joined counts for nothing: its
subscription's vector pins the version from before the copy. The price: a table of two
subscriptions may show changes of one of them before that one's other tables do, as two apply
workers of PostgreSQL do, which commit one by one.

Of any other table, the newest version; but the one before a commit of this node that has not ended,
or had not when the snapshot was taken.

A snapshot may be exported: other transactions read what its owner does, under a name that is
good until the owner's transaction ends. It is the same object for all of them, so a version that
one has looked up is everybody's, and what it still may have to read is kept as for its owner.

Called by the backend's resolver, and by transactions for what they begin with. Source of the
errors: src/backend/utils/time/snapmgr.c (ImportSnapshot).
"""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import Catalog, SnapshotVector, TableDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.lake import TablePort
from wal2lake.model import Oid

Publish = Callable[[Callable[[], None]], None]
"""Ends a commit: what it is given makes the new versions visible, in one step."""

_IDENTIFIER: Final = re.compile("[0-9A-F-]*")


@dataclass(slots=True)
class _Commit:
    before: Mapping[str, int]
    """The versions that it began with, by location."""
    ended: int | None = None
    """How many had ended when it had; None: it has not."""


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
    """Commits of this node, as far as a snapshot may still be older than they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
        """Take a snapshot of the visible versions. ``versions``: versions of tables, by location,
        in the state of an earlier snapshot."""
        with self._lock:
            taken = Snapshot(self, catalog, tables, self._ended, versions or {})
            self._live.add(taken)
            return taken

    def export(self, snapshot: Snapshot, modes: Modes, pid: int) -> str:
        """Export a snapshot under a name, until ``withdraw``. ``modes`` and ``pid``: of the session
        that exports it."""
        with self._lock:
            name = f"{pid:08X}-{next(self._names):08X}-1"
            self._exports[name] = _Export(snapshot, modes, pid)
            return name

    def withdraw(self, pid: int) -> None:
        """End the exports of a session; transactions that have imported a snapshot keep it."""
        with self._lock:
            self._exports = {n: e for n, e in self._exports.items() if e.pid != pid}

    def imported(self, name: str, modes: Modes) -> Snapshot:
        """For a transaction of these modes. 0A000 if they do not fit, 22023 if this is no name,
        42704 if nobody has exported it."""
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
        """Around a commit: until it is published readers have the versions ``before``."""
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
                oldest = min((s.ended for s in self._live), default=self._ended)
                self._commits = [
                    one
                    for one in self._commits
                    if (one.ended or 0) > oldest
                    or (one.ended is None and one is not commit)
                ]

    def before(self, location: str, ended: int) -> int | None:
        """The version that a table had before commits after ``ended``; None: there is none."""
        with self._lock:
            for commit in self._commits:
                if commit.ended is None or commit.ended > ended:
                    found = commit.before.get(location)
                    if found is not None:
                        return found
        return None


class Snapshot:
    """One moment."""

    def __init__(
        self,
        commits: Snapshots,
        catalog: Catalog,
        tables: TablePort,
        ended: int,
        versions: Mapping[str, int],
    ) -> None:
        """``ended``: how many commits had; ``versions``: those that are given. Made by
        ``Snapshots.take`` only."""
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

    def published(self, *relids: Oid) -> int | None:
        """The newest version that any subscription has published of a table, which may have
        several names; None: none has."""
        found = [
            self._vectors[subid].versions[int(relid)]
            for relid in relids
            for subid in self._subids[relid]
            if subid in self._vectors and int(relid) in self._vectors[subid].versions
        ]
        return max(found, default=None)

    def apart(self, *relids: Oid) -> tuple[SnapshotVector, Oid] | None:
        """The state of a subscription in which a table, by any of its names, stands apart from
        the others, and that name; None: it is one of them."""
        for relid in relids:
            for subid in self._subids[relid]:
                vector = self._vectors.get(subid)
                if vector is not None and int(relid) in vector.apart:
                    return vector, relid
        return None

    def of(self, table: TableDef) -> int:
        """The version to read; the same whenever, and by whomever, it is asked for."""
        found = self._known.get(table.location)
        if found is None:
            found = self._known.setdefault(table.location, self._version(table))
        return found

    def _version(self, table: TableDef) -> int:
        published = self.published(*self._catalog.sharing(table))
        if published is not None:
            return published
        # In this order: a commit that begins in between is found.
        newest = self._tables.state(table.location).version
        before = self._commits.before(table.location, self.ended)
        return newest if before is None else before
