"""Retention against a model: whatever the history, what is kept reads, and the rest goes.

The histories are random: files, deletion vectors that files share, change files, files that come
back (RESTORE), checkpoints, published states of two subscriptions, files that nobody committed.
deltalake judges whether a version can be read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.delta_log import WrittenTable
from tests.fakes.objectstores import Server, environment_of
from tests.fakes.pushed_table import AgedPlace, AgedStore, PushedFiles
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.catalog import (
    Catalog,
    CopyRange,
    PendingHistory,
    PreparedCommit,
    ProgressFile,
    ReplicationSlot,
    Subscription,
    SubscriptionRel,
    TableChange,
    TableDef,
)
from wal2lake.commands.tables.past import AsOf, PastVersions
from wal2lake.errors import InternalError
from wal2lake.lake import AddedFile, files_to_json
from wal2lake.lake.delta import local_path
from wal2lake.lake.retention import (
    AgeClock,
    FileKind,
    UnreadableLog,
    are_present,
    name_below,
    read_history,
    read_log,
    stated_seconds,
)
from wal2lake.lake.spark import place_of_branches
from wal2lake.lake.store import store_at
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.local.concurrency.vacuumturns import VacuumTurns
from wal2lake.local.retention import (
    LeftBranch,
    RetentionWorker,
    Skipped,
    TablePlace,
    Vacuum,
    VacuumReport,
    VacuumRequest,
    remove_branch,
    unknown_branches,
)
from wal2lake.local.retention import worker as worker_module
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.observe.telemetry import Telemetry
from wal2lake.settings import LakeSettings
from wal2lake.testing.waits import wait_until

TABLE = Oid(1)
HOUR = 3600.0
DAY = 24 * HOUR


class FakeClock:
    """The machine's clocks, as far ahead as a test says."""

    def __init__(self) -> None:
        self.jumped = 0.0
        self.passed = 0.0

    def wall(self) -> float:
        return time.time() + self.jumped + self.passed

    def monotonic(self) -> float:
        return time.monotonic() + self.passed


class FakeNode:
    """What retention asks of a node, around one table."""

    def __init__(
        self,
        directory: Path,
        subscriptions: int = 1,
        properties: dict[str, str] | None = None,
        features: tuple[str, ...] = (),
        bucket: str | None = None,
    ) -> None:
        """``bucket``: URL below which the table is; by default it is in the directory."""
        root = directory / "warehouse" / "public" / "t"
        self.table = WrittenTable(root, properties or {}, features=features)
        self.table.create()
        warehouse = str(directory / "warehouse")
        if bucket is not None:
            warehouse = f"{bucket}/{uuid4().hex}"
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        location = f"{warehouse}/public/t"
        self.definition = TableDef(TABLE, "public", "t", Oid(10), (), (), location)
        self.catalog.create_table(self.definition)
        self.subids = [Oid(20000 + n) for n in range(subscriptions)]
        for subid in self.subids:
            name = f"s{subid}"
            rel = SubscriptionRel(
                subid, TABLE, "public", "t", SyncState.READY, Lsn(0), int(subid)
            )
            self.catalog.create_subscription(
                Subscription(subid, name, Oid(10), True, "host=p", name, ("p",)), [rel]
            )
        self.place = TablePlace(location, (self.definition,))
        store = store_at(location)
        assert store is not None
        self.store: Any = store
        self.pushed: PushedFiles | None = None
        if bucket is not None:
            self.pushed = PushedFiles(store, root)
            self.store = AgedStore(store, root)
            self.place = AgedPlace(location, (self.definition,), self.store)
        self.settings: Any = SimpleNamespace(
            lake=LakeSettings(retention_ms=0, orphan_age_ms=0),
            run_directory=directory,
            warehouse=warehouse,
        )
        self.snapshots = Snapshots()
        self.vacuums = VacuumTurns()
        self.clock = FakeClock()
        self.ages = AgeClock(self.clock.wall, self.clock.monotonic)
        self.telemetry = Telemetry()
        self.publishing: Any = None
        self.bases: list[int | None] = []
        self.compacted: tuple[list[int], set[str]] = ([], set())
        self.branches: Any = SimpleNamespace(
            bases=lambda location: self.bases, places=set
        )
        self.compactor: Any = SimpleNamespace(held=lambda location: self.compacted)
        self.mirrored: int | None = None
        self.mirrors: Any = SimpleNamespace(
            oldest_version=lambda location: self.mirrored
        )
        self.queries: Any = None
        self.tables: Any = SimpleNamespace(
            state=lambda location: SimpleNamespace(
                version=self.table.newest,
                properties=self.table.properties,
                partition_columns=(),
            ),
            sync=lambda location, version: None,
        )

    def batch_reads(self, location: str) -> list[int]:
        return []

    def publish(self, version: int, subid: Oid | None = None) -> None:
        """Publish a version of the table."""
        self.catalog.publish(
            subid or self.subids[0], Lsn(100 + version), {int(TABLE): version}
        )

    def age(self, days: float) -> None:
        """Let everything be older: commits and states, but not the age of files."""
        for version in range(self.table.newest + 1):
            self.table.age(version, days * DAY)
        with self.catalog._database.transaction() as transaction:
            transaction.execute(
                "update snapshot_vector set committed_at ="
                " strftime('%Y-%m-%dT%H:%M:%f000+00:00', committed_at, ?)",
                (f"-{days} days",),
            )

    def place_of_branches(self) -> Path:
        """The directory of the node's branches."""
        settings, number = self.settings, self.catalog.system_identifier
        place = local_path(place_of_branches(settings.warehouse, number))
        assert place is not None
        return place

    def keep(self, **chosen: int) -> None:
        """Change settings."""
        self.settings.lake = replace(self.settings.lake, **chosen)

    def vacuum(self, **request: Any) -> VacuumReport:
        self.push()
        try:
            return Vacuum(self).run(self.place, VacuumRequest(**request))
        finally:
            if self.pushed is not None:
                self.pushed.pull()

    def push(self) -> None:
        """Let the store have what the test has made in the directory."""
        if self.pushed is not None:
            self.pushed.push()

    def states(self) -> list[int]:
        """The versions that the listed states name."""
        return [vector.versions[int(TABLE)] for vector in self.catalog.vectors()]

    def log_names(self) -> set[str]:
        return {path.name for path in (self.table.root / "_delta_log").iterdir()}


