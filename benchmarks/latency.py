"""``latency``: single-row transactions at a steady rate; how soon are they safe, how soon seen?

A writer commits 200 transactions a second, an INSERT and an UPDATE in turn, and notes each one's
mark and the moment of its commit. Two others look, as often as they can without being the
load themselves, at flush_lsn in pg_stat_replication of the source and at
pg_replication_origin_status of the subscriber, which moves when readers can see the change.
A transaction arrived with the first look that shows a position beyond its mark: figures are
too large by up to the time between two looks, never too small.

``busy`` is the same with 1,800 more transactions a second beside them, which pgbench commits.

Comes in: a stage. Goes out: p50 and p99 of both delays, the native subscriber's beside ours,
measured one after the other with the other one disabled.
"""

from __future__ import annotations

import bisect
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks import workload
from benchmarks.report import Target, percentile
from benchmarks.stage import (
    Stage,
    drop_subscription,
    reached,
    states,
    wait_exactly,
)
from benchmarks.usage import Usage
from wal2lake.model import Lsn
from wal2lake.pg.client import Client

_TABLE: Final = "single"
_ROWS: Final = 100_000
_PER_SECOND: Final = 200

_LOOK_SECONDS: Final = {"flush": 0.001, "native": 0.001, "node": 0.01}
"""Between two looks. A look at the node costs it milliseconds of its engine's time."""

_SELECTS: Final = 20

_CLIENTS: Final = 8
"""Of pgbench: enough for the rate, as each waits for its flush."""


@dataclass(frozen=True, slots=True)
class Load:
    """One of the two workloads."""

    name: str
    beside_per_second: int
    """Transactions that are committed beside those that are measured."""
    flushed_p99_ms: float


LOADS: Final = (Load("latency", 0, 100.0), Load("busy", 1800, 100.0))


@dataclass(frozen=True, slots=True)
class _Measured:
    flushed: Sequence[float]
    """Seconds from commit, one for each transaction."""
    visible: Sequence[float]
    selects: Sequence[float]
    look_seconds: float
    """Mean time between two looks at what is visible."""
    cpu_cores: float
    """CPU seconds of the subscriber per second."""


@dataclass(slots=True)
class Positions:
    """What a looker saw: moments and positions, both rising."""

    moments: list[float] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    looks: int = 0

    def note(self, moment: float, lsn: int) -> None:
        """One look; kept if something has moved."""
        self.looks += 1
        if not self.lsns or lsn > self.lsns[-1]:
            self.moments.append(moment)
            self.lsns.append(lsn)

    def delay(self, committed: float, mark: int) -> float | None:
        """Seconds from a commit to the first look beyond its mark; None: never seen."""
        at = bisect.bisect_right(self.lsns, mark)
        if at == len(self.lsns):
            return None
        return max(0.0, self.moments[at] - committed)


def run(stage: Stage, load: Load) -> None:
    """Measure both and add the results."""
    publication = f"bench_{load.name}"
    rows = stage.options.rows(_ROWS)
    with stage.at_source() as source:
        source.rows(workload.create_table(_TABLE))
        source.rows(workload.insert_rows(_TABLE, 1, rows))
        source.rows(
            f"create publication {publication} for table {workload.SCHEMA}.{_TABLE}"
        )
    with stage.at_native() as native:
        native.rows(workload.create_table(_TABLE))
    theirs = _measure(stage, load, "native", stage.native.pid, stage.at_native, rows)
    ours: _Measured | None = None
    if stage.options.node:
        pid = stage.node.pids()[0]
        ours = _measure(stage, load, "node", pid, stage.at_node, rows)
    _report(stage, load, ours, theirs)
    with stage.at_source() as source:
        source.rows(f"drop publication {publication}")
        source.rows(f"drop table {workload.SCHEMA}.{_TABLE}")


def _report(
    stage: Stage, load: Load, ours: _Measured | None, theirs: _Measured
) -> None:
    def add(
        what: str,
        unit: str,
        of: Callable[[_Measured], float | None],
        target: Target | None = None,
    ) -> None:
        stage.add(load.name, what, unit, of(ours) if ours else None, of(theirs), target)

    def milliseconds(values: Sequence[float], percent: float) -> float | None:
        found = percentile(values, percent)
        return None if found is None else found * 1000

    for percent in (50, 99):
        add(
            f"commit to flush confirmed, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.flushed, p),  # type: ignore[misc]
            Target(at_most=load.flushed_p99_ms) if percent == 99 else None,
        )
    for percent in (50, 99):
        add(
            f"commit to visible, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.visible, p),  # type: ignore[misc]
        )
    add("looked for every (mean)", "ms", lambda m: m.look_seconds * 1000)
    add("SELECT of one row by key, p50", "ms", lambda m: milliseconds(m.selects, 50))
    add("CPU of the subscriber", "cores", lambda m: m.cpu_cores)


