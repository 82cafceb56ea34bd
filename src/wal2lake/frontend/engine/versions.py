"""Which version of each table one statement reads.

In: a table. Out: its published version; None if no subscription has it, or none has published it
(then its newest is read). One object per statement: it looks at each subscription's
newest vector once, so that all tables of a subscription are seen at one LSN.

Why this way. A table may be in several subscriptions, and each publishes for itself. The
newest of the published versions is read: it contains what the others published before it,
while any other choice hides rows for as long as that subscription stands still (its error, its
copy). A copy that has not joined counts for nothing: its subscription's vector pins
the version from before the copy. The price: a table of two subscriptions may show changes
of one of them before that one's other tables do, as two apply workers of PostgreSQL do, which
commit one by one.

Called by the backend's resolver.
"""

from __future__ import annotations

from collections import defaultdict

from wal2lake.catalog import Catalog, SnapshotVector
from wal2lake.model import Oid


class PublishedVersions:
    """For one statement."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._subids: defaultdict[Oid, list[Oid]] = defaultdict(list)
        for rel in catalog.rels():
            self._subids[rel.relid].append(rel.subid)
        self._vectors: dict[Oid, SnapshotVector | None] = {}

    def of(self, *relids: Oid) -> int | None:
        """The newest version that any subscription has published of a table, which may have
        several names."""
        found = [
            vector.versions[int(relid)]
            for relid in relids
            for vector in map(self._vector, self._subids[relid])
            if vector is not None and int(relid) in vector.versions
        ]
        return max(found, default=None)

    def _vector(self, subid: Oid) -> SnapshotVector | None:
        if subid not in self._vectors:
            self._vectors[subid] = self._catalog.newest_vector(subid)
        return self._vectors[subid]
