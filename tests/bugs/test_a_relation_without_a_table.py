"""Changes of a relation that has no table here (the source renamed one, or added one to the
publication, and nobody refreshed). Once they were skipped and confirmed: lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

MISSING = 'logical replication target relation "public.t9" does not exist'


def insert(relid: int, key: bytes) -> Change:
    return Change(relid, "I", (key, b"v"))


def refresh(side: Side, relid: int) -> None:
    """As REFRESH PUBLICATION does: a table is made, and waits for its copy."""
    side.add_table(relid)
    side.world.catalog.add_rels([side.rel(relid, SyncState.INIT)])


@pytest.mark.parametrize("change", [insert(9, b"1"), Change(9, "T")], ids=["I", "T"])
def test_the_subscription_stops_exactly_there_and_refresh_lets_it_go_on(
    tmp_path: Path, change: Change
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(
            Transaction(100, (insert(1, b"1"),)),
            Transaction(200, (insert(1, b"2"), change)),
            Transaction(300, (insert(1, b"3"), insert(9, b"2"))),
        )
        side.start()
        error = side.stops(MISSING)
        assert "finished at 0/C8" in error
        assert "REFRESH PUBLICATION" in error
        side.reaches(200)
        assert set(side.visible(1)) == {b"1"}
        refresh(side, 9)
        # While the table waits for its copy the others go on; its snapshot is above all
        # that was logged.
        side.reaches(308)
        assert set(side.visible(1)) == {b"1", b"2", b"3"}
        side.copied(9, {b"2": (b"2", b"copied")}, 350)
        side.send(Transaction(400, (insert(9, b"3"),)))
        side.reaches(408)
        assert side.visible(9) == {b"2": (b"2", b"copied"), b"3": (b"3", b"v")}
        wait_until(lambda: side.error == "")


def test_a_table_that_is_not_in_the_subscription_is_skipped(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(9)
        side.send(Transaction(100, (insert(9, b"1"), insert(1, b"1"))))
        side.start()
        side.reaches(108)
        assert side.error == ""
        assert side.visible(9) == {}


def test_what_a_table_that_is_dropped_later_was_spared_does_not_come_back(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(9)
        refresh(side, 2)
        # A held snapshot: the floor stays below it.
        side.send(Transaction(100, (insert(9, b"1"), insert(1, b"1"))))
        side.start()
        wait_until(lambda: set(side.visible(1)) == {b"1"})
        dropped = world.catalog.table("public", "t9")
        assert dropped is not None
        world.catalog.drop_table(dropped.oid)
        side.send(Transaction(200, (insert(1, b"2"),)))
        wait_until(lambda: set(side.visible(1)) == {b"1", b"2"})
        assert side.error == ""


def test_changes_below_the_copy_of_the_only_table_are_looked_at(tmp_path: Path) -> None:
    with World(tmp_path, tables=()) as world:
        side = world.side
        refresh(side, 1)
        side.copied(1, {}, 250)
        side.send(
            Transaction(200, (insert(9, b"1"),)), Transaction(300, (insert(1, b"1"),))
        )
        side.start()
        assert "finished at 0/C8" in side.stops(MISSING)