@pytest.fixture(params=["local", "s3"])
def bucket(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str | None]:
    """The URL of a bucket, or None for a directory."""
    if request.param == "local":
        yield None
        return
    server = request.getfixturevalue("s3")
    with environment_of(server, monkeypatch):
        yield server.url


@pytest.fixture
def node(tmp_path: Path, bucket: str | None) -> FakeNode:
    return FakeNode(tmp_path, bucket=bucket)


@pytest.fixture
def local_node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def with_slot(node: FakeNode, captured: dict[int, int] | None) -> None:
    """Let there be a slot, and a publisher's log that has these versions."""
    node.catalog.create_slot(ReplicationSlot("a", "pgoutput", Lsn(1), Lsn(1)))
    capture = SimpleNamespace(captured=lambda: captured)
    node.publishing = SimpleNamespace(capture=capture)


def ten_versions(node: FakeNode) -> None:
    """Versions 1 to 10, each with one file instead of the one before, all published."""
    last: list[str] = []
    for version in range(1, 11):
        file = node.table.file()
        node.table.commit([file], last, cursor=("wal2lake:1:2:3", version))
        last = [file]
        node.publish(version)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "replace", "delete", "rewrite", "restore", "checkpoint", "publish"]
        ),
        st.integers(0, 1000),
    ),
    min_size=1,
    max_size=14,
)


def play(node: FakeNode, steps: list[tuple[str, int]]) -> None:
    """Make a history."""
    table = node.table
    for step, number in steps:
        live = sorted(table.versions[-1])
        some = live[: 1 + number % 3]
        if step == "add":
            table.commit(
                [table.file() for _ in range(1 + number % 2)],
                changes=number % 2,
                cursor=("app", number),
            )
        elif step == "replace":
            table.commit([table.file()], some)
        elif step == "delete" and some:
            table.commit(deletes_in=some)
        elif step == "rewrite" and live:
            table.commit([table.file()], live)
        elif step == "restore":
            table.restore(number % len(table.versions))
        elif step == "checkpoint":
            table.checkpoint()
        elif step == "publish":
            node.publish(table.newest, node.subids[number % len(node.subids)])


HISTORY = given(
    early=STEPS,
    late=STEPS,
    orphans=st.integers(0, 3),
    base=st.none() | st.integers(0, 1000),
    young=st.booleans(),
)


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@HISTORY
def test_what_is_kept_reads_and_the_rest_goes(**history: Any) -> None:
    vacuum_of(None, **history)


