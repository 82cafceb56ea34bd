"""The apply worker on a lake made of dicts: what is applied, published and reported."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.apply_world import Side, World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply.step import nextbatch
from wal2lake.catalog import FollowedSchema, SchemaChange, Subscription
from wal2lake.errors import StorageError
from wal2lake.model import Lsn, Oid, RemoteSchema, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int, key: int, value: str = "v") -> Change:
    return Change(relid, "I", (b"%d" % key, value.encode()))


def update(relid: int, key: int, value: str) -> Change:
    return Change(relid, "U", (b"%d" % key, value.encode()))


def delete(relid: int, key: int) -> Change:
    return Change(relid, "D", key=b"%d" % key)


def commit(lsn: int, *changes: Change) -> Transaction:
    return Transaction(lsn, changes)


def check(side: Side, *relids: int, below: int | None = None) -> None:
    """Tables are what the transactions sent so far make of them, and readers see that."""
    for relid in relids:
        expected = model(side.sent, relid, below)
        assert side.table(relid).versions[-1] == expected
        assert side.visible(relid) == expected


def test_a_batch_of_several_tables_is_published_at_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        side.send(
            commit(100, insert(1, 1), insert(2, 1), insert(3, 1)),
            commit(200, update(1, 1, "new"), insert(2, 2), delete(3, 1)),
        )
        side.start()
        side.reaches(208)
        check(side, 1, 2, 3)
        _, *vectors = world.catalog.vectors()
        assert [(v.lsn, v.versions) for v in vectors] == [
            (208, {101: 1, 102: 1, 103: 1})
        ]
        assert side.progress.word("applied") == 208
        # A table without changes in a batch gets no version.
        side.send(commit(300, insert(2, 3)))
        side.reaches(308)
        check(side, 1, 2, 3)
        assert [side.table(i).version for i in (1, 2, 3)] == [1, 2, 1]
        assert side.error == ""


def test_a_poisoned_transaction_stops_exactly_there(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(
            commit(100, insert(1, 1), insert(2, 1)),
            commit(200, update(1, 1, "before")),
            commit(300, insert(1, 2), insert(2, 2, "bad"), insert(3, 1)),
            commit(400, insert(3, 2)),
        )
        side.start()
        error = side.stops("finished at")
        assert error.splitlines()[0] == 'invalid input syntax: "bad"'
        assert (
            'CONTEXT:  processing remote data for replication origin "pg_1" during message'
            ' type "INSERT" for replication target relation "public.t2" column "a1" in'
            " transaction 7, finished at 0/12C"
        ) in error
        # All before it, in every table; nothing of it, nothing after it.
        side.reaches(300)
        check(side, 1, 2, 3, below=300)
        assert (side.floor, side.progress.word("applied")) == (300, 300)
        versions = [side.table(i).version for i in (1, 2, 3)]
        # Trying again changes nothing while the cause is there.
        tried = len(world.lake.requests)
        wait_until(lambda: len(world.lake.requests) > tried + 6)
        assert [side.table(i).version for i in (1, 2, 3)] == versions
        assert "finished at 0/12C" in side.error
        world.lake.poison = set()
        side.reaches(408)
        check(side, 1, 2, 3)
        wait_until(lambda: side.error == "")


def test_a_shorter_interval_counts_for_who_waits_already(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side, short = world.side, world.settings
        long = replace(short.subscription, wal_retrieve_retry_interval_ms=600_000)
        world.settings = replace(short, subscription=long)
        world.lake.poison = {b"bad"}
        side.send(commit(100, insert(1, 1, "bad")))
        side.start()
        side.stops("finished at")
        world.lake.poison = set()
        assert side.worker is not None
        side.worker.reload(short)
        side.reaches(108)
        check(side, 1)


def test_a_poisoned_first_transaction_applies_nothing(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(
            commit(100, insert(1, 1, "bad"), insert(2, 1)), commit(200, insert(3, 1))
        )
        side.start()
        side.stops("finished at 0/64")
        assert [side.table(i).version for i in (1, 2, 3)] == [0, 0, 0]
        assert side.floor <= 100
        world.lake.poison = set()
        side.reaches(208)
        check(side, 1, 2, 3)


def test_the_first_of_two_poisoned_transactions_counts(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad", b"worse"}
        side.send(
            commit(100, insert(1, 1)),
            commit(200, insert(3, 1, "worse")),
            commit(300, insert(1, 2, "bad")),
        )
        side.start()
        assert '"public.t3"' in side.stops("finished at 0/C8")
        world.lake.poison = {b"bad"}
        assert '"public.t1"' in side.stops("finished at 0/12C")
        check(side, 1, 2, 3, below=300)


def test_another_subscription_goes_on(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        other = world.subscribe(2, (5,))
        world.lake.poison = {b"bad"}
        world.side.send(commit(100, insert(1, 1, "bad")))
        world.side.start()
        other.start()
        world.side.stops("finished at 0/64")
        other.send(commit(100, insert(5, 1)))
        other.reaches(108)
        check(other, 5)
        assert other.error == ""
        assert "finished at 0/64" in world.side.error


def test_a_crash_between_two_commits_applies_nothing_twice(tmp_path: Path) -> None:
    """Table 1 has committed when the engine dies: its cursor tells the next one."""
    with World(tmp_path) as world:
        side = world.side
        side.send(commit(100, insert(1, 1), insert(2, 1), insert(3, 1)))
        done = threading.Event()

        def die(location: str) -> None:
            if location == "/lake/t1":
                done.wait(10)
                raise StorageError("the machine is gone", sqlstate="58030")
            done.set()

        world.lake.before_commit = die
        side.start()
        side.stops("the machine is gone")
        side.stop()
        # Nobody has seen the tables that committed.
        assert [side.visible(i) for i in (1, 2, 3)] == [{}, {}, {}]
        assert side.floor == 0
        world.lake.before_commit = lambda location: None
        side.start()
        side.reaches(108)
        check(side, 1, 2, 3)
        assert max(side.table(i).version for i in (1, 2, 3)) == 1


def test_a_commit_whose_answer_was_lost_is_not_repeated(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        lost: list[str] = []

        def lose(location: str) -> None:
            if location not in lost:
                lost.append(location)
                raise StorageError("connection reset", sqlstate="58030")

        world.lake.after_commit = lose
        side.start()
        side.reaches(108)
        check(side, 1, 2)
        assert [side.table(i).version for i in (1, 2)] == [1, 1]


def test_after_a_conflict_the_batch_is_staged_again(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        table = side.table(2)
        first = threading.Event()

        def interfere(location: str) -> None:
            if location == "/lake/t2" and not first.is_set():
                first.set()
                table.versions.append({b"9": (b"9", b"local")})

        world.lake.before_commit = interfere
        side.start()
        side.reaches(108)
        assert side.visible(2) == {b"9": (b"9", b"local"), b"1": (b"1", b"v")}
        check(side, 1)
        last = [r for r in world.lake.requests if r.name == "t2"][-1]
        assert not last.trusted, "somebody else has written the table"
        assert world.lake.discarded > 0


@pytest.mark.parametrize(("point", "applied"), [(199, True), (200, True), (201, False)])
def test_a_copied_table_takes_the_commit_that_starts_at_its_consistent_point(
    tmp_path: Path, point: int, applied: bool
) -> None:
    """Invariant 2: S is the end of a record, and the commit record may start there."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.INIT)])
        side.copied(2, {b"0": (b"0", b"copied")}, point)
        side.send(commit(100, insert(1, 1), insert(2, 5)), commit(200, insert(2, 1)))
        side.start()
        side.reaches(208)
        rows = side.visible(2)
        assert (b"1" in rows) is applied
        assert b"5" not in rows, "the copy has what committed before S"
        assert rows[b"0"] == (b"0", b"copied")
        side.send(commit(300, insert(2, 7)))
        side.reaches(308)
        wait_until(lambda: world.catalog.rels(Oid(1))[1].state is SyncState.READY)


