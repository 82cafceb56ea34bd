"""Facts of a node as values of metrics.

Takes a ``NodeReading``; fills a sheet. A fact that is not known has no series, so that a rule does
not take it for a zero. Numbers that a process has measured come from its telemetry: counters and
histograms also while it is down, since they only grow.

What belongs to tables goes into the sheet by the column, and the text of labels is kept from one
reading to the next (``SampleTexts``): a reading changes numbers, and seldom names.

Called by: ``route``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from wal2lake.health import (
    CopyFacts,
    NodeFacts,
    SlotFacts,
    SourceFacts,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.model import SyncState
from wal2lake.observe.series import SeriesKey, SeriesNames, SeriesValues
from wal2lake.observe.telemetry import Histogram, ProcessTelemetry
from wal2lake.web.metrics import declarations as m
from wal2lake.web.metrics.declarations import METRICS, MetricDeclaration
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


@dataclass(slots=True)
class _Column:
    """Series of one metric among the values of one process."""

    texts: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class SampleTexts:
    """Texts of labels, kept for as long as there are series with them. For one thread."""

    def __init__(self) -> None:
        self._tables: dict[_Place, str] = {}
        self._shown: set[_Place] = set()
        self._columns: dict[SeriesNames, dict[str, _Column]] = {}

    def of_tables(self, places: Iterable[_Place]) -> list[str]:
        """Return the labels of tables; others are forgotten."""
        last_labels, labels = self._tables, m.TABLE_READY.labels
        self._tables = {
            place: last_labels.get(place) or label_text(labels, place)
            for place in places
        }
        return list(self._tables.values())

    def show(self, places: set[_Place], names: Sequence[SeriesNames]) -> None:
        """Keep the columns of these names; ``places`` are those that have series."""
        if places != self._shown:
            self._shown, self._columns = places, {}
        last_columns = self._columns
        self._columns = {
            series: last_columns.get(series) or self._made(series) for series in names
        }

    def columns(self, names: SeriesNames) -> Mapping[str, _Column]:
        """Return the columns of a process, by the name that telemetry has."""
        return self._columns[names]

    def _made(self, names: SeriesNames) -> dict[str, _Column]:
        columns: defaultdict[str, _Column] = defaultdict(_Column)
        for place, key in enumerate(names.keys):
            text = self._text(key)
            if text is not None:
                column = columns[key[0]]
                column.texts.append(text)
                column.places.append(place)
        return dict(columns)

    def _text(self, key: SeriesKey) -> str | None:
        """Return the labels of a series; None if it is not shown."""
        name, pairs = key
        metric, labels = _MEASURED.get(name, (None, ()))
        if metric is None or tuple([label for label, _ in pairs]) != labels:
            return None
        if tuple([text for label, text in pairs if label in _PLACE]) not in self._shown:
            return None
        return label_text(labels, [text for _, text in pairs])


def fill(
    sheet: MetricSheet, reading: NodeReading, texts: SampleTexts | None = None
) -> None:
    """Add all values of a reading. ``texts``: those of earlier readings."""
    texts = SampleTexts() if texts is None else texts
    facts = reading.facts
    _node(sheet, reading)
    for subscription in facts.subscriptions:
        _subscription(sheet, subscription)
        _source(sheet, subscription.name, subscription.source)
    shown: set[_Place] = {(), *((s.name,) for s in facts.subscriptions)}
    shown |= _tables(sheet, facts, texts)
    _publisher(sheet, facts)
    _confirmations(sheet, reading)
    _measured(sheet, reading.telemetry, shown, texts)


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


def _tables(sheet: MetricSheet, facts: NodeFacts, texts: SampleTexts) -> set[_Place]:
    """Add the tables; returns those that have series."""
    tables = [(s, t) for s in facts.subscriptions for t in s.tables]
    sheet.add(m.TABLES_LEFT_OUT, max(len(tables) - MAX_TABLES, 0))
    if len(tables) > MAX_TABLES:
        tables.sort(key=lambda pair: _urgency(pair[1]), reverse=True)
        del tables[MAX_TABLES:]
    # Two tables of one name are one series, that of the later one.
    places = {(s.name, t.qualified): (s, t) for s, t in tables}
    of = texts.of_tables(places)
    _table_columns(sheet, list(places.values()), of)
    for (_, table), text in zip(places.values(), of, strict=True):
        if table.copy is not None:
            _copy(sheet, table.copy, text)
    return set(places)


def _urgency(table: TableFacts) -> tuple[bool, float]:
    wrong = table.paused_since is not None or table.error is not None
    return wrong, table.behind_seconds or 0.0


def _table_columns(
    sheet: MetricSheet,
    tables: Sequence[tuple[SubscriptionFacts, TableFacts]],
    of: Sequence[str],
) -> None:
    ready = SyncState.READY
    facts = [t for _, t in tables]
    compared = [t.verification for t in facts]
    columns: tuple[tuple[MetricDeclaration, list[float | None]], ...] = (
        (m.TABLE_READY, [int(t.state is ready) for t in facts]),
        (m.TABLE_PAUSED, [int(t.paused_since is not None) for t in facts]),
        (m.TABLE_FAILED, [int(t.error is not None) for t in facts]),
        (m.TABLE_LAG_SECONDS, [t.behind_seconds for t in facts]),
        (m.TABLE_LAG_BYTES, [_behind(s, t) for s, t in tables]),
        (m.TABLE_FRESHNESS, [t.freshness for t in facts]),
        (m.TABLE_VERSION, [t.version for t in facts]),
        (m.TABLE_FILES, [t.files for t in facts]),
        (m.TABLE_BYTES, [t.size_bytes for t in facts]),
        (m.TABLE_VECTORS, [t.deletion_vectors for t in facts]),
        (m.TABLE_VERIFIED, [_verified_at(t) for t in facts]),
        (
            m.TABLE_DIFFERING_ROWS,
            [None if v is None else v.differing_rows for v in compared],
        ),
        (
            m.TABLE_REPAIRED_ROWS,
            [None if v is None else v.repaired_rows for v in compared],
        ),
    )
    for metric, values in columns:
        sheet.add_column(metric, of, values)


def _verified_at(table: TableFacts) -> float | None:
    if table.verification is None or table.verification.verified_at is None:
        return None
    return datetime.fromisoformat(table.verification.verified_at).timestamp()


def _behind(s: SubscriptionFacts, t: TableFacts) -> int | None:
    if not t.applied_lsn or not s.source.wal_lsn:
        return None
    return max(int(s.source.wal_lsn) - int(t.applied_lsn), 0)


def _copy(sheet: MetricSheet, copy: CopyFacts, text: str) -> None:
    for metric, value in (
        (m.COPY_ROWS, copy.rows),
        (m.COPY_ROWS_EXPECTED, copy.rows_expected),
        (m.COPY_BYTES, copy.bytes_done),
        (m.COPY_BYTES_EXPECTED, copy.bytes_expected),
        (m.COPY_RANGES, copy.ranges_done),
        (m.COPY_RANGES_EXPECTED, copy.ranges),
        (m.COPY_END, _seconds(copy.ends_at)),
    ):
        sheet.add_column(metric, [text], [value])


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
    sheet: MetricSheet,
    processes: Iterable[ProcessTelemetry],
    shown: set[_Place],
    texts: SampleTexts,
) -> None:
    """Add what processes have measured of subscriptions and tables that have series."""
    every: list[SeriesValues[float] | SeriesValues[Histogram]] = []
    for process in processes:
        every += [process.counters, process.histograms]
    texts.show(shown, [series.names for series in every])
    for series in every:
        values = series.values_in_order
        for name, column in texts.columns(series.names).items():
            metric, _ = _MEASURED[name]
            sheet.add_column(
                metric, column.texts, [values[place] for place in column.places]
            )


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
