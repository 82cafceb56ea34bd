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

Called by the backend's resolver, and by transactions for what they begin with.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from wal2lake.catalog import Catalog, SnapshotVector, TableDef
from wal2lake.lake import TablePort
from wal2lake.model import Oid

Publish = Callable[[Callable[[], None]], None]
"""Ends a commit: what it is given makes the new versions visible, in one step."""


@dataclass(slots=True)
class _Commit:
    before: Mapping[str, int]
    """The versions that it began with, by location."""
    ended: int | None = None
    """How many had ended when it had; None: it has not."""


class Snapshots:
    """Commits of this node, as far as a snapshot may still be older than they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = 0
        self._commits: list[_Commit] = []
        self._live: weakref.WeakSet[Snapshot] = weakref.WeakSet()

    def take(
        self,
        catalog: Catalog,
        tables: TablePort,
        versions: Mapping[str, int] | None = None,
    ) -> Snapshot:
        """What is visible now. ``versions``: of tables, by location, whose state is that of an
        earlier snapshot."""
        with self._lock:
            taken = Snapshot(self, catalog, tables, self._ended, versions or {})
            self._live.add(taken)
            return taken

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
        """The version to read; the same whenever it is asked for."""
        if table.location not in self._known:
            self._known[table.location] = self._version(table)
        return self._known[table.location]

    def _version(self, table: TableDef) -> int:
        published = self.published(*self._catalog.sharing(table))
        if published is not None:
            return published
        # In this order: a commit that begins in between is found.
        newest = self._tables.state(table.location).version
        before = self._commits.before(table.location, self.ended)
        return newest if before is None else before
