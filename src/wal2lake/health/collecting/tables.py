"""Facts about the tables of one subscription.

In: the catalog's rows, the subscription's lag clock. Out: ``TableFacts``. Of a table about which
nothing has changed since the last reading they are the same object, so that whoever shows tables
need not look at it again. Called by ``reading``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from wal2lake.catalog import (
    Overview,
    Subscription,
    SubscriptionRel,
    TableName,
    Verification,
)
from wal2lake.health.collecting.changes import LastChanges
from wal2lake.health.collecting.lag import LagClock
from wal2lake.health.collecting.reports import NO_REPORT, Reports, TableReport
from wal2lake.health.facts import CopyFacts, TableFacts
from wal2lake.model import Lsn, SyncState

_COPYING: Final = SyncState.DATASYNC

_INTERVAL: Final = re.compile(
    r"(?:(\d+) years? ?)?(?:(\d+) mons? ?)?(?:(\d+) days? ?)?"
    r"(?:(\d+):(\d\d):(\d\d(?:\.\d+)?))?"
)
"""A positive interval in the style postgres."""

_KNOWN_PERCENT: Final = 2
"""Part of a copy after which its speed says when it ends. A first range is slow."""


class KnownTables:
    """Facts about tables, kept for as long as what they were made of stays. For one thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[object, ...], TableFacts]] = {}
        self._asked: dict[Hashable, tuple[tuple[object, ...], TableFacts]] = {}

    def get(self, key: Hashable, made_of: tuple[object, ...]) -> TableFacts | None:
        """Return the facts that the last round has made of the same."""
        entry = self._known.get(key)
        if entry is None or entry[0] != made_of:
            return None
        self._asked[key] = entry
        return entry[1]

    def keep(
        self, key: Hashable, made_of: tuple[object, ...], facts: TableFacts
    ) -> None:
        """Keep facts for the next round."""
        self._asked[key] = made_of, facts

    def end_round(self) -> None:
        """Forget tables that were not asked for since the last round."""
        self._known, self._asked = self._asked, {}


def table_facts(
    subscription: Subscription,
    overview: Overview,
    clock: LagClock,
    reports: Reports,
    changes: LastChanges,
    known_tables: KnownTables,
    now: datetime,
) -> Iterator[TableFacts]:
    """Yield the facts of all tables, by OID."""
    vector = overview.vectors.get(subscription.oid)
    versions = {} if vector is None else vector.versions
    for rel in overview.rels.get(subscription.oid, ()):
        table = overview.tables.get(rel.relid)
        position, behind = clock.table(rel, vector)
        key = (rel.subid, rel.relid)
        namespace = rel.remote_namespace if table is None else table.namespace
        name = rel.remote_name if table is None else table.name
        report = reports.tables.get(
            (subscription.name, f"{namespace}.{name}"), NO_REPORT
        )
        # What changes most comes first, since it is compared first.
        made_of = (
            report,
            position,
            behind,
            versions.get(int(rel.relid)),
            overview.conflicts.get(key, 0),
            overview.coercions.get(key, 0),
            overview.verifications.get(key),
            rel,
            table,
        )
        if rel.state is _COPYING:
            # The expected end of a copy depends on the time.
            copy = _copy(rel, overview, report, changes, now)
            yield replace(_facts(*made_of), copy=copy)
            continue
        facts = known_tables.get(key, made_of)
        if facts is None:
            facts = _facts(*made_of)
            known_tables.keep(key, made_of, facts)
        yield facts


def _facts(
    report: TableReport,
    position: Lsn,
    behind: float | None,
    version: int | None,
    conflicts: int,
    coercions: int,
    verification: Verification | None,
    rel: SubscriptionRel,
    table: TableName | None,
) -> TableFacts:
    return TableFacts(
        oid=rel.relid,
        namespace=rel.remote_namespace if table is None else table.namespace,
        name=rel.remote_name if table is None else table.name,
        state=rel.state,
        paused_since=None
        if rel.paused_at is None
        else datetime.fromisoformat(rel.paused_at),
        error=rel.error,
        sqlstate=rel.sqlstate,
        freshness=None
        if table is None
        else freshness_seconds(table.parameters.get("freshness")),
        behind_seconds=behind,
        applied_lsn=position,
        version=version,
        files=report.whole("table_files"),
        size_bytes=report.whole("table_size_bytes"),
        deletion_vectors=report.whole("table_deletion_vectors"),
        rows=report.rows,
        batches=report.batches,
        conflicts=conflicts,
        coercions=coercions,
        verification=verification,
        remote_namespace=rel.remote_namespace,
        remote_name=rel.remote_name,
        rows_copied=rel.rows_copied,
    )


def _copy(
    rel: SubscriptionRel,
    overview: Overview,
    report: TableReport,
    changes: LastChanges,
    now: datetime,
) -> CopyFacts:
    done = overview.ranges.get((rel.subid, rel.relid), 0)
    ranges = _planned_ranges(rel.copy_plan) or report.whole("copy_ranges")
    started = report.time("copy_started_timestamp_seconds")
    progress = (rel.epoch, rel.rows_copied, rel.bytes_copied, done)
    return CopyFacts(
        rows=rel.rows_copied,
        rows_expected=rel.rows_expected,
        bytes_done=rel.bytes_copied,
        bytes_expected=report.whole("copy_expected_bytes"),
        ranges_done=done,
        ranges=ranges,
        started_at=started,
        ends_at=expected_end(
            total=(ranges or 0) - (report.whole("copy_resumed_ranges") or 0),
            done=done - (report.whole("copy_resumed_ranges") or 0),
            started=started,
            progressed=report.time("copy_progress_timestamp_seconds"),
            now=now,
        ),
        progressed_at=changes.since((rel.subid, rel.relid), progress, now),
    )


def freshness_seconds(text: str | None) -> float | None:
    """Return the seconds of a storage parameter ``freshness``: an interval as PostgreSQL writes it,
    with months of 30 days and years of 12 months. None if there is none."""
    match = _INTERVAL.fullmatch(text or "")
    if not text or match is None:
        return None
    years, months, days, hours, minutes, seconds = (
        float(n or 0) for n in match.groups()
    )
    whole_days = (years * 12 + months) * 30 + days
    return ((whole_days * 24 + hours) * 60 + minutes) * 60 + seconds


def expected_end(
    *,
    total: int,
    done: int,
    started: datetime | None,
    progressed: datetime | None,
    now: datetime,
) -> datetime | None:
    """Return the end of a copy that goes on as fast as it has gone; None while that is not known.

    ``total`` and ``done`` are ranges that this attempt reads and has read: what an earlier one has
    finished says nothing about the speed. ``progressed`` is the time of the last one. The end stays
    where it is until the next range is overdue.
    """
    least_ranges = max(1, total * _KNOWN_PERCENT / 100)
    if started is None or progressed is None or not least_ranges <= done <= total:
        return None
    for_one = max((progressed - started) / done, (now - started) / (done + 1))
    return started + for_one * total


def _planned_ranges(plan: str | None) -> int | None:
    """Return the number of ranges of a copy's plan (``tablesync.plan``)."""
    return None if plan is None else len(json.loads(plan)["bounds"])
