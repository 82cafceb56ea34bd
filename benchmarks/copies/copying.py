"""``copy`` and ``several``: large tables, from CREATE SUBSCRIPTION until they are in step.

Comes in: a stage. Goes out: rows per second of the node and of a native subscriber, from the
start of the command to state r of pg_subscription_rel, and to the first moment at which the rows
can be read. One after the other, the native one first, from the same tables. ``copy`` is one table
of 2 M rows, ``several`` eight of 500,000 at once.

A small table goes first. On a node that has just started it is the first thing that Spark is
asked to do; how long that takes is a figure of its own and not one about copying.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.report import Target, rate
from benchmarks.stage import (
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    states,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage

PUBLICATION: Final = "bench_copy"

_SMALL_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """One of the two workloads."""

    name: str
    tables: int
    rows_each: int
    target: Target


PLANS: Final = (
    Plan("copy", 1, 2_000_000, Target(ratio_at_least=1.0, aim=1.3)),
    Plan("several", 8, 500_000, Target(ratio_at_least=1.2, aim=1.5)),
)


@dataclass(frozen=True, slots=True)
class Copied:
    """What one peer took."""

    visible_seconds: float
    """Until the rows can be read (s or r)."""
    ready_seconds: float
    usage: Usage


def run(stage: Stage, plan: Plan) -> None:
    """Measure the small table and the large ones with both and add the results."""
    first = Comparison(stage, plan.name, _both(stage, "first_copied", 1, _SMALL_ROWS))
    first.add(
        f"before: a table of {_SMALL_ROWS:,} rows", "s", lambda c: c.ready_seconds
    )
    rows_each = stage.options.scaled(plan.rows_each)
    rows = plan.tables * rows_each
    comparison = Comparison(
        stage, plan.name, _both(stage, "copied", plan.tables, rows_each)
    )
    comparison.add(
        "CREATE SUBSCRIPTION to state r",
        "rows/s",
        lambda c: rate(rows, c.ready_seconds),
        plan.target,
    )
    comparison.add(
        "CREATE SUBSCRIPTION to readable",
        "rows/s",
        lambda c: rate(rows, c.visible_seconds),
    )
    comparison.add("the same", "s", lambda c: c.visible_seconds)
    comparison.add(
        "CPU of the subscriber per million rows",
        "s",
        lambda c: c.usage.cpu_seconds() / rows * 1e6,
    )


def _both(stage: Stage, name: str, tables: int, rows: int) -> dict[str, Copied]:
    names = [f"{name}{i}" for i in range(tables)]
    with filled(stage, names, rows):
        with stage.at_native() as native:
            for table in names:
                native.rows(workload.create_table(table))
            native.rows("checkpoint")
        return {peer.name: timed(stage, peer, names) for peer in stage.peers()}


@contextmanager
def filled(stage: Stage, tables: Sequence[str], rows: int) -> Iterator[None]:
    """Published tables with ``rows`` rows each; they go afterwards, everywhere."""
    stage.say(f"writing {len(tables)} x {rows:,} rows")
    published = ", ".join(f"{workload.SCHEMA}.{table}" for table in tables)
    with stage.at_source() as source:
        for table in tables:
            source.rows(workload.create_table(table))
            source.rows(workload.insert_rows(table, 1, rows))
        source.rows("vacuum (analyze)")
        source.rows("checkpoint")
        source.rows(f"create publication {PUBLICATION} for table {published}")
    yield
    with stage.at_source() as source:
        source.rows(f"drop publication {PUBLICATION}")
        source.rows(f"drop table {published}")


def timed(stage: Stage, peer: Peer, tables: Sequence[str]) -> Copied:
    """Copy them, compare, and let the subscription and the copies go."""
    name = f"bench_copy_{peer.name}"
    stage.say(f"copying: {peer.name}")
    with (
        peer.connected() as client,
        stage.quick_slots(),
        Usage({peer.name: peer.pid}) as usage,
    ):
        started = time.perf_counter()
        stage.subscribe(client, name, PUBLICATION)
        wait_exactly(lambda: states(client, name) <= {"s", "r"}, f"{name} is copied")
        visible = time.perf_counter()
        wait_ready(client, name)
        ready = time.perf_counter()
    assert_same(stage, peer, [workload.fingerprint(table) for table in tables])
    with peer.connected() as client:
        drop_subscription(client, name)
        for table in tables:
            client.rows(f"drop table {workload.SCHEMA}.{table}")
    return Copied(visible - started, ready - started, usage)