def test_what_is_kept_in_a_store_reads_and_the_rest_goes(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(
        max_examples=examples(6),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @HISTORY
    def run(**history: Any) -> None:
        vacuum_of(s3.url, **history)

    with environment_of(s3, monkeypatch):
        run()


def vacuum_of(
    bucket: str | None,
    early: list[tuple[str, int]],
    late: list[tuple[str, int]],
    orphans: int,
    base: int | None,
    young: bool,
) -> None:
    """Vacuum a table of a random history."""
    with TemporaryDirectory() as directory:
        node = FakeNode(Path(directory), subscriptions=2, bucket=bucket)
        table = node.table
        play(node, early)
        boundary = table.newest
        node.age(10)
        play(node, late)
        node.age(1)
        node.keep(retention_ms=int(5 * DAY * 1000))
        left = {table.file() for _ in range(orphans)} | {table.vector()[0]}
        if young:
            node.keep(orphan_age_ms=int(HOUR * 1000))
        # The version at the boundary was the newest one until the later ones came.
        oldest = boundary
        if base is not None:
            node.bases = [base % (table.newest + 1)]
            oldest = min(oldest, base % (table.newest + 1))
        before = node.states()
        dry = node.vacuum(dry_run=True)
        assert node.states() == before
        assert left <= table.present()
        report = node.vacuum()
        assert (dry.files, dry.bytes, dry.states) == (
            report.files,
            report.bytes,
            report.states,
        )
        listed = node.states()
        oldest = min([oldest, *listed])
        assert report.oldest == oldest
        for version in range(oldest, table.newest + 1):
            table.assert_readable(version)
        kept = table.needed(oldest, table.newest) | (left if young else set())
        assert kept <= table.present()
        if not young:
            # Otherwise files stay of which the log, cut by a checkpoint, knows nothing more.
            assert kept == table.present()
        # Another vacuum finds nothing.
        again = node.vacuum()
        assert (again.count, again.states) == (0, 0)


def test_a_state_goes_before_its_files(node: FakeNode) -> None:
    ten_versions(node)
    node.age(8)
    node.table.commit([node.table.file()])
    node.publish(11)
    node.keep(retention_ms=int(7 * DAY * 1000))
    seen: list[list[int]] = []
    node.vacuum(pace=lambda: seen.append(node.states()))
    # Version 10 was the newest one until just now.
    assert seen, "files have gone"
    assert set(map(tuple, seen)) == {(10, 11)}


def test_the_newest_state_stays_however_old_it_is(node: FakeNode) -> None:
    ten_versions(node)
    node.age(400)
    report = node.vacuum()
    assert node.states() == [10]
    assert (report.oldest, report.states, report.count) == (10, 9, 9)
    node.table.assert_readable(10)


def test_states_within_retention_hold_their_versions(node: FakeNode) -> None:
    ten_versions(node)
    node.age(6)
    node.keep(retention_ms=int(7 * DAY * 1000))
    assert node.vacuum().count == 0
    assert node.states() == list(range(1, 11))


def test_readers_hold_what_they_read(node: FakeNode) -> None:
    node.table.commit([node.table.file()])
    node.publish(1)
    reader = node.snapshots.take(node.catalog, node.tables)
    ten = [node.table.file()]
    node.table.commit(ten, list(node.table.versions[-1]))
    node.publish(2)
    node.age(30)
    assert node.vacuum().oldest == 1
    assert reader.of(node.definition) == 1
    node.table.assert_readable(1)
    del reader
    assert node.vacuum().oldest == 2


def test_a_statement_that_reads_the_past_holds_its_state(node: FakeNode) -> None:
    ten_versions(node)
    past = PastVersions(node, AsOf(lsn=Lsn(104)), lambda notice: None)
    assert past.of(node.definition) == 4
    node.age(30)
    assert node.vacuum().oldest == 4
    node.table.assert_readable(4)
    assert node.states() == [10], "nobody finds it any more"
    del past
    assert node.vacuum().oldest == 10


def test_a_version_without_its_files_is_not_kept(node: FakeNode) -> None:
    ten_versions(node)
    node.age(30)
    node.push()
    assert are_present(node.store, 3)
    node.vacuum()
    assert not are_present(node.store, 3)
    assert are_present(node.store, 10)
    assert not are_present(node.store, 11)


def test_a_look_up_under_way_is_waited_for(node: FakeNode) -> None:
    ten_versions(node)
    node.age(30)
    began, go = threading.Event(), threading.Event()

    def look_up() -> None:
        with node.snapshots.looking_up(node.place.location):
            began.set()
            go.wait(10)

    thread = threading.Thread(target=look_up)
    thread.start()
    began.wait(10)
    assert node.snapshots.held(node.place.location, (TABLE,), 0.01) is None
    go.set()
    thread.join()
    assert node.snapshots.held(node.place.location, (TABLE,), 1.0) == set()


@pytest.mark.parametrize(
    "holder", ["branch", "compaction", "local commit", "mirror", "slot"]
)
def test_a_version_that_is_held_stays_readable(node: FakeNode, holder: str) -> None:
    ten_versions(node)
    node.age(30)
    if holder == "branch":
        node.bases = [4]
    elif holder == "compaction":
        node.compacted = ([4], set())
    elif holder == "local commit":
        node.catalog.begin_local_commit([change(node, 4, [])])
    elif holder == "mirror":
        node.mirrored = 4
    else:
        with_slot(node, {int(TABLE): 4})
    assert node.vacuum().oldest == 4
    for version in range(4, 11):
        node.table.assert_readable(version)


def test_what_is_not_known_removes_nothing(node: FakeNode) -> None:
    ten_versions(node)
    node.age(30)
    node.bases = [None]
    with pytest.raises(Skipped, match="a transaction is about to write it"):
        node.vacuum()
    node.bases = []
    with_slot(node, None)
    with pytest.raises(Skipped, match="the publisher's log is about to begin"):
        node.vacuum()
    assert len(node.table.present()) == 10


def change(node: FakeNode, version: int, files: list[str]) -> TableChange:
    adds = [{"add": {"path": file, "partitionValues": {}}} for file in files]
    location = node.place.location
    return TableChange(TABLE, location, "id", version, 1, adds)


def test_noted_files_stay(node: FakeNode) -> None:
    copied, prepared, compacted, recorded = (node.table.file() for _ in range(4))
    orphan = node.table.file()
    (subid,) = node.subids
    added = AddedFile(copied, 10, 0, None)
    node.catalog.record_ranges(
        [CopyRange(subid, TABLE, int(subid), "s", 0, 1, files_to_json([added]))]
    )
    transaction = PreparedCommit(
        0, "gid", Oid(10), 0, (change(node, 0, [prepared]),), ()
    )
    node.catalog.begin_prepare(transaction)
    history = files_to_json([replace(added, path=recorded)])
    node.catalog.expect_history(
        subid, [PendingHistory(TABLE, Lsn(9), "app", TABLE, history)]
    )
    node.compacted = ([], {compacted})
    assert node.vacuum().orphans == 1
    assert node.table.present() == {copied, prepared, compacted, recorded}
    assert orphan not in node.table.present()


def test_a_running_copy_keeps_files_that_no_version_has(node: FakeNode) -> None:
    file = node.table.file()
    (subid,) = node.subids
    node.catalog.update_rel(subid, TABLE, state=SyncState.DATASYNC)
    report = node.vacuum()
    assert (report.count, report.waiting) == (0, 1)
    node.catalog.update_rel(subid, TABLE, state=SyncState.READY)
    assert node.vacuum().orphans == 1
    assert file not in node.table.present()


def test_a_copy_keeps_the_files_of_its_history(
    tmp_path: Path, bucket: str | None
) -> None:
    node = FakeNode(tmp_path, bucket=bucket)
    (subid,) = node.subids
    mirror = replace(node.definition, oid=Oid(2), name="m", location="/elsewhere/m")
    node.catalog.create_table(mirror)
    rel = SubscriptionRel(subid, Oid(2), "public", "m", SyncState.DATASYNC, Lsn(0), 1)
    node.catalog.set_publications(subid, ("p",), added=[rel], removed=[TABLE])
    node.catalog.set_options(subid, {"history": "public"})
    node.catalog.link_history(TABLE, Oid(2))
    node.table.file()
    assert node.vacuum().waiting == 1
    node.catalog.update_rel(subid, Oid(2), state=SyncState.READY)
    assert node.vacuum().orphans == 1


def test_a_clock_that_is_set_forward_ages_nothing(local_node: FakeNode) -> None:
    node = local_node
    node.keep(orphan_age_ms=int(HOUR * 1000), retention_ms=int(HOUR * 1000))
    ten_versions(node)
    being_written = node.table.file()
    branch = node.place_of_branches() / "branch"
    branch.mkdir(parents=True)
    (branch / "part-1.parquet").write_bytes(b"x")
    branches: Any = node
    node.clock.jumped = DAY
    for _ in range(2):
        report = node.vacuum()
        assert (report.count, report.waiting, report.states) == (0, 1, 0)
        assert list(unknown_branches(branches, lambda: None)) == []
    node.clock.passed = HOUR / 2
    assert node.vacuum().waiting == 1
    node.clock.passed = HOUR + 60
    report = node.vacuum()
    assert (report.orphans, report.states) == (1, 9)
    assert being_written not in node.table.present()
    assert [left.name for left in unknown_branches(branches, lambda: None)] == [
        branch.name
    ]
    (branch.parent / "notes").write_text("no branch")
    remove_branch(branches, LeftBranch(branch.name, 1, 1))
    assert list(unknown_branches(branches, lambda: None)) == []


def test_the_look_for_left_branches_can_be_cancelled(local_node: FakeNode) -> None:
    node: Any = local_node
    for name in ("a/b", "a/c"):
        (node.place_of_branches() / name).mkdir(parents=True)
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        list(unknown_branches(node, check))


def test_tests_let_orphans_age(
    local_node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = local_node
    node.keep(orphan_age_ms=int(HOUR * 1000))
    node.table.file()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "points"))
    assert node.vacuum().waiting == 1
    arm(tmp_path / "points", "vacuum.ages", "error")
    with pytest.raises(InternalError, match='unknown action "error"'):
        node.vacuum()
    arm(tmp_path / "points", "vacuum.ages", f"ahead {HOUR + 60}")
    assert node.vacuum().orphans == 1


def test_a_clock_that_is_set_back_keeps_files_until_it_has_passed_them(
    node: FakeNode,
) -> None:
    node.keep(orphan_age_ms=int(HOUR * 1000))
    node.table.file()
    node.clock.jumped = -DAY
    node.clock.passed = 2 * HOUR
    assert node.vacuum().waiting == 1
    node.clock.passed = DAY + 2 * HOUR
    assert node.vacuum().orphans == 1


def test_jumps_are_taken_off_until_the_age_has_passed() -> None:
    clock = FakeClock()
    ages = AgeClock(clock.wall, clock.monotonic)
    for _ in range(3):
        clock.jumped += DAY
        ages.ago(HOUR)
    assert ages.ago(HOUR) == pytest.approx(clock.wall() - 3 * DAY - HOUR, abs=5)
    assert ages.ago(0) == pytest.approx(clock.wall(), abs=5)
    clock.passed += HOUR
    assert ages.ago(HOUR) == pytest.approx(clock.wall() - HOUR, abs=5)
    assert ages.ago(DAY) == pytest.approx(clock.wall() - 4 * DAY, abs=5)


def test_a_clock_that_is_set_back_and_forth_ages_nothing() -> None:
    clock = FakeClock()
    ages = AgeClock(clock.wall, clock.monotonic)
    clock.jumped -= 2 * DAY
    ages.look()
    written = clock.wall()
    clock.jumped += 2 * DAY
    ages.look()
    clock.passed += HOUR
    assert ages.ago(DAY) < written
    clock.passed += DAY
    ages.look()
    assert ages.ago(DAY) > written


def test_small_steps_of_a_clock_count_together() -> None:
    clock = FakeClock()
    ages = AgeClock(clock.wall, clock.monotonic)
    for _ in range(100):
        clock.jumped += 0.9
        ages.look()
    assert ages.ago(HOUR) == pytest.approx(clock.wall() - 90 - HOUR, abs=2)


def test_only_files_of_delta_go(node: FakeNode) -> None:
    root = node.table.root
    kept = ["README.md", "_hidden/part-1.parquet", ".secret/x.parquet", "a.csv"]
    kept += ["inner/_delta_log/0.json", "inner/part-2.parquet", "_SUCCESS"]
    gone = ["part-3.parquet", "p=1/part-4.parquet", "_change_data/cdc-5.parquet"]
    gone += [".part-6.parquet.crc", f".part-7.parquet.{'0' * 32}.tmp"]
    for name in kept + gone:
        node.table.file(name)
    report = node.vacuum()
    assert (report.count, report.orphans) == (5, 5)
    assert report.files == {
        FileKind.DATA: 2,
        FileKind.CHANGES: 1,
        FileKind.TEMPORARY: 2,
    }
    assert all((root / name).exists() for name in kept)
    assert not any((root / name).exists() for name in gone)


def test_a_link_made_just_now_is_young(local_node: FakeNode) -> None:
    """A transaction may commit a file that it wrote long ago."""
    node = local_node
    node.keep(orphan_age_ms=int(HOUR * 1000))
    old = node.table.root.parent / "branch.parquet"
    old.write_bytes(b"x")
    os.utime(old, (1.0, 1.0))
    os.link(old, node.table.root / "part-1.parquet")
    report = node.vacuum()
    assert (report.count, report.waiting) == (0, 1)


def test_the_log_below_a_checkpoint_goes(node: FakeNode) -> None:
    ten_versions(node)
    node.table.checkpoint()
    node.age(30)
    node.table.commit([node.table.file()])
    node.publish(11)
    report = node.vacuum()
    assert report.oldest == 10
    assert report.files[FileKind.LOG] == 20
    left = {name[:20] for name in node.log_names() if name[0] == "0"}
    assert left == {f"{10:020}", f"{11:020}"}
    for version in (10, 11):
        node.table.assert_readable(version)
    assert read_log(node.store).first == 10
    assert node.vacuum().count == 0


def test_files_that_a_sidecar_names_stay_and_the_log_below_goes(
    tmp_path: Path,
    bucket: str | None,
) -> None:
    node = FakeNode(tmp_path, bucket=bucket, features=("v2Checkpoint",))
    ten_versions(node)
    kept, shared = node.table.file(), node.table.file()
    node.table.commit([kept, shared])
    node.table.commit(deletes_in=[kept, shared])
    node.table.checkpoint_with_sidecar()
    node.age(30)
    node.table.commit([node.table.file()], [shared])
    node.publish(13)
    report = node.vacuum()
    assert report.oldest == 12
    # The commits and checksums below the checkpoint.
    assert report.files[FileKind.LOG] == 24
    assert {name[:20] for name in node.log_names() if name[0] == "0"} == {
        f"{12:020}",
        f"{13:020}",
    }
    for version in (12, 13):
        node.table.assert_readable(version)
    (sidecar,) = (node.table.root / "_delta_log" / "_sidecars").iterdir()
    sidecar.write_bytes(b"PAR1")
    node.push()
    with pytest.raises(UnreadableLog, match="could not read checkpoint"):
        read_history(read_log(node.store), 13)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"delta.enableExpiredLogCleanup": "false"}, "it does not want it"),
        ({"delta.setTransactionRetentionDuration": "interval 1 day"}, "no cursors"),
        ({"delta.logRetentionDuration": "interval 60 days"}, "it wants more"),
    ],
)
def test_the_log_stays(
    tmp_path: Path, bucket: str | None, properties: dict[str, str], why: str
) -> None:
    node = FakeNode(tmp_path, bucket=bucket, properties=properties)
    ten_versions(node)
    node.table.checkpoint()
    node.age(30)
    report = node.vacuum()
    assert FileKind.LOG not in report.files, why
    assert report.files[FileKind.DATA] == 9


