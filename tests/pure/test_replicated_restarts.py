"""A publisher's TRUNCATE ... RESTART IDENTITY restarts the sequences here, whatever dies when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apply_world import Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.errors import StorageError
from wal2lake.local.concurrency.sequencevalues import SequenceLocks
from wal2lake.model import Lsn, Oid, SyncState

pytestmark = pytest.mark.usefixtures("no_fsync")

SEQUENCE = Oid(900)
TRUNCATE = Change(1, "T")


def insert(*keys: int) -> tuple[Change, ...]:
    return tuple(Change(1, "I", (b"%d" % key, b"v")) for key in keys)


def die(*_: object) -> None:
    raise StorageError("killed", sqlstate="58030")


@pytest.fixture
def locks() -> SequenceLocks:
    return SequenceLocks()


@pytest.fixture
def world(tmp_path: Path, locks: SequenceLocks) -> World:
    made = World(tmp_path, tables=(2,))
    no_queries: Any = None
    made.defaults = EvaluatedDefaults(made.catalog, no_queries, locks)
    made.side.add_table(1, sequence=SEQUENCE)
    made.catalog.add_rels([made.side.rel(1, SyncState.READY)])
    return made


def next_value(side: Side) -> int:
    return side.world.catalog.next_values(SEQUENCE, 1)


def test_the_next_value_is_the_first_one(world: World, locks: SequenceLocks) -> None:
    with world:
        side = world.side
        assert [next_value(side) for _ in range(3)] == [1, 2, 3]
        side.send(Transaction(100, (TRUNCATE,)))
        side.start()
        side.reaches(108)
        assert next_value(side) == 1
        # Transactions that have taken a value before have to be repeated.
        assert locks.restarts[SEQUENCE] > 0


def test_rows_behind_the_truncate_have_the_first_values(world: World) -> None:
    with world:
        side = world.side
        next_value(side)
        side.send(
            Transaction(100, insert(1, 2, 3)),
            Transaction(200, (*insert(4, 5), TRUNCATE, *insert(6))),
        )
        side.send(Transaction(300, insert(7, 8)))
        side.start()
        side.reaches(308)
        # The first row behind the TRUNCATE is the batch's sixth insert.
        fill = world.lake.requests[-1].fills["n"]
        assert (fill.first, fill.step) == (1 - 5, 1)
        assert next_value(side) == 4


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_batch_that_is_repeated_restarts_once(world: World, dies: str) -> None:
    with world:
        side, lake = world.side, world.lake
        assert [next_value(side) for _ in range(3)] == [1, 2, 3]
        side.send(Transaction(100, (TRUNCATE, *insert(1))))
        if dies == "before":
            lake.before_commit = die
        else:
            lake.after_commit = die
            world.fail_once()
        side.start()
        side.stops("killed")
        side.stop()
        assert world.catalog.last_value(SEQUENCE) == 3
        lake.before_commit = lake.after_commit = lambda location: None
        side.start()
        side.reaches(108)
        assert next_value(side) == 2
        side.send(Transaction(200, insert(2)))
        side.reaches(208)
        assert next_value(side) == 4


def test_a_value_that_was_taken_before_the_publish_is_not_given_again(
    world: World,
) -> None:
    with world:
        side, lake = world.side, world.lake
        next_value(side)
        side.send(Transaction(100, (TRUNCATE,)))
        lake.after_commit = die
        world.fail_once()
        side.start()
        side.stops("killed")
        side.stop()
        assert next_value(side) == 2
        lake.after_commit = lambda location: None
        side.start()
        side.reaches(108)
        assert next_value(side) == 3


def test_what_was_skipped_restarts_nothing(world: World) -> None:
    with world:
        side = world.side
        next_value(side)
        world.catalog.update_subscription(Oid(1), bump=False, skip_lsn=Lsn(100))
        side.send(Transaction(100, (TRUNCATE,)))
        side.start()
        side.reaches(108)
        assert next_value(side) == 2
