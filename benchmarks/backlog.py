"""``backlog``: changes written while a subscription was disabled, then caught up with.

    subscribe (empty table) ─▶ disable ─▶ write ─▶ enable native, wait ─▶ enable node, wait

Time counts from the moment at which the source shows the slot as active, so the start of a
receiver process is not in it, to the moment at which pg_replication_origin_status of the
subscriber is beyond the mark of the last transaction. Both tables are then compared with the
source's. What is written is a ``Shape``. A third slot of the same age is left for ``nullmodes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.report import Target, rate
from benchmarks.shapes import Shape
from benchmarks.stage import (
    Stage,
    drop_subscription,
    reached,
    slot_is_active,
    states,
    wait_exactly,
)
from benchmarks.usage import Usage
from wal2lake.model import Lsn
from wal2lake.pg.client import Client

PUBLICATION: Final = "backlog"
TEMPLATE_SLOT: Final = "bench_backlog_template"


@dataclass(frozen=True, slots=True)
class Written:
    """A backlog that waits in slots."""

    mark: Lsn
    shape: Shape
    wal_bytes: int


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    pid: int
    connected: Callable[[], AbstractContextManager[Client]]

    @property
    def subscription(self) -> str:
        return f"bench_backlog_{self.name}"


@dataclass(frozen=True, slots=True)
class _Caught:
    enabled_seconds: float
    """From ALTER SUBSCRIPTION ... ENABLE."""
    seconds: float
    """From the start of streaming."""
    cpu_seconds: float
    source_cpu_seconds: float


@contextmanager
def written(
    stage: Stage, shape: Shape, *, subscribed: bool
) -> Iterator[tuple[Written, list[_Peer]]]:
    """The backlog, and the disabled subscriptions that it waits for."""
    peers = _peers(stage) if subscribed else []
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
        before = _position(source)
        mark = shape.write(source)
        wal_bytes = int(mark) - int(before)
        source.rows("checkpoint")
    yield Written(mark, shape, wal_bytes), peers
    for peer in peers:
        with peer.connected() as client:
            drop_subscription(client, peer.subscription)
    with stage.at_source() as source:
        source.rows(f"select pg_drop_replication_slot('{TEMPLATE_SLOT}')")
        source.rows(f"drop publication {PUBLICATION}")
        shape.drop(source)
    if subscribed:
        with stage.at_native() as native:
            shape.drop(native)
        if stage.options.node:
            with stage.at_node() as node:
                shape.drop(node)


def run(stage: Stage, backlog: Written, peers: list[_Peer]) -> None:
    """Let each catch up in turn and add the results."""
    name = backlog.shape.name
    caught: dict[str, _Caught] = {}
    for peer in peers:
        stage.say(f"{name}: {peer.name} catches up")
        caught[peer.name] = _catch_up(stage, peer, backlog)
        stage.say(f"{name}: {peer.name} took {caught[peer.name].seconds:.1f} s")
    ours, theirs = caught.get("node"), caught["native"]
    changes = backlog.shape.changes

    def add(
        what: str,
        unit: str,
        of: Callable[[_Caught], float | None],
        target: Target | None = None,
    ) -> None:
        stage.add(name, what, unit, of(ours) if ours else None, of(theirs), target)

    add(
        "start of streaming to all visible",
        "changes/s",
        lambda c: rate(changes, c.seconds),
        backlog.shape.target,
    )
    add("the same", "s", lambda c: c.seconds)
    add("ENABLE to all visible", "s", lambda c: c.enabled_seconds)
    add(
        "CPU of the subscriber per million",
        "s",
        lambda c: c.cpu_seconds / changes * 1e6,
    )
    add(
        "CPU of the walsender per million",
        "s",
        lambda c: c.source_cpu_seconds / changes * 1e6,
    )


def _peers(stage: Stage) -> list[_Peer]:
    peers = [_Peer("native", stage.native.pid, stage.at_native)]
    if stage.options.node:
        peers.append(_Peer("node", stage.node.pids()[0], stage.at_node))
    return peers


def _subscribe(stage: Stage, peer: _Peer) -> None:
    conninfo = stage.source.conninfo().replace("'", "''")
    name = peer.subscription
    with peer.connected() as client, stage.at_source() as source:
        client.rows(
            f"create subscription {name} connection '{conninfo}'"
            f" publication {PUBLICATION}"
        )
        wait_exactly(lambda: states(client, name) == {"r"}, f"{name} is ready")
        client.rows(f"alter subscription {name} disable")
        wait_exactly(lambda: not slot_is_active(source, name), f"{name} has stopped")


def _catch_up(stage: Stage, peer: _Peer, backlog: Written) -> _Caught:
    name, mark = peer.subscription, backlog.mark
    roots = {peer.name: peer.pid, "source": stage.source.pid}
    with (
        peer.connected() as client,
        stage.at_source() as source,
        Usage(roots) as usage,
    ):
        asked = time.perf_counter()
        client.rows(f"alter subscription {name} enable")
        wait_exactly(
            lambda: slot_is_active(source, name),
            f"{name} streams",
            pause_seconds=0.002,
        )
        started = time.perf_counter()
        wait_exactly(
            lambda: reached(client, name) > mark,
            f"{name} has caught up",
            pause_seconds=0.02,
        )
        finished = time.perf_counter()
    with peer.connected() as client, stage.at_source() as source:
        for query in backlog.shape.checks:
            expected, found = source.rows(query), client.rows(query)
            if found != expected:
                raise AssertionError(
                    f"{peer.name} differs from the source: {found}, expected {expected}"
                )
    return _Caught(
        finished - asked,
        finished - started,
        usage.cpu_seconds(peer.name),
        usage.cpu_seconds("source", "walsender"),
    )


def _position(source: Client) -> Lsn:
    return Lsn.parse(str(source.rows("select pg_current_wal_insert_lsn()")[0][0]))
