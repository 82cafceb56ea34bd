"""``copy``: a large table, from CREATE SUBSCRIPTION until it is in step.

Comes in: a stage. Goes out: rows per second of the node and of a native subscriber, from the
start of the command to state r of pg_subscription_rel, and to the first moment at which the rows
can be read. One after the other, the native one first, from the same table.

A small table goes first. On a node that has just started it is the first thing that Spark is
asked to do; how long that takes is a figure of its own and not one about copying.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from benchmarks import workload
from benchmarks.report import Target, rate
from benchmarks.stage import Stage, drop_subscription, states, wait_exactly
from benchmarks.usage import Usage
from wal2lake.pg.client import Client

_NAME: Final = "copy"
_ROWS: Final = 2_000_000
_SMALL_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Copied:
    visible_seconds: float
    """Until the rows can be read (s or r)."""
    ready_seconds: float
    cpu_seconds: float


def run(stage: Stage) -> None:
    """Measure both tables with both and add the results."""
    ours, theirs = _both(stage, "first_copied", _SMALL_ROWS)
    stage.add(
        _NAME,
        f"first copy after a start, {_SMALL_ROWS:,} rows",
        "s",
        ours.ready_seconds if ours else None,
        theirs.ready_seconds,
    )
    rows = stage.options.rows(_ROWS)
    _report(stage, rows, *_both(stage, "copied", rows))


def _both(stage: Stage, table: str, rows: int) -> tuple[_Copied | None, _Copied]:
    stage.say(f"copy: writing {rows:,} rows")
    with stage.at_source() as source:
        source.rows(workload.create_table(table))
        source.rows(workload.insert_rows(table, 1, rows))
        source.rows(f"vacuum (analyze) {workload.SCHEMA}.{table}")
        source.rows("checkpoint")
        source.rows(f"create publication {_NAME} for table {workload.SCHEMA}.{table}")
    with stage.at_native() as native:
        native.rows(workload.create_table(table))
        native.rows("checkpoint")
    stage.say("copy: the native subscriber")
    theirs = _timed(stage, "native", stage.native.pid, stage.at_native, table)
    ours: _Copied | None = None
    if stage.options.node:
        pid = stage.node.pids()[0]
        stage.say("copy: the node")
        ours = _timed(stage, "node", pid, stage.at_node, table)
    with stage.at_source() as source:
        source.rows(f"drop publication {_NAME}")
        source.rows(f"drop table {workload.SCHEMA}.{table}")
    return ours, theirs


def _timed(
    stage: Stage,
    peer: str,
    pid: int,
    connected: Callable[[], AbstractContextManager[Client]],
    table: str,
) -> _Copied:
    name = f"bench_{_NAME}_{peer}"
    with connected() as client, stage.quick_slots(), Usage({peer: pid}) as usage:
        started = time.perf_counter()
        client.rows(
            f"create subscription {name} connection '{_quoted(stage)}'"
            f" publication {_NAME}"
        )
        wait_exactly(lambda: states(client, name) <= {"s", "r"}, f"{name} is copied")
        visible = time.perf_counter()
        wait_exactly(lambda: states(client, name) == {"r"}, f"{name} is ready")
        ready = time.perf_counter()
    with connected() as client, stage.at_source() as source:
        expected = source.rows(workload.fingerprint(table))
        found = client.rows(workload.fingerprint(table))
        drop_subscription(client, name)
    if found != expected:
        raise AssertionError(f"the {peer} copy differs: {found}, expected {expected}")
    return _Copied(visible - started, ready - started, usage.cpu_seconds(peer))


def _quoted(stage: Stage) -> str:
    return stage.source.conninfo().replace("'", "''")


def _report(stage: Stage, rows: int, ours: _Copied | None, theirs: _Copied) -> None:
    def add(
        what: str,
        unit: str,
        of: Callable[[_Copied], float | None],
        target: Target | None,
    ) -> None:
        stage.add(_NAME, what, unit, of(ours) if ours else None, of(theirs), target)

    add(
        "CREATE SUBSCRIPTION to state r",
        "rows/s",
        lambda c: rate(rows, c.ready_seconds),
        Target(ratio_at_least=1.0),
    )
    add(
        "CREATE SUBSCRIPTION to readable",
        "rows/s",
        lambda c: rate(rows, c.visible_seconds),
        None,
    )
    add("the same", "s", lambda c: c.visible_seconds, None)
    add(
        "CPU of the subscriber per million rows",
        "s",
        lambda c: c.cpu_seconds / rows * 1e6,
        None,
    )
