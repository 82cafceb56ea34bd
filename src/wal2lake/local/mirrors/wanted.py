"""Says which tables are mirrored to Iceberg, and which version of each a mirror should show.

Comes in: the catalog. Goes out: locations with versions and positions. Called by ``worker``.

A table is mirrored if its storage parameter ``iceberg`` is true, or if it has none and one of its
subscriptions has ``table_format = 'iceberg'``. If a table has several names, as one with a
partition has, the parameter of one is enough. A mirror shows the version of the newest published
state, as a reader of the table in a snapshot of all tables sees it. A table that no state names
shows its newest version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wal2lake.catalog import Catalog, SnapshotVector, TableDef
from wal2lake.local.retention.holders import TablePlace, places_of
from wal2lake.model import Lsn, Oid
from wal2lake.sql.grammar.options import ICEBERG


@dataclass(frozen=True, slots=True)
class WantedMirror:
    """A table, and what its mirror should show."""

    place: TablePlace
    version: int | None
    """None: the newest."""
    lsn: Lsn | None
    """All transactions that commit before are in the version. None: the table has no source."""

    @property
    def table(self) -> TableDef:
        """The table that catalogs name; a default partition has the same rows."""
        tables = self.place.tables
        return next((t for t in tables if t.partition_of is None), tables[0])


def wanted_mirrors(
    catalog: Catalog, states: Mapping[Oid, SnapshotVector]
) -> Iterator[WantedMirror]:
    """Yield the tables that are mirrored. ``states``: the newest ones of all subscriptions."""
    if not catalog.mentions(ICEBERG):
        return
    chosen = {
        sub.oid
        for sub in catalog.subscriptions()
        if sub.options.get("table_format") == ICEBERG
    }
    filled = {rel.relid for rel in catalog.rels() if rel.subid in chosen}
    vectors = list(states.values())
    for place in places_of(catalog):
        stated = [
            value
            for table in place.tables
            for name, value in table.parameters
            if name == ICEBERG
        ]
        by_source = not filled.isdisjoint(place.relids)
        if "true" in stated if stated else by_source:
            yield _published(place, vectors)


def _published(place: TablePlace, vectors: list[SnapshotVector]) -> WantedMirror:
    """Return what is published of a table. Several subscriptions of a table publish versions of
    one log, of which the highest has the rows of all."""
    version, lsn = None, None
    for vector in vectors:
        for relid in place.relids:
            published = vector.versions.get(int(relid))
            if published is not None and (version is None or published > version):
                version = published
                lsn = vector.elsewhere(relid) or vector.lsn
    return WantedMirror(place, version, lsn)
