"""The tablesync workers over a real catalog, a lake made of lists and a publisher made of pages:
whose copy goes on when another fails, and what a command that ends copies may rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.fakes.tablesync_world import (
    LARGE,
    MIDDLE,
    SMALL,
    World,
    tablesync_world,
)

from wal2lake.catalog import (
    SyncSnapshot,
)
from wal2lake.errors import ApplyError, PublisherError, StorageError
from wal2lake.lake.port import CommitConflict
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted
from wal2lake.tablesync.unaltered import SourceChanged
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with tablesync_world(tmp_path, monkeypatch) as made:
        yield made


class Gate:
    """Holds up whoever passes until it is opened."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, name: str) -> None:
        if name in self.names:
            self.reached.set()
            assert self.opened.wait(30)

    def wait(self) -> None:
        wait_until(self.reached.is_set, describe=f"{self.names} is reached")


# ---- a copy -----------------------------------------------------------------------------


def test_tables_of_all_sizes_are_copied_in_one_commit_each(world: World) -> None:
    world.subscribe(1, {101: SMALL, 102: LARGE, 103: SMALL, 104: 0})
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f", 102: "f", 103: "f", 104: "f"})
    ranges = -(-LARGE * 8192 // (1 << 20))
    assert world.versions == {
        "/t101": [(1, 500)],
        "/t102": [(ranges, 500)],
        "/t103": [(1, 500)],
        "/t104": [(1, 500)],
    }
    assert [world.rel(1, n).lsn for n in (101, 102, 103, 104)] == [500] * 4
    assert world.rel(1, 102).rows_copied == ranges * 10
    assert world.catalog.ranges(Oid(1), Oid(102)) == []


def test_many_small_tables_share_questions_tasks_and_transactions(world: World) -> None:
    tables = {1000 + n: SMALL for n in range(120)}
    world.subscribe(1, tables)
    world.hold(1, "a", 500)
    before = world.catalog.change_counter
    world.start()
    world.reaches(1, dict.fromkeys(tables, "f"))
    assert world.questions == [120]
    assert len(world.tasks) <= 10
    assert sum(map(len, world.tasks)) == 120
    # Begin, two bundles of ranges, finish: for four groups.
    assert world.catalog.change_counter - before <= 20


def test_a_task_that_fails_as_a_whole_is_made_again_table_by_table(
    world: World,
) -> None:
    """One table that kills its reader does not take the others with it for ever."""
    tables = range(101, 125)
    world.subscribe(1, dict.fromkeys(tables, SMALL))

    def die(table: str) -> None:
        if table == "t103":
            raise MemoryError

    world.reading = die
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {n: "d" if n == 103 else "f" for n in tables})
    with_others = [task for task in world.tasks if "t103" in task and len(task) > 1]
    assert len(with_others) == 1
    world.fails(1, 103, "internal error\nHINT:  The server log has the details.")


# ---- one fails, the others go on ---------------------------------------------------------


def test_tables_that_fail_for_ever_keep_no_worker_from_the_others(world: World) -> None:
    """Two with the lowest numbers used to have both workers, for ever."""
    tables = dict.fromkeys(range(101, 109), LARGE)
    world.subscribe(1, tables)
    for relid in (101, 102, 103):
        world.bad[f"t{relid}"] = ApplyError(f"no t{relid}", sqlstate="22P02")
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {n: "d" if n <= 103 else "f" for n in tables})
    for relid in (101, 102, 103):
        world.fails(1, relid, f"no t{relid}")
    assert all(world.rel(1, n).error is None for n in range(104, 109))
    # Nothing of them can have been committed: the floor need not wait for them.
    wait_until(lambda: world.rel(1, 101).lsn is None)
    # The cause goes, and so does the error.
    world.bad.clear()
    world.reaches(1, dict.fromkeys(tables, "f"))
    assert world.rel(1, 101).error is None


def has_changed(world: World, before: int) -> bool:
    return world.catalog.change_counter != before


