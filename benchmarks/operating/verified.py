"""``verify``: what it costs to prove that a table of 10 M rows is right.

A table is copied, and VERIFY compares it: once as it is, and again after 1 % of its rows have been
changed, side by side or scattered. Source and node are on this machine and share its cores.

Comes in: a stage. Goes out: seconds, CPU of both sides, the engine's largest resident memory.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks import workload
from benchmarks.copies.copying import PUBLICATION, filled
from benchmarks.report import Target, megabytes
from benchmarks.stage import Stage, drop_subscription, wait_ready
from benchmarks.usage import Usage
from wal2lake.pg.client import Client

_NAME: Final = "verify"
_ROWS: Final = 10_000_000

_TIME: Final = Target(at_most=8.0)
"""Seconds."""
_CLUSTERED: Final = Target(at_most=5.0)
_SCATTERED: Final = Target(at_most=60.0)
"""Per cent of the first comparison."""


def run(stage: Stage) -> None:
    """Measure and add the results; nothing if there is no node."""
    if not stage.options.node:
        return
    rows = stage.options.scaled(_ROWS)
    name = f"bench_{_NAME}"
    with filled(stage, [_NAME], rows), stage.ours.connected() as client:
        stage.subscribe(client, name, PUBLICATION)
        wait_ready(client, name)
        full = _verified(stage, client, f"VERIFY of {rows:,} rows", None, _TIME)
        for what, where, target in (
            ("side by side", f"id between 1 and {max(1, rows // 100)}", _CLUSTERED),
            ("scattered", "id % 100 = 7", _SCATTERED),
        ):
            with stage.at_source() as source:
                source.rows(workload.update_rows(_NAME, where))
                end = source.rows("select pg_current_wal_flush_lsn()")[0][0]
            client.rows(f"wait for lsn '{end}'")
            _verified(stage, client, f"the same, 1 % changed {what}", full, target)
        drop_subscription(client, name)
        client.rows(f"drop table {workload.SCHEMA}.{_NAME}")


def _verified(
    stage: Stage, client: Client, what: str, full: float | None, target: Target
) -> float:
    """Compare, and add the results. ``full``: seconds of the comparison of all rows."""
    stage.say(what)
    source = stage.source.pid
    with Usage({"node": stage.ours.pid, "source": source}) as usage:
        started = time.perf_counter()
        result = client.rows("verify subscription bench_verify")[0][2]
        seconds = time.perf_counter() - started
    if result != "equal":
        raise AssertionError(f"the copy is {result}")
    if full is None:
        stage.add(_NAME, what, "s", seconds, target=target)
    else:
        stage.add(_NAME, what, "%", 100 * seconds / full, target=target)
    for tree in ("node", "source"):
        stage.add(_NAME, f"CPU of the {tree}", "s", usage.cpu_seconds(tree))
    peak = megabytes(usage.peak_bytes("node", "engine"))
    stage.add(_NAME, "engine: peak RSS", "MB", peak)
    return seconds
