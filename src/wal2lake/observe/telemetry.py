"""Counters, gauges and histograms of a process, and the file in which other processes read them.

    code of the process ──▶ Telemetry ──▶ TelemetryFile ──▶ run/telemetry/<process>.json
                             memory        a thread             │
    another process ◀────────── read_telemetry ◀────────────────┘

In: numbers with a name and labels. Out: a JSON file, replaced by a rename at most once a second and
only if a number has changed; for readers the files of all processes. No process waits for another,
and a file stays readable while its process is down: it says which process wrote it, and when.

Names are those of metrics without the prefix ``wal2lake_``: base units, ``_total`` for counters.
Labels are bounded: subscriptions, their tables, methods, kinds, SQLSTATEs. A series ends when
``forget`` or ``keep_only`` says so; a counter otherwise lives as long as its process.

The file has two lines of JSON. The first line names the series, the second one has their numbers
in the same order. The first line seldom changes, so the process keeps its text, and a reader that
finds the bytes that it knows parses the second line only: with 1,000 tables, a tenth of the work.

The file is not fsynced: after a crash of the machine it may be old or broken, and is then ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from wal2lake.observe.series import Labels, SeriesKey, SeriesNames, SeriesValues

BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""Upper bounds of every histogram's buckets, in seconds; a last bucket has no bound. Replication
takes milliseconds if all is well, and minutes behind a long transaction or a restart."""

_INTERVAL_SECONDS: Final = 1.0
"""Shortest interval between two files."""

_SHARE: Final = 0.01
"""Share of the time that writing may take: a file of very many series is written less often."""

_KINDS: Final = ("counters", "gauges", "histograms")

