"""Where apply stops when a relation does not fit its target. Once it was the first row of the
relation's file in the log, whatever came of it: transactions that PostgreSQL would have applied
were not, the finish LSN was another transaction's, and rows that the table had in its
copy already could stop it. And each table of a cut batch got an empty version."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import SyncState

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int, key: bytes) -> Change:
    return Change(relid, "I", (key, b"v"))


def update(relid: int, key: bytes) -> Change:
    return Change(relid, "U", (key, b"new"))


def test_inserts_before_an_update_that_has_no_key_are_applied(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2, key="")
        world.catalog.add_rels([side.rel(2, SyncState.READY)])
        side.send(
            Transaction(100, (insert(2, b"1"),)),
            Transaction(200, (insert(1, b"1"), insert(2, b"2"))),
            Transaction(300, (insert(1, b"2"), update(2, b"1"))),
            Transaction(400, (insert(2, b"3"),)),
        )
        side.start()
        error = side.stops("has neither REPLICA IDENTITY index nor PRIMARY KEY")
        assert "finished at 0/12C" in error
        side.reaches(300)
        assert set(side.visible(1)) == {b"1"}
        assert set(side.visible(2)) == {b"1", b"2"}


def test_an_update_that_the_copy_has_already_does_not_stop(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2, key="")
        world.catalog.add_rels([side.rel(2, SyncState.INIT)])
        side.copied(2, {b"1": (b"1", b"new")}, 250)
        side.send(
            Transaction(100, (insert(1, b"1"), insert(2, b"1"))),
            Transaction(200, (update(2, b"1"),)),
            Transaction(300, (insert(2, b"2"),)),
        )
        side.start()
        side.reaches(308)
        assert side.error == ""
        assert set(side.visible(2)) == {b"1", b"2"}


def test_a_table_with_nothing_before_the_cut_gets_no_version(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"v"}
        side.send(
            Transaction(100, (Change(1, "I", (b"1", b"good")),)),
            Transaction(200, (insert(2, b"1"),)),
            Transaction(300, (Change(3, "I", (b"1", b"good")),)),
        )
        side.start()
        side.stops("finished at 0/C8")
        side.reaches(200)
        assert [side.table(i).version for i in (1, 2, 3)] == [1, 0, 0]