def test_an_error_stays_visible_while_the_copy_is_tried_again(world: World) -> None:
    world.subscribe(1, {101: LARGE})
    world.taken.add("/t101")
    world.hold(1, "a", 500)
    world.start()
    world.fails(1, 101, "duplicate key value")
    read = len(world.tasks)
    assert read == 8
    for _ in range(20):
        assert world.rel(1, 101).error is not None
        wait_until(partial(has_changed, world, world.catalog.change_counter))
    assert len(world.tasks) == read, "finished ranges are not read again"
    world.taken.clear()
    world.reaches(1, {101: "f"})
    assert world.rel(1, 101).error is None


def test_rows_of_which_no_index_says_that_they_are_unique_are_compared(
    world: World,
) -> None:
    world.unique = False
    world.twice.add("/t101")
    world.subscribe(1, {101: SMALL, 102: LARGE})
    world.catalog.update_rel(Oid(1), Oid(101), replaces=1)
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "d", 102: "f"})
    world.fails(1, 101, "duplicate key value violates unique constraint")
    assert set(world.compared) == {"/t101", "/t102"}
    assert "/t101" not in world.versions
    world.twice.clear()
    world.reaches(1, {101: "f", 102: "f"})


def test_an_index_of_the_publisher_spares_the_comparison(world: World) -> None:
    world.twice.add("/t101")
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f"})
    assert not world.compared


def test_a_publication_that_was_altered_behind_the_snapshot_ends_the_trust(
    world: World,
) -> None:
    world.subscribe(1, {101: SMALL})
    world.subscribe(2, {102: SMALL})
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f"})
    world.marks = ("p1", "p2")
    world.hold(2, "b", 500)
    world.reaches(2, {102: "f"})
    found = world.rel(1, 101), world.rel(2, 102)
    assert [(one.trusted, one.published_as) for one in found] == [
        (True, "p1"),
        (False, "p1"),
    ]
    assert [one.copied_from for one in found] == [Oid(1), Oid(1)]


def test_a_table_that_is_gone_at_the_publisher_is_its_own_error(world: World) -> None:
    world.subscribe(1, {101: SMALL, 102: SMALL})
    del world.pages["t101"]
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "d", 102: "f"})
    world.fails(1, 101, 'table "public.t101" not found on publisher')


def test_a_publisher_that_cannot_be_reached_is_the_error_of_each_table(
    world: World,
) -> None:
    world.subscribe(1, {101: SMALL, 102: SMALL})
    world.unreachable = True
    world.hold(1, "a", 500)
    world.start()
    for relid in (101, 102):
        world.fails(1, relid, "connection refused")
    wait_until(lambda: world.log)
    assert world.log[0]["event"] == 'could not copy table "public.t101" and 1 more'
    world.unreachable = False
    world.reaches(1, {101: "f", 102: "f"})


def test_a_table_whose_reader_hangs_does_not_hold_up_another_subscription(
    world: World,
) -> None:
    gate = Gate("t101")
    world.reading = gate
    world.subscribe(1, {101: MIDDLE})
    world.hold(1, "a", 500)
    world.start()
    gate.wait()
    world.subscribe(2, {201: LARGE, 202: SMALL})
    world.hold(2, "b", 600)
    world.reaches(2, {201: "f", 202: "f"})
    assert world.states(1) == {101: "d"}
    gate.opened.set()
    world.reaches(1, {101: "f"})


