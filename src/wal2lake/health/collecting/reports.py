"""Reports of the node's processes: their telemetry files, each parsed once.

In: the files of ``run/telemetry/``. Out: values of series, by name and labels. A file is read again
when it was replaced. Where each series is among the values is found out once for as long as the
processes have the same series, and tables whose numbers have not changed keep their report. For one
thread at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path

from wal2lake.observe.series import Labels, SeriesNames
from wal2lake.observe.telemetry import (
    ProcessTelemetry,
    read_process,
    telemetry_folder,
)

_ENGINE = "engine"


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


@dataclass(frozen=True, slots=True)
class _TablePlaces:
    """Where the numbers of one table are, among those of all processes."""

    rows: dict[str, int] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] = field(default_factory=dict)

    def numbers(self, values: Sequence[float]) -> list[float]:
        """Return the table's numbers, in the order of their places."""
        numbers = [values[place] for place in self.rows.values()]
        numbers += [values[place] for place in self.batches.values()]
        numbers += [values[place] for place in self.gauges.values()]
        return numbers

    def report(self, values: Sequence[float]) -> TableReport:
        """Return the table's report."""
        return TableReport(
            {kind: int(values[place]) for kind, place in self.rows.items()},
            {method: int(values[place]) for method, place in self.batches.items()},
            {name: values[place] for name, place in self.gauges.items()},
        )


class _Layout:
    """Places of the series of all processes: first all gauges, then all counters.

    If two processes have the same series, the later one counts."""

    def __init__(self, processes: Sequence[ProcessTelemetry]) -> None:
        self.names = _names(processes)
        self.gauges: dict[str, dict[Labels, int]] = {}
        self._counters: dict[str, dict[Labels, int]] = {}
        place = 0
        for into, many in zip((self.gauges, self._counters), self.names, strict=True):
            for name, labels in chain.from_iterable(names.keys for names in many):
                into.setdefault(name, {})[labels] = place
                place += 1
        self._tables = self._places_of_tables()
        self._reports: dict[tuple[str, str], tuple[list[float], TableReport]] = {}

    def _places_of_tables(self) -> Mapping[tuple[str, str], _TablePlaces]:
        tables: defaultdict[tuple[str, str], _TablePlaces] = defaultdict(_TablePlaces)
        for name, label in (("rows_total", "kind"), ("batches_total", "method")):
            for labels, place in self._counters.get(name, {}).items():
                label_values = dict(labels)
                of = tables[label_values["subscription"], label_values["table"]]
                counts = of.rows if label == "kind" else of.batches
                counts[label_values[label]] = place
        for name in _TABLE_GAUGES:
            for labels, place in self.gauges.get(name, {}).items():
                label_values = dict(labels)
                tables[label_values["subscription"], label_values["table"]].gauges[
                    name
                ] = place
        return tables

    def reports(self, values: Sequence[float]) -> Mapping[tuple[str, str], TableReport]:
        """Return the reports about tables; the same object for one that has the same numbers."""
        before = self._reports
        after: dict[tuple[str, str], tuple[list[float], TableReport]] = {}
        for table, places in self._tables.items():
            numbers = places.numbers(values)
            kept = before.get(table)
            if kept is None or kept[0] != numbers:
                kept = numbers, places.report(values)
            after[table] = kept
        self._reports = after
        return {table: report for table, (_, report) in after.items()}


def _names(
    processes: Sequence[ProcessTelemetry],
) -> tuple[tuple[SeriesNames, ...], tuple[SeriesNames, ...]]:
    return (
        tuple([process.gauges.names for process in processes]),
        tuple([process.counters.names for process in processes]),
    )


class Reports:
    """The last report of each process, together."""

    def __init__(
        self, processes: Mapping[str, ProcessTelemetry], before: Reports | None = None
    ) -> None:
        """``processes`` by name. ``before``: the reports that these replace."""
        self._processes = processes
        all_of_them = self.processes
        layout: _Layout | None = None if before is None else before._layout
        if layout is None or layout.names != _names(all_of_them):
            layout = _Layout(all_of_them)
        self._layout: _Layout = layout
        self._values = [
            *chain.from_iterable(
                process.gauges.values_in_order for process in all_of_them
            ),
            *chain.from_iterable(
                process.counters.values_in_order for process in all_of_them
            ),
        ]

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
        places = self._layout.gauges.get(name, {})
        place = places.get(tuple(sorted(labels.items())))
        return None if place is None else self._values[place]

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
        for pairs in self._layout.gauges.get(name, {}):
            if wanted <= set(pairs):
                return dict(pairs).get(label)
        return None

    def gauges(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and the value of each gauge of that name."""
        for pairs, place in self._layout.gauges.get(name, {}).items():
            yield dict(pairs), self._values[place]

    def is_engine_running(self) -> bool:
        """Return whether the engine that has reported still runs."""
        engine = self._processes.get(_ENGINE)
        return engine is not None and engine.is_running

    @cached_property
    def tables(self) -> Mapping[tuple[str, str], TableReport]:
        """Reports about tables, by subscription and ``schema.table``. A report stays the same
        object while its numbers are the same."""
        return self._layout.reports(self._values)


_Known = dict[str, tuple[tuple[int, int], ProcessTelemetry]]


def _differ(files: _Known, before: _Known) -> bool:
    identities = {name: identity for name, (identity, _) in files.items()}
    return identities != {name: identity for name, (identity, _) in before.items()}


class ReportReader:
    """Reads the reports again and again."""

    def __init__(self, run_directory: Path) -> None:
        """Read nothing yet."""
        self._directory = run_directory
        self._known: _Known = {}
        self._reports: Reports | None = None

    def read(self) -> Reports:
        """Return the present reports."""
        files: _Known = {}
        for path in sorted(telemetry_folder(self._directory).glob("*.json")):
            try:
                status = path.stat()
            except OSError:
                continue
            identity = (status.st_ino, status.st_mtime_ns)
            before = self._known.get(path.stem)
            if before is not None and before[0] == identity:
                files[path.stem] = before
                continue
            last = None if before is None else before[1]
            process = read_process(self._directory, path.stem, last)
            if process is not None:
                files[path.stem] = (identity, process)
        if self._reports is None or _differ(files, self._known):
            self._known = files
            processes = {name: telemetry for name, (_, telemetry) in files.items()}
            self._reports = Reports(processes, self._reports)
        return self._reports