def test_a_checkpoint_without_a_cursor_is_no_base(node: FakeNode) -> None:
    ten_versions(node)
    node.table.checkpoint()
    crc = node.table.root / "_delta_log" / f"{10:020}.crc"
    crc.write_text('{"setTransactions": [{"appId": "another", "version": 1}]}')
    node.age(30)
    assert FileKind.LOG not in node.vacuum().files


def test_a_longer_retention_of_the_table_counts(
    tmp_path: Path, bucket: str | None
) -> None:
    node = FakeNode(
        tmp_path,
        bucket=bucket,
        properties={"delta.deletedFileRetentionDuration": "interval 5 weeks"},
    )
    ten_versions(node)
    node.age(30)
    report = node.vacuum()
    assert (report.count, node.states()) == (0, [10])


def test_states_whose_files_others_have_removed_go(node: FakeNode) -> None:
    ten_versions(node)
    node.keep(retention_ms=int(7 * DAY * 1000))
    (lost,) = node.table.versions[5]
    (node.table.root / lost).unlink()
    report = node.vacuum()
    assert report.states == 5
    assert node.states() == [6, 7, 8, 9, 10]


def test_a_missing_file_of_the_newest_version_is_told(node: FakeNode) -> None:
    ten_versions(node)
    (lost,) = node.table.versions[10]
    (node.table.root / lost).unlink()
    report = node.vacuum()
    assert list(report.lacking) == [lost]
    assert node.states()[-1] == 10


