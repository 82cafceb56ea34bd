"""Tables that are copied under one snapshot are first seen together. A large one that was done
before a small one was visible alone: a state that the source never had."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import Rows, Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.catalog import SyncSnapshot
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

COPIED: Rows = {b"1": (b"1", b"copied")}


def two_copies(world: World) -> Side:
    """Tables 1 and 2 wait for their copies, which one snapshot covers; 2 is done first."""
    side = world.side
    for relid in (1, 2):
        world.catalog.update_rel(side.subid, Oid(100 + relid), state=SyncState.DATASYNC)
    world.catalog.hold_snapshot(
        SyncSnapshot(side.subid, "snapshot", Lsn(50), "holder", (101, 102))
    )
    side.start()
    side.copied(2, COPIED, 50)
    side.send(Transaction(100, (Change(2, "I", (b"2", b"v")),)))
    # It has been applied to the table, which nobody sees yet.
    wait_until(lambda: len(side.table(2).versions) > 2)
    assert side.visible(2) == {}
    return side


def test_a_copied_table_waits_for_the_others_of_its_snapshot(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = two_copies(world)
        side.copied(1, COPIED, 50)
        side.reaches(108)
        assert side.visible(1) == COPIED
        assert side.visible(2) == {**COPIED, b"2": (b"2", b"v")}


def test_a_copy_that_fails_holds_no_other_back(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = two_copies(world)
        world.catalog.update_rel(side.subid, Oid(101), error="it does not fit")
        wait_until(lambda: side.visible(2) == {**COPIED, b"2": (b"2", b"v")})
        assert side.visible(1) == {}
