"""Facts about the tables of one subscription.

In: the catalog's rows, the subscription's lag clock. Out: ``TableFacts``.
Called by ``reading``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from wal2lake.catalog import Overview, Subscription, SubscriptionRel
from wal2lake.health.collecting.changes import LastChanges
from wal2lake.health.collecting.lag import LagClock
from wal2lake.health.facts import CopyFacts, TableFacts
from wal2lake.model import SyncState

_COPYING = SyncState.DATASYNC


def table_facts(
    subscription: Subscription,
    overview: Overview,
    clock: LagClock,
    changes: LastChanges,
    now: datetime,
) -> Iterator[TableFacts]:
    """Yield the facts of all tables, by OID."""
    vector = overview.vectors.get(subscription.oid)
    versions = {} if vector is None else vector.versions
    for rel in overview.rels.get(subscription.oid, ()):
        table = overview.tables.get(rel.relid)
        position, behind = clock.table(rel, vector)
        key = (rel.subid, rel.relid)
        yield TableFacts(
            oid=rel.relid,
            namespace=rel.remote_namespace if table is None else table.namespace,
            name=rel.remote_name if table is None else table.name,
            state=rel.state,
            paused_since=None
            if rel.paused_at is None
            else datetime.fromisoformat(rel.paused_at),
            error=rel.error,
            sqlstate=rel.sqlstate,
            behind_seconds=behind,
            applied_lsn=position,
            version=versions.get(int(rel.relid)),
            conflicts=overview.conflicts.get(key, 0),
            coercions=overview.coercions.get(key, 0),
            copy=_copy(rel, overview, changes, now) if rel.state is _COPYING else None,
            remote_namespace=rel.remote_namespace,
            remote_name=rel.remote_name,
            rows_copied=rel.rows_copied,
        )


def _copy(
    rel: SubscriptionRel, overview: Overview, changes: LastChanges, now: datetime
) -> CopyFacts:
    ranges = overview.ranges.get((rel.subid, rel.relid), 0)
    progress = (rel.epoch, rel.rows_copied, rel.bytes_copied, ranges)
    return CopyFacts(
        rows=rel.rows_copied,
        rows_expected=rel.rows_expected,
        bytes_done=rel.bytes_copied,
        bytes_expected=None,
        ranges_done=ranges,
        ranges=_planned_ranges(rel.copy_plan),
        started_at=None,
        ends_at=None,
        progressed_at=changes.since((rel.subid, rel.relid), progress, now),
    )


def _planned_ranges(plan: str | None) -> int | None:
    """Return the number of ranges of a copy's plan (``tablesync.plan``)."""
    return None if plan is None else len(json.loads(plan)["bounds"])
