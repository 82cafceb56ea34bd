"""``idle``: what a node with ten tables costs while nothing happens.

Comes in: a stage. Goes out: CPU of the whole process tree as a share of one core, and the
resident memory of each of its processes. Nobody is connected to the node meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final

from benchmarks import workload
from benchmarks.report import Target
from benchmarks.stage import Stage, drop_subscription, states, wait_exactly
from benchmarks.usage import Usage

_NAME: Final = "idle"
_TABLES: Final = tuple(f"idle{i}" for i in range(10))
_ROWS: Final = 1000

_SETTLE_SECONDS: Final = 10.0
"""Python workers that nobody needs any more end, the JVM's compiler comes to rest."""

_LIMIT_PERCENT: Final = 5.0


def run(stage: Stage) -> None:
    """Measure and add the results; nothing if there is no node."""
    if not stage.options.node:
        return
    name = f"bench_{_NAME}_node"
    conninfo = stage.source.conninfo().replace("'", "''")
    with stage.at_source() as source:
        for table in _TABLES:
            source.rows(workload.create_table(table))
            source.rows(workload.insert_rows(table, 1, _ROWS))
        tables = ", ".join(f"{workload.SCHEMA}.{table}" for table in _TABLES)
        source.rows(f"create publication {_NAME} for table {tables}")
    with stage.at_node() as client, stage.quick_slots():
        client.rows(
            f"create subscription {name} connection '{conninfo}' publication {_NAME}"
        )
        wait_exactly(lambda: states(client, name) == {"r"}, f"{name} is ready")
    time.sleep(_SETTLE_SECONDS)
    seconds = stage.options.idle_seconds
    stage.say(f"idle: {len(_TABLES)} tables for {seconds} s")
    with Usage({"node": stage.node.pids()[0]}, interval_seconds=5.0) as usage:
        started = time.perf_counter()
        time.sleep(seconds)
        usage.sample()
        lasted = time.perf_counter() - started
    percent = 100 * usage.cpu_seconds("node") / lasted
    stage.add(
        _NAME,
        "CPU of all processes",
        "% of a core",
        percent,
        target=Target(at_most=_LIMIT_PERCENT),
    )
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for p in usage.processes:
        cpu = 100 * (p.cpu_seconds - p.cpu_before) / lasted
        shares[p.role].append((p.rss_bytes / 1e6, cpu))
    for role, found in sorted(shares.items()):
        label = role if len(found) == 1 else f"{role} ({len(found)})"
        stage.add(_NAME, f"{label}: RSS", "MB", sum(rss for rss, _ in found))
        stage.add(_NAME, f"{label}: CPU", "% of a core", sum(c for _, c in found))
    with stage.at_node() as client:
        drop_subscription(client, name)
    with stage.at_source() as source:
        source.rows(f"drop publication {_NAME}")
