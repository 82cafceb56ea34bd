"""``latency``: single-row transactions at a steady rate; how soon are they safe, how soon seen?

A writer commits 200 transactions a second, an INSERT and an UPDATE in turn, and notes each one's
mark and the moment of its commit. Two others look, as often as they can without being the
load themselves, at flush_lsn in pg_stat_replication of the source and at
pg_replication_origin_status of the subscriber, which moves when readers can see the change.
A transaction arrived with the first look that shows a position beyond its mark: figures are
too large by up to the time between two looks, never too small.

``busy`` is the same, for as long, with 1,800 more transactions a second beside them, which pgbench
commits. That 2,000/s are no worse than 200/s is read as: the 99th percentile of what is confirmed
has the same bound. How many there were is in the table: a source that does not reach the rate makes
it easier.

Comes in: a stage. Goes out: p50 and p99 of both delays, the native subscriber's beside ours,
measured one after the other with the other one disabled.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.positions import Commit, delays, flushed, looking, reached
from benchmarks.report import Target, milliseconds
from benchmarks.stage import (
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.pg.client import Client

_TABLE: Final = "single"
_ROWS: Final = 100_000
_PER_SECOND: Final = 200

_FLUSH_LOOK_SECONDS: Final = 0.001
_LOOK_SECONDS: Final = {"native": 0.001, "node": 0.01}
"""Between two looks. A look at the node costs it milliseconds of its engine's time."""

_SELECTS: Final = 20

_CLIENTS: Final = 8
"""Of pgbench: enough for the rate, as each waits for its flush."""

_PGBENCH_SECONDS: Final = 60.0
"""For its last transactions, if it is behind its schedule."""


@dataclass(frozen=True, slots=True)
class Load:
    """One of the two workloads."""

    name: str
    beside_per_second: int
    """Transactions that are committed beside those that are measured."""


LOADS: Final = (Load("latency", 0), Load("busy", 1800))

_FLUSHED_P99: Final = Target(at_most=100.0)
"""Milliseconds; of both."""


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
    per_second: float
    """Transactions that the source did commit."""


def run(stage: Stage, load: Load) -> None:
    """Measure both and add the results."""
    publication = f"bench_{load.name}"
    rows = stage.options.scaled(_ROWS)
    with stage.at_source() as source:
        source.rows(workload.create_table(_TABLE))
        source.rows(workload.insert_rows(_TABLE, 1, rows))
        source.rows(
            f"create publication {publication} for table {workload.SCHEMA}.{_TABLE}"
        )
    with stage.at_native() as native:
        native.rows(workload.create_table(_TABLE))
    measured = {peer.name: _measure(stage, load, peer, rows) for peer in stage.peers()}
    _report(Comparison(stage, load.name, measured))
    with stage.at_source() as source:
        source.rows(f"drop publication {publication}")
        source.rows(f"drop table {workload.SCHEMA}.{_TABLE}")


def _report(found: Comparison[_Measured]) -> None:
    for percent in (50, 99):
        found.add(
            f"commit to flush confirmed, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.flushed, p),  # type: ignore[misc]
            _FLUSHED_P99 if percent == 99 else None,
        )
    for percent in (50, 99):
        found.add(
            f"commit to visible, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.visible, p),  # type: ignore[misc]
        )
    found.add("looked for every (mean)", "ms", lambda m: m.look_seconds * 1000)
    found.add(
        "SELECT of one row by key, p50", "ms", lambda m: milliseconds(m.selects, 50)
    )
    found.add("CPU of the subscriber", "cores", lambda m: m.cpu_cores)
    found.add("transactions committed each second", "1/s", lambda m: m.per_second)


def _measure(stage: Stage, load: Load, peer: Peer, rows: int) -> _Measured:
    name = f"bench_{load.name}_{peer.name}"
    seconds = stage.options.seconds
    with peer.connected() as client, stage.quick_slots():
        stage.subscribe(client, name, f"bench_{load.name}")
        wait_ready(client, name)
    rate = _PER_SECOND + load.beside_per_second
    stage.say(f"{load.name}: {peer.name}, {rate}/s for {seconds} s")
    with (
        looking(
            stage.at_source,
            lambda c: flushed(c, name),
            pause_seconds=_FLUSH_LOOK_SECONDS,
        ) as flushes,
        looking(
            peer.connected,
            lambda c: reached(c, name),
            pause_seconds=_LOOK_SECONDS[peer.name],
        ) as sights,
        Usage({peer.name: peer.pid}, interval_seconds=1.0) as usage,
        _beside(stage, load, rows) as beside,
    ):
        started = time.perf_counter()
        commits = _write(stage, rows, seconds)
        lasted = time.perf_counter() - started
        usage.sample()
        cpu_cores = usage.cpu_seconds(peer.name) / lasted
        mark = commits[-1][1]
        wait_exactly(
            lambda: flushes.beyond(mark) and sights.beyond(mark),
            f"{name} has everything",
        )
        watched = time.perf_counter() - started
    with peer.connected() as client, stage.at_source() as source:
        # What is beside them has gone on until now.
        last = workload.marked(source, workload.update_rows(_TABLE, "id = 1"))
        wait_exactly(lambda: reached(client, name) > last, f"{name} has the rest, too")
    assert_same(stage, peer, (workload.fingerprint(_TABLE),))
    with peer.connected() as client:
        selects = [_select(client, 1 + i * 7 % rows) for i in range(_SELECTS)]
        drop_subscription(client, name)
        client.rows(f"drop table {workload.SCHEMA}.{_TABLE}")
    return _Measured(
        flushed=delays(flushes, commits),
        visible=delays(sights, commits),
        selects=selects,
        look_seconds=watched / max(1, sights.looks),
        cpu_cores=cpu_cores,
        per_second=len(commits) / lasted + sum(beside) / seconds,
    )


@contextmanager
def _beside(stage: Stage, load: Load, rows: int) -> Iterator[list[int]]:
    """Other transactions for as long as the measured ones last; how many there were is in
    the list at the end."""
    counts: list[int] = []
    if not load.beside_per_second:
        yield counts
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
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        try:
            yield counts
            # It began before the measured ones, and is as long.
            report, _ = running.communicate(timeout=_PGBENCH_SECONDS)
        finally:
            running.terminate()
    found = re.search(r"actually processed: ([0-9]+)", report)
    if found is None:
        raise RuntimeError(f"pgbench says: {report}")
    counts.append(int(found[1]))


def _write(stage: Stage, rows: int, seconds: int) -> list[Commit]:
    """Commit at the rate, as a client that is never ahead of the clock; a late one
    catches up. Returns moment and mark of each commit."""
    commits: list[Commit] = []
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


def _select(client: Client, key: int) -> float:
    started = time.perf_counter()
    client.rows(f"select amount, note from {workload.SCHEMA}.{_TABLE} where id = {key}")
    return time.perf_counter() - started
