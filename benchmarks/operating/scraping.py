"""``scrape``: what a scrape of a node with 1,000 tables takes, and what a crowd of visitors costs.

The web process runs on a directory that is made up: a catalog with one subscription, positions, and
the measurements that an engine writes while all tables change: before each scrape, numbers and
version of each of them. It needs no server and no node, since the process asks none.

Comes in: a stage. Goes out: time of a scrape that finds no fresh reading, CPU of the process with
a ``Crowd`` (ten scrapers, two pages, nonsense), its largest resident memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from benchmarks.operating.crowd import Crowd, scrape
from benchmarks.report import Target, megabytes, milliseconds
from benchmarks.stage import Stage
from benchmarks.usage import waited_seconds
from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.launch import read_web_status
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe.telemetry import Telemetry, TelemetryFile
from wal2lake.settings import FILE_NAME, render_default_toml
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

_NAME: Final = "scrape"
_TABLES: Final = 1000
_SUBSCRIPTION: Final = Oid(16_384)
_FIRST_TABLE: Final = 20_000

_SCRAPES: Final = 50
_PAUSE_SECONDS: Final = 1.1
"""Longer than a reading is used again."""

_SECONDS: Final = 15
"""With the crowd."""

_CHANGE_SECONDS: Final = 0.5

_TIME: Final = Target(at_most=200.0)
"""Milliseconds."""
_CPU: Final = Target(at_most=100.0)
"""Milliseconds, with the page's readings between two scrapes."""
_MEMORY: Final = Target(at_most=120.0)
"""MB."""


def run(stage: Stage) -> None:
    """Measure and add the results."""
    tables = stage.options.scaled(_TABLES)
    stage.say(f"{_NAME}: {tables} tables, made up")
    directory = stage.folder / "scraped"
    telemetry = make_up(directory, tables)
    with (
        closing(Catalog(directory / "catalog.sqlite")) as catalog,
        TelemetryFile(directory / "run", "engine", telemetry) as file,
    ):
        changing = _Changing(catalog, telemetry, file, tables)
        file.write()
        with _web(directory) as process:
            watched = psutil.Process(process.pid)
            before = sum(watched.cpu_times()[:2])
            scrapes = [
                _scrape(directory, changing, process.pid) for _ in range(_SCRAPES)
            ]
            times = [seconds for seconds, _ in scrapes]
            cpu_each = (sum(watched.cpu_times()[:2]) - before) / _SCRAPES
            stage.add(_NAME, "one scrape, CPU", "ms", 1000 * cpu_each, target=_CPU)
            stage.add(
                _NAME, "one scrape, p50", "ms", milliseconds(times, 50), target=_TIME
            )
            stage.add(
                _NAME, "one scrape, p99", "ms", milliseconds(times, 99), target=_TIME
            )
            # On a busy machine most of that is waiting for a core.
            own = [max(0.0, seconds - waited) for seconds, waited in scrapes]
            what = "the same without waits for a CPU"
            stage.add(_NAME, what, "ms", milliseconds(own, 99), target=_TIME)
            before = sum(watched.cpu_times()[:2])
            with Crowd(_port(directory)):
                _change_for_a_while(changing)
                cpu = sum(watched.cpu_times()[:2]) - before
            what, share = "a crowd of visitors: CPU", 100 * cpu / _SECONDS
            stage.add(_NAME, what, "% of a core", share)
            peak = _peak_bytes(process.pid)
            stage.add(_NAME, "peak RSS", "MB", megabytes(peak), target=_MEMORY)


def make_up(directory: Path, tables: int) -> Telemetry:
    """Write a node's files; returns what its engine has measured."""
    (directory / "run").mkdir(parents=True)
    text = render_default_toml({"web.listen": "127.0.0.1:0"})
    (directory / FILE_NAME).write_text(text)
    catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
    names = {Oid(_FIRST_TABLE + n): f"table_{n}" for n in range(tables)}
    for oid, name in names.items():
        catalog.create_table(TableDef(oid, "public", name, Oid(10), (), (), f"/{name}"))
    rels = [
        SubscriptionRel(
            _SUBSCRIPTION, oid, "public", name, SyncState.READY, Lsn(900), 1
        )
        for oid, name in names.items()
    ]
    catalog.create_subscription(
        Subscription(
            _SUBSCRIPTION, "s", Oid(10), True, "", "slot", ("p",), floor=Lsn(1000)
        ),
        rels,
        dict.fromkeys(map(int, names), 1),
    )
    catalog.close()
    telemetry = Telemetry()
    for of in _labels(tables):
        for kind in ("inserted", "updated", "deleted", "copied"):
            telemetry.count("rows_total", 1, kind=kind, **of)
        for method in ("append", "upsert"):
            telemetry.count("batches_total", 1, method=method, **of)
        telemetry.count("applied_bytes_total", 1, **of)
        for gauge in (
            "table_version",
            "table_files",
            "table_size_bytes",
            "table_deletion_vectors",
        ):
            telemetry.gauge(gauge, 1, **of)
    return telemetry


@contextmanager
def _web(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = tied(sys.executable, "-m", "wal2lake.web", "-D", str(directory))
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: _port(directory))
        yield process
    finally:
        process.terminate()
        process.wait()


def _port(directory: Path) -> int:
    status = read_web_status(directory / "run")
    port = None if status is None else urlsplit(status.urls[0]).port
    return port or 0


class _Changing:
    """The node's files while all tables change."""

    def __init__(
        self, catalog: Catalog, telemetry: Telemetry, file: TelemetryFile, tables: int
    ) -> None:
        self._catalog = catalog
        self._telemetry = telemetry
        self._file = file
        self._tables = tables
        self._number = 1

    def change_all(self) -> None:
        """Let an engine apply a batch with rows of all tables, and tell of it."""
        self._number += 1
        for of in _labels(self._tables):
            self._telemetry.count("rows_total", 1, kind="updated", **of)
            self._telemetry.gauge("table_version", self._number, **of)
        oids = range(_FIRST_TABLE, _FIRST_TABLE + self._tables)
        self._catalog.publish(
            _SUBSCRIPTION,
            Lsn(1000 + self._number),
            dict.fromkeys(oids, self._number),
            participants=oids,
        )
        self._file.write()


def _scrape(directory: Path, changing: _Changing, pid: int) -> tuple[float, float]:
    """Return the seconds of a scrape, and those that the process and this one had no CPU."""
    changing.change_all()
    time.sleep(_PAUSE_SECONDS)
    waited = waited_seconds(pid) + waited_seconds(os.getpid())
    began = time.perf_counter()
    scrape(_port(directory))
    lasted = time.perf_counter() - began
    waited = waited_seconds(pid) + waited_seconds(os.getpid()) - waited
    return lasted, waited


def _change_for_a_while(changing: _Changing) -> None:
    """Let rows of all tables change, so that a page is sent all of them."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        changing.change_all()
        time.sleep(_CHANGE_SECONDS)


def _labels(tables: int) -> Iterator[dict[str, str]]:
    for number in range(tables):
        yield {"subscription": "s", "table": f"public.table_{number}"}


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