def test_a_reload_gives_work_to_more_workers_and_shortens_the_wait_after_a_failure(
    world: World,
) -> None:
    """Only what a worker has in hand is running: the others wait, failed or not begun."""

    def limits(workers: int, retry_ms: int) -> Settings:
        changed = replace(
            world.settings.subscription,
            max_sync_workers_per_subscription=workers,
            wal_retrieve_retry_interval_ms=retry_ms,
        )
        return replace(world.settings, subscription=changed)

    world.settings = limits(1, 60_000)
    gate = Gate("t102")
    world.reading = gate
    world.bad["t101"] = ApplyError("no", sqlstate="22P02")
    world.subscribe(1, {101: LARGE, 102: SMALL, 103: LARGE})
    world.hold(1, "a", 500)
    sync = world.start()
    gate.wait()
    world.fails(1, 101, "no")
    assert [(c.relid, c.received_at) for c in sync.running(Oid(1))] == [(102, None)]
    assert sync.running(Oid(2)) == []
    sync.reload(limits(2, 60_000))
    world.reaches(1, {101: "d", 102: "d", 103: "f"})
    # Its worker lets go of a table after it has said that it is there.
    wait_until(lambda: [c.relid for c in sync.running(Oid(1))] == [102])
    world.bad.clear()
    sync.reload(limits(2, 100))
    world.reaches(1, {101: "f", 102: "d", 103: "f"})
    gate.opened.set()
    world.reaches(1, {101: "f", 102: "f", 103: "f"})
    wait_until(lambda: not sync.running(Oid(1)), describe="nothing is copied")


# ---- crashes ----------------------------------------------------------------------------


def test_a_commit_that_the_catalog_did_not_hear_of_is_found_with_its_own_position(
    world: World,
) -> None:
    slow = replace(world.settings.subscription, wal_retrieve_retry_interval_ms=60_000)
    world.settings = replace(world.settings, subscription=slow)
    world.subscribe(1, {101: SMALL, 102: SMALL})
    world.hold(1, "a", 500)

    def crash(location: str) -> None:
        if location == "/t101":
            raise StorageError("killed", sqlstate="58030")

    world.committed = crash
    world.start()
    world.reaches(1, {101: "d", 102: "f"})
    world.fails(1, 101, "killed")
    world.stop()
    assert world.rel(1, 101).lsn == 500, "its commit may have been made"
    # A later snapshot moves the floor no further than that.
    world.hold(1, "b", 900)
    assert world.catalog.publish(Oid(1), Lsn(1000), {}, participants=[102]) == 500
    world.committed = lambda location: None
    world.start()
    world.reaches(1, {101: "f", 102: "f"})
    assert world.rel(1, 101).lsn == 500
    assert world.versions["/t101"] == [(1, 500)]


def test_a_commit_that_failed_and_is_not_there_does_not_hold_the_floor(
    world: World,
) -> None:
    slow = replace(world.settings.subscription, wal_retrieve_retry_interval_ms=60_000)
    world.settings = replace(world.settings, subscription=slow)
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)

    def full(location: str) -> None:
        raise StorageError("disk full", sqlstate="53100")

    world.committing = full
    world.start()
    world.fails(1, 101, "disk full")
    wait_until(
        lambda: world.rel(1, 101).lsn is None,
        describe="the snapshot may be let go: nothing was committed under it",
    )


def test_a_commit_that_came_second_looks_at_the_keys_again(world: World) -> None:
    def others_first(location: str) -> None:
        if len(looked) < 4:
            raise CommitConflict("somebody else")

    looked: list[str] = []
    world.committing, world.checking = others_first, looked.append
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f"})
    assert (len(looked), len(world.tasks)) == (4, 1), "nothing is read again"
    assert not any(one.sync_errors for one in world.catalog.stats())


def test_ranges_of_a_lost_snapshot_are_void(world: World) -> None:
    world.subscribe(1, {101: LARGE})

    def some(table: str) -> None:
        if len(world.tasks) > 4:
            world.bad["t101"] = ApplyError("no", sqlstate="22P02")

    world.reading = some
    world.hold(1, "a", 500)
    world.start()
    world.fails(1, 101, "no")
    assert world.catalog.ranges(Oid(1), Oid(101))
    # No attempt can end under the lost snapshot, though one may still be under way.
    world.catalog.release_snapshot(Oid(1))
    world.reading = lambda table: None
    world.bad.clear()
    world.hold(1, "b", 600)
    world.reaches(1, {101: "f"})
    assert world.snapshots.count("b") == 8
    assert world.versions == {"/t101": [(8, 600)]}
    assert world.rel(1, 101).rows_copied == 80


