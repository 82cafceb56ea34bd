"""A table that two subscriptions write. Readers saw the version of the one that came last in
the catalog: if that one stood still, new rows of the other were invisible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apply_world import Rows, Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.local.concurrency.snapshots import Snapshot, Snapshots
from wal2lake.model import Lsn, Oid, SyncState

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int, key: bytes) -> Change:
    return Change(relid, "I", (key, b"v"))


def look(world: World) -> Snapshot:
    tables: Any = world.lake
    return Snapshots().take(world.catalog, tables)


def seen(side: Side, relid: int) -> Rows:
    """What a SELECT reads."""
    version = look(side.world).published(Oid(100 + relid))
    assert version is not None
    return side.table(relid).versions[version]


@pytest.mark.parametrize("working", [1, 2])
def test_rows_of_one_are_visible_while_the_other_stands_still(
    tmp_path: Path, working: int
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        other = world.subscribe(2, ())
        world.catalog.add_rels([other.rel(1, SyncState.READY)])
        world.catalog.publish(other.subid, Lsn(0), {101: 0})
        side = world.sides[working - 1]
        side.send(Transaction(100, (insert(1, b"1"),)))
        side.start()
        side.reaches(108)
        assert set(seen(side, 1)) == {b"1"}


def test_a_copy_that_has_not_joined_is_not_seen(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side, other = world.side, world.subscribe(2, ())
        side.send(Transaction(100, (insert(1, b"1"),)))
        side.start()
        side.reaches(108)
        world.catalog.add_rels([other.rel(1, SyncState.INIT)])
        world.catalog.publish(other.subid, Lsn(0), {101: side.table(1).version})
        rows: Rows = {**side.table(1).versions[-1], b"9": (b"9", b"copied")}
        other.copied(1, rows, 50)
        assert set(seen(side, 1)) == {b"1"}
        other.start()
        other.send(Transaction(60, ()))
        other.reaches(60)
        assert set(seen(side, 1)) == {b"1", b"9"}


def test_a_table_of_no_subscription_has_no_published_version(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        world.side.add_table(9)
        assert look(world).published(Oid(109)) is None


@pytest.mark.parametrize("leave", ["drop", "refresh"])
def test_rows_stay_visible_when_the_subscription_that_brought_them_leaves(
    tmp_path: Path, leave: str
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        other = world.subscribe(2, ())
        world.catalog.add_rels([other.rel(1, SyncState.READY)])
        world.catalog.publish(other.subid, Lsn(0), {101: 0})
        side = world.side
        side.send(Transaction(100, (insert(1, b"1"),)))
        side.start()
        side.reaches(108)
        side.stop()
        if leave == "drop":
            world.catalog.drop_subscription(side.subid)
        else:
            world.catalog.remove_rel(side.subid, Oid(101))
        assert set(seen(other, 1)) == {b"1"}