def _measure(
    stage: Stage,
    load: Load,
    peer: str,
    pid: int,
    connected: Callable[[], AbstractContextManager[Client]],
    rows: int,
) -> _Measured:
    name = f"bench_{load.name}_{peer}"
    seconds = stage.options.seconds
    conninfo = stage.source.conninfo().replace("'", "''")
    with connected() as client, stage.quick_slots():
        client.rows(
            f"create subscription {name} connection '{conninfo}' publication bench_{load.name}"
        )
        wait_exactly(lambda: states(client, name) == {"r"}, f"{name} is ready")
    rate = _PER_SECOND + load.beside_per_second
    stage.say(f"{load.name}: {peer}, {rate}/s for {seconds} s")
    with (
        looking(stage.at_source, lambda c: flushed(c, name), "flush") as flushes,
        looking(connected, lambda c: reached(c, name), peer) as sights,
        Usage({peer: pid}, interval_seconds=1.0) as usage,
        _beside(stage, load, rows),
    ):
        started = time.perf_counter()
        commits = _write(stage, rows, seconds)
        lasted = time.perf_counter() - started
        usage.sample()
        cpu_cores = usage.cpu_seconds(peer) / lasted
        mark = commits[-1][1]
        wait_exactly(
            lambda: flushes.lsns[-1:] > [mark] and sights.lsns[-1:] > [mark],
            f"{name} has everything",
        )
        watched = time.perf_counter() - started
    with connected() as client, stage.at_source() as source:
        expected = source.rows(workload.fingerprint(_TABLE))
        found = client.rows(workload.fingerprint(_TABLE))
        selects = [_select(client, 1 + i * 7 % rows) for i in range(_SELECTS)]
        drop_subscription(client, name)
        client.rows(f"drop table {workload.SCHEMA}.{_TABLE}")
    if found != expected:
        raise AssertionError(f"{peer} differs: {found}, expected {expected}")
    return _Measured(
        flushed=delays(flushes, commits),
        visible=delays(sights, commits),
        selects=selects,
        look_seconds=watched / max(1, sights.looks),
        cpu_cores=cpu_cores,
    )


@contextmanager
def _beside(stage: Stage, load: Load, rows: int) -> Iterator[None]:
    """Other transactions for as long as the measured ones last, and a little longer."""
    if not load.beside_per_second:
        yield
        return
    script = stage.folder / "beside.sql"
    script.write_text(
        f"\\set key random(1, {rows})\n"
        f"update {workload.SCHEMA}.{_TABLE} set amount = amount + 1 where id = :key;\n"
    )
    with subprocess.Popen(
        [
            stage.source.installation.bin / "pgbench",
            *("--no-vacuum", "--file", script),
            *("--client", str(_CLIENTS), "--rate", str(load.beside_per_second)),
            *("--time", str(stage.options.seconds), stage.source.conninfo()),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            yield
        finally:
            running.terminate()


def _write(stage: Stage, rows: int, seconds: int) -> list[tuple[float, int]]:
    """Commit at the rate, as a client that is never ahead of the clock; a late one
    catches up. Returns moment and mark of each commit."""
    commits: list[tuple[float, int]] = []
    with stage.at_source() as source:
        (first,) = source.rows(f"select max(id) + 1 from {workload.SCHEMA}.{_TABLE}")[0]
        started = time.perf_counter()
        for i in range(_PER_SECOND * seconds):
            pause = started + i / _PER_SECOND - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            if i % 2:
                statement = workload.update_rows(_TABLE, f"id = {1 + i * 31 % rows}")
            else:
                key = int(str(first)) + i
                statement = workload.insert_rows(_TABLE, key, key)
            mark = workload.marked(source, statement)
            commits.append((time.perf_counter(), int(mark)))
    return commits


@contextmanager
def looking(
    connected: Callable[[], AbstractContextManager[Client]],
    look: Callable[[Client], Lsn],
    what: str,
) -> Iterator[Positions]:
    """What somebody sees who looks again and again."""
    seen, stop, pause = Positions(), threading.Event(), _LOOK_SECONDS[what]

    def run() -> None:
        with connected() as client:
            while not stop.wait(pause):
                lsn = look(client)
                seen.note(time.perf_counter(), int(lsn))

    thread = threading.Thread(target=run, name=f"look-{what}", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def flushed(source: Client, name: str) -> Lsn:
    """What a subscriber has confirmed."""
    rows = source.rows(
        f"select flush_lsn from pg_stat_replication where application_name = '{name}'"
    )
    return Lsn.parse(rows[0][0]) if rows and rows[0][0] else Lsn(0)


def delays(seen: Positions, commits: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds from each commit until it was seen; those that never were are left out."""
    found = (seen.delay(moment, mark) for moment, mark in commits)
    return [delay for delay in found if delay is not None]


def _select(client: Client, key: int) -> float:
    started = time.perf_counter()
    client.rows(f"select amount, note from {workload.SCHEMA}.{_TABLE} where id = {key}")
    return time.perf_counter() - started
