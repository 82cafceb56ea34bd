"""Slots that hold back too much of the publisher's log, or that nobody uses, are invalidated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from tests.fakes.xids import Numbers

from wal2lake.catalog import Catalog, ReplicationSlot
from wal2lake.changelog import Inventory
from wal2lake.errors import UsageError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.limits import Limits, Room, SlotLimits
from wal2lake.publish.slots import SlotManager
from wal2lake.publish.statistics import Statistics

pytestmark = pytest.mark.usefixtures("no_fsync")

MB = 1 << 20
NOISE = Relation(
    Oid(16384),
    "s",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("v", Oid(25), -1, True),),
)


class World:
    """A catalog, a log, slots that sessions use, a clock."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        self.log.mkdir()
        self.catalog = Catalog.create(directory / "catalog.sqlite", "boss", None)
        self.limits = Limits(-1, 0)
        self.now = 0.0
        self.terminated: list[int] = []
        unused: Any = None
        self.slots = SlotManager(
            self.catalog, unused, lambda: 10, lambda: None, Statistics()
        )
        self.slot_limits = SlotLimits(
            self.slots,
            self.log,
            lambda: self.limits,
            self.terminated.append,
            lambda: self.now,
        )

    def slot(self, name: str, restart: Lsn) -> None:
        self.catalog.create_slot(ReplicationSlot(name, "pgoutput", restart, restart))

    def invalid(self) -> dict[str, str | None]:
        return {one.name: one.invalidation for one in self.catalog.slots()}

    def rooms(self) -> dict[str, Room]:
        return self.slot_limits.rooms(self.catalog.slots())


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Events of the log."""
    with capture_logs() as events:
        yield events


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def grow(world: World, sizes: list[int]) -> list[Lsn]:
    """One segment of about so many bytes each; where each ends."""
    writer = PublisherLogWriter(world.log, 64 * MB, xids=Numbers())
    ends = []
    for number, size in enumerate(sizes):
        value = random.Random(number).randbytes(size).hex().encode()
        batch = pa.RecordBatch.from_pydict(
            {
                "op": pa.array([ord("I")], pa.uint8()),
                "old": pa.array([0], pa.uint8()),
                "c0": pa.array([value + str(number).encode()]),
            }
        )
        writer.transaction(number, None, iter([(NOISE, batch)]), 1, {16384: number})
        writer.seal(note=False)
        ends.append(writer.sealed)
    return ends


def test_without_limits_nothing_is_looked_at(world: World) -> None:
    world.slot("s", Lsn(1))
    world.now = 1e12
    world.slot_limits.enforce()
    assert world.invalid() == {"s": None}
    assert world.rooms() == {"s": Room("reserved", None)}


def test_a_slot_that_holds_too_much_is_lost(world: World, logged: list[Any]) -> None:
    _, second, end = grow(world, [2 * MB, 2 * MB, 2 * MB])
    contents = Inventory(world.log).read()
    assert contents is not None
    held = Inventory(world.log).above(contents, Lsn(1)).bytes
    assert 6 * MB < held < 9 * MB
    world.slot("behind", Lsn(1))
    world.slot("used", Lsn(1))
    world.slot("near", second)
    world.slot("there", end)
    # One that is just being made holds all.
    world.slot("begun", Lsn(0))
    used = world.slots.using("used", 7)
    used.__enter__()
    world.limits = Limits(9, 0)
    assert world.rooms()["behind"] == Room("reserved", 9 * MB - held)
    assert world.rooms()["there"] == Room("reserved", 9 * MB)
    assert world.rooms()["begun"] == Room("reserved", None)
    world.slot_limits.enforce()
    assert set(world.invalid().values()) == {None}
    world.limits = Limits(5, 0)
    assert world.rooms()["behind"] == Room("unreserved", 5 * MB - held)
    lost = {"behind": "wal_removed", "used": "wal_removed"}
    for look in (1, 2):
        world.slot_limits.enforce()
        assert world.invalid() == lost | dict.fromkeys(("near", "there", "begun"))
        # It may not have been where it can be told.
        assert world.terminated == [7] * look
    used.__exit__(None, None, None)
    world.slot_limits.enforce()
    assert world.terminated == [7, 7]
    assert world.rooms()["behind"] == Room("lost", None)
    hint = 'You might need to increase "max_slot_wal_keep_size".'
    assert {one["error"].hint for one in logged if "error" in one} == {hint}
    world.limits = Limits(9, 0)
    world.slot("again", Lsn(1))
    world.slot_limits.enforce()
    assert world.invalid()["again"] is None


def test_a_slot_that_nobody_uses_is_invalidated(
    world: World, logged: list[Any]
) -> None:
    world.slot("idle", Lsn(1))
    world.slot("used", Lsn(1))
    world.slot("left", Lsn(1))
    (started, *_) = {use.left_at for use in world.slots.in_use()}
    with world.slots.using("left", 8):
        pass
    (left,) = [u.left_at for u in world.slots.in_use() if u.slot.name == "left"]
    assert left > started
    world.limits = Limits(-1, 60)
    with world.slots.using("used", 7):
        world.now = started + 59.9
        world.slot_limits.enforce()
        assert set(world.invalid().values()) == {None}
        world.now = (started + left) / 2 + 60
        world.slot_limits.enforce()
        assert world.invalid() == {"idle": "idle_timeout", "used": None, "left": None}
        assert world.terminated == []
    with pytest.raises(UsageError) as refused, world.slots.using("idle", 7):
        pass
    assert refused.value.detail == (
        'This replication slot has been invalidated due to "idle_timeout".'
    )
    hint = 'You might need to increase "idle_replication_slot_timeout".'
    assert {one["error"].hint for one in logged if "error" in one} == {hint}
    world.limits = Limits(-1, 600)
    world.slot_limits.enforce()
    assert world.invalid()["left"] is None


def test_who_comes_or_moves_on_meanwhile_keeps_the_slot(world: World) -> None:
    """Between the look and the invalidation."""
    world.slot("s", Lsn(1))
    (before,) = world.slots.in_use()
    with world.slots.using("s", 7):
        assert not world.slots.invalidate(before, "idle_timeout")
        (used,) = world.slots.in_use()
        world.slots.confirm("s", Lsn(2))
        assert not world.slots.invalidate(used, "wal_removed")
        (used,) = world.slots.in_use()
        assert world.slots.invalidate(used, "wal_removed")
    assert world.invalid() == {"s": "wal_removed"}