def test_a_relation_without_a_target_stops_at_its_first_row(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2, columns=("a0",))
        world.catalog.add_rels([side.rel(2, SyncState.READY, Lsn(1))])
        side.send(
            commit(100, insert(1, 1)),
            commit(200, insert(2, 1)),
            commit(300, insert(1, 2)),
        )
        side.start()
        error = side.stops("finished at 0/C8")
        assert error.startswith(
            'logical replication target relation "public.t2" is missing replicated'
            ' column: "a1"'
        )
        # As PostgreSQL: which table it is says the message.
        assert error.endswith(
            'origin "pg_1" during message type "INSERT" in transaction 7,'
            " finished at 0/C8"
        )
        check(side, 1, below=200)


def test_who_is_overtaken_each_time_says_so_until_the_other_waits(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side, lake = world.side, world.lake

        def overtake(location: str) -> None:
            table = lake.tables[location]
            table.versions.append(dict(table.versions[-1]))

        lake.before_commit = overtake
        side.send(commit(100, insert(1, 1)))
        side.start()
        told = side.stops("another writer came first")
        assert told.endswith(
            "Another writer commits to the table more often than a batch can be applied:"
            ' let that job wait, or lower "batch_rows" under [apply] in wal2lake.toml and'
            " restart the node."
        )
        lake.before_commit = lambda location: None
        side.reaches(108)
        check(side, 1, below=200)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ('DROP COLUMN "a1"', "dropped"),
        ('RENAME COLUMN "a1" TO "b"', "renamed"),
    ],
)
def test_a_column_that_another_subscription_has_followed_away_is_told(
    tmp_path: Path, change: str, outcome: str
) -> None:
    """Nobody knows whether this one's publisher, of another server perhaps, will follow."""
    with World(tmp_path, tables=()) as world:
        side, catalog = world.side, world.catalog
        side.add_table(2, columns=("a0",))
        rel = side.rel(2, SyncState.READY, Lsn(1))
        catalog.add_rels([rel])
        ahead = Oid(77)
        catalog.create_subscription(
            Subscription(ahead, "ahead", Oid(10), False, "", "ahead", ("p",)),
            [replace(rel, subid=ahead)],
            {},
        )
        catalog.steps_made(
            ahead,
            rel.relid,
            FollowedSchema(RemoteSchema(Oid(5), "public", "t2", (), (), 0, ()), Lsn(1)),
            [SchemaChange(change, outcome)],
            lsn=Lsn(1),
        )
        side.send(commit(200, insert(2, 1)))
        side.start()
        told = side.stops("finished at 0/C8")
        assert (
            'Subscription "ahead" fills the table, too, and has followed its publisher:'
            f" {change}." in told
        )
        assert "ALTER TABLE ... ADD COLUMN on the target lets it go on" in told


