"""``streamed`` and ``interleaved``: transactions that are sent while they are still open.

``streamed``: one transaction inserts 10 M rows; ``interleaved``: 500 connections insert 10,000
each, in turns of 500 rows, and commit one after the other at the end. Both subscribers stream with
``streaming = parallel``, one after the other, and both start with an empty table.

Time counts from the return of the last COMMIT to the moment at which
pg_replication_origin_status of the subscriber is beyond it; a reader who comes then must find all
rows. Of one transaction that is its first visibility, too: it is seen whole or not at all.

Meanwhile a small transaction commits ten times a second, which no open one may delay. The
publisher itself delays it: it sends one block of changes after the other, to every subscriber
alike. So the criterion is the native subscriber's delay in the same run; beside it stands what the
subscriber adds after the publisher has sent the COMMIT.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.heap import Heap, configured_bytes
from benchmarks.positions import (
    Commit,
    Positions,
    delays,
    flushed,
    looking,
    reached,
    sent,
)
from benchmarks.report import Target, megabytes, milliseconds
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
from wal2lake.model import Lsn
from wal2lake.pg.client import Client

_LARGE: Final = "large"
_SMALL: Final = "small"
_TABLES: Final = (_LARGE, _SMALL)
_TURN_ROWS: Final = 500
_SMALL_SECONDS: Final = 0.1

_LOOK_SECONDS: Final = 0.01
_VISIBLE_LOOK_SECONDS: Final = 0.1
"""A look at the node costs it milliseconds of its engine's time."""

