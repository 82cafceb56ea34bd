"""The command line of ``python -m benchmarks``.

Comes in: arguments. Goes out: ``Options``, or argparse's error. Pure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORKLOADS: Final = {
    "decode": "wire.columnar alone, over made-up streams; needs no server",
    "copy": "initial copy of 2 M rows",
    "several": "initial copy of 8 tables of 500,000 rows at once",
    "large": "memory while 10 M rows are copied, beside that of 2 M",
    "interrupted": "kill -9 of the engine, and of all, when 90 % are copied",
    "backlog": "1.7 M row changes written while the subscription was disabled",
    "null": "the same changes through our receiver's stages alone, and pg_recvlogical",
    "wide": "a backlog of a table of 64 columns",
    "texts": "a backlog of texts of 1 KB",
    "many": "a backlog of single-row transactions over 50 tables",
    "cores": "a backlog on one core of this machine, and on all",
    "latency": "single-row transactions at 200/s: commit to flushed, commit to visible",
    "busy": "the same with 1,800 more transactions a second beside them",
    "streamed": "one transaction of 10 M rows, streamed, and small ones beside it",
    "interleaved": "500 open transactions of 10,000 rows each",
    "visible": "the same over three tables: commit to visible",
    "scattered": "1,000 updates at random into tables of 1, 10 and 50 M rows",
    "keyless": "100,000 updates of a table without a key, and of one with a key",
    "fragments": "reading a table after 1,000 commits of 200 rows",
    "tpcb": "pgbench, scale 10: 1,000/s for --seconds, then as much as can be followed",
    "mixed": "120 and 200 mixed transactions a second over 17 tables, and a backlog of them",
    "watched": "a backlog while scrapers, pages, nonsense and a hanging webhook are there",
    "tables": "500 small tables: their copy, a round of changes, nothing",
    "serve": "the node as publisher to a PostgreSQL: stream, copy, commits",
    "slots": "one commit of 10 M rows, read by a slot, by ten, and beside nine that stand still",
    "verify": "VERIFY of 10 M rows, and again after 1 % has changed",
    "scrape": "/metrics of a node with 1,000 tables; needs no server",
    "idle": "a node with ten tables and nothing to do",
}
"""Name to what it measures, in the order in which they run."""

OPT_IN: Final = frozenset(
    {"cores", "scattered", "fragments", "tpcb", "mixed", "watched", "slots", "verify"}
)
"""Only when they are named: they would make the whole run too long."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure and how much of it."""

    workloads: tuple[str, ...]
    """In running order, whatever the order on the command line."""
    rows_scale: float
    """1 is the size that the targets are about."""
    seconds: int
    """Length of ``latency``, ``busy``, ``visible``, ``tpcb`` and ``mixed``."""
    idle_seconds: int
    json: Path | None
    node: bool
    """False: only PostgreSQL and the null modes, no node."""

    def scaled(self, full: int) -> int:
        """A number of rows or tables at this scale; at least one."""
        return max(1, round(full * self.rows_scale))


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the process with its usage if it makes no sense."""
    listing = "\n".join(
        f"  {name:11} {text}{' (only if named)' if name in OPT_IN else ''}"
        for name, text in WORKLOADS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure wal2lake beside PostgreSQL's own subscriber.",
        epilog=f"workloads (default: all but those that say otherwise):\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    parser.add_argument(
        "--rows-scale",
        type=_positive,
        default=1.0,
        metavar="X",
        help="multiply the numbers of rows (targets are for 1)",
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=30,
        help="length of latency, busy, visible, tpcb and mixed (default 30)",
    )
    parser.add_argument(
        "--idle-seconds", type=int, default=30, help="length of idle (default 30)"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--no-node",
        action="store_true",
        help="measure the native subscriber only (and the null modes)",
    )
    parsed = parser.parse_args(arguments)
    for name in parsed.workloads:
        if name not in WORKLOADS:
            parser.error(f"no workload {name!r} (choose from {', '.join(WORKLOADS)})")
    if parsed.seconds < 1 or parsed.idle_seconds < 1:
        parser.error("a length must be at least one second")
    return Options(
        workloads=tuple(
            n for n in WORKLOADS if n in (parsed.workloads or WORKLOADS.keys() - OPT_IN)
        ),
        rows_scale=parsed.rows_scale,
        seconds=parsed.seconds,
        idle_seconds=parsed.idle_seconds,
        json=parsed.json,
        node=not parsed.no_node,
    )


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