def transactions(rng: random.Random, count: int) -> list[Transaction]:
    """Valid ones over three tables; keys are few, so that they meet."""
    rows: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    made = []
    for number in range(1, count + 1):
        changes = []
        for _ in range(rng.randrange(4)):
            relid, key = rng.randint(1, 3), rng.randrange(5)
            value = f"{number}-{rng.randrange(100)}"
            if key not in rows[relid]:
                rows[relid].add(key)
                changes.append(insert(relid, key, value))
            elif rng.random() < 0.6:
                changes.append(update(relid, key, value))
            else:
                rows[relid].discard(key)
                changes.append(delete(relid, key))
        made.append(commit(100 * number, *changes))
    return made


@given(st.randoms(use_true_random=False), st.integers(1, 12))
@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck)
)
def test_whatever_fails_every_published_state_is_a_state_of_the_source(
    rng: random.Random, count: int
) -> None:
    rows = rng.choice((1, 4, 1000))
    with TemporaryDirectory() as place, World(Path(place), batch_rows=rows) as world:
        side = world.side
        sent = transactions(rng, count)
        troubles = {"left": rng.randrange(5)}
        coin = random.Random(rng.random())
        lock = threading.Lock()

        def trouble(location: str) -> None:
            with lock:
                if troubles["left"] and coin.random() < 0.5:
                    troubles["left"] -= 1
                    raise StorageError("trouble", sqlstate="58030")

        world.lake.before_commit = world.lake.after_commit = trouble
        poisoned = rng.choice(sent) if rng.random() < 0.5 else None
        if poisoned is not None:
            world.lake.poison = {
                c.new[1] for c in poisoned.changes if c.new and c.new[1] is not None
            }
        side.start()
        while sent:
            size = rng.randint(1, 4)
            side.send(*sent[:size])
            del sent[:size]
            if rng.random() < 0.3:
                # As a killed engine: whatever the worker knew is gone.
                side.stop()
                side.start()
        end = side.sent[-1].end_lsn
        if world.lake.poison:
            assert poisoned is not None
            side.stops(f"finished at {Lsn(poisoned.commit_lsn)}")
            side.reaches(poisoned.commit_lsn)
            world.lake.poison = set()
        side.reaches(end)
        side.stop()
        for vector in world.catalog.vectors():
            for relid in (1, 2, 3):
                version = vector.versions.get(100 + relid, 0)
                assert side.table(relid).versions[version] == model(
                    side.sent, relid, below=vector.lsn
                ), (vector, relid)
        check(side, 1, 2, 3)


@pytest.mark.parametrize("foreign", [False, True])
def test_after_a_crash_only_what_others_wrote_ends_the_trust(
    tmp_path: Path, foreign: bool
) -> None:
    """A batch and its compaction may lie above the published version: both are ours."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.send(commit(100, insert(1, 1)))
        table = side.table(1)

        def die(location: str) -> None:
            rows = dict(table.versions[-1])
            if not foreign:
                table.writers[table.version + 1] = table.writers[table.version]
            table.versions.append(rows)
            raise StorageError("killed", sqlstate="58030")

        world.lake.after_commit = die
        world.fail_once()
        side.start()
        side.stops("killed")
        side.stop()
        world.lake.after_commit = lambda location: None
        side.send(commit(200, insert(1, 2)))
        side.start()
        side.reaches(208)
        check(side, 1)
        assert world.lake.requests[-1].trusted is not foreign


def test_a_wait_for_a_session_does_not_delay_the_next_look_for_other_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between looks is a multiple of their duration, of which the wait is no part."""
    monkeypatch.setattr(nextbatch, "_LOOK_SECONDS", 0.01)
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        side.start()
        side.reaches(108)
        looked = threading.Event()
        goes_beyond = world.lake.goes_beyond

        def look(location: str, version: int) -> bool:
            if goes_beyond(location, version):
                looked.set()
            return goes_beyond(location, version)

        monkeypatch.setattr(world.lake, "goes_beyond", look)
        with side.lock:
            side.table(1).versions.append({})
            assert looked.wait(10)
            # The worker waits for the lock from here on.
            threading.Event().wait(0.3)
        side.table(2).versions.append({})
        wait_until(lambda: side.visible(1) == side.visible(2) == {}, timeout_seconds=5)
