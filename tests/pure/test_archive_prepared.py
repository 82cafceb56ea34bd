"""Prepared transactions in the log's store: a node that comes back has exactly those that it needs.

A source streams, prepares and ends transactions; segments go to a store that fails at any call; the
machine is lost at any moment, and the former one goes on for a while.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.faultystore import FaultyStore
from tests.fakes.publisher import content
from tests.fakes.receiver import SUBSCRIPTION
from tests.fakes.streaming import Source
from tests.fakes.walsender import FakeWalsender, Scripted
from tests.pure.test_archive import fetch, receiver, revived
from tests.pure.test_changelog_streams import STEPS, Step, World, insert

from wal2lake.archive import FetchedNode, SegmentArchive, layout
from wal2lake.archive.segments import log_in_store
from wal2lake.changelog import (
    ChangeLog,
    HeldSpools,
    LogReader,
    Retention,
    files,
    prepared_transactions,
)
from wal2lake.errors import StorageError
from wal2lake.lake.store import LocalStore
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")

LOG = "7/1"

MORE_STEPS = (
    *STEPS,
    *("end", "finish", "seal") * 3,
    *("hold", "put") * 8,
    *("lose", "clean"),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(MORE_STEPS),
        st.integers(0, 3),
        st.integers(0, 9),
        st.integers(0, 400),
    ),
    min_size=100,
    max_size=200,
)


class StoredWorld(World):
    """A source, a log whose machine may be lost, and the log's store."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = FaultyStore(place / "store")
        self.generation = 1
        self.position = Lsn(0)
        """The highest position that may have been confirmed to the source."""
        super().__init__(place / "log-1")

    def open(self) -> None:
        super().open()
        self.held = HeldSpools(self.directory)
        self.archive: SegmentArchive | None = None

    def step(self, step: Step) -> None:
        kind, _, small, large = step
        if kind in ("hold", "put", "lose", "clean"):
            getattr(self, kind)(small, large)
        else:
            super().step(step)

    def seal(self, small: int = 0, large: int = 0) -> None:
        super().seal()
        if small < 8:
            self.hold()

    def trim(self, small: int, large: int) -> None:
        applied = Lsn(self.log.sealed * small // 9)
        Retention(self.directory).trim(min(applied, self.position))

    def hold(self, small: int = 0, large: int = 0) -> None:
        if self.held.segment < self.log.last_segment:
            self.log.hold(self.held)

    def put(self, small: int = 9, large: int = 0) -> None:
        """Put what has been offered; the store may fail at a call, or be stopped."""
        self.store.left = large % 12 if small < 5 else None
        calls = iter(range(large % 4))
        try:
            end = self.send(
                self.opened(), lambda: small == 5 and next(calls, None) is None
            )
            self.position = max(self.position, end)
        except StorageError:
            pass
        finally:
            self.store.left = None

    def opened(self) -> SegmentArchive:
        if self.archive is None:
            self.archive = SegmentArchive(
                self.directory,
                self.store,
                log=LOG,
                generation=self.generation,
                generations=list(range(1, self.generation + 1)),
            )
        return self.archive

    def send(self, archive: SegmentArchive, stopped: Any = lambda: False) -> Lsn:
        if self.held.moment is None:
            return Lsn(0)
        end = archive.put(self.held.moment, stopped)
        self.held.stored(archive.transactions)
        return end

    def clean(self, small: int, large: int) -> None:
        archive = self.opened()
        archive.trim(archive.oldest_on_disk())

    def lose(self, small: int, large: int) -> None:
        """The machine is lost; its process may have sent one moment more than its successor
        sees."""
        self.log.close()
        former, held = self.archive, self.held
        self.generation += 1
        self.directory = self.place / f"log-{self.generation}"
        self.directory.mkdir()
        fetch_log(self.store, self.generation - 1, self.directory)
        if former is not None and held.moment is not None and small < 5:
            former.put(held.moment)
        shutil.rmtree(self.place / f"log-{self.generation - 1}")
        self.confirmed, self.synced = self.position, {}
        self.open()
        self.check()


def fetch_log(store: FaultyStore, generations: int, directory: Path) -> None:
    """Make the log's directory from the store, as ``wal2lake init --from`` does."""
    node: Any = FetchedNode
    numbers = tuple(range(1, generations + 1))
    node(None, None, None, "", store, numbers)._fetch_segments(LOG, directory)


def play(script: Sequence[Step]) -> None:
    with TemporaryDirectory() as place:
        world = StoredWorld(Path(place))
        for step in script:
            world.step(step)
        # Whatever is there now comes back, and nothing else.
        world.lose(9, 0)
        world.finish()
        world.open()
        world.hold()
        world.put()
        world.clean(0, 0)
        names = world.store.list_after(layout.log_folder(LOG, world.generation))
        assert not any(map(layout.is_transaction, names)), names
        assert not list(world.directory.glob(f"{files.HELD}*"))
        world.log.close()


@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(steps)
def test_a_lost_machine_at_any_moment_loses_and_keeps_no_prepared_transaction(
    script: list[Step],
) -> None:
    play(script)


def flow(world: StoredWorld, *, offers: bool = True) -> None:
    """Whatever the source has sent is in the log, sealed and offered."""
    while world.source.wire:
        world.append(0, 400)
        world.sync()
        while world.log.absorb(0):
            pass
    world.log.seal()
    if offers:
        world.hold()


def prepared(world: StoredWorld, key: int) -> Any:
    one = world.source.begin()
    one.items.append((one.xid, insert(key)))
    return world.source.end(one, "prepare")


@pytest.mark.parametrize("left", range(11))
def test_each_step_of_storing_a_prepared_transaction_may_be_the_last(
    tmp_path: Path, left: int
) -> None:
    """One is prepared, another one ends, and the store fails at each call in turn."""
    world = StoredWorld(tmp_path)
    before = prepared(world, 1)
    flow(world)
    world.put()
    assert world.position == before.end
    prepared(world, 2)
    flow(world)
    world.source.finish(before, commit=True)
    flow(world)
    world.store.left = left
    try:
        world.send(world.opened())
        done = True
    except StorageError:
        done = False
    world.store.left = None
    world.lose(9, 0)
    listed = [one.gid for one in prepared_transactions(world.directory)]
    if done:
        assert listed == ["g102"]
        assert world.log.logged == world.source.wal[-1].end
    else:
        assert listed == ["g101"]
        assert world.log.logged == before.end
    world.finish()


@pytest.mark.parametrize("left", range(13))
def test_segments_between_two_moments_count_together(tmp_path: Path, left: int) -> None:
    """A transaction is prepared in one and ends in the next. What has been applied leaves."""
    world = StoredWorld(tmp_path)
    world.source.emit(b"before")
    flow(world)
    world.put()
    confirmed = world.position
    one = prepared(world, 1)
    flow(world, offers=False)
    world.source.finish(one, commit=True)
    flow(world, offers=False)
    world.source.emit(b"behind")
    flow(world)
    world.store.left = left
    try:
        world.position = world.send(world.opened())
    except StorageError:
        assert world.position == confirmed
    world.store.left = None
    Retention(world.directory).trim(world.position)
    world.clean(0, 0)
    # There is a segment with the position that was confirmed, or a later one.
    world.lose(9, 0)
    assert world.log.sealed >= confirmed
    world.finish()


def test_the_files_of_a_transaction_that_has_ended_wait_for_a_slow_store(
    tmp_path: Path,
) -> None:
    world = StoredWorld(tmp_path)
    one = prepared(world, 1)
    flow(world)
    moment = world.held.moment
    assert moment is not None
    world.source.finish(one, commit=False)
    flow(world)
    assert prepared_transactions(world.directory) == []
    # The store gets the former moment, with the files.
    assert world.opened().put(moment) == one.end
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    fetch_log(world.store, 1, fetched)
    (found,) = prepared_transactions(fetched)
    assert found.prepare_lsn == one.lsn
    world.put()
    assert not list(world.directory.glob(f"{files.HELD}*"))
    # The record that says so leaves when those before it have left.
    world.clean(0, 0)
    record = log_in_store(world.store, LOG, [1]).record
    assert record is not None and not record.transactions
    world.clean(0, 0)
    assert log_in_store(world.store, LOG, [1]).keys == frozenset()
    world.source.emit(b"more")
    flow(world)
    world.put()
    world.finish()


def test_a_log_without_prepared_transactions_costs_no_record(tmp_path: Path) -> None:
    world = StoredWorld(tmp_path)
    for number in range(4):
        world.source.emit(b"%d" % number)
        flow(world)
        world.put()
    names = world.store.list_after(layout.log_folder(LOG, 1))
    assert [n for n in names if layout.prepared_of(n) is not None] == []
    # One that stays prepared costs one.
    one = prepared(world, 1)
    for number in range(4):
        world.source.emit(b"%d" % number)
        flow(world)
        world.put()
    names = world.store.list_after(layout.log_folder(LOG, 1))
    assert len([n for n in names if layout.prepared_of(n) is not None]) == 1
    world.source.finish(one, commit=True)
    world.finish()


def script(source: Source) -> list[Scripted]:
    """What a publisher sends to a new connection."""
    source.connect(source.next_lsn)
    events = []
    for ended in source.wal:
        source.wire = []
        source.send(ended)
        events.append(Scripted(ended.end, tuple(source.wire)))
    return events


@pytest.mark.parametrize("confirm", ["store", "disk"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_new_directory_ends_what_the_lost_one_has_prepared(
    tmp_path: Path, confirm: str, commits: bool
) -> None:
    """With the receiver's threads: PREPARE is confirmed, the directory is lost, it ends."""
    source, store = Source(), tmp_path / "store"
    one, other = source.begin(), source.begin()
    one.items += [(one.xid, insert(key, 200)) for key in range(50)]
    other.items.append((other.xid, insert(1000)))
    kept = source.end(one, "prepare")
    source.end(other, "prepare")
    first = script(source)
    source.finish(kept, commit=commits)
    runs = [first] if confirm == "store" else [first, first]
    with FakeWalsender([*runs, script(source)]) as publisher:
        publisher.end = Lsn(50_000)
        lost = receiver(tmp_path / "node", publisher, store, confirm)
        lost.catalog.set_options(SUBSCRIPTION, {"two_phase": "e"})
        folder = LocalStore(store)

        def is_stored() -> bool:
            found = log_in_store(folder, "1/1", [1])
            return found.record is not None and len(found.record.ends) == 2

        assert lost.run(until=lambda: publisher.confirmed >= first[-1].end_lsn) is None
        if confirm == "disk":
            # Confirmed without the store, which follows.
            assert lost.run(until=is_stored) is None
        assert is_stored()
        assert lost.catalog.errors() == []
        shutil.rmtree(tmp_path / "node")
        fetch(tmp_path / "new", store)
        new = revived(tmp_path / "new", publisher)
        assert len(prepared_transactions(new.log)) == 2

        def has_ended() -> bool:
            left = prepared_transactions(new.log)
            return [one.xid for one in left] == [other.xid] and bool(
                publisher.confirmed >= source.wal[-1].end
            )

        assert new.run(until=has_ended) is None
    # What only the journal has is sealed when the log is opened again.
    ChangeLog.open(new.log).close()
    assert content(new.log) == source.committed
    assert len(prepared_transactions(new.log)) == 1


def test_a_former_segment_with_the_number_of_a_new_one_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    """The former machine stores one more before the new one looks at the store."""
    world = StoredWorld(tmp_path)
    world.source.emit(b"both have it")
    flow(world)
    world.put()
    world.source.emit(b"sealed by both")
    world.source.emit(b"sealed by the former one in another segment")
    flow(world)
    former, moment = world.opened(), world.held.moment
    assert moment is not None
    world.lose(9, 0)
    flow(world)
    former._directory.mkdir(exist_ok=True)
    assert LogReader(world.directory).numbers() == [1, 2]
    # As it was sent by the former machine: a segment that has less.
    folder = layout.log_folder(LOG, 1)
    name = files.manifest_name(2)
    world.store.put(f"{folder}/{name}", b"of the former machine")
    world.put()
    assert log_in_store(world.store, LOG, [1, 2]).segments[2][0] == (
        layout.log_folder(LOG, 2)
    )
    assert world.position == world.log.sealed
