"""While a copy holds the floor, the other tables are further than the floor says.

A table that readers see is complete below the published vector. Taking the floor for its position
read the same segments for ever, published nothing new a thousand times a second, and gave a table
that left and came back without a copy all its changes since the floor a second time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.fakes.apply_world import World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.catalog import SyncSnapshot
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.testing.waits import wait_until

SUBID = Oid(1)


def _insert(relid: int, key: int) -> Change:
    return Change(relid, "I", (b"%d" % key, b"v"))


def _transaction(number: int) -> Transaction:
    return Transaction(100 * number, (_insert(1, number), _insert(2, number)))


def _held_by_a_copy(world: World) -> None:
    """t1 and t2 are at the second transaction, the floor at the first one: t3 is copied."""
    side = world.side
    side.send(_transaction(1))
    side.start()
    side.reaches(108)
    side.add_table(3)
    world.catalog.add_rels([side.rel(3, SyncState.DATASYNC)])
    world.catalog.hold_snapshot(SyncSnapshot(SUBID, "x", Lsn(108), "me", (103,)))
    side.send(_transaction(2))
    _wait_for_vector(world, 208)
    assert side.floor == 108


def _wait_for_vector(world: World, lsn: int) -> None:
    def reached() -> bool:
        vector = world.catalog.newest_vector(SUBID)
        return vector is not None and vector.lsn >= lsn

    wait_until(reached, describe=f"a vector at {lsn}")


def test_a_worker_without_work_does_nothing_though_the_floor_is_held(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        _held_by_a_copy(world)
        # From now on the second table is quiet.
        world.side.send(Transaction(300, (_insert(1, 3),)))
        _wait_for_vector(world, 308)
        wait_until(lambda: world.side.is_idle, describe="idle")
        before = world.catalog.change_counter
        time.sleep(0.5)
        assert world.catalog.change_counter == before


def test_so_does_one_whose_copied_table_waits_for_the_others(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        _held_by_a_copy(world)
        # t4 was copied under the same snapshot and had no change since.
        side.add_table(4)
        world.catalog.add_rels([side.rel(4, SyncState.DATASYNC)])
        side.copied(4, {}, 108)
        side.send(_transaction(3))
        _wait_for_vector(world, 308)
        wait_until(lambda: side.is_idle, describe="idle")
        before = world.catalog.change_counter
        time.sleep(0.5)
        assert world.catalog.change_counter == before


def test_a_table_that_comes_back_without_a_copy_gets_no_change_twice(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        _held_by_a_copy(world)
        with side.lock:
            world.catalog.set_publications(SUBID, ("p",), removed=[Oid(102)])
        again = replace(side.rel(2, SyncState.READY), epoch=77, trusted=False)
        with side.lock:
            world.catalog.set_publications(
                SUBID,
                ("p",),
                added=[again],
                versions={102: side.table(2).version},
            )
        side.send(_transaction(3))
        _wait_for_vector(world, 308)
        assert side.error == ""
        expected = model([_transaction(1), _transaction(2), _transaction(3)], 2)
        assert side.visible(2) == expected


def test_the_floor_goes_on_when_the_table_that_held_it_has_left(tmp_path: Path) -> None:
    """Without another change it stayed, and with it the log, and what the source was told."""
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        _held_by_a_copy(world)
        wait_until(lambda: side.is_idle, describe="idle")
        with side.lock:
            world.catalog.remove_rel(SUBID, Oid(103))
        wait_until(lambda: side.floor >= 208, describe="the floor is the vector's")
        wait_until(lambda: side.is_idle, describe="idle")
