"""Publishes versions of tables that no batch has written.

In: tables that have been written, under the locks of their subscriptions. Out: what the catalog is
to publish. A table that holds what readers must not see yet (the half of a batch, a copy that has
not joined) is published by the apply worker, with the others.

Decided by the table's cursor, not by its version: a version that nobody has published may be
anybody's, and would keep each later write from being seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from wal2lake.catalog import Catalog, SnapshotVector, SubscriptionRel
from wal2lake.lake import TablePort, TableState
from wal2lake.model import Oid, SyncState


@dataclass(slots=True)
class Visible:
    """For ``Catalog.publish_local``."""

    versions: defaultdict[Oid, dict[Oid, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """To be published, by subscription and table."""
    written: list[tuple[Oid, Oid]] = field(default_factory=list)
    """All subscriptions and tables."""


def make_visible(
    catalog: Catalog, tables: TablePort, written: Mapping[Oid, str]
) -> Visible:
    """Decide which of the newest versions of tables, by OID and location, readers may see."""
    found = Visible()
    for relid, location in written.items():
        rels = rels_of(catalog, relid)
        if not rels:
            continue
        state = tables.state(location)
        for rel in rels:
            # Once the version is published nothing else tells that others wrote it.
            found.written.append((rel.subid, rel.relid))
            newest = catalog.newest_vector(rel.subid)
            if newest is not None and may_publish(catalog, rel, state, newest):
                found.versions[rel.subid][rel.relid] = state.version
    return found


def rels_of(catalog: Catalog, relid: Oid) -> list[SubscriptionRel]:
    """Return the entries of a table, under any of its names, in all subscriptions."""
    table = catalog.table_by_oid(relid)
    if table is None:
        return []
    names = catalog.sharing(table)
    return [rel for rel in catalog.rels() if rel.relid in names]


def unfinished_copies(
    catalog: Catalog, state: TableState, relid: Oid
) -> list[tuple[Oid, Oid]]:
    """Copies into a table (subscription, table) of which it has nothing yet, as its newest version
    says; the caller keeps others from committing to it."""
    node = catalog.system_identifier
    return [
        (rel.subid, rel.relid)
        for rel in rels_of(catalog, relid)
        if rel.state in (SyncState.INIT, SyncState.DATASYNC)
        and state.cursor(rel.cursor_name(node)) is None
    ]


def may_publish(
    catalog: Catalog,
    rel: SubscriptionRel,
    state: TableState,
    newest: SnapshotVector | None,
) -> bool:
    """The table holds nothing that readers of the subscription must not see yet."""
    if newest is None or rel.paused:
        # What a paused table has, readers see.
        return True
    cursor = state.cursor(rel.cursor_name(catalog.system_identifier))
    joined = rel.state in (SyncState.SYNCDONE, SyncState.READY)
    # The vector's LSN, not the floor: a running copy holds that one below it.
    return cursor is None or (joined and cursor <= newest.lsn)
