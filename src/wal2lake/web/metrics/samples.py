"""Facts of a node as values of metrics.

Takes a ``NodeReading``; fills a sheet. A fact that is not known has no series, so that a rule does
not take it for a zero. Numbers that a process has measured come from its telemetry: counters and
histograms also while it is down, since they only grow.

Called by: ``route``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from wal2lake.health import (
    NodeFacts,
    SlotFacts,
    SourceFacts,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.model import SyncState
from wal2lake.observe.telemetry import ProcessTelemetry
from wal2lake.web.metrics import declarations as m
from wal2lake.web.metrics.declarations import METRICS
from wal2lake.web.metrics.sheet import MetricSheet, label_text
from wal2lake.web.reading import NodeReading

MAX_TABLES: Final = 5_000
"""Tables that have series of their own: about 100,000 series, which a scrape still carries in a
second. Tables that are paused, failed or late come first."""

_NODE_STATES: Final = ("stopped", "starting", "ready", "stopping")

_SUBSCRIPTION_STATES: Final = ("streaming", "retrying", "disabled", "down", "no slot")

_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")

_TABLE_STATES: Final[Mapping[SyncState, str]] = {
    SyncState.INIT: "init",
    SyncState.DATASYNC: "copying",
    SyncState.FINISHEDCOPY: "copied",
    SyncState.SYNCDONE: "syncing",
    SyncState.READY: "ready",
}

_PLACE: Final = ("subscription", "table")

_Place = tuple[str, ...]
"""Names of a subscription, or of a subscription and one of its tables; () for the node."""

_MEASURED: Final = {
    metric.name.removeprefix(m.PREFIX): (metric, tuple(sorted(metric.labels)))
    for metric in METRICS
    if metric.measured
}
"""Metrics by the name that telemetry has, with the labels in its order."""


def fill(sheet: MetricSheet, reading: NodeReading) -> None:
    """Add all values of a reading."""
    facts = reading.facts
    _node(sheet, reading)
    for subscription in facts.subscriptions:
        _subscription(sheet, subscription)
        _source(sheet, subscription.name, subscription.source)
    shown: set[_Place] = {(), *((s.name,) for s in facts.subscriptions)}
    shown |= _tables(sheet, facts)
    _publisher(sheet, facts)
    _confirmations(sheet, reading)
    _measured(sheet, reading.telemetry, shown)


def _node(sheet: MetricSheet, reading: NodeReading) -> None:
    facts = reading.facts
    if facts.version is not None:
        sheet.add(m.BUILD_INFO, 1, facts.version)
    sheet.add(m.NODE_READY, int(facts.state == "ready"))
    for state in _NODE_STATES:
        sheet.add(m.NODE_STATE, int(facts.state == state), state)
    sheet.add(m.NODE_START, _seconds(facts.started_at))
    sheet.add(m.READING_TIME, _seconds(facts.taken_at))
    sheet.add(m.READING_DURATION, reading.took_seconds)
    sheet.add(m.ENGINE_TOLD, _seconds(facts.engine_told_at))
    sheet.add(m.CERTIFICATE_END, _seconds(facts.certificate_ends))
    sheet.add(m.PREPARED, len(facts.prepared))
    sheet.add(m.HEAP_USED, facts.heap_bytes)
    sheet.add(m.HEAP_LIMIT, facts.heap_limit_bytes)
    counts = Counter(
        (problem.kind, problem.severity.value, problem.subscription or "")
        for problem in reading.problems
    )
    for labels, count in counts.items():
        sheet.add(m.PROBLEMS, count, *labels)
    for process in facts.processes:
        of = (process.role, process.subscription or "")
        sheet.add(m.PROCESS_START, _seconds(process.started_at), *of)
        sheet.add(m.PROCESS_MEMORY, process.rss_bytes, *of)
        sheet.add(m.PROCESS_RESTARTS, process.restarts, *of)
    for disk in facts.disks:
        sheet.add(m.DISK_FREE, disk.free_bytes, disk.purpose)
        sheet.add(m.DISK_SIZE, disk.size_bytes, disk.purpose)


def _subscription(sheet: MetricSheet, s: SubscriptionFacts) -> None:
    sheet.add(m.ENABLED, int(s.enabled), s.name)
    for state in _SUBSCRIPTION_STATES:
        sheet.add(m.STATE, int(s.state == state), s.name, state)
    sheet.add(m.POSITION, int(s.source.wal_lsn) or None, s.name, "source")
    for stage in ("received", "durable", "applied", "visible"):
        lag = getattr(s, stage)
        sheet.add(m.POSITION, int(lag.lsn), s.name, stage)
        sheet.add(m.LAG_BYTES, lag.behind_bytes, s.name, stage)
        sheet.add(m.LAG_SECONDS, lag.behind_seconds, s.name, stage)
    sheet.add(m.LAST_MESSAGE, _seconds(s.last_message_at), s.name)
    sheet.add(m.LOG_BYTES, s.log_bytes, s.name)
    sheet.add(m.LOG_LIMIT, s.log_limit_bytes, s.name)
    states = Counter(_state(table) for table in s.tables)
    for state in (*_TABLE_STATES.values(), "paused", "failed"):
        sheet.add(m.TABLES, states[state], s.name, state)
    for worker in s.errors:
        sheet.add(m.WORKER_FAILING, 1, s.name, worker)
    for worker, count in s.error_counts.items():
        sheet.add(m.ERRORS, count, s.name, worker)
    for kind, count in s.conflicts.items():
        sheet.add(m.CONFLICTS, count, s.name, kind)


def _source(sheet: MetricSheet, name: str, source: SourceFacts) -> None:
    sheet.add(m.SOURCE_ASKED, _seconds(source.asked_at), name)
    if source.slot_active is not None:
        sheet.add(m.SOURCE_ACTIVE, int(source.slot_active), name)
    if source.wal_status is not None:
        for status in _WAL_STATUSES:
            sheet.add(m.SOURCE_STATUS, int(source.wal_status == status), name, status)
    sheet.add(m.SOURCE_RETAINED, source.retained_bytes, name)
    sheet.add(m.SOURCE_SAFE, source.safe_wal_bytes, name)
    sheet.add(m.SOURCE_LIMIT, source.limit_bytes, name)


def _state(table: TableFacts) -> str:
    if table.paused_since is not None:
        return "paused"
    return "failed" if table.error is not None else _TABLE_STATES[table.state]


def _tables(sheet: MetricSheet, facts: NodeFacts) -> set[_Place]:
    """Add the tables; returns those that have series."""
    tables = [(s, t) for s in facts.subscriptions for t in s.tables]
    if len(tables) > MAX_TABLES:
        tables.sort(key=lambda pair: _urgency(pair[1]), reverse=True)
    sheet.add(m.TABLES_LEFT_OUT, max(len(tables) - MAX_TABLES, 0))
    for subscription, table in tables[:MAX_TABLES]:
        _table(sheet, subscription, table)
    return {(s.name, t.qualified) for s, t in tables[:MAX_TABLES]}


def _urgency(table: TableFacts) -> tuple[bool, float]:
    wrong = table.paused_since is not None or table.error is not None
    return wrong, table.behind_seconds or 0.0


def _table(sheet: MetricSheet, s: SubscriptionFacts, t: TableFacts) -> None:
    # Most metrics of a table have the same labels, which are written once.
    of = label_text(m.TABLE_READY.labels, (s.name, t.qualified))
    sheet.add_at(m.TABLE_READY, int(t.state is SyncState.READY), of)
    sheet.add_at(m.TABLE_PAUSED, int(t.paused_since is not None), of)
    sheet.add_at(m.TABLE_FAILED, int(t.error is not None), of)
    sheet.add_at(m.TABLE_LAG_SECONDS, t.behind_seconds, of)
    if t.applied_lsn and s.source.wal_lsn:
        behind = int(s.source.wal_lsn) - int(t.applied_lsn)
        sheet.add_at(m.TABLE_LAG_BYTES, max(behind, 0), of)
    sheet.add_at(m.TABLE_FRESHNESS, t.freshness, of)
    sheet.add_at(m.TABLE_VERSION, t.version, of)
    sheet.add_at(m.TABLE_FILES, t.files, of)
    sheet.add_at(m.TABLE_BYTES, t.size_bytes, of)
    sheet.add_at(m.TABLE_VECTORS, t.deletion_vectors, of)
    if t.copy is not None:
        sheet.add_at(m.COPY_ROWS, t.copy.rows, of)
        sheet.add_at(m.COPY_ROWS_EXPECTED, t.copy.rows_expected, of)
        sheet.add_at(m.COPY_BYTES, t.copy.bytes_done, of)
        sheet.add_at(m.COPY_BYTES_EXPECTED, t.copy.bytes_expected, of)
        sheet.add_at(m.COPY_RANGES, t.copy.ranges_done, of)
        sheet.add_at(m.COPY_RANGES_EXPECTED, t.copy.ranges, of)
        sheet.add_at(m.COPY_END, _seconds(t.copy.ends_at), of)


def _publisher(sheet: MetricSheet, facts: NodeFacts) -> None:
    sheet.add(m.PUBLISHED, int(facts.published_lsn) or None)
    for slot in facts.slots:
        _slot(sheet, slot)
    sheet.add(m.WALSENDERS, len(facts.walsenders))
    if facts.published_lsn:
        _walsenders(sheet, facts.walsenders, int(facts.published_lsn))


def _slot(sheet: MetricSheet, slot: SlotFacts) -> None:
    if slot.temporary:
        # Its name is of one connection, and would be a series of its own for ever.
        return
    sheet.add(m.SLOT_ACTIVE, int(slot.active_pid is not None), slot.name)
    sheet.add(m.SLOT_LOST, int(slot.wal_status == "lost"), slot.name)
    sheet.add(m.SLOT_CONFIRMED, int(slot.confirmed_lsn), slot.name)
    sheet.add(m.SLOT_RETAINED, slot.retained_bytes, slot.name)
    sheet.add(m.SLOT_LIMIT, slot.limit_bytes, slot.name)


def _walsenders(
    sheet: MetricSheet, walsenders: Iterable[WalsenderFacts], end: int
) -> None:
    largest: dict[tuple[str, str, str], int] = {}
    for sender in walsenders:
        for position, lsn in (
            ("sent", sender.sent_lsn),
            ("flushed", sender.flushed_lsn),
            ("replayed", sender.replayed_lsn),
        ):
            key = (sender.application_name, sender.slot_name or "", position)
            largest[key] = max(largest.get(key, 0), end - int(lsn))
    for labels, behind in largest.items():
        sheet.add(m.WALSENDER_LAG, behind, *labels)


def _confirmations(sheet: MetricSheet, reading: NodeReading) -> None:
    """Add the times that subscribers take to confirm, which the engine has by PID."""
    names = {
        (f"walsender_{name}_lag_seconds", (("pid", str(sender.pid)),)): (
            sender.application_name,
            sender.slot_name or "",
            position,
        )
        for sender in reading.facts.walsenders
        for name, position in (("flush", "flushed"), ("replay", "replayed"))
    }
    largest: dict[tuple[str, str, str], float] = {}
    for process in reading.telemetry:
        for series, labels in names.items():
            seconds = process.gauges.get(series)
            if seconds is not None:
                largest[labels] = max(largest.get(labels, 0.0), seconds)
    for labels, seconds in largest.items():
        sheet.add(m.WALSENDER_SECONDS, seconds, *labels)


def _measured(
    sheet: MetricSheet, processes: Iterable[ProcessTelemetry], shown: set[_Place]
) -> None:
    """Add what processes have measured of subscriptions and tables that have series."""
    for process in processes:
        for series in (process.counters, process.histograms):
            for (name, pairs), value in series.items():
                metric, labels = _MEASURED.get(name, (None, ()))
                if metric is None or tuple([label for label, _ in pairs]) != labels:
                    continue
                place = [text for label, text in pairs if label in _PLACE]
                if tuple(place) in shown:
                    sheet.add_at(
                        metric, value, label_text(labels, [v for _, v in pairs])
                    )


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
