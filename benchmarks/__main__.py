"""``python -m benchmarks``: run the workloads, print the table, leave nothing behind.

Ends with 0 whatever the figures are: they are for people to judge, and a busy machine is
not a defect. A workload that fails, or a copy that differs from its source, ends the run with 1
after what was measured until then is printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Set
from types import FrameType
from typing import NoReturn

from benchmarks.applying import fragments, keyless, mixed, scattered, sustained
from benchmarks.changes import backlog, cores, decoding, latency, nullmodes, streamed
from benchmarks.changes.shapes import SHAPES
from benchmarks.copies import copying, idle, interrupted, large, tables
from benchmarks.operating import scraping, verified, watched
from benchmarks.options import Options, parse
from benchmarks.publishing import serving, slots
from benchmarks.report import Target, as_json, megabytes, render
from benchmarks.stage import Stage

_RECEIVER_RSS = Target(at_most=500.0)
"""MB."""


def main() -> int:
    """Run what the command line asks for."""
    options = parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    cores = len(os.sched_getaffinity(0))
    if os.getloadavg()[0] > cores / 2:
        print(
            f"warning: load average is {os.getloadavg()[0]:.1f} on {cores} cores:"
            " the machine is busy with something else, which distorts the figures",
            file=sys.stderr,
        )
    code = 0
    with Stage(options) as stage:
        try:
            _run(stage, options)
        except Exception:
            traceback.print_exc()
            code = 1
        except SystemExit:
            print("interrupted", file=sys.stderr)
            code = 130
        facts = stage.facts()
    print()
    print(render(stage.results))
    print("\n" + ", ".join(f"{name}: {value}" for name, value in facts.items()))
    if options.json is not None:
        text = json.dumps(as_json(facts, stage.results), indent=2)
        options.json.write_text(text + "\n")
    return code


def _run(stage: Stage, options: Options) -> None:
    chosen = set(options.workloads)
    if "decode" in chosen:
        decoding.run(stage)
    for plan in copying.PLANS:
        if plan.name in chosen:
            copying.run(stage, plan)
    if "large" in chosen:
        large.run(stage)
    if "interrupted" in chosen:
        interrupted.run(stage)
    for name, shape in SHAPES.items():
        null = name == "backlog" and "null" in chosen
        if name not in chosen and not null:
            continue
        subscribed = name in chosen
        with backlog.written(stage, shape(options), subscribed=subscribed) as made:
            if subscribed:
                backlog.run(stage, made)
            if null:
                nullmodes.run(stage, made)
    if "cores" in chosen:
        cores.run(stage)
    for load in latency.LOADS:
        if load.name in chosen:
            latency.run(stage, load)
    for stream in streamed.PLANS:
        if stream.name in chosen:
            streamed.run(stage, stream)
    if options.node:
        _apply(stage, chosen)
    if options.node and chosen & {"copy", "backlog", "latency"}:
        stage.add(
            "memory",
            "receiver: peak RSS until here",
            "MB",
            megabytes(stage.node_usage.peak_bytes(role="receiver")),
            target=_RECEIVER_RSS,
        )
    if "tables" in chosen:
        tables.run(stage)
    if "scrape" in chosen:
        scraping.run(stage)
    if "idle" in chosen:
        idle.run(stage)


def _apply(stage: Stage, chosen: Set[str]) -> None:
    if "scattered" in chosen:
        scattered.run(stage)
    if "keyless" in chosen:
        keyless.run(stage)
    if "fragments" in chosen:
        fragments.run(stage)
    if "tpcb" in chosen:
        sustained.run(stage)
    if "mixed" in chosen:
        mixed.run(stage)
    if "watched" in chosen:
        watched.run(stage)
    if "serve" in chosen:
        serving.run(stage)
    if "slots" in chosen:
        slots.run(stage)
    if "verify" in chosen:
        verified.run(stage)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    # Not KeyboardInterrupt: to a connection that means to cancel the statement.
    raise SystemExit(130)


if __name__ == "__main__":
    sys.exit(main())