def test_a_table_that_is_dropped_is_left_at_once(local_node: FakeNode) -> None:
    node = local_node
    ten_versions(node)
    node.age(30)
    files: list[int] = []
    left = threading.Event()

    def drop() -> None:
        node.vacuums.leave(node.place.location)
        left.set()

    dropper = threading.Thread(target=drop)

    def pace() -> None:
        files.append(1)
        if len(files) == 3:
            dropper.start()
            deadline = time.monotonic() + 10
            while not node.vacuums.is_left(node.place.location):
                assert time.monotonic() < deadline
                time.sleep(0.001)

    with pytest.raises(Skipped, match="it is being dropped"):
        node.vacuum(pace=pace)
    dropper.join()
    assert left.is_set()
    assert len(node.table.present()) == 10 - 3


def test_another_table_in_the_same_place_is_left_alone(local_node: FakeNode) -> None:
    node = local_node
    ten_versions(node)
    node.age(30)
    listed: list[str] = []

    def pace() -> None:
        if not listed:
            # The table was dropped and made anew: a file of the same name is another one.
            for name in node.table.present():
                path = node.table.root / name
                path.unlink()
                path.write_bytes(b"another")
                listed.append(name)

    node.vacuum(pace=pace)
    assert set(listed) == node.table.present()