_FOLDER: Final = "telemetry"
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket."""

    counts: tuple[int, ...]
    """Observations in each bucket of ``BUCKETS``, not cumulated; the last one has no bound."""
    total: float
    """Sum of all observations."""

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class Telemetry:
    """Numbers of one process, in memory. Threads may share it; a call takes about a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = 0
        self._counters: dict[SeriesKey, float] = {}
        self._gauges: dict[SeriesKey, float] = {}
        self._histograms: dict[SeriesKey, tuple[list[int], list[float]]] = {}

    @property
    def changes(self) -> int:
        """Number of calls that have changed something."""
        return self._changes

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter. An amount of 0 makes the series known."""
        key = (name, _sorted(labels))
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount
            self._changes += 1

    def counter(self, name: str, **labels: str) -> float | None:
        """Return a counter's value; None if there is no such series."""
        with self._lock:
            return self._counters.get((name, _sorted(labels)))

    def gauge(self, name: str, value: float | None, **labels: str) -> None:
        """Set a gauge. None removes it: its value is not known."""
        key = (name, _sorted(labels))
        with self._lock:
            if self._gauges.get(key) == value:
                return
            if value is None:
                del self._gauges[key]
            else:
                self._gauges[key] = value
            self._changes += 1

    def state(self, name: str, label: str, value: str | None, **labels: str) -> None:
        """Set a gauge to 1 whose label ``label`` names a state, and remove the gauges of other
        states in one step. None: the state is not known."""
        rest = set(labels.items())
        chosen = None if value is None else (name, _sorted({**labels, label: value}))
        with self._lock:
            if chosen is not None and chosen in self._gauges:
                return
            for key in [key for key in self._gauges if key[0] == name]:
                if {pair for pair in key[1] if pair[0] != label} == rest:
                    del self._gauges[key]
                    self._changes += 1
            if chosen is not None:
                self._gauges[chosen] = 1
                self._changes += 1

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        counts = [0] * (len(BUCKETS) + 1)
        counts[bisect_left(BUCKETS, seconds)] = 1
        self.observe_all(name, counts, seconds, **labels)

    def observe_all(
        self, name: str, counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """Add many observations to a histogram: their number in each bucket of ``BUCKETS`` and
        above the last one, and their sum."""
        key = (name, _sorted(labels))
        with self._lock:
            buckets, sums = self._histograms.setdefault(
                key, ([0] * (len(BUCKETS) + 1), [0.0])
            )
            for index, number in enumerate(counts):
                buckets[index] += int(number)
            sums[0] += total
            self._changes += 1

    def forget(self, name: str | None = None, **labels: str) -> None:
        """Remove each series that has all of these labels, and the name if one is given."""
        wanted = set(labels.items())
        self._remove(
            lambda key: (name is None or key[0] == name) and wanted.issubset(key[1])
        )

    def keep_only(
        self, labels: tuple[str, ...], values: Collection[tuple[str, ...]]
    ) -> None:
        """Remove each series that has all of ``labels`` with a combination of values that is not
        among ``values``."""

        def is_over(key: SeriesKey) -> bool:
            own = dict(key[1])
            if not own.keys() >= set(labels):
                return False
            return tuple(own[label] for label in labels) not in values

        self._remove(is_over)

    def _remove(self, is_over: Callable[[SeriesKey], bool]) -> None:
        with self._lock:
            for series in (self._counters, self._gauges, self._histograms):
                over = [key for key in series if is_over(key)]
                for key in over:
                    del series[key]
                self._changes += len(over)

    def resume(self, before: ProcessTelemetry) -> None:
        """Go on with the series of an earlier process of the same name. Its gauges are the last
        that is known until they are set."""
        with self._lock:
            self._gauges = {**before.gauges, **self._gauges}
            for key, value in before.counters.items():
                self._counters[key] = self._counters.get(key, 0) + value
            self._changes += 1
        for (name, labels), histogram in before.histograms.items():
            self.observe_all(name, histogram.counts, histogram.total, **dict(labels))

    def copy(self) -> TelemetryNumbers:
        """Return all series. Changes of other threads wait for the copy only."""
        with self._lock:
            return TelemetryNumbers(
                self._counters.copy(),
                self._gauges.copy(),
                {
                    key: (list(counts), sums[0])
                    for key, (counts, sums) in self._histograms.items()
                },
            )


@dataclass(frozen=True, slots=True)
class TelemetryNumbers:
    """All series of a process at one moment."""

    counters: Mapping[SeriesKey, float]
    gauges: Mapping[SeriesKey, float]
    histograms: Mapping[SeriesKey, tuple[list[int], float]]
    """Number of observations in each bucket, and their sum."""

    def names(self) -> tuple[tuple[SeriesKey, ...], ...]:
        """Return the names of the three kinds."""
        return tuple(self.counters), tuple(self.gauges), tuple(self.histograms)


class TelemetryFile:
    """Writes ``run/telemetry/<process>.json`` from a thread of its own while it is open."""

    def __init__(self, directory: Path, process: str, telemetry: Telemetry) -> None:
        """Start to write below ``directory`` (the node's ``run/``). ``process`` is the file's name:
        engine, receiver-16384 ... Only one process at a time has it."""
        self._path = telemetry_path(directory, process)
        self._telemetry = telemetry
        self._about = {
            "process": process,
            "pid": os.getpid(),
            "birth": _birth(os.getpid()),
            "started_at": time.time(),
        }
        self._lock = threading.Lock()
        self._names: tuple[tuple[SeriesKey, ...], ...] | None = None
        self._first_line = ""
        self._written: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._work, name="telemetry", daemon=True
        )
        self._thread.start()

    def _work(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            begun = time.monotonic()
            self.write()
            took = time.monotonic() - begun
            pause = max(_INTERVAL_SECONDS, took / _SHARE)

    def write(self) -> None:
        """Write the file now if a number has changed. Errors are ignored: a full disk must not
        stop what is measured, and the next write tries again."""
        with self._lock:
            changes = self._telemetry.changes
            if changes != self._written and self._replace():
                self._written = changes

    def _replace(self) -> bool:
        text = self._text(self._telemetry.copy())
        temporary = self._path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.rename(self._path)
            return True
        return False

    def _text(self, numbers: TelemetryNumbers) -> str:
        names = numbers.names()
        # Quick, because the keys are the same objects as before.
        if names != self._names:
            self._names = names
            self._first_line = _dump(dict(zip(_KINDS, names, strict=True)))
        described = {
            **self._about,
            "written_at": time.time(),
            "counters": list(numbers.counters.values()),
            "gauges": list(numbers.gauges.values()),
            "histograms": list(numbers.histograms.values()),
        }
        return f"{self._first_line}\n{_dump(described)}\n"

    def close(self) -> None:
        """Write the last numbers and end the thread. The file stays."""
        self._ended.set()
        self._thread.join()
        self.write()

    def __enter__(self) -> TelemetryFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class ProcessTelemetry:
    """Last numbers of one process."""

    process: str
    """engine, receiver-16384 ..."""
    pid: int
    birth: str | None
    """Start of the process in the kernel's terms, which tells it from a later one with its pid."""
    started_at: datetime
    written_at: datetime
    """Time of the last change that is in the file."""
    counters: SeriesValues[float]
    """Since ``started_at``."""
    gauges: SeriesValues[float]
    histograms: SeriesValues[Histogram]
    first_line: bytes = b""
    """Text of the file that has the names."""

    @property
    def is_running(self) -> bool:
        """Whether the process that wrote the file still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.birth is None or self.birth == _birth(self.pid)


def read_telemetry(directory: Path) -> tuple[ProcessTelemetry, ...]:
    """Read the files of all processes below ``directory`` (the node's ``run/``), by name. A file
    that is missing, unreadable or broken is left out."""
    paths = sorted(telemetry_folder(directory).glob(f"*{_SUFFIX}"))
    return tuple(process for path in paths if (process := _read_file(path)) is not None)


def read_process(
    directory: Path, process: str, before: ProcessTelemetry | None = None
) -> ProcessTelemetry | None:
    """Read the file of one process; None if it is missing, unreadable or broken.

    ``before``: what was read of it last. If it has the same series, their names are shared."""
    return _read_file(telemetry_path(directory, process), before)


def _read_file(
    path: Path, before: ProcessTelemetry | None = None
) -> ProcessTelemetry | None:
    # Whatever an interrupted or foreign writer has left.
    with contextlib.suppress(
        OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError
    ):
        first, _, second = path.read_bytes().partition(b"\n")
        if before is not None and before.first_line == first:
            return _read(before.first_line, _names_of(before), json.loads(second))
        kinds = json.loads(first)
        if not second:
            return _read_one_line(kinds)
        names = tuple(_names(kinds[kind]) for kind in _KINDS)
        return _read(first, names, json.loads(second))
    return None


def _read_one_line(value: Any) -> ProcessTelemetry:
    """Read the file of an earlier version, which has each number beside its name: a process that is
    started again after an upgrade goes on with its counters."""
    names = tuple(_names([row[:2] for row in value[kind]]) for kind in _KINDS)
    numbers = {kind: [row[2] for row in value[kind]] for kind in ("counters", "gauges")}
    histograms = [row[2:] for row in value["histograms"]]
    return _read(b"", names, {**value, **numbers, "histograms": histograms})


def telemetry_folder(directory: Path) -> Path:
    """Return the directory of all processes' files under ``run/``."""
    return directory / _FOLDER


def telemetry_path(directory: Path, process: str) -> Path:
    """Return the path of a process's file under ``run/``."""
    return telemetry_folder(directory) / f"{process}{_SUFFIX}"


def _names_of(read: ProcessTelemetry) -> tuple[SeriesNames, ...]:
    return read.counters.names, read.gauges.names, read.histograms.names


def _names(keys: list[Any]) -> SeriesNames:
    return SeriesNames((str(name), _labels(labels)) for name, labels in keys)


def _read(
    first_line: bytes, names: tuple[SeriesNames, ...], value: Any
) -> ProcessTelemetry:
    birth = value["birth"]
    counters, gauges, histograms = names
    return ProcessTelemetry(
        process=str(value["process"]),
        pid=int(value["pid"]),
        birth=None if birth is None else str(birth),
        started_at=datetime.fromtimestamp(value["started_at"], UTC),
        written_at=datetime.fromtimestamp(value["written_at"], UTC),
        counters=SeriesValues(counters, map(_number, value["counters"])),
        gauges=SeriesValues(gauges, map(_number, value["gauges"])),
        histograms=SeriesValues(
            histograms, (_histogram(*fields) for fields in value["histograms"])
        ),
        first_line=first_line,
    )


def _histogram(counts: Any, total: Any) -> Histogram:
    if len(counts) != len(BUCKETS) + 1:
        raise ValueError("a histogram of another version")
    return Histogram(tuple(int(number) for number in counts), _number(total))


def _labels(pairs: list[list[Any]]) -> Labels:
    # A list is faster than a generator, and there are 10,000 series of 1,000 tables.
    return tuple([(str(label), str(value)) for label, value in pairs])


def _number(value: Any) -> float:
    """Return a number as it is: an LSN is too large for a float."""
    if not isinstance(value, int | float):
        raise TypeError("not a number")
    return value


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sorted(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _birth(pid: int) -> str | None:
    """Return the start time of a process in ticks since the machine's start, or None if the kernel
    does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The command, in parentheses, may contain anything.
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else None
