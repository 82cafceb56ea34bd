"""Each value that a policy has changed is counted once, whatever dies when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.apply_world import Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.catalog import Catalog, CopyRange
from wal2lake.errors import StorageError
from wal2lake.model import Coercion, Lsn, Oid, SyncState, merged

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int, key: bytes, value: bytes = b"odd") -> Change:
    return Change(relid, "I", (key, value))


def counted(side: Side) -> dict[str, tuple[int, int, int]]:
    """Events, first and last LSN by table."""
    return {
        f"t{int(t.relid) - 100}": (
            t.coercion.count,
            int(t.coercion.first_lsn),
            int(t.coercion.last_lsn),
        )
        for t in side.world.catalog.coercions()
    }


def die(*_: object) -> None:
    raise StorageError("killed", sqlstate="58030")


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, tables=(1, 2))
    made.lake.odd = {b"odd"}
    return made


def test_events_appear_with_the_version_that_has_them(world: World) -> None:
    with world:
        side = world.side
        side.send(
            Transaction(100, (insert(1, b"1"), insert(1, b"2"), insert(2, b"1"))),
            Transaction(200, (insert(1, b"3"), insert(1, b"4", b"plain"))),
        )
        side.start()
        side.reaches(208)
        assert counted(side) == {"t1": (3, 100, 200), "t2": (1, 100, 100)}
        side.send(Transaction(300, (insert(2, b"9"),)))
        side.reaches(308)
        assert counted(side) == {"t1": (3, 100, 200), "t2": (2, 100, 300)}


@pytest.mark.parametrize("dies", ["before", "after", "one of two"])
def test_a_batch_that_is_repeated_counts_once(world: World, dies: str) -> None:
    with world:
        side, lake = world.side, world.lake
        side.send(Transaction(100, (insert(1, b"1"), insert(2, b"1"))))
        if dies == "before":
            lake.before_commit = die
        elif dies == "after":
            lake.after_commit = die
            world.fail_once()
        else:
            lake.before_commit = lambda at: die() if at.endswith("2") else None
        side.start()
        side.stops("killed")
        side.stop()
        assert counted(side) == {}
        lake.before_commit = lake.after_commit = lambda location: None
        # It may come in a batch of another size.
        side.send(Transaction(200, (insert(2, b"2"),)))
        side.start()
        side.reaches(208)
        assert counted(side) == {"t1": (1, 100, 100), "t2": (2, 100, 200)}


def test_a_retry_under_another_policy_counts_what_was_stored(world: World) -> None:
    with world:
        side, lake = world.side, world.lake
        side.send(Transaction(100, (insert(1, b"1"), insert(2, b"1", b"plain"))))
        lake.before_commit = die
        side.start()
        side.stops("killed")
        side.stop()
        lake.before_commit = lambda location: None
        lake.odd = set()
        side.start()
        side.reaches(108)
        assert counted(side) == {}


def test_what_is_cut_off_is_not_counted_before_it_is_applied(world: World) -> None:
    with world:
        side, lake = world.side, world.lake
        lake.poison = {b"bad"}
        side.send(
            Transaction(100, (insert(1, b"1"),)),
            Transaction(200, (insert(1, b"2"), insert(2, b"2", b"bad"))),
        )
        side.start()
        side.stops("invalid input syntax")
        side.reaches(200)
        assert counted(side) == {"t1": (1, 100, 100)}
        lake.poison = set()
        side.reaches(208)
        assert counted(side) == {"t1": (2, 100, 200)}


def test_a_table_that_leaves_takes_what_was_pending(world: World) -> None:
    with world:
        side = world.side
        side.send(Transaction(100, (insert(1, b"1"), insert(2, b"1"))))
        world.lake.after_commit = die
        world.fail_once()
        side.start()
        side.stops("killed")
        side.stop()
        world.catalog.drop_table(Oid(102))
        # Not in the subscription: its changes are skipped.
        side.add_table(2)
        world.lake.after_commit = lambda location: None
        side.start()
        side.reaches(108)
        assert counted(side) == {"t1": (1, 100, 100)}


# ---- the catalog alone ---------------------------------------------------------------------


def coercion(count: int, lsn: int, example: str = "x", column: str = "c") -> Coercion:
    return Coercion(column, "null", "why", count, Lsn(lsn), Lsn(lsn), example)


def test_alike_ones_add_up_and_keep_the_earliest_example() -> None:
    found = merged(
        [coercion(1, 200, "late"), coercion(2, 100, "early"), coercion(1, 1, "d", "d")]
    )
    assert found == (
        Coercion("c", "null", "why", 3, Lsn(100), Lsn(200), "early"),
        coercion(1, 1, "d", "d"),
    )


def test_a_copy_counts_its_ranges_and_replaces_an_earlier_one(world: World) -> None:
    with world:
        catalog: Catalog = world.catalog

        def copy(count: int, *, snapshot: str, epoch: int = 1) -> None:
            catalog.record_ranges(
                [
                    CopyRange(
                        Oid(1),
                        Oid(101),
                        epoch,
                        snapshot,
                        number,
                        5,
                        "[]",
                        (coercion(count, 50),),
                    )
                    for number in (0, 1)
                ]
            )

        def finish() -> None:
            catalog.update_rel(Oid(1), Oid(101), state=SyncState.DATASYNC)
            (rel,) = [r for r in catalog.rels(Oid(1)) if r.relid == 101]
            assert catalog.finish_copies([replace(rel, lsn=Lsn(40))]) == {101}

        copy(1, snapshot="a")
        # A range that is read again after a crash is the same range.
        copy(1, snapshot="a")
        assert catalog.coercions() == []
        finish()
        (total,) = catalog.coercions()
        assert (total.phase, total.coercion) == ("copy", coercion(2, 50))
        assert catalog.rels(Oid(1))[0].state is SyncState.FINISHEDCOPY
        # Its commit was lost to a power cut: copied again.
        copy(3, snapshot="b")
        finish()
        (total,) = catalog.coercions()
        assert total.coercion.count == 6


def test_dropping_table_or_subscription_forgets_its_events(world: World) -> None:
    with world:
        catalog = world.catalog
        for relid in (101, 102):
            catalog.expect(Oid(1), Lsn(relid), {}, {Oid(relid): [coercion(1, 5)]})
        catalog.publish(Oid(1), Lsn(200), {})
        assert len(catalog.coercions()) == 2
        catalog.drop_table(Oid(101))
        assert [t.relid for t in catalog.coercions()] == [102]
        catalog.drop_subscription(Oid(1))
        assert catalog.coercions() == []
