"""``tables``: 500 small tables in one subscription.

    CREATE SUBSCRIPTION ─▶ all ready ─▶ one row changed in each ─▶ nothing happens

Comes in: a stage. Goes out: how long the first three take, the native subscriber's beside ours;
the most connections that a subscriber had to the source at a time; what the node costs when
nothing happens. Each change of the round is a transaction of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.copies.copying import PUBLICATION, filled
from benchmarks.copies.idle import Rest, report, rest
from benchmarks.positions import reached
from benchmarks.report import Target
from benchmarks.stage import (
    APPLICATION_NAME,
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.model import Lsn

_NAME: Final = "tables"
_TABLES: Final = 500
_ROWS: Final = 100
"""In each."""

_CHECKED: Final = 20
"""Every so manieth table is compared: a question costs the node a Spark job."""

_LOOK_SECONDS: Final = 0.01

_READY: Final = Target(at_most=60.0)
"""Seconds."""

_CPU: Final = Target(at_most=10.0)
"""Percent of a core."""

_CONNECTIONS: Final = 6
"""Beside the readers, of which there are as many as cores: of the receiver, which streams
and asks how far the server is, two; of the snapshot's holder two; of the one who asks about
tables; of CREATE SUBSCRIPTION."""


@dataclass(frozen=True, slots=True)
class _Measured:
    created_seconds: float
    """The command."""
    ready_seconds: float
    """From its start."""
    cpu_seconds: float
    """Until then."""
    connections: int
    round_seconds: float
    """From the first change to all visible."""


def run(stage: Stage) -> None:
    """Measure both and add the results."""
    names = [f"small{i}" for i in range(stage.options.scaled(_TABLES))]
    resting: Rest | None = None
    measured: dict[str, _Measured] = {}
    with filled(stage, names, _ROWS):
        with stage.at_native() as native:
            for name in names:
                native.rows(workload.create_table(name))
        for peer in stage.peers():
            with _subscribed(stage, peer, names) as measured[peer.name]:
                if peer.name == "node":
                    resting = rest(stage, _NAME)
    _report(Comparison(stage, _NAME, measured), len(names))
    if resting is not None:
        report(stage, _NAME, resting, _CPU)


def _report(comparison: Comparison[_Measured], tables: int) -> None:
    comparison.add("the command CREATE SUBSCRIPTION", "s", lambda m: m.created_seconds)
    comparison.add(
        f"CREATE SUBSCRIPTION to {tables} tables in state r",
        "s",
        lambda m: m.ready_seconds,
        _READY,
    )
    comparison.add("CPU of the subscriber until then", "s", lambda m: m.cpu_seconds)
    readers = len(os.sched_getaffinity(0))
    comparison.add(
        "connections to the source, at most",
        "connections",
        lambda m: m.connections,
        Target(at_most=_CONNECTIONS + readers),
    )
    comparison.add(
        f"{tables} tables, a row changed in each, to all visible",
        "s",
        lambda m: m.round_seconds,
    )


@contextmanager
def _subscribed(stage: Stage, peer: Peer, names: list[str]) -> Iterator[_Measured]:
    subscription = f"bench_{_NAME}_{peer.name}"
    stage.say(f"{_NAME}: {peer.name}")
    with peer.connected() as client, stage.quick_slots():
        with (
            Usage({peer.name: peer.pid}, interval_seconds=1.0) as usage,
            _connections(stage) as most,
        ):
            started = time.perf_counter()
            stage.subscribe(client, subscription, PUBLICATION)
            created = time.perf_counter()
            wait_ready(client, subscription)
            ready = time.perf_counter()
        changed = time.perf_counter()
        mark = _change_each(stage, names)
        wait_exactly(
            lambda: reached(client, subscription) > mark,
            f"{subscription} has the round",
            pause_seconds=_LOOK_SECONDS,
        )
        visible = time.perf_counter()
    assert_same(stage, peer, [workload.fingerprint(n) for n in names[::_CHECKED]])
    yield _Measured(
        created - started,
        ready - started,
        usage.cpu_seconds(),
        max(most),
        visible - changed,
    )
    with peer.connected() as client:
        drop_subscription(client, subscription)
        for name in names:
            client.rows(f"drop table {workload.SCHEMA}.{name}")


def _change_each(stage: Stage, names: list[str]) -> Lsn:
    """One row of each table, each in its own transaction; the last one's mark."""
    with stage.at_source() as source:
        for name in names[:-1]:
            source.rows(workload.update_rows(name, "id = 1"))
        return workload.marked(source, workload.update_rows(names[-1], "id = 1"))


@contextmanager
def _connections(stage: Stage) -> Iterator[list[int]]:
    """How many connections to the source were there that are not ours, at each look."""
    counts, stop = [0], threading.Event()

    def run() -> None:
        with stage.at_source() as source:
            while not stop.wait(_LOOK_SECONDS):
                rows = source.rows(
                    "select count(*) from pg_stat_activity"
                    " where backend_type in ('client backend', 'walsender')"
                    f" and application_name <> '{APPLICATION_NAME}'"
                )
                counts.append(int(str(rows[0][0])))

    thread = threading.Thread(target=run, name="connections", daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()
