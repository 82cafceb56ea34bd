"""A write at the front door was acknowledged and stayed invisible: when the worker published a
version that it had read before the write, and, for ever, once anything had been committed that
no vector has (an outside OPTIMIZE, a write whose session died): no later one was published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.apply_world import Rows, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.errors import StorageError
from wal2lake.lake.branch.netchange import BranchChange
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.local.commits.commit import WrittenTable, commit_tables
from wal2lake.local.concurrency.heldtables import HeldTables
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

APPLIED: Rows = {b"1": (b"1", b"v")}
LOCAL: Rows = {b"9": (b"9", b"local")}


def insert(relid: int, value: bytes = b"v") -> Change:
    return Change(relid, "I", (b"1", value))


def write(world: World, relid: int, rows: Rows) -> None:
    """A statement at the front door that leaves these rows in the table."""
    side = world.side
    unused: Any = None
    node: Any = SimpleNamespace(
        catalog=world.catalog,
        tables=world.lake,
        prepared=HeldTables(),
        branches=SimpleNamespace(carry_over=lambda branch, files: None),
        snapshots=Snapshots(),
        committed=lambda: None,
        locks=SimpleNamespace(of=lambda subid: side.lock),
    )
    table = world.catalog.table("public", f"t{relid}")
    assert table is not None
    found = side.table(relid)
    branch = Branch("/branch", table.location, found.id, found.version)
    change = BranchChange(({"add": {"path": "new", "rows": rows}},), ())
    commit_tables(node, [WrittenTable(table, branch, change)], unused, "job")


def crash_after_commit(world: World, relid: int) -> None:
    """The batch is in this table, not in the vector, and no worker runs."""

    def die(location: str) -> None:
        if location == world.side.location(relid):
            raise StorageError("killed", sqlstate="58030")

    world.lake.after_commit = die
    world.fail_once()
    world.side.start()
    world.side.stops("killed")
    world.side.stop()
    world.lake.after_commit = lambda location: None


def test_a_write_is_seen_though_an_outside_version_was_never_published(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1),)))
        side.start()
        side.reaches(108)
        side.table(1).versions.append(dict(APPLIED))
        write(world, 1, LOCAL)
        assert side.visible(1) == LOCAL
        assert not world.catalog.rels(Oid(1))[0].trusted
        write(world, 1, {})
        assert side.visible(1) == {}


def test_a_write_is_seen_while_another_table_is_copied(tmp_path: Path) -> None:
    """The copy holds the floor below what readers have."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.DATASYNC)])
        side.send(Transaction(100, (insert(1),)))
        side.start()
        wait_until(lambda: side.visible(1) == APPLIED)
        assert side.floor == 0
        write(world, 1, LOCAL)
        assert side.visible(1) == LOCAL


@pytest.mark.parametrize("before", ["crash", "nothing"])
def test_what_others_wrote_is_published_by_the_next_worker(
    tmp_path: Path, before: str
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        if before == "crash":
            side.send(Transaction(100, (insert(1),)))
            crash_after_commit(world, 1)
        side.table(1).versions.append(LOCAL)
        side.start()
        wait_until(lambda: side.visible(1) == LOCAL)
        # Before it is published: from then on nothing tells that others wrote it.
        assert not world.catalog.rels(Oid(1))[0].trusted
        assert side.table(1).version in world.lake.synced[side.location(1)]


def test_a_write_between_a_crash_and_the_settling_is_published_with_the_batch(
    tmp_path: Path,
) -> None:
    """The worker has read the table and waits for the lock that the write holds."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1),)))
        crash_after_commit(world, 1)
        with side.lock:
            looked = len(world.lake.looks)
            side.start()
            wait_until(lambda: len(world.lake.looks) > looked)
            write(world, 1, {**APPLIED, **LOCAL})
        side.reaches(108)
        assert side.visible(1) == {**APPLIED, **LOCAL}
        assert not world.catalog.rels(Oid(1))[0].trusted


def test_a_write_does_not_show_the_half_of_a_batch(tmp_path: Path) -> None:
    """Table 1 has the batch and table 2 has not: the worker publishes both, with the write."""
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1), insert(2))))

        def only_first(location: str) -> None:
            if location == side.location(2):
                raise StorageError("full", sqlstate="53100")

        world.lake.before_commit = only_first
        side.start()
        wait_until(lambda: side.table(1).version == 1)
        side.stops("full")
        side.stop()
        write(world, 1, {**APPLIED, **LOCAL})
        assert (side.visible(1), side.visible(2)) == ({}, {})
        world.lake.before_commit = lambda location: None
        side.start()
        side.reaches(108)
        assert side.visible(1) == {**APPLIED, **LOCAL}
        assert side.visible(2) == APPLIED


def test_a_write_to_a_copied_table_is_seen_when_the_copy_is(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.INIT)])
        world.catalog.publish(Oid(1), Lsn(0), {102: 0})
        write(world, 2, LOCAL)
        assert side.visible(2) == LOCAL, "as it is, until the copy joins"
        side.copied(2, {**LOCAL, **APPLIED}, 200)
        write(world, 2, {**APPLIED})
        assert side.visible(2) == LOCAL
        side.send(Transaction(300, (insert(1),)))
        side.start()
        side.reaches(308)
        assert side.visible(2) == APPLIED


def test_trust_that_the_catalog_has_ended_is_ended_in_the_running_worker(
    tmp_path: Path,
) -> None:
    """REFRESH of a publication without DELETE ends it; no version tells of that."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1),)))
        side.start()
        side.reaches(108)
        assert world.lake.requests[-1].trusted
        world.catalog.update_rel(Oid(1), Oid(101), trusted=False)
        side.send(Transaction(200, (Change(1, "I", (b"2", b"v")),)))
        side.reaches(208)
        assert not world.lake.requests[-1].trusted
