"""``large``: does the memory of a copy grow with the table?

A table of 2 M rows is copied, then one of 10 M; the kernel's high-water mark of each process
of the node, from CREATE SUBSCRIPTION until state r, is compared. A receiver, the engine and Spark's
Python workers must stay where they are. A JVM collects when its heap is used up, not when there is
something to collect: its heap has the bound that the settings give it.
"""

from __future__ import annotations

from typing import Final

from benchmarks.copies.copying import Copied, filled, timed
from benchmarks.heap import Heap, configured_bytes
from benchmarks.report import Target, megabytes, rate
from benchmarks.stage import Stage

_NAME: Final = "large"
_ROWS: Final = 2_000_000
_LARGE_ROWS: Final = 10_000_000

_ROLES: Final = ("receiver", "engine", "python worker")

_SAME: Final = Target(at_most=1.25)
"""Five times the rows, and no more than a quarter of growth: allocators keep what is free."""


def run(stage: Stage) -> None:
    """Measure both tables and add the results; nothing if there is no node."""
    if not stage.options.node:
        return
    few, many = stage.options.scaled(_ROWS), stage.options.scaled(_LARGE_ROWS)
    with Heap(stage.node_usage.pid("jvm")) as heap:
        small = _copied(stage, few)
        large = _copied(stage, many)
    stage.add(
        _NAME,
        f"{many:,} rows: CREATE SUBSCRIPTION to state r",
        "rows/s",
        rate(many, large.ready_seconds),
    )
    for role in _ROLES:
        before, after = (
            small.usage.peak_bytes(role=role),
            large.usage.peak_bytes(role=role),
        )
        stage.add(_NAME, f"{role}: peak RSS", "MB", megabytes(after))
        stage.add(
            _NAME,
            f"{role}: the same to that of {few:,} rows",
            "times",
            after / before if before and after else None,
            target=_SAME,
        )
    stage.add(
        _NAME, "jvm: peak RSS", "MB", megabytes(large.usage.peak_bytes(role="jvm"))
    )
    stage.add(
        _NAME,
        "jvm: largest heap, of the configured one",
        "MB",
        megabytes(heap.taken_bytes),
        target=Target(at_most=round(configured_bytes(stage.node.directory) / 1e6)),
    )


def _copied(stage: Stage, rows: int) -> Copied:
    with filled(stage, [_NAME], rows):
        return timed(stage, stage.ours, [_NAME])
