"""``idle``: what a node with ten tables costs while nothing happens.

Comes in: a stage. Goes out: CPU of the whole process tree as a share of one core, and the
resident memory of each of its processes. Nobody is connected to the node meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.copies.copying import PUBLICATION, filled
from benchmarks.report import Target
from benchmarks.stage import Stage, drop_subscription, wait_ready
from benchmarks.usage import Usage

_NAME: Final = "idle"
_TABLES: Final = tuple(f"idle{i}" for i in range(10))
_ROWS: Final = 1000

_SETTLE_SECONDS: Final = 10.0
"""Python workers that nobody needs any more end, the JVM's compiler comes to rest."""

_SHARE: Final = "% of a core"

_CPU: Final = Target(at_most=5.0)
"""``_SHARE``."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A while in which nothing happened."""

    seconds: float
    usage: Usage

    def percent(self, cpu_seconds: float) -> float:
        """Of one core."""
        return 100 * cpu_seconds / self.seconds


def run(stage: Stage) -> None:
    """Measure and add the results; nothing if there is no node."""
    if not stage.options.node:
        return
    name = f"bench_{_NAME}_node"
    with filled(stage, _TABLES, _ROWS):
        with stage.at_node() as client, stage.quick_slots():
            stage.subscribe(client, name, PUBLICATION)
            wait_ready(client, name)
        report(stage, _NAME, rest(stage, _NAME), _CPU)
        with stage.at_node() as client:
            drop_subscription(client, name)
            for table in _TABLES:
                client.rows(f"drop table {workload.SCHEMA}.{table}")


def rest(stage: Stage, workload_name: str) -> Rest:
    """Leave the node alone for a while."""
    time.sleep(_SETTLE_SECONDS)
    seconds = stage.options.idle_seconds
    stage.say(f"{workload_name}: nothing for {seconds} s")
    with Usage({"node": stage.ours.pid}, interval_seconds=5.0) as usage:
        started = time.perf_counter()
        time.sleep(seconds)
        usage.sample()
        lasted = time.perf_counter() - started
    return Rest(lasted, usage)


def report(stage: Stage, workload_name: str, resting: Rest, cpu: Target) -> None:
    """Add what that cost."""
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for p in resting.usage.processes:
        share = resting.percent(p.cpu_seconds - p.cpu_before)
        shares[p.role].append((p.rss_bytes / 1e6, share))
    total = resting.percent(resting.usage.cpu_seconds())
    stage.add(workload_name, "idle: CPU of all processes", _SHARE, total, target=cpu)
    for role, each in sorted(shares.items()):
        label = role if len(each) == 1 else f"{role} ({len(each)})"
        stage.add(workload_name, f"{label}: RSS", "MB", sum(rss for rss, _ in each))
        stage.add(workload_name, f"{label}: CPU", _SHARE, sum(c for _, c in each))
