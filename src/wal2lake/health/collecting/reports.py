"""Reports of the node's processes: their telemetry files, each parsed once.

In: the files of ``run/telemetry/``. Out: values of series, by name and labels. A file is read again
when it was replaced. For one thread at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from wal2lake.observe.telemetry import (
    ProcessTelemetry,
    SeriesKey,
    read_process,
    telemetry_folder,
)

_ENGINE = "engine"

Labelled = dict[tuple[tuple[str, str], ...], float]
"""Values of one series by their labels."""


_TABLE_GAUGES = (
    "table_files",
    "table_size_bytes",
    "table_deletion_vectors",
    "copy_started_timestamp_seconds",
    "copy_expected_bytes",
    "copy_ranges",
    "copy_resumed_ranges",
    "copy_progress_timestamp_seconds",
)


@dataclass(slots=True)
class TableReport:
    """Numbers of the engine about one table of one subscription."""

    rows: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def whole(self, name: str) -> int | None:
        """Return a gauge that is a whole number; None if it is not known."""
        value = self.gauges.get(name)
        return None if value is None else int(value)

    def time(self, name: str) -> datetime | None:
        """Return a gauge that is a time since 1970; None if it is not known."""
        value = self.gauges.get(name)
        return None if value is None else datetime.fromtimestamp(value, UTC)


NO_REPORT = TableReport()


class Reports:
    """The last report of each process, together."""

    def __init__(self, processes: Mapping[str, ProcessTelemetry]) -> None:
        """``processes`` by name."""
        self._processes = processes
        self._gauges: dict[str, Labelled] = {}
        self._counters: dict[str, Labelled] = {}
        for process in processes.values():
            _gather(self._gauges, process.gauges)
            _gather(self._counters, process.counters)

    @property
    def processes(self) -> tuple[ProcessTelemetry, ...]:
        """The reports as the processes have written them."""
        return tuple(self._processes.values())

    @property
    def engine_told_at(self) -> datetime | None:
        """Time of the engine's last report."""
        engine = self._processes.get(_ENGINE)
        return None if engine is None else engine.written_at

    def gauge(self, name: str, **labels: str) -> float | None:
        """Return a gauge; None if it is not known."""
        return self._gauges.get(name, {}).get(tuple(sorted(labels.items())))

    def whole(self, name: str, **labels: str) -> int | None:
        """Return a gauge that is a whole number."""
        value = self.gauge(name, **labels)
        return None if value is None else int(value)

    def time(self, name: str, **labels: str) -> datetime | None:
        """Return a gauge that is a Unix time."""
        value = self.gauge(name, **labels)
        return None if value is None else datetime.fromtimestamp(value, UTC)

    def state(self, name: str, label: str, **labels: str) -> str | None:
        """Return the value of ``label`` in the series that also has ``labels``."""
        wanted = set(labels.items())
        for pairs in self._gauges.get(name, {}):
            if wanted <= set(pairs):
                return dict(pairs).get(label)
        return None

    def gauges(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and the value of each gauge of that name."""
        for pairs, value in self._gauges.get(name, {}).items():
            yield dict(pairs), value

    def is_engine_running(self) -> bool:
        """Return whether the engine that has reported still runs."""
        engine = self._processes.get(_ENGINE)
        return engine is not None and engine.is_running

    @cached_property
    def tables(self) -> Mapping[tuple[str, str], TableReport]:
        """Reports about tables, by subscription and ``schema.table``."""
        found: defaultdict[tuple[str, str], TableReport] = defaultdict(TableReport)
        for name, label in (("rows_total", "kind"), ("batches_total", "method")):
            for labels, value in self._counters.get(name, {}).items():
                known = dict(labels)
                report = found[known["subscription"], known["table"]]
                counts = report.rows if label == "kind" else report.batches
                counts[known[label]] = int(value)
        for name in _TABLE_GAUGES:
            for labels, value in self._gauges.get(name, {}).items():
                known = dict(labels)
                found[known["subscription"], known["table"]].gauges[name] = value
        return found


def _gather(into: dict[str, Labelled], series: Mapping[SeriesKey, float]) -> None:
    for (name, labels), value in series.items():
        into.setdefault(name, {})[labels] = value


_Known = dict[str, tuple[tuple[int, int], ProcessTelemetry]]


def _differ(known: _Known, before: _Known) -> bool:
    return {name: one[0] for name, one in known.items()} != {
        name: one[0] for name, one in before.items()
    }


class ReportReader:
    """Reads the reports again and again."""

    def __init__(self, run_directory: Path) -> None:
        """Read nothing yet."""
        self._directory = run_directory
        self._known: _Known = {}
        self._reports: Reports | None = None

    def read(self) -> Reports:
        """Return the present reports."""
        known: _Known = {}
        for path in sorted(telemetry_folder(self._directory).glob("*.json")):
            try:
                status = path.stat()
            except OSError:
                continue
            identity = (status.st_ino, status.st_mtime_ns)
            before = self._known.get(path.stem)
            if before is not None and before[0] == identity:
                known[path.stem] = before
            elif (process := read_process(self._directory, path.stem)) is not None:
                known[path.stem] = (identity, process)
        if self._reports is None or _differ(known, self._known):
            self._known = known
            self._reports = Reports({name: one for name, (_, one) in known.items()})
        return self._reports
