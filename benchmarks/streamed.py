"""``streamed`` and ``interleaved``: transactions that are sent while they are still open.

``streamed``: one transaction inserts 10 M rows; ``interleaved``: 500 connections insert 10,000
each, in turns of 500 rows, and commit one after the other at the end. Meanwhile a small transaction
commits ten times a second: a large one must not delay it.

Time counts from the return of the last COMMIT to the moment at which
pg_replication_origin_status of the subscriber is beyond it. Both subscribers stream with
``streaming = parallel``, one after the other, and both start with an empty table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.latency import delays, flushed, looking
from benchmarks.report import Target, percentile
from benchmarks.stage import Stage, drop_subscription, reached, states, wait_exactly
from benchmarks.usage import Usage
from wal2lake.model import Lsn
from wal2lake.pg.client import Client

_LARGE: Final = "large"
_SMALL: Final = "small"
_TURN_ROWS: Final = 500
_SMALL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """One of the two workloads."""

    name: str
    transactions: int
    rows_each: int


PLANS: Final = (Plan("streamed", 1, 10_000_000), Plan("interleaved", 500, 10_000))


@dataclass(frozen=True, slots=True)
class _Measured:
    visible_seconds: float
    """From the last commit."""
    written_seconds: float
    """That the source took to write and commit all of it."""
    small: Sequence[float]
    """Seconds from commit to flush confirmed, while the large ones were open."""
    cpu_seconds: float
    receiver_bytes: int | None


def run(stage: Stage, plan: Plan) -> None:
    """Measure both and add the results."""
    rows_each = stage.options.rows(plan.rows_each)
    with stage.at_source() as source:
        for table in (_LARGE, _SMALL):
            source.rows(workload.create_table(table))
        source.rows(
            f"create publication bench_{plan.name} for table"
            f" {workload.SCHEMA}.{_LARGE}, {workload.SCHEMA}.{_SMALL}"
        )
    with stage.at_native() as native:
        for table in (_LARGE, _SMALL):
            native.rows(workload.create_table(table))
    theirs = _measure(
        stage, plan, "native", stage.native.pid, stage.at_native, rows_each
    )
    ours: _Measured | None = None
    if stage.options.node:
        pid = stage.node.pids()[0]
        ours = _measure(stage, plan, "node", pid, stage.at_node, rows_each)
    _report(stage, plan, plan.transactions * rows_each, ours, theirs)
    with stage.at_source() as source:
        source.rows(f"drop publication bench_{plan.name}")
    for connected in (stage.at_source, stage.at_native, stage.at_node):
        if connected != stage.at_node or stage.options.node:
            with connected() as client:
                for table in (_LARGE, _SMALL):
                    client.rows(f"drop table {workload.SCHEMA}.{table}")


def _report(
    stage: Stage, plan: Plan, rows: int, ours: _Measured | None, theirs: _Measured
) -> None:
    def add(
        what: str,
        unit: str,
        of: Callable[[_Measured], float | None],
        target: Target | None = None,
    ) -> None:
        stage.add(plan.name, what, unit, of(ours) if ours else None, of(theirs), target)

    add(
        "first row written to all visible",
        "s",
        lambda m: m.written_seconds + m.visible_seconds,
        Target(ratio_at_most=2.0) if plan.transactions == 1 else None,
    )
    add("last COMMIT to all visible", "s", lambda m: m.visible_seconds)
    add("CPU of the subscriber per million", "s", lambda m: m.cpu_seconds / rows * 1e6)
    for percent in (50, 99):
        add(
            f"small transactions meanwhile: flush confirmed, p{percent}",
            "ms",
            lambda m, p=percent: _milliseconds(m.small, p),  # type: ignore[misc]
        )
    add(
        "receiver: peak RSS until here",
        "MB",
        lambda m: None if m.receiver_bytes is None else m.receiver_bytes / 1e6,
        Target(at_most=512.0),
    )


def _milliseconds(values: Sequence[float], percent: float) -> float | None:
    found = percentile(values, percent)
    return None if found is None else found * 1000


def _measure(
    stage: Stage,
    plan: Plan,
    peer: str,
    pid: int,
    connected: Callable[[], AbstractContextManager[Client]],
    rows_each: int,
) -> _Measured:
    name = f"bench_{plan.name}_{peer}"
    conninfo = stage.source.conninfo().replace("'", "''")
    with stage.at_source() as source, connected() as client, stage.quick_slots():
        source.rows(f"truncate {workload.SCHEMA}.{_LARGE}, {workload.SCHEMA}.{_SMALL}")
        client.rows(
            f"create subscription {name} connection '{conninfo}'"
            f" publication bench_{plan.name} with (streaming = parallel)"
        )
        wait_exactly(lambda: states(client, name) == {"r"}, f"{name} is ready")
    stage.say(f"{plan.name}: {peer}")
    with (
        Usage({peer: pid}, interval_seconds=1.0) as usage,
        looking(stage.at_source, lambda c: flushed(c, name), "flush") as flushes,
        connected() as client,
    ):
        started = time.perf_counter()
        with _small_ones(stage) as commits:
            mark = _write(stage, plan.transactions, rows_each)
            committed = time.perf_counter()
        wait_exactly(lambda: reached(client, name) > mark, f"{name} has everything")
        finished = time.perf_counter()
        usage.sample()
        receiver = usage.peak_bytes(peer, "receiver")
        cpu = usage.cpu_seconds(peer)
        last = commits[-1][1]
        wait_exactly(lambda: flushes.lsns[-1:] > [last], f"{name} confirms")
    stage.say(f"{plan.name}: {peer} took {finished - committed:.1f} s after COMMIT")
    with stage.at_source() as source, connected() as client:
        for table in (_LARGE, _SMALL):
            wait_exactly(
                lambda table=table: (  # type: ignore[misc]
                    source.rows(workload.fingerprint(table))
                    == client.rows(workload.fingerprint(table))
                ),
                f"{table} of {peer} equals the source's",
                pause_seconds=1.0,
            )
        drop_subscription(client, name)
    return _Measured(
        finished - committed,
        committed - started,
        delays(flushes, commits),
        cpu,
        receiver,
    )


def _write(stage: Stage, transactions: int, rows_each: int) -> Lsn:
    """All open at the same time; committed one after the other."""
    with ExitStack() as opened:
        clients = [opened.enter_context(stage.at_source()) for _ in range(transactions)]
        for client in clients:
            client.rows("begin")
        turn = rows_each if transactions == 1 else _TURN_ROWS
        for first in range(0, rows_each, turn):
            for i, client in enumerate(clients):
                at = i * rows_each + first + 1
                last = i * rows_each + min(first + turn, rows_each)
                client.rows(workload.insert_rows(_LARGE, at, last))
        for client in clients[:-1]:
            client.rows("commit")
        found = clients[-1].rows("select pg_current_wal_insert_lsn()")
        clients[-1].rows("commit")
        return Lsn.parse(str(found[0][0]))


@contextmanager
def _small_ones(stage: Stage) -> Iterator[list[tuple[float, int]]]:
    """Single rows, committed at an even rate: moment and mark of each commit."""
    commits: list[tuple[float, int]] = []
    stop = threading.Event()

    def run() -> None:
        with stage.at_source() as source:
            while True:
                key = len(commits) + 1
                statement = workload.insert_rows(_SMALL, key, key)
                mark = workload.marked(source, statement)
                commits.append((time.perf_counter(), int(mark)))
                if stop.wait(_SMALL_SECONDS):
                    return

    thread = threading.Thread(target=run, name="small", daemon=True)
    thread.start()
    try:
        yield commits
    finally:
        stop.set()
        thread.join()