def test_a_copy_under_a_snapshot_that_has_gone_commits_nothing(world: World) -> None:
    gate = Gate("t101")
    world.reading = gate
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    world.start()
    gate.wait()
    world.catalog.release_snapshot(Oid(1))
    gate.opened.set()
    wait_until(lambda: world.rel(1, 101).lsn is None, describe="the attempt is over")
    assert world.versions == {}
    world.hold(1, "b", 700)
    world.reaches(1, {101: "f"})
    assert world.versions == {"/t101": [(1, 700)]}


# ---- copies that give way ---------------------------------------------------------------


def test_a_table_that_has_changed_since_its_snapshot_waits_for_the_next_one(
    world: World,
) -> None:
    """It is no failure, and what was read of it is void."""
    world.subscribe(1, {101: LARGE, 102: SMALL})

    def some(table: str) -> None:
        if table == "t101" and sum("t101" in task for task in world.tasks) > 4:
            world.bad["t101"] = SourceChanged("it was rewritten", sqlstate="55000")

    world.reading = some
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "d", 102: "f"})
    wait_until(lambda: world.held(1) == (102,), describe="it is covered no longer")
    wait_until(lambda: world.rel(1, 101).lsn is None, describe="the attempt is over")
    # A range that ends behind the decision may still be noted: only the next copy can tell.
    assert world.rel(1, 101).error is None
    assert [s.sync_errors for s in world.catalog.stats()] in ([], [0])
    world.bad.clear()
    world.reading = lambda table: None
    world.hold(1, "b", 600, 101)
    world.reaches(1, {101: "f", 102: "f"})
    assert world.versions["/t101"] == [(8, 600)]


@pytest.mark.parametrize("sqlstate", ["55P03", "57P01"])
def test_a_copy_that_gives_way_comes_again_under_the_same_snapshot(
    world: World, sqlstate: str
) -> None:
    """A lock that cannot be had in time; a reader that the snapshot keeper has ended."""
    world.subscribe(1, {101: LARGE})
    world.catalog.update_subscription(Oid(1), options={"disable_on_error": "true"})

    def some(table: str) -> None:
        if len(world.tasks) == 5:
            world.bad["t101"] = PublisherError("given way", sqlstate=sqlstate)

    world.reading = some
    world.hold(1, "a", 500)
    world.start()
    wait_until(lambda: "t101" in world.bad, describe="it gives way")
    read = len(world.tasks)
    world.bad.clear()
    world.reading = lambda table: None
    world.reaches(1, {101: "f"})
    assert world.versions == {"/t101": [(8, 500)]}
    assert len(world.tasks) - read <= 5, "what was read is not read again"
    assert world.rel(1, 101).error is None
    assert [s.sync_errors for s in world.catalog.stats()] in ([], [0])


def test_a_table_that_cannot_be_described_in_time_does_not_hold_up_the_others(
    world: World,
) -> None:
    """pg_relation_size waits for who has locked its table."""
    world.subscribe(1, {101: SMALL, 102: SMALL, 103: SMALL})
    world.locked = {"t102"}
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f", 102: "d", 103: "f"})
    world.locked = set()
    world.reaches(1, {101: "f", 102: "f", 103: "f"})
    assert [s.sync_errors for s in world.catalog.stats()] in ([], [0])


# ---- copies that replace ----------------------------------------------------------------


