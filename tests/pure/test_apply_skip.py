"""ALTER SUBSCRIPTION ... SKIP and disable_on_error, on a lake made of dicts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.apply_world import Side, World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.errors import StorageError, UsageError
from wal2lake.model import Lsn, Oid
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found


def insert(relid: int, key: int, value: str = "v") -> Change:
    return Change(relid, "I", (b"%d" % key, value.encode()))


def commit(lsn: int, *changes: Change) -> Transaction:
    return Transaction(lsn, changes)


def skip(world: World, lsn: int) -> None:
    world.catalog.update_subscription(Oid(1), bump=False, skip_lsn=Lsn(lsn))


def skipped(world: World) -> tuple[int, bool]:
    found = world.catalog.subscription(Oid(1))
    assert found is not None
    return int(found.skip_lsn), found.skipping


def is_without(side: Side, *lsns: int) -> None:
    """Tables are what the transactions but these make of them, and readers see that."""
    sent, side.sent = side.sent, [t for t in side.sent if t.commit_lsn not in lsns]
    for relid in (1, 2, 3):
        expected = model(side.sent, relid, None)
        assert side.table(relid).versions[-1] == expected
        assert side.visible(relid) == expected
    side.sent = sent


def failing(world: World) -> Side:
    """300 does not convert in table 2; what is before it has been applied."""
    side = world.side
    world.lake.poison = {b"bad"}
    side.send(
        commit(100, insert(1, 1), insert(2, 1)),
        commit(200, insert(3, 7)),
        commit(300, insert(1, 2), insert(2, 2, "bad"), Change(3, "D", key=b"7")),
        commit(400, insert(1, 3), insert(3, 2)),
    )
    side.start()
    side.stops("finished at 0/12C")
    return side


def test_the_transaction_that_was_named_is_left_out_in_every_table(
    world: World,
) -> None:
    side = failing(world)
    skip(world, 300)
    side.reaches(408)
    is_without(side, 300)
    assert skipped(world) == (0, False)
    wait_until(lambda: side.error == "")
    # Key 7 of table 3 is still here, so that an insert of it must be looked at.
    side.send(commit(500, insert(3, 7, "again")))
    assert "duplicate key value" in side.stops("finished at 0/1F4")


def test_another_transaction_that_is_applied_clears_it(world: World) -> None:
    side = failing(world)
    side.stop()
    skip(world, 400)
    world.lake.poison = set()
    side.start()
    side.reaches(408)
    is_without(side)
    assert skipped(world) == (0, False)


def test_while_another_one_fails_it_stays(world: World) -> None:
    side = failing(world)
    skip(world, 400)
    tried = len(world.lake.requests)
    wait_until(lambda: len(world.lake.requests) > tried + 6)
    assert skipped(world) == (400, False)
    assert side.floor == 300


def test_one_whose_relation_has_no_table_can_be_skipped(world: World) -> None:
    side = world.side
    side.send(
        commit(100, insert(1, 1)),
        commit(200, insert(9, 1), insert(1, 2)),
        commit(300, insert(1, 3)),
    )
    side.start()
    side.stops("finished at 0/C8")
    skip(world, 200)
    side.reaches(308)
    is_without(side, 200)


def test_a_second_failure_behind_it_is_reported_as_its_own(world: World) -> None:
    side = failing(world)
    side.send(commit(500, insert(2, 9, "bad")))
    skip(world, 300)
    side.stops("finished at 0/1F4")
    side.reaches(500)
    assert skipped(world) == (0, False)
    skip(world, 500)
    side.send(commit(600, insert(2, 10)))
    side.reaches(608)
    is_without(side, 300, 500)


def test_a_crash_in_the_middle_leaves_it_out_everywhere(world: World) -> None:
    side = failing(world)

    side.stop()
    done = threading.Event()

    def die(location: str) -> None:
        if location == "/lake/t1":
            done.wait(10)
            raise StorageError("the machine is gone", sqlstate="58030")
        done.set()

    world.lake.before_commit = die
    skip(world, 300)
    side.start()
    side.stops("the machine is gone")
    side.stop()
    assert skipped(world) == (300, True)
    with pytest.raises(UsageError) as refused:
        world.catalog.set_skip(Oid(1), Lsn(500))
    assert refused.value.hint == (
        "Some tables may be beyond it already. Wait until subskiplsn of pg_subscription is"
        " 0/0."
    )
    assert side.table(3).version > side.table(1).version
    world.lake.before_commit = lambda location: None
    side.start()
    side.reaches(408)
    is_without(side, 300)
    assert skipped(world) == (0, False)
    world.catalog.set_skip(Oid(1), Lsn(500))
    assert skipped(world) == (500, False)


def test_an_error_disables_a_subscription_that_asks_for_it(world: World) -> None:
    world.catalog.set_options(Oid(1), {"disable_on_error": "true"})
    failing(world)

    def disabled() -> bool:
        found = world.catalog.subscription(Oid(1))
        return found is not None and not found.enabled

    wait_until(disabled)
    assert "finished at 0/12C" in world.side.error
