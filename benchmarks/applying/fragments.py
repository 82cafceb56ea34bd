"""``fragments``: reading a table after 1,000 small commits, and the same rows copied anew.

Each commit is a transaction of 200 rows, 100 of them new and 100 anywhere in the table, that is
visible before the next one begins; so each is a commit of the table, too. Then all of its columns
are read at the front door, and again after wal2lake.recopy_table().

Comes in: a stage. Goes out: the median of both scans, and their quotient.
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
    states,
    wait_exactly,
    wait_ready,
)
from wal2lake.pg.client import Client

_NAME: Final = "bench_fragments"
_TABLE: Final = "fragments"
_QUALIFIED: Final = f"{workload.SCHEMA}.{_TABLE}"
_ROWS: Final = 1_000_000
_COMMITS: Final = 1_000
_WARMING_SCANS: Final = 10
"""Before each measurement: the JVM has compiled more when the second one begins."""
_SCANS: Final = 7
_LOOK_SECONDS: Final = 0.01

_TIMES: Final = Target(at_most=1.3)


def run(stage: Stage) -> None:
    """Measure and add the results."""
    rows, commits = stage.options.scaled(_ROWS), stage.options.scaled(_COMMITS)
    peer = stage.ours
    with stage.at_source() as source, peer.connected() as client:
        source.rows(workload.create_table(_TABLE))
        source.rows(workload.insert_rows(_TABLE, 1, rows))
        source.rows(f"vacuum (analyze) {_QUALIFIED}")
        source.rows(f"create publication {_NAME} for table {_QUALIFIED}")
        with stage.quick_slots():
            stage.subscribe(client, _NAME, _NAME)
            wait_ready(client, _NAME)
        stage.say(f"fragments: {commits:,} commits")
        started = time.perf_counter()
        for i in range(commits):
            _commit(source, client, rows, i)
        lasted = time.perf_counter() - started
        assert_same(stage, peer, (workload.fingerprint(_TABLE),))
        after = _scan(client)
        stage.say("fragments: the same rows, copied anew")
        with stage.quick_slots():
            client.rows(f"select wal2lake.recopy_table('{_QUALIFIED}')")
            wait_exactly(
                lambda: states(client, _NAME) != {"r"}, f"{_NAME} is copied again"
            )
            wait_ready(client, _NAME)
        fresh = _scan(client)
        drop_subscription(client, _NAME)
        client.rows(f"drop table {_QUALIFIED}")
        source.rows(f"drop publication {_NAME}")
        source.rows(f"drop table {_QUALIFIED}")
    stage.add("fragments", "each commit, to visible (mean)", "s", lasted / commits)
    stage.add("fragments", "scan after them", "s", after)
    stage.add("fragments", "scan of a fresh table", "s", fresh)
    stage.add(
        "fragments", "the one to the other", "times", after / fresh, target=_TIMES
    )


def _commit(source: Client, client: Client, rows: int, number: int) -> None:
    first = rows + number * 100 + 1
    changed = ", ".join(str(1 + (number * 100 + i) * 7919 % rows) for i in range(100))
    mark = workload.marked(
        source,
        workload.insert_rows(_TABLE, first, first + 99)
        + "; "
        + workload.update_rows(_TABLE, f"id in ({changed})"),
    )
    wait_exactly(
        lambda: reached(client, _NAME) > mark,
        "the commit is visible",
        pause_seconds=_LOOK_SECONDS,
    )


def _scan(client: Client) -> float:
    for _ in range(_WARMING_SCANS):
        client.rows(workload.fingerprint(_TABLE))
    taken = []
    for _ in range(_SCANS):
        started = time.perf_counter()
        client.rows(workload.fingerprint(_TABLE))
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