def stored_node(server: Server, tmp_path: Path, **chosen: Any) -> FakeNode:
    """A node with old versions of a table in a bucket."""
    node = FakeNode(tmp_path, bucket=server.url, **chosen)
    ten_versions(node)
    node.table.checkpoint()
    node.age(30)
    return node


def test_other_objects_of_the_same_names_are_left_alone(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment_of(s3, monkeypatch):
        node = stored_node(s3, tmp_path)
        put: set[str] = set()

        def pace() -> None:
            if not put:
                # The table was dropped and made anew.
                for name in [*node.table.present(), f"_delta_log/{2:020}.json"]:
                    node.store.put(name, b"another")
                    put.add(name)

        report = node.vacuum(pace=pace)
        left = set(node.store.list_below("", lambda folder: True))
        assert put <= left and report.files == {FileKind.LOG: 5}
        # What is above the other entry of the log stays.
        assert f"_delta_log/{5:020}.json" in left


def test_a_table_in_a_store_that_is_dropped_is_left(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment_of(s3, monkeypatch):
        node = stored_node(s3, tmp_path)
        dropper = threading.Thread(
            target=lambda: node.vacuums.leave(node.place.location)
        )

        def pace() -> None:
            if not dropper.ident:
                dropper.start()
                wait_until(lambda: node.vacuums.is_left(node.place.location))

        with pytest.raises(Skipped, match="it is being dropped"):
            node.vacuum(pace=pace)
        dropper.join()
        assert len(node.table.present()) == 10


def test_few_requests_remove_many_objects(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        StoreProxy(s3.port) as proxy,
        environment_of(s3, monkeypatch, proxy.port),
    ):
        node = stored_node(s3, tmp_path)
        for _ in range(300):
            node.table.file()
        node.push()
        proxy.seen.clear()
        refused = Planned(Fault.REFUSE, 503, "SlowDown")
        lost = Planned(Fault.LOSE_ANSWER)
        proxy.plan("POST", "delete", lost, refused)
        proxy.plan("GET", "list-type", refused, lost, Planned(Fault.CUT_ANSWER))
        report = Vacuum(node).run(node.place, VacuumRequest())
        assert (report.count, report.orphans) == (309 + 20, 309)
        assert proxy.plans == []
        # The probe, files, entries of the log, and those that were repeated.
        assert proxy.count("POST", "delete") <= 5
        assert len(proxy.seen) <= 40
        assert Vacuum(node).run(node.place, VacuumRequest()).count == 0


def test_a_store_with_another_clock(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ages of files are right whatever the clock of this machine says."""
    with environment_of(s3, monkeypatch):
        node = FakeNode(tmp_path, bucket=s3.url)
        node.keep(orphan_age_ms=int(HOUR * 1000))
        for ahead, orphans in ((-2 * HOUR, 0), (2 * HOUR, 2)):
            node.table.file()
            node.store.ahead = ahead
            assert node.vacuum().orphans == orphans


def test_branches_of_a_store_that_nobody_knows(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment_of(s3, monkeypatch):
        node: Any = FakeNode(tmp_path, bucket=s3.url)
        place = place_of_branches(
            node.settings.warehouse, node.catalog.system_identifier
        )
        store: Any = store_at(place)
        for key in ("a/part-1", "a/_delta_log/0.json", "b/part-2"):
            store.put(key, b"12345")
        other = store_at(place_of_branches(node.settings.warehouse, "another"))
        assert other is not None
        other.put("c/part-3", b"x")
        node.branches.places = lambda: {f"{place}/b"}
        node.clock.passed = 60.0
        found = list(unknown_branches(node, lambda: None))
        assert found == [LeftBranch("a", 2, 10)]
        node.keep(orphan_age_ms=int(HOUR * 1000))
        assert list(unknown_branches(node, lambda: None)) == []
        remove_branch(node, found[0])
        assert set(store.list_below("", lambda folder: True)) == {"b/part-2"}
        assert set(other.list_below("", lambda folder: True)) == {"c/part-3"}
        # A probe that was not removed goes by its own key; other objects are no branches.
        probe = "_wal2lake_probe_0"
        for key in (probe, "notes"):
            store.put(key, b"clock")
        assert list(unknown_branches(node, lambda: None)) == []
        node.keep(orphan_age_ms=0)
        (left,) = unknown_branches(node, lambda: None)
        assert left == LeftBranch(probe, 1, 5)
        remove_branch(node, left)
        assert list(unknown_branches(node, lambda: None)) == []
        assert set(store.list_below("", lambda folder: True)) == {"b/part-2", "notes"}


@pytest.mark.parametrize(
    "path", ["abfs://c@a.dfs.core.windows.net/t/f", "abfss://c@b.net/t/f", "https://x"]
)
def test_a_file_that_may_be_the_tables_own_is_refused(path: str) -> None:
    with pytest.raises(UnreadableLog, match="names a file by the URL") as caught:
        name_below("abfss://c@a.dfs.core.windows.net/t", path)
    assert caught.value.hint == "Use the VACUUM of Delta Lake for this table."


def test_names_of_objects() -> None:
    location = "s3://lake/w/public/a%2Fb"
    assert name_below(location, "p%3D1/x%20y.parquet") == "p=1/x y.parquet"
    for scheme in ("s3", "s3a", "s3n"):
        url = f"{scheme}://lake/w/public/a%252Fb/x%20y.parquet"
        assert name_below(location, url) == "x y.parquet"
    assert name_below(location, "s3://lake/w/public/a/x.parquet") is None
    assert name_below(location, "file:/w/public/a/x.parquet") is None
    location = "abfss://c@a.dfs.core.windows.net/t"
    assert name_below(location, f"{location}/x%20y") == "x y"
    assert name_below(location, f"{location}_2/x") is None


def test_a_vacuum_that_ends_in_the_middle_is_repeated(node: FakeNode) -> None:
    ten_versions(node)
    node.table.checkpoint()
    node.age(30)
    for files in range(1, 40):
        left = iter(range(files))

        def pace(left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            node.vacuum(pace=pace)
        for version in {*node.states(), 10}:
            node.table.assert_readable(version)
        log = read_log(node.store)
        assert sorted(log.commits) == list(range(min(log.commits), 11)), "no gap"
    assert node.vacuum().count == 0
    assert node.table.present() == node.table.needed(10, 10)


def test_an_unknown_feature_is_refused(node: FakeNode) -> None:
    path = node.table.root / "_delta_log" / f"{0:020}.json"
    path.write_text(path.read_text().replace("changeDataFeed", "icebergCompatV2"))
    node.table.file()
    with pytest.raises(Skipped, match="has the feature icebergCompatV2") as caught:
        node.vacuum()
    assert caught.value.hint == "Use the VACUUM of Delta Lake for this table."
    assert len(node.table.present()) == 1


def test_a_gap_in_the_log_is_refused(node: FakeNode) -> None:
    ten_versions(node)
    node.age(30)
    (node.table.root / "_delta_log" / f"{5:020}.json").unlink()
    with pytest.raises(Skipped, match="neither version 0 nor a checkpoint"):
        node.vacuum()
    assert len(node.table.present()) == 10


def test_durations() -> None:
    def seconds(text: str) -> float | None:
        return stated_seconds({"p": text}, "p")

    assert seconds("interval 1 week") == 7 * DAY
    assert seconds("INTERVAL 2 days 12 hours") == 2.5 * DAY
    assert seconds("30 minutes") == 1800
    assert stated_seconds({}, "p") is None
    for wrong in ("interval 1 month", "soon", "interval 5"):
        with pytest.raises(UnreadableLog, match="is no duration") as caught:
            seconds(wrong)
        assert caught.value.hint == "Write it as in 'interval 7 days'."


# ---- the worker -------------------------------------------------------------------------


class BusyApply:
    """Whether apply is busy, and how often the worker has asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy, self.asked = True, 0
        monkeypatch.setattr(RetentionWorker, "_is_busy", lambda worker: self.ask())
        monkeypatch.setattr(worker_module, "_BUSY_SECONDS", 0.02)

    def ask(self) -> bool:
        self.asked += 1
        return self.busy


def test_the_worker_vacuums_and_ends_at_once(local_node: FakeNode) -> None:
    node = local_node
    ten_versions(node)
    node.age(30)
    branch = node.table.root.parents[1] / "_transactions"
    branch = branch / str(node.catalog.system_identifier) / "of-nobody"
    branch.mkdir(parents=True)
    (branch / "part-1.parquet").write_bytes(b"12345")
    node.keep(vacuum_interval_ms=1)
    worker = RetentionWorker(node, Vacuum(node))
    worker.start()
    wait_until(lambda: not branch.exists())
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 2
    assert node.table.present() == node.table.needed(10, 10)


def test_the_worker_gives_way_to_apply(
    local_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = local_node
    ten_versions(node)
    node.age(30)
    apply = BusyApply(monkeypatch)
    node.keep(vacuum_interval_ms=1)
    worker = RetentionWorker(node, Vacuum(node))
    worker.start()
    wait_until(lambda: apply.asked > 5)
    assert len(node.table.present()) == 10
    apply.busy = False
    wait_until(lambda: len(node.table.present()) == 1)
    worker.stop()


def test_a_worker_that_gives_way_stops_at_once(
    local_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = local_node
    apply = BusyApply(monkeypatch)
    node.keep(vacuum_interval_ms=1)
    worker = RetentionWorker(node, Vacuum(node))
    worker.start()
    wait_until(lambda: apply.asked > 0)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 2


def test_apply_is_busy_while_it_has_sealed_transactions(node: FakeNode) -> None:
    worker = RetentionWorker(node, Vacuum(node))
    (subid,) = node.subids
    assert not worker._is_busy()
    for applied, busy in ((400, True), (500, False)):
        with ProgressFile(node.settings.run_directory, subid) as progress:
            progress.set(engine_pid=1, sealed=500, applied=applied)
        assert worker._is_busy() is busy
