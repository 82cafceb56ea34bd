"""``tpcb``: pgbench's own workload at scale 10, as fast as a subscriber can follow.

Four tables, one of which is only inserted into. First 1,000 transactions a second for as long as
``--seconds`` says (the target is about five minutes): how far is the subscriber behind, in seconds,
and does that grow? Then rising rates, each for a while, until it cannot follow: the last rate that
it did follow is what it sustains. The native subscriber goes the same way.

How far behind at a moment: the time since the source was where the subscriber is now
(``positions``). It follows if it is no further behind in the last third than in the first one,
give or take a second, and has everything soon after the end.

Comes in: a stage. Goes out: seconds behind, and the rates.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.positions import behind, looking, reached, written
from benchmarks.report import Target, percentile
from benchmarks.stage import (
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from benchmarks.workload import marked

_PUBLICATION: Final = "bench_tpcb"
_SCALE: Final = 10
_TABLES: Final = (
    "pgbench_accounts",
    "pgbench_branches",
    "pgbench_tellers",
    "pgbench_history",
)
_STEADY: Final = 1_000
_RATES: Final = (1_500, 2_000, 2_500, 3_000, 4_000, 5_000, 6_000)
_STEP_SECONDS: Final = 40
_CLIENTS: Final = 8
_LOOK_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 1.0
"""By which it may be further behind at the end than at the beginning."""

_DRAIN_SECONDS: Final = 5.0
_SHORT_OF: Final = 0.95
"""A source that commits fewer than this share of a rate is at its end."""

_BEHIND: Final = Target(at_most=_GRACE_SECONDS)
_SUSTAINED: Final = Target(at_least=1_000.0)

_CHECKS: Final = (
    "select count(*), sum(abalance), sum(bid) from pgbench_accounts",
    "select count(*), sum(bbalance) from pgbench_branches",
    "select count(*), sum(tbalance) from pgbench_tellers",
    "select count(*), sum(delta), sum(aid) from pgbench_history",
)


@dataclass(frozen=True, slots=True)
class _Followed:
    """One stretch at one rate."""

    per_second: float
    """What the source did commit."""
    behind: Sequence[float]
    """Seconds, at each look."""
    drained: float
    """Seconds from the end until everything was there."""
    cpu_cores: float

    @property
    def grown(self) -> float:
        """By how many seconds it is further behind at the end, as thirds' medians."""
        third = max(1, len(self.behind) // 3)
        first = percentile(self.behind[:third], 50)
        last = percentile(self.behind[-third:], 50)
        return (last or 0.0) - (first or 0.0)

    @property
    def follows(self) -> bool:
        return self.grown <= _GRACE_SECONDS and self.drained <= _DRAIN_SECONDS


@dataclass(frozen=True, slots=True)
class _Measured:
    steady: _Followed
    sustained: float
    """Transactions per second."""
    limited_by_source: bool


def run(stage: Stage) -> None:
    """Measure both and add the results."""
    with stage.at_source() as source:
        _initialise(stage, stage.source.conninfo(), rows=True)
        source.rows(f"create publication {_PUBLICATION} for table {', '.join(_TABLES)}")
    _initialise(stage, stage.native.conninfo(), rows=False)
    measured = {peer.name: _measure(stage, peer) for peer in stage.peers()}
    comparison = Comparison(stage, "tpcb", measured)
    comparison.add(
        "1,000/s: committed each second", "1/s", lambda m: m.steady.per_second
    )
    for percent in (50, 99, 100):
        comparison.add(
            f"1,000/s: behind, p{percent}"
            if percent < 100
            else "1,000/s: behind, most",
            "s",
            lambda m, p=percent: percentile(m.steady.behind, p),  # type: ignore[misc]
        )
    comparison.add(
        "1,000/s: further behind at the end than at the beginning",
        "s",
        lambda m: m.steady.grown,
        _BEHIND,
    )
    comparison.add(
        "1,000/s: CPU of the subscriber", "cores", lambda m: m.steady.cpu_cores
    )
    comparison.add("followed up to", "1/s", lambda m: m.sustained, _SUSTAINED)
    comparison.add(
        "the source itself gave no more", "yes=1", lambda m: float(m.limited_by_source)
    )
    with stage.at_source() as source:
        source.rows(f"drop publication {_PUBLICATION}")
        source.rows(f"drop table {', '.join(_TABLES)}")


def _initialise(stage: Stage, conninfo: str, *, rows: bool) -> None:
    subprocess.run(
        [
            stage.source.installation.bin / "pgbench",
            *("--initialize", "--quiet", "--scale", str(_SCALE)),
            *("--init-steps", "dtGvp" if rows else "dtp", conninfo),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _measure(stage: Stage, peer: Peer) -> _Measured:
    name = f"{_PUBLICATION}_{peer.name}"
    with peer.connected() as client, stage.quick_slots():
        stage.subscribe(client, name, _PUBLICATION)
        wait_ready(client, name)
    steady = _follow(stage, peer, name, _STEADY, stage.options.seconds)
    sustained, limited = steady.per_second if steady.follows else 0.0, False
    for rate in _RATES if steady.follows else ():
        tried = _follow(stage, peer, name, rate, _STEP_SECONDS)
        if not tried.follows:
            break
        sustained = max(sustained, tried.per_second)
        if tried.per_second < rate * _SHORT_OF:
            limited = True
            break
    assert_same(stage, peer, _CHECKS)
    with peer.connected() as client:
        drop_subscription(client, name)
        client.rows(f"drop table {', '.join(_TABLES)}")
    return _Measured(steady, sustained, limited)


def _follow(stage: Stage, peer: Peer, name: str, rate: int, seconds: int) -> _Followed:
    stage.say(f"tpcb: {peer.name}, {rate:,}/s for {seconds} s")
    with (
        looking(stage.at_source, written, pause_seconds=_LOOK_SECONDS) as gone,
        looking(
            peer.connected, lambda c: reached(c, name), pause_seconds=_LOOK_SECONDS
        ) as seen,
        Usage({peer.name: peer.pid}, interval_seconds=1.0) as usage,
    ):
        started = time.perf_counter()
        count = _pgbench(stage, rate, seconds)
        ended = time.perf_counter()
        usage.sample()
        cpu_cores = usage.cpu_seconds(peer.name) / (ended - started)
        with stage.at_source() as source:
            mark = marked(source, "update pgbench_branches set bbalance = bbalance")
        wait_exactly(lambda: seen.beyond(int(mark)), f"{name} has everything")
        drained = time.perf_counter() - ended
    late = list(behind(gone, seen, started, ended))
    followed = _Followed(count / (ended - started), late, drained, cpu_cores)
    stage.say(
        f"tpcb: {peer.name}, {followed.per_second:,.0f}/s, behind p50"
        f" {percentile(late, 50) or 0:.2f} s, grown by {followed.grown:.2f} s,"
        f" drained in {drained:.1f} s"
    )
    return followed


def _pgbench(stage: Stage, rate: int, seconds: int) -> int:
    """Transactions that were committed."""
    done = subprocess.run(
        [
            stage.source.installation.bin / "pgbench",
            *("--no-vacuum", "--builtin", "tpcb-like", "--client", str(_CLIENTS)),
            *("--rate", str(rate), "--time", str(seconds), stage.source.conninfo()),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds * 3 + 60,
    )
    match = re.search(r"actually processed: ([0-9]+)", done.stdout)
    if match is None:
        raise RuntimeError(f"pgbench says: {done.stdout}")
    return int(match[1])