_RECEIVER_RSS: Final = Target(at_most=512.0)
_NO_WORSE: Final = Target(ratio_at_most=1.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """One of the two workloads."""

    name: str
    transactions: int
    rows_each: int


PLANS: Final = (Plan("streamed", 1, 10_000_000), Plan("interleaved", 500, 10_000))


@dataclass(frozen=True, slots=True)
class _Watched:
    """What was seen of one peer while the transactions were open, and after."""

    visible_seconds: float
    """From the last commit."""
    written_seconds: float
    """That the source took to write and commit all of it."""
    small: Sequence[Commit]
    sends: Positions
    flushes: Positions
    sights: Positions
    cpu_seconds: float
    """Until all was visible."""
    usage: Usage
    heap: Heap

    @property
    def after_sending(self) -> list[float]:
        """Seconds from the moment at which the publisher had sent a small transaction until
        it knew that it was safe."""
        moments = ((self.sends.seen(mark), mark) for _, mark in self.small)
        return delays(self.flushes, [(sent, mark) for sent, mark in moments if sent])


def run(stage: Stage, plan: Plan) -> None:
    """Measure both and add the results."""
    rows_each = stage.options.scaled(plan.rows_each)
    with stage.at_source() as source, stage.at_native() as native:
        for table in _TABLES:
            source.rows(workload.create_table(table))
            native.rows(workload.create_table(table))
        source.rows(
            f"create publication bench_{plan.name} for table"
            f" {workload.SCHEMA}.{_LARGE}, {workload.SCHEMA}.{_SMALL}"
        )
    measured = {p.name: _watch(stage, plan, p, rows_each) for p in stage.peers()}
    _report(Comparison(stage, plan.name, measured), plan, plan.transactions * rows_each)
    if stage.options.node:
        _report_memory(stage, plan, measured["node"])
    with stage.at_source() as source:
        source.rows(f"drop publication bench_{plan.name}")
    for connected in (stage.at_source, *(peer.connected for peer in stage.peers())):
        with connected() as client:
            for table in _TABLES:
                client.rows(f"drop table {workload.SCHEMA}.{table}")


def _report(comparison: Comparison[_Watched], plan: Plan, rows: int) -> None:
    is_one = plan.transactions == 1
    comparison.add(
        "first row written to all visible",
        "s",
        lambda w: w.written_seconds + w.visible_seconds,
        Target(ratio_at_most=2.0) if is_one else None,
    )
    comparison.add(
        "COMMIT to first visibility, of all rows"
        if is_one
        else "last COMMIT to all visible",
        "s",
        lambda w: w.visible_seconds,
    )
    comparison.add(
        "CPU of the subscriber per million",
        "s",
        lambda w: w.cpu_seconds / rows * 1e6,
    )
    for percent in (50, 99):
        comparison.add(
            f"small transactions meanwhile: flush confirmed, p{percent}",
            "ms",
            lambda w, p=percent: milliseconds(  # type: ignore[misc]
                delays(w.flushes, w.small), p
            ),
            _NO_WORSE if percent == 99 else None,
        )
    comparison.add(
        "of that, after the publisher had sent them, p99",
        "ms",
        lambda w: milliseconds(w.after_sending, 99),
    )
    comparison.add(
        "small transactions meanwhile: visible, p99",
        "ms",
        lambda w: milliseconds(delays(w.sights, w.small), 99),
    )


def _report_memory(stage: Stage, plan: Plan, ours: _Watched) -> None:
    def add(what: str, value: int | None, target: Target | None = None) -> None:
        stage.add(plan.name, what, "MB", megabytes(value), target=target)

    peak = ours.usage.peak_bytes
    limit = configured_bytes(stage.node.directory)
    add("receiver: peak RSS", peak(role="receiver"), _RECEIVER_RSS)
    add(
        "jvm: largest heap, of the configured one",
        ours.heap.taken_bytes,
        Target(at_most=round(limit / 1e6)),
    )
    add("jvm: largest heap in use", ours.heap.in_use_bytes)
    add("jvm: peak RSS", peak(role="jvm"))
    add("engine: peak RSS", peak(role="engine"))


def _watch(stage: Stage, plan: Plan, peer: Peer, rows_each: int) -> _Watched:
    name = f"bench_{plan.name}_{peer.name}"
    with stage.at_source() as source, peer.connected() as client, stage.quick_slots():
        source.rows(f"truncate {workload.SCHEMA}.{_LARGE}, {workload.SCHEMA}.{_SMALL}")
        stage.subscribe(client, name, f"bench_{plan.name}", "with (streaming=parallel)")
        wait_ready(client, name)
    stage.say(f"{plan.name}: {peer.name}")
    usage = Usage({peer.name: peer.pid}, interval_seconds=1.0)

    def looks(look: Callable[[Client, str], Lsn]) -> AbstractContextManager[Positions]:
        return looking(
            stage.at_source, lambda c: look(c, name), pause_seconds=_LOOK_SECONDS
        )

    with (
        usage,
        Heap(usage.pid("jvm")) as heap,
        looks(sent) as sends,
        looks(flushed) as flushes,
        looking(
            peer.connected,
            lambda c: reached(c, name),
            pause_seconds=_VISIBLE_LOOK_SECONDS,
        ) as sights,
        peer.connected() as client,
    ):
        started = time.perf_counter()
        with _small_ones(stage) as small:
            mark = _write(stage, plan.transactions, rows_each)
            committed = time.perf_counter()
        wait_exactly(lambda: reached(client, name) > mark, f"{name} has everything")
        finished = time.perf_counter()
        usage.sample()
        cpu_seconds = usage.cpu_seconds()
        count = client.rows(f"select count(*) from {workload.SCHEMA}.{_LARGE}")
        last = small[-1][1]
        wait_exactly(
            lambda: flushes.beyond(last) and sights.beyond(last),
            f"{name} has the small ones, too",
        )
    stage.say(
        f"{plan.name}: {peer.name} took {finished - committed:.1f} s after COMMIT"
    )
    if count != [(str(plan.transactions * rows_each),)]:
        raise AssertionError(f"a reader of {peer.name} finds {count} rows")
    if not usage.survived("jvm"):
        raise AssertionError("the JVM has ended meanwhile")
    assert_same(stage, peer, [workload.fingerprint(table) for table in _TABLES])
    with peer.connected() as client:
        drop_subscription(client, name)
    return _Watched(
        finished - committed,
        committed - started,
        small,
        sends,
        flushes,
        sights,
        cpu_seconds,
        usage,
        heap,
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
                start = i * rows_each + first + 1
                last = i * rows_each + min(first + turn, rows_each)
                client.rows(workload.insert_rows(_LARGE, start, last))
        for client in clients[:-1]:
            client.rows("commit")
        answer = clients[-1].rows("select pg_current_wal_insert_lsn()")
        clients[-1].rows("commit")
        return Lsn.parse(str(answer[0][0]))


@contextmanager
def _small_ones(stage: Stage) -> Iterator[list[Commit]]:
    """Single rows, committed at an even rate: moment and mark of each commit."""
    commits: list[Commit] = []
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
