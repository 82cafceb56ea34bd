"""``backlog``: changes written while a subscription was disabled, then caught up with.

    subscribe (empty table) ─▶ disable ─▶ write ─▶ enable native, wait ─▶ enable node, wait

Time counts from the moment at which the source shows the slot as active, so the start of a
receiver process is not in it, to the moment at which pg_replication_origin_status of the
subscriber is beyond the mark of the last transaction. Meanwhile that position must go on all the
time, not only at the end. Both tables are then compared with the source's. What is written is a
``Shape``. A third slot of the same age is left for ``nullmodes``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.changes.shapes import Shape
from benchmarks.positions import Positions, reached
from benchmarks.report import Target, rate
from benchmarks.stage import (
    Comparison,
    Peer,
    Stage,
    assert_same,
    drop_subscription,
    slot_is_active,
    wait_exactly,
    wait_ready,
)
from benchmarks.usage import Usage
from wal2lake.model import Lsn
from wal2lake.pg.client import Client

PUBLICATION: Final = "backlog"
TEMPLATE_SLOT: Final = "bench_backlog_template"

_LOOK_SECONDS: Final = 0.02

_STANDSTILL: Final = Target(at_most=5.0)
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Written:
    """A backlog that waits in slots."""

    mark: Lsn
    shape: Shape


@dataclass(frozen=True, slots=True)
class Caught:
    """What one peer took."""

    enabled_seconds: float
    """From ALTER SUBSCRIPTION ... ENABLE."""
    seconds: float
    """From the start of streaming."""
    standstill_seconds: float
    """The longest time in which nothing became visible."""
    cpu_seconds: float
    source_cpu_seconds: float


@contextmanager
def written(stage: Stage, shape: Shape, *, subscribed: bool) -> Iterator[Written]:
    """The backlog, and if ``subscribed`` the disabled subscriptions that it waits for."""
    peers = stage.peers() if subscribed else []
    with stage.at_source() as source, stage.quick_slots():
        shape.create(source)
        source.rows(f"create publication {PUBLICATION} for table {shape.published}")
        if subscribed:
            with stage.at_native() as native:
                shape.create(native)
        for peer in peers:
            _subscribe(stage, peer)
        source.rows(
            f"select pg_create_logical_replication_slot('{TEMPLATE_SLOT}', 'pgoutput')"
        )
        stage.say(f"{shape.name}: writing {shape.changes:,} changes")
        mark = shape.write(source)
        source.rows("checkpoint")
    yield Written(mark, shape)
    for peer in peers:
        with peer.connected() as client:
            drop_subscription(client, _subscription(peer))
            shape.drop(client)
    with stage.at_source() as source:
        source.rows(f"select pg_drop_replication_slot('{TEMPLATE_SLOT}')")
        source.rows(f"drop publication {PUBLICATION}")
        shape.drop(source)


def run(stage: Stage, backlog: Written) -> None:
    """Let each catch up in turn and add the results."""
    caught = catch_up(stage, backlog)
    comparison = Comparison(stage, backlog.shape.name, caught)
    changes = backlog.shape.changes
    comparison.add(
        "start of streaming to all visible",
        "changes/s",
        lambda c: rate(changes, c.seconds),
        backlog.shape.target,
    )
    comparison.add("the same", "s", lambda c: c.seconds)
    comparison.add("ENABLE to all visible", "s", lambda c: c.enabled_seconds)
    comparison.add(
        "longest time in which nothing became visible",
        "s",
        lambda c: c.standstill_seconds,
        _STANDSTILL,
    )
    comparison.add(
        "CPU of the subscriber per million",
        "s",
        lambda c: c.cpu_seconds / changes * 1e6,
    )
    comparison.add(
        "CPU of the walsender per million",
        "s",
        lambda c: c.source_cpu_seconds / changes * 1e6,
    )


def catch_up(stage: Stage, backlog: Written) -> Mapping[str, Caught]:
    """One peer after the other; by its name."""
    caught: dict[str, Caught] = {}
    name = backlog.shape.name
    for peer in stage.peers():
        stage.say(f"{name}: {peer.name} catches up")
        caught[peer.name] = _catch_up(stage, peer, backlog)
        stage.say(f"{name}: {peer.name} took {caught[peer.name].seconds:.1f} s")
    return caught


def _subscription(peer: Peer) -> str:
    return f"bench_backlog_{peer.name}"


def _subscribe(stage: Stage, peer: Peer) -> None:
    name = _subscription(peer)
    with peer.connected() as client, stage.at_source() as source:
        stage.subscribe(client, name, PUBLICATION)
        wait_ready(client, name)
        client.rows(f"alter subscription {name} disable")
        wait_exactly(lambda: not slot_is_active(source, name), f"{name} has stopped")


def _catch_up(stage: Stage, peer: Peer, backlog: Written) -> Caught:
    name, mark, seen = _subscription(peer), int(backlog.mark), Positions()
    roots = {peer.name: peer.pid, "source": stage.source.pid}

    def is_beyond(client: Client) -> bool:
        lsn = reached(client, name)
        seen.note(time.perf_counter(), int(lsn))
        return seen.beyond(mark)

    with (
        peer.connected() as client,
        stage.at_source() as source,
        Usage(roots) as usage,
    ):
        enabled = time.perf_counter()
        client.rows(f"alter subscription {name} enable")
        wait_exactly(
            lambda: slot_is_active(source, name),
            f"{name} streams",
            pause_seconds=0.002,
        )
        started = time.perf_counter()
        # What is visible already is no advance.
        seen.note(started, int(reached(client, name)))
        wait_exactly(
            lambda: is_beyond(client),
            f"{name} has caught up",
            pause_seconds=_LOOK_SECONDS,
        )
        finished = time.perf_counter()
    assert_same(stage, peer, backlog.shape.checks)
    return Caught(
        finished - enabled,
        finished - started,
        seen.longest_standstill(started),
        usage.cpu_seconds(peer.name),
        usage.cpu_seconds("source", "walsender"),
    )