def test_a_copy_that_replaces_is_one_commit_on_the_version_that_nobody_else_fills(
    world: World,
) -> None:
    world.subscribe(1, {101: SMALL, 102: SMALL})
    world.subscribe(2, {102: SMALL}, enabled=False)
    for relid in (101, 102):
        world.versions[f"/t{relid}"] = [(1, 100)] * 4
        world.catalog.update_rel(Oid(1), Oid(relid), replaces=1)
    # The keys that are there do not stay: nobody looks for them.
    world.taken = {"/t101", "/t102"}
    world.hold(1, "a", 500)
    world.start()
    world.fails(1, 102, "another subscription fills it, too")
    world.reaches(1, {101: "f", 102: "d"})
    assert world.replaced == [("/t101", 4)]
    world.catalog.drop_subscription(Oid(2))
    world.reaches(1, {101: "f", 102: "f"})
    assert world.replaced == [("/t101", 4), ("/t102", 4)]
    assert world.rel(1, 102).replaces, "should a power cut take it, the next one does"


def test_two_copies_of_a_table_are_never_under_way_together(world: World) -> None:
    gate = Gate("/t101")
    world.committing = gate
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    sync = world.start()
    gate.wait()
    world.catalog.copy_anew(Oid(1), ("p",))
    assert not sync.halt(subid=Oid(1), timeout_seconds=0.01)
    world.catalog.update_rel(Oid(1), Oid(101), state=SyncState.DATASYNC)
    world.hold(1, "b", 800)
    seen = world.catalog.change_counter
    # A look after this change begins nothing.
    world.subscribe(2, {201: SMALL})
    world.hold(2, "c", 500)
    world.reaches(2, {201: "f"})
    assert world.catalog.change_counter > seen
    assert world.tasks.count(("t101",)) == 1
    gate.opened.set()
    world.reaches(1, {101: "f"})
    assert world.versions["/t101"] == [(1, 500), (1, 800)]
    assert world.replaced == [("/t101", 1)]


# ---- halt -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["drop", "disable", "refresh", "drop table"])
def test_nothing_is_committed_once_halt_has_returned(world: World, how: str) -> None:
    gate = Gate("t101")
    world.reading = gate
    world.subscribe(1, {101: SMALL, 102: LARGE})
    world.hold(1, "a", 500, 101)
    sync = world.start()
    gate.wait()
    epoch = world.rel(1, 101).epoch
    # As the commands do: the catalog first.
    if how == "drop":
        world.catalog.update_subscription(Oid(1), enabled=False, bump=True)
        assert sync.halt(subid=Oid(1), timeout_seconds=20)
        world.catalog.drop_subscription(Oid(1))
    elif how == "disable":
        world.catalog.update_subscription(Oid(1), enabled=False, bump=True)
        assert sync.halt(subid=Oid(1), timeout_seconds=20)
    elif how == "refresh":
        world.catalog.remove_rel(Oid(1), Oid(101))
        assert sync.halt(subid=Oid(1), relids=[Oid(101)], timeout_seconds=20)
    else:
        world.catalog.drop_table(Oid(101))
        assert sync.halt(relids=[Oid(101)], timeout_seconds=20)
    # The reader hangs; the worker does not wait for it.
    wait_until(
        lambda: not sync._workers[Oid(1)],
        timeout_seconds=10,
        describe="the worker has ended",
    )
    gate.opened.set()
    assert world.versions == {}
    if how == "disable":
        world.catalog.update_subscription(Oid(1), enabled=True, bump=True)
        # Not under the snapshot of before: what the publisher has now is copied.
        world.hold(1, "b", 800, 101)
        world.reaches(1, {101: "f", 102: "d"})
        assert world.versions == {"/t101": [(1, 800)]}
    elif how == "refresh":
        # It comes back: only the new copy counts.
        world.catalog.add_rels(
            [replace(world.rel(1, 102), relid=Oid(101), remote_name="t101",
                     epoch=epoch + 1000, lsn=None)]
        )  # fmt: skip
        world.hold(1, "b", 800, 101)
        world.reaches(1, {101: "f", 102: "d"})
        assert world.versions == {"/t101": [(1, 800)]}


