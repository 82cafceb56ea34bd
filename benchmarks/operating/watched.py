"""``watched``: apply's speed while everybody looks at the node, beside its speed while nobody does.

A backlog is caught up with again and again, in turn with a ``Crowd`` of visitors and a webhook that
hangs, and without them. The table owes its readers a freshness that it cannot keep meanwhile, so
there are alerts to send. Rounds go alone, watched, watched, alone, so that what changes with time
concerns both alike. The first round is not counted: the JVM compiles.

Comes in: a stage. Goes out: changes a second of both (medians) and CPU of the node for as many
changes, their ratios, and what the web process has used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from benchmarks import workload
from benchmarks.operating.crowd import Crowd, HangingWebhook
from benchmarks.positions import reached
from benchmarks.report import Target, megabytes
from benchmarks.stage import (
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    slot_is_active,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.launch import read_web_status
from wal2lake.pg.client import Client
from wal2lake.settings import FILE_NAME
from wal2lake.testing.node import Node, run_cli

_NAME: Final = "bench_watched"
_TABLE: Final = "watched"
_QUALIFIED: Final = f"{workload.SCHEMA}.{_TABLE}"
_TURNS: Final = (False, True, True, False)
_PERIODS: Final = 3

_LOOK_SECONDS: Final = 0.02
_FRESHNESS: Final = "100ms"

_RATIO: Final = Target(at_least=0.95)
"""What is missing could be noise."""
_CPU: Final = Target(at_most=1.05)
"""It depends less than the speed on what else the machine does."""
_MEMORY: Final = Target(at_most=120.0)
"""MB."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A backlog that was caught up with."""

    is_watched: bool
    speed: float
    """Changes a second."""
    cpu_seconds: float
    """Of the node's other processes, for a million changes."""
    web_cpu_cores: float
    web_peak_bytes: int


def run(stage: Stage) -> None:
    """Measure and add the results."""
    options = stage.options
    size = workload.BacklogSize(
        max(1000, options.scaled(600_000)),
        options.scaled(300_000),
        options.scaled(100_000),
    )
    with _subscribed(stage) as node:
        peer = Peer("node", node.pids()[0], lambda: node.connect())
        _catch_up(stage, peer, size, is_watched=False)
        rounds = []
        for is_watched in _TURNS * _PERIODS:
            if is_watched:
                with _visited(node):
                    rounds.append(_catch_up(stage, peer, size, is_watched=True))
            else:
                rounds.append(_catch_up(stage, peer, size, is_watched=False))
        assert_same(stage, peer, (workload.fingerprint(_TABLE),))
    _report(stage, rounds)


def _report(stage: Stage, rounds: list[_Round]) -> None:
    alone = [r.speed for r in rounds if not r.is_watched]
    watched = [r for r in rounds if r.is_watched]
    with_visitors = statistics.median(r.speed for r in watched)
    stage.add(_TABLE, "nobody looks", "changes/s", statistics.median(alone))
    stage.add(_TABLE, "the fastest to the slowest", "times", max(alone) / min(alone))
    stage.add(_TABLE, "with visitors", "changes/s", with_visitors)
    ratio = with_visitors / statistics.median(alone)
    stage.add(_TABLE, "with visitors to without", "times", ratio, target=_RATIO)
    cpu = [
        statistics.median(r.cpu_seconds for r in rounds if r.is_watched is is_watched)
        for is_watched in (False, True)
    ]
    stage.add(_TABLE, "nobody looks: CPU per million changes", "s", cpu[0])
    stage.add(_TABLE, "with visitors: the same, but for the web process", "s", cpu[1])
    stage.add(_TABLE, "the one to the other", "times", cpu[1] / cpu[0], target=_CPU)
    cores = statistics.median(r.web_cpu_cores for r in watched)
    stage.add(_TABLE, "web process: CPU", "% of a core", 100 * cores)
    peak = megabytes(max(r.web_peak_bytes for r in watched))
    stage.add(_TABLE, "web process: peak RSS", "MB", peak, target=_MEMORY)


@contextmanager
def _subscribed(stage: Stage) -> Iterator[Node]:
    """A node of its own, with a page, that mirrors an empty table."""
    directory = stage.folder / "watched"
    with (
        Node(directory, settings={"web.listen": "127.0.0.1:0"}) as node,
        stage.at_source() as source,
    ):
        node.init("-U", "postgres").start()
        wait_exactly(lambda: _port(node), "the page is there")
        source.rows(workload.create_table(_TABLE))
        source.rows(f"create publication {_NAME} for table {_QUALIFIED}")
        with node.connect() as client:
            with stage.quick_slots():
                stage.subscribe(client, _NAME, _NAME)
                wait_ready(client, _NAME)
            client.rows(f"alter table {_QUALIFIED} set (freshness = '{_FRESHNESS}')")
            yield node
            drop_subscription(client, _NAME)
        source.rows(f"drop publication {_NAME}")
        source.rows(f"drop table {_QUALIFIED}")


@contextmanager
def _visited(node: Node) -> Iterator[None]:
    """The visitors are there, and alerts go to a webhook that hangs."""
    with HangingWebhook() as webhook, _alerts_to(node, webhook.url):
        with Crowd(_port(node)):
            yield
        if not webhook.calls:
            raise RuntimeError("no alert was sent")


@contextmanager
def _alerts_to(node: Node, url: str) -> Iterator[None]:
    file = node.directory / FILE_NAME
    before = file.read_text()
    after = before.replace("# webhook_url =", f"webhook_url = {url!r} #").replace(
        "# delay_ms =", "delay_ms = 0 #"
    )
    try:
        _load(node, after)
        yield
    finally:
        _load(node, before)


def _load(node: Node, text: str) -> None:
    (node.directory / FILE_NAME).write_text(text)
    done = run_cli("reload", "-D", node.directory)
    if done.returncode != 0:
        raise RuntimeError(f"the settings were not loaded: {done.stderr}")


def _port(node: Node) -> int:
    status = read_web_status(node.directory / "run")
    return (
        0 if status is None or not status.urls else urlsplit(status.urls[0]).port or 0
    )


def _catch_up(
    stage: Stage, peer: Peer, size: workload.BacklogSize, *, is_watched: bool
) -> _Round:
    with peer.connected() as client, stage.at_source() as source:
        client.rows(f"alter subscription {_NAME} disable")
        wait_exactly(lambda: not slot_is_active(source, _NAME), f"{_NAME} has stopped")
        source.rows(f"truncate {_QUALIFIED}")
        mark = workload.write_backlog(source, _TABLE, size)
        source.rows("checkpoint")
        with Usage({"node": peer.pid}) as usage:
            seconds = _seconds_to_reach(client, source, int(mark))
    web = usage.cpu_seconds(role="web")
    figures = _Round(
        is_watched,
        size.changes / seconds,
        (usage.cpu_seconds() - web) / size.changes * 1e6,
        web / seconds,
        usage.peak_bytes(role="web") or 0,
    )
    words = "with visitors" if is_watched else "alone"
    stage.say(f"watched: {words}, {figures.speed:,.0f} changes/s")
    return figures


def _seconds_to_reach(client: Client, source: Client, mark: int) -> float:
    """From the start of streaming until the mark is visible."""
    client.rows(f"alter subscription {_NAME} enable")
    wait_exactly(
        lambda: slot_is_active(source, _NAME), f"{_NAME} streams", pause_seconds=0.002
    )
    started = time.perf_counter()
    wait_exactly(
        lambda: int(reached(client, _NAME)) > mark,
        f"{_NAME} has caught up",
        pause_seconds=_LOOK_SECONDS,
    )
    return time.perf_counter() - started
