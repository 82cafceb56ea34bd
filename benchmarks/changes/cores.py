"""``cores``: the backlog once more, on one core of this machine and on all of them.

Everything is started anew for each number of cores and may use no others: source, native
subscriber, node, and who measures. So the node sees as many cores as it has, and the walsender
competes with both subscribers as it would on such a machine. A small backlog goes first, which is
what a JVM that has just started costs.

A native subscriber applies in one process: what it gains is what the walsender leaves it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.changes import backlog, shapes
from benchmarks.report import Target
from benchmarks.stage import Comparison, Stage

_NAME: Final = "cores"

_SCALE: Final = 0.5
"""Of the backlog's rows."""

_FIRST_SCALE: Final = 0.05
"""The same of what goes first."""

_RISES: Final = Target(at_least=1.1)
"""Less than a tenth more may be chance."""


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Changes a second of one peer."""

    one_core: float
    all_cores: float


def run(stage: Stage) -> None:
    """Measure with one core and with all and add the results."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        stage.say("cores: there is only one")
        return
    one_core, all_cores = _speeds(stage, cores[:1]), _speeds(stage, cores)
    both = {peer: _Speeds(one_core[peer], all_cores[peer]) for peer in one_core}
    comparison = Comparison(stage, _NAME, both)
    comparison.add(
        "1 core: start of streaming to all visible", "changes/s", lambda s: s.one_core
    )
    comparison.add(f"{len(cores)} cores: the same", "changes/s", lambda s: s.all_cores)
    comparison.add(
        f"{len(cores)} cores to 1", "times", lambda s: s.all_cores / s.one_core, _RISES
    )


def _speeds(stage: Stage, cores: Collection[int]) -> Mapping[str, float]:
    """Changes a second of each peer, where only these cores are."""
    stage.say(f"cores: {len(cores)}")
    with _only_on(cores), Stage(stage.options) as own:
        for scale in (_FIRST_SCALE, _SCALE):
            options = replace(
                stage.options, rows_scale=stage.options.rows_scale * scale
            )
            shape = shapes.backlog(options)
            with backlog.written(own, shape, subscribed=True) as made:
                caught = backlog.catch_up(own, made)
        return {name: shape.changes / result.seconds for name, result in caught.items()}


@contextmanager
def _only_on(cores: Collection[int]) -> Iterator[None]:
    """What is started meanwhile stays on these cores for ever."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
