"""``scattered``: 1,000 updates of one row each, at random, into tables of 1, 10 and 50 M rows.

How long a batch takes must not grow with its table. Each round is 1,000 transactions that touch
as many rows, anywhere in the table; it lasts from the first of them to the moment at which
pg_replication_origin_status of the node is beyond the last. The first round of a table stands by
itself: what is learnt of a table (where its keys are) is learnt there. The others' median counts.

Comes in: a stage. Goes out: the median of each size, and how many times that of the smallest one it
is. The native subscriber is not asked: an index takes it the same time whatever the size.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Final

from benchmarks import workload
from benchmarks.positions import reached
from benchmarks.report import Target, megabytes
from benchmarks.stage import (
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.pg.client import Client

_PUBLICATION: Final = "bench_scattered"
_UPDATES: Final = 1_000
_ROUNDS: Final = 7
_LOOK_SECONDS: Final = 0.01
_PART_ROWS: Final = 5_000_000
"""Written by one statement at the source."""

_SIZES: Final = (
    (1_000_000, None),
    (10_000_000, Target(at_most=1.5)),
    (50_000_000, Target(at_most=4.0)),
)


def run(stage: Stage) -> None:
    """Measure one size after the other and add the results."""
    smallest: float | None = None
    for rows, target in _SIZES:
        first, later, engine = _measure(stage, stage.options.scaled(rows))
        usual = statistics.median(later)
        smallest = smallest or usual
        label = f"{rows:,} rows: 1,000 updates to all visible"
        stage.add("scattered", f"{label}, median [s]", "s", usual)
        stage.add("scattered", f"{rows:,} rows: the slowest", "s", max(later))
        stage.add("scattered", f"{rows:,} rows: the first", "s", first)
        stage.add("scattered", f"{rows:,} rows: engine's peak RSS", "MB", engine)
        if target is not None:
            stage.add(
                "scattered",
                f"{rows:,} rows: median, times the smallest table's",
                "times",
                usual / smallest,
                target=target,
            )


def _measure(stage: Stage, rows: int) -> tuple[float, list[float], float | None]:
    """The first round, the others, and the engine's largest size in MB."""
    name, table = _PUBLICATION, f"scattered_{rows}"
    peer = stage.ours
    stage.say(f"scattered: writing {rows:,} rows")
    with stage.at_source() as source:
        source.rows("set synchronous_commit = off")
        source.rows(workload.create_table(table))
        for first in range(1, rows + 1, _PART_ROWS):
            last = min(rows, first + _PART_ROWS - 1)
            source.rows(workload.insert_rows(table, first, last))
        source.rows(f"vacuum (analyze) {workload.SCHEMA}.{table}")
        source.rows("checkpoint")
        source.rows(f"create publication {name} for table {workload.SCHEMA}.{table}")
    chosen = random.Random(rows)
    with peer.connected() as client, stage.at_source() as source:
        with stage.quick_slots():
            stage.subscribe(client, name, name)
            wait_ready(client, name)
        stage.say(f"scattered: {_ROUNDS + 1} rounds")
        with Usage({peer.name: peer.pid}) as usage:
            taken = [
                _round(client, source, table, chosen.sample(range(1, rows + 1), count))
                for count in [min(_UPDATES, rows)] * (_ROUNDS + 1)
            ]
        assert_same(stage, peer, (workload.fingerprint(table),))
        drop_subscription(client, name)
        client.rows(f"drop table {workload.SCHEMA}.{table}")
        source.rows(f"drop publication {name}")
        source.rows(f"drop table {workload.SCHEMA}.{table}")
    return taken[0], taken[1:], megabytes(usage.peak_bytes(role="engine"))


def _round(client: Client, source: Client, table: str, keys: list[int]) -> float:
    *most, last = keys
    update = workload.update_rows(table, "id = key")
    listed = ",".join(map(str, most))
    source.rows("set synchronous_commit = off")
    started = time.perf_counter()
    source.rows(
        "do $$ declare key bigint; begin"
        f" foreach key in array array[{listed}]::bigint[] loop {update}; commit; end loop;"
        " end $$"
    )
    source.rows("set synchronous_commit = on")
    mark = workload.marked(source, workload.update_rows(table, f"id = {last}"))
    wait_exactly(
        lambda: reached(client, _PUBLICATION) > mark,
        "all updates are visible",
        pause_seconds=_LOOK_SECONDS,
    )
    return time.perf_counter() - started
