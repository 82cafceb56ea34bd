"""A table that had committed its part of a batch when the engine died was ahead of the floor. The
next worker rightly left it alone, but the vector was not told of its new version: readers saw
the batch in the other tables only, until some later batch had changes for this one.
With one table nothing was published at all, and the publisher never heard of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.fakes.apply_world import StagedRows, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.errors import StorageError
from wal2lake.lake.batch.batchport import StageRequest
from wal2lake.model import Oid, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int) -> Change:
    return Change(relid, "I", (b"1", b"v"))


def test_a_table_that_had_committed_is_published_with_the_others(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1), insert(2))))
        first = threading.Event()

        def die(location: str) -> None:
            if location == side.location(1):
                first.wait(10)
                raise StorageError("killed", sqlstate="58030")

        world.lake.before_commit = die
        world.lake.after_commit = lambda location: first.set()
        side.start()
        side.stops("killed")
        side.stop()
        assert (side.visible(1), side.visible(2)) == ({}, {})
        world.lake.before_commit = lambda location: None
        side.start()
        side.reaches(108)
        assert side.visible(1) == side.visible(2) == {b"1": (b"1", b"v")}
        assert [side.table(i).version for i in (1, 2)] == [1, 1], "not applied twice"


def test_a_batch_that_had_committed_whole_is_published(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1),)))

        def die(location: str) -> None:
            raise StorageError("killed", sqlstate="58030")

        world.lake.after_commit = die
        world.fail_once()
        side.start()
        side.stops("killed")
        side.stop()
        assert (side.visible(1), side.floor) == ({}, 0)
        side.start()
        side.reaches(108)
        assert side.visible(1) == {b"1": (b"1", b"v")}
        wait_until(
            lambda: side.progress.word("applied") == 108, describe="it is confirmed"
        )
        assert side.table(1).version == 1


def test_no_table_commits_any_more_when_a_failed_batch_is_given_up(
    tmp_path: Path,
) -> None:
    """The lock of the subscription's writers was let go, and the next attempt begun, while
    other tables of the failed batch were still committing."""
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1), insert(2))))
        failed, go_on = threading.Event(), threading.Event()
        committing: list[str] = []

        def commits(location: str) -> None:
            if failed.is_set():
                return
            if location == side.location(1):
                wait_until(lambda: committing)
                failed.set()
                raise StorageError("killed", sqlstate="58030")
            committing.append(location)
            assert go_on.wait(10)

        world.lake.before_commit = commits
        side.start()
        assert failed.wait(10)
        assert not side.lock.acquire(timeout=0.2), "table 2 is being committed"
        assert side.error == ""
        go_on.set()
        side.reaches(108)
        assert committing == [side.location(2)]


def test_what_was_staged_beside_a_failure_to_stage_is_discarded(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(Transaction(100, (insert(1), insert(2))))
        stage, failed = world.lake.stage, threading.Event()

        def failing(request: StageRequest) -> StagedRows:
            if request.name == "t1" and not failed.is_set():
                failed.set()
                raise StorageError("disk full", sqlstate="53100")
            return stage(request)

        world.lake.stage = failing  # type: ignore[method-assign]
        side.start()
        side.reaches(108)
        assert world.lake.discarded == 1


def test_what_was_applied_before_a_poisoned_transaction_is_published_after_a_crash(
    tmp_path: Path,
) -> None:
    """The part below the cut had committed when the engine died: the next attempt found the
    table at the cut already, and published nothing for as long as the poison was there."""
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(
            Transaction(100, (insert(1),)),
            Transaction(200, (Change(1, "I", (b"2", b"bad")),)),
        )
        died = threading.Event()

        def die(location: str) -> None:
            if not died.is_set():
                died.set()
                raise StorageError("killed", sqlstate="58030")

        world.lake.after_commit = die
        side.start()
        side.stops("finished at 0/C8")
        side.reaches(200)
        assert side.visible(1) == {b"1": (b"1", b"v")}
        assert side.table(1).version == 1


def test_a_table_that_is_ahead_holds_the_vector_as_soon_as_readers_see_it(
    tmp_path: Path,
) -> None:
    """Only tables in state r were waited for: one in s, just made visible, could be left
    behind by a vector that had the same transaction's rows of another table."""
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        for i in (1, 2):
            relid = Oid(100 + i)
            world.catalog.update_rel(side.subid, relid, state=SyncState.SYNCDONE)
        side.send(
            Transaction(100, (insert(1), insert(2))),
            Transaction(200, (Change(2, "I", (b"2", b"bad")),)),
        )
        committed = threading.Event()

        def die(location: str) -> None:
            if location == side.location(2):
                committed.wait(10)
                raise StorageError("killed", sqlstate="58030")

        world.lake.before_commit = die
        world.lake.after_commit = lambda location: committed.set()
        side.start()
        side.stops("killed")
        side.stop()
        # What converted yesterday does not today: a changed type, a full disk, a bug.
        world.lake.poison = {b"bad"}
        world.lake.before_commit = lambda location: None
        side.start()
        side.stops("finished at 0/C8")
        assert (side.visible(1), side.visible(2)) == ({}, {})
