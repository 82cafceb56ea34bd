"""Decides which new versions of tables, not written by a batch, readers may see.

In: written tables, under the locks of their subscriptions. Out: the versions that the catalog is to
publish. A table with contents that readers must not see yet (a part of a batch, a copy that has not
joined) is published by the apply worker, with the other tables.

The table's cursor decides, not its version: an unpublished version may be any writer's, and would
keep every later write from becoming visible.
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
    """Arguments for ``Catalog.publish_local``."""

    versions: defaultdict[Oid, dict[Oid, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Versions to publish, by subscription and table."""
    written: list[tuple[Oid, Oid]] = field(default_factory=list)
    """Every pair of subscription and written table."""


def make_visible(
    catalog: Catalog, tables: TablePort, written: Mapping[Oid, str]
) -> Visible:
    """Decide which newest versions readers may see. ``written`` maps OIDs of tables to
    locations."""
    visible = Visible()
    for relid, location in written.items():
        rels = rels_of(catalog, relid)
        if not rels:
            continue
        state = tables.state(location)
        for rel in rels:
            # Once the version is published, nothing else shows that another writer made it.
            visible.written.append((rel.subid, rel.relid))
            newest = catalog.newest_vector(rel.subid)
            if newest is not None and may_publish(catalog, rel, state, newest):
                visible.versions[rel.subid][rel.relid] = state.version
    return visible


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
    """Return the copies (subscription, table) that have not committed to the table, as its newest
    version shows. The caller keeps others from committing to the table."""
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
    """Whether the table has no contents that the subscription's readers must not see yet."""
    if newest is None or rel.paused:
        # Readers see everything in a paused table.
        return True
    cursor = state.cursor(rel.cursor_name(catalog.system_identifier))
    joined = rel.state in (SyncState.SYNCDONE, SyncState.READY)
    # Compared with the vector's LSN, because a running copy holds the floor below it.
    return cursor is None or (joined and cursor <= newest.lsn)
