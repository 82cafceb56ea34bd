"""``keyless``: 100,000 updates of a table of 1 M rows that has no key, beside one that has.

Both are one transaction of the same rows. REPLICA IDENTITY FULL of the table without a key sends
each old row whole, and each is to be found among identical ones. From COMMIT to visible.

Comes in: a stage. Goes out: the median of both, and their quotient.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

from benchmarks import workload
from benchmarks.positions import reached
from benchmarks.report import Target
from benchmarks.stage import (
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)

_ROWS: Final = 1_000_000
_UPDATES: Final = 100_000
_ROUNDS: Final = 5
_LOOK_SECONDS: Final = 0.01

_TIMES: Final = Target(at_most=3.0)


def run(stage: Stage) -> None:
    """Measure both tables, one after the other, and add the results."""
    rows = stage.options.scaled(_ROWS)
    taken = {
        table: _measure(stage, table, rows, full=table == "keyless")
        for table in ("keyed", "keyless")
    }
    for table, seconds in taken.items():
        stage.add(
            "keyless", f"{table}: 100,000 updates, COMMIT to visible", "s", seconds
        )
    stage.add(
        "keyless",
        "without a key to with one",
        "times",
        taken["keyless"] / taken["keyed"],
        target=_TIMES,
    )


def _measure(stage: Stage, table: str, rows: int, *, full: bool) -> float:
    name, qualified = f"bench_{table}", f"{workload.SCHEMA}.{table}"
    peer, updates = stage.ours, stage.options.scaled(_UPDATES)
    stage.say(f"keyless: {table}")
    with stage.at_source() as source, peer.connected() as client:
        source.rows(workload.create_table(table))
        if full:
            source.rows(f"alter table {qualified} drop constraint {table}_pkey")
            source.rows(f"create index on {qualified} (id)")
            source.rows(f"alter table {qualified} replica identity full")
        source.rows(workload.insert_rows(table, 1, rows))
        source.rows(f"vacuum (analyze) {qualified}")
        source.rows(f"create publication {name} for table {qualified}")
        with stage.quick_slots():
            stage.subscribe(client, name, name)
            wait_ready(client, name)
        taken = []
        step = max(1, rows // updates)
        for i in range(_ROUNDS):
            where = f"id % {step} = {i % step}"
            mark = workload.marked(source, workload.update_rows(table, where))
            committed = time.perf_counter()
            wait_exactly(
                lambda mark=mark: reached(client, name) > mark,  # type: ignore[misc]
                "all updates are visible",
                pause_seconds=_LOOK_SECONDS,
            )
            taken.append(time.perf_counter() - committed)
        assert_same(stage, peer, (workload.fingerprint(table),))
        drop_subscription(client, name)
        client.rows(f"drop table {qualified}")
        source.rows(f"drop publication {name}")
        source.rows(f"drop table {qualified}")
    return statistics.median(taken)