def test_an_attempt_that_is_halted_just_before_its_commit_does_not_make_it(
    world: World,
) -> None:
    gate = Gate("/t101")
    world.checking = gate
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    sync = world.start()
    gate.wait()
    world.catalog.update_subscription(Oid(1), enabled=False, bump=True)
    assert sync.halt(subid=Oid(1), timeout_seconds=20)
    gate.opened.set()
    wait_until(lambda: not sync._workers[Oid(1)], describe="the worker has ended")
    assert world.versions == {}
    assert world.rel(1, 101).error is None


@pytest.mark.parametrize("when", ["reads", "is about to commit"])
def test_a_copy_that_begins_anew_while_it_runs_leaves_nothing_of_before(
    world: World, when: str
) -> None:
    """Its rows have values of sequences that are given again."""
    gate = Gate("t101", "/t101")
    if when == "reads":
        world.reading = gate
    else:
        world.checking = gate
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    before = world.rel(1, 101).epoch
    world.start()
    gate.wait()
    world.catalog.restart_sequences({}, [(Oid(1), Oid(101))])
    gate.names = ()
    gate.opened.set()
    world.reaches(1, {101: "f"})
    (epoch,) = {name.rpartition(":")[2] for name in world.cursors["/t101"]}
    assert int(epoch) == world.rel(1, 101).epoch != before
    assert world.versions == {"/t101": [(1, 500)]}
    assert world.rel(1, 101).error is None


def test_halt_waits_for_a_commit_that_is_under_way(world: World) -> None:
    gate = Gate("/t101")
    world.committing = gate
    world.subscribe(1, {101: SMALL})
    world.hold(1, "a", 500)
    sync = world.start()
    gate.wait()
    world.catalog.update_subscription(Oid(1), enabled=False, bump=True)
    assert not sync.halt(subid=Oid(1), timeout_seconds=0.05)
    opener = threading.Timer(0.1, gate.opened.set)
    opener.start()
    assert sync.halt(subid=Oid(1), timeout_seconds=20)
    assert world.versions == {"/t101": [(1, 500)]}, "it was made before halt returned"


def test_a_commit_that_halt_did_not_wait_for_is_the_last_one(world: World) -> None:
    """As the worker's lock: one that waits for it when halt gives up does not commit."""
    world.subscribe(1, {101: SMALL})
    snapshot = SyncSnapshot(Oid(1), "a", Lsn(500), "me", (101,))
    subscription = world.catalog.subscription(Oid(1))
    assert subscription is not None
    attempt = Attempt(subscription, world.rel(1, 101), snapshot, None)
    with attempt.writing():
        assert not attempt.end(0.01)
    with pytest.raises(Halted), attempt.writing():
        pass


def test_others_are_not_halted(world: World) -> None:
    gate = Gate("t101", "t201")
    world.reading = gate
    world.subscribe(1, {101: MIDDLE})
    world.subscribe(2, {201: MIDDLE})
    world.hold(1, "a", 500)
    world.hold(2, "a", 500)
    sync = world.start()
    wait_until(lambda: {("t101",), ("t201",)} <= set(world.tasks))
    world.catalog.update_subscription(Oid(1), enabled=False, bump=True)
    assert sync.halt(subid=Oid(1), timeout_seconds=20)
    gate.opened.set()
    world.reaches(2, {201: "f"})
    assert world.states(1) == {101: "d"}


def test_an_error_of_a_copy_is_said_once_then_counted(world: World) -> None:
    world.subscribe(1, {101: LARGE})
    world.bad["t101"] = ApplyError("no t101", sqlstate="22P02", detail="v")
    world.hold(1, "a", 500)
    world.start()

    def said() -> list[str]:
        return [str(one["event"]) for one in world.log]

    tenth = (
        'the same error for the 10th time: could not copy table "public.t101": no t101'
    )
    wait_until(lambda: tenth in said(), describe=lambda: str(said()))
    assert said().count('could not copy table "public.t101"') == 1
    world.bad.clear()
    world.reaches(1, {101: "f"})
    wait_until(
        lambda: any("an error has passed that came" in one for one in said()),
        describe=lambda: str(said()),
    )
