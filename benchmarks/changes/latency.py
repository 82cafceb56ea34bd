"""``latency``: single-row transactions at a steady rate; how soon are they safe, how soon seen?

A writer commits 200 transactions a second, an INSERT and an UPDATE in turn, and notes each one's
mark and the moment of its commit. Two others look, as often as they can without being the
load themselves, at flush_lsn in pg_stat_replication of the source and at
pg_replication_origin_status of the subscriber, which moves when readers can see the change.
A transaction arrived with the first look that shows a position beyond its mark: figures are
too large by up to the time between two looks, never too small.

``visible`` is the same over three tables in turn.

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
    beside_per_second: int = 0
    """Transactions that are committed beside those that are measured."""
    tables: int = 1
    """Which the transactions take in turn."""
    visible_p50: Target | None = None
    visible_p99: Target | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tables, unqualified."""
        return tuple(f"single{i}" for i in range(self.tables))

    @property
    def qualified(self) -> str:
        """The list of them."""
        return ", ".join(f"{workload.SCHEMA}.{name}" for name in self.names)


LOADS: Final = (
    Load("latency"),
    Load("busy", beside_per_second=1800),
    Load(
        "visible",
        tables=3,
        visible_p50=Target(at_most=2000.0),
        visible_p99=Target(at_most=5000.0),
    ),
)

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
        for table in load.names:
            source.rows(workload.create_table(table))
            source.rows(workload.insert_rows(table, 1, rows))
        source.rows(f"create publication {publication} for table {load.qualified}")
    with stage.at_native() as native:
        for table in load.names:
            native.rows(workload.create_table(table))
    measured = {peer.name: _measure(stage, load, peer, rows) for peer in stage.peers()}
    _report(load, Comparison(stage, load.name, measured))
    with stage.at_source() as source:
        source.rows(f"drop publication {publication}")
        source.rows(f"drop table {load.qualified}")


def _report(load: Load, comparison: Comparison[_Measured]) -> None:
    for percent in (50, 99):
        comparison.add(
            f"commit to flush confirmed, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.flushed, p),  # type: ignore[misc]
            _FLUSHED_P99 if percent == 99 else None,
        )
    for percent in (50, 99):
        comparison.add(
            f"commit to visible, p{percent}",
            "ms",
            lambda m, p=percent: milliseconds(m.visible, p),  # type: ignore[misc]
            load.visible_p50 if percent == 50 else load.visible_p99,
        )
    comparison.add("looked for every (mean)", "ms", lambda m: m.look_seconds * 1000)
    comparison.add(
        "SELECT of one row by key, p50", "ms", lambda m: milliseconds(m.selects, 50)
    )
    comparison.add("CPU of the subscriber", "cores", lambda m: m.cpu_cores)
    comparison.add("transactions committed each second", "1/s", lambda m: m.per_second)


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
        commits = _write(stage, load, rows)
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
        last = workload.marked(source, workload.update_rows(load.names[0], "id = 1"))
        wait_exactly(lambda: reached(client, name) > last, f"{name} has the rest, too")
    assert_same(stage, peer, tuple(map(workload.fingerprint, load.names)))
    with peer.connected() as client:
        selects = [
            _select(client, load.names[0], 1 + i * 7 % rows) for i in range(_SELECTS)
        ]
        drop_subscription(client, name)
        client.rows(f"drop table {load.qualified}")
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
        f"update {workload.SCHEMA}.{load.names[0]} set amount = amount + 1 where id = :key;\n"
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
    match = re.search(r"actually processed: ([0-9]+)", report)
    if match is None:
        raise RuntimeError(f"pgbench says: {report}")
    counts.append(int(match[1]))


def _write(stage: Stage, load: Load, rows: int) -> list[Commit]:
    """Commit at the rate, as a client that is never ahead of the clock; a late one
    catches up. Returns moment and mark of each commit."""
    commits: list[Commit] = []
    with stage.at_source() as source:
        first = max(
            int(
                str(source.rows(f"select max(id) + 1 from {workload.SCHEMA}.{t}")[0][0])
            )
            for t in load.names
        )
        started = time.perf_counter()
        for i in range(_PER_SECOND * stage.options.seconds):
            pause = started + i / _PER_SECOND - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            table = load.names[i // 2 % load.tables]
            if i % 2:
                statement = workload.update_rows(table, f"id = {1 + i * 31 % rows}")
            else:
                statement = workload.insert_rows(table, first + i, first + i)
            mark = workload.marked(source, statement)
            commits.append((time.perf_counter(), int(mark)))
    return commits


def _select(client: Client, table: str, key: int) -> float:
    started = time.perf_counter()
    client.rows(f"select amount, note from {workload.SCHEMA}.{table} where id = {key}")
    return time.perf_counter() - started
