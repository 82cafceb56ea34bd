"""Tables that stand apart from the others: paused, catching up, copied again alone. The worker and
the catalog, on a lake made of dicts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.apply_world import Side, World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.catalog import SubscriptionRel
from wal2lake.errors import StorageError
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

SUBID = Oid(1)


def insert(relid: int, key: int, value: str = "v") -> Change:
    return Change(relid, "I", (b"%d" % key, value.encode()))


def commit(lsn: int, *changes: Change) -> Transaction:
    return Transaction(lsn, changes)


def rel(world: World, relid: int) -> SubscriptionRel:
    (found,) = [r for r in world.catalog.rels(SUBID) if r.relid == 100 + relid]
    return found


def pause(world: World, relid: int) -> Lsn:
    """As the command does it; returns where the table stands."""
    side, catalog = world.side, world.catalog
    with side.lock:
        table, now = side.table(relid), rel(world, relid)
        vector, found = catalog.newest_vector(SUBID), catalog.subscription(SUBID)
        assert vector is not None and found is not None
        cursor = table.cursors.get(now.cursor_name(catalog.system_identifier), 0)
        reached = now.lsn if now.state is SyncState.FINISHEDCOPY else vector.lsn
        at = Lsn(max(cursor, found.floor, reached or 0))
        catalog.pause_table(SUBID, Oid(100 + relid), at, table.version)
    return at


def vector_reaches(world: World, lsn: int) -> None:
    def reached() -> bool:
        vector = world.catalog.newest_vector(SUBID)
        return vector is not None and vector.lsn >= lsn

    wait_until(
        reached, describe=lambda: f"a vector at {lsn}; error: {world.side.error}"
    )


def joins(world: World, *relids: int) -> None:
    wait_until(
        lambda: all(rel(world, r).state is SyncState.READY for r in relids),
        describe=lambda: f"ready: {world.catalog.rels(SUBID)} {world.side.error}",
    )


def published_is_consistent(side: Side) -> None:
    """Each table that is part of a published state is that of its LSN."""
    for vector in side.world.catalog.vectors():
        for place, version in vector.versions.items():
            if vector.elsewhere(Oid(place)) is None:
                relid = place - 100
                assert side.table(relid).versions[version] == model(
                    side.sent, relid, vector.lsn
                ), (vector, relid)


def test_a_poisoned_table_is_paused_and_the_others_go_on(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2), batch_rows=1) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        side.send(commit(200, insert(1, 2), insert(2, 2, "bad")))
        side.send(commit(300, insert(1, 3), insert(2, 3)))
        side.start()
        side.stops("finished at 0/C8")
        at = pause(world, 2)
        assert 108 <= at <= 200
        side.send(commit(400, insert(1, 4)))
        vector_reaches(world, 408)
        assert side.visible(1) == model(side.sent, 1)
        assert set(side.visible(2)) == {b"1"}
        # The log is kept, and nobody is told that all tables are further.
        assert side.floor == at
        wait_until(lambda: side.error == "", describe="no error")
        # In batches of its own, a row each.
        world.lake.poison = set()
        world.catalog.resume_table(SUBID, Oid(102))
        joins(world, 1, 2)
        side.reaches(408)
        assert side.visible(2) == model(side.sent, 2)
        newest = world.catalog.newest_vector(SUBID)
        assert newest is not None and not newest.apart
        published_is_consistent(side)


def test_a_table_without_a_cursor_catches_up_and_is_not_copied(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(commit(100, insert(1, 1)))
        side.start()
        side.reaches(108)
        assert pause(world, 2) >= 108
        side.send(commit(200, insert(1, 2), insert(2, 2)))
        vector_reaches(world, 208)
        side.stop()
        world.catalog.resume_table(SUBID, Oid(102))
        side.start()
        joins(world, 2)
        assert side.visible(2) == model(side.sent, 2)


def test_a_skip_waits_until_all_tables_are_where_it_counts(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2), batch_rows=1) as world:
        side = world.side
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        side.start()
        side.reaches(108)
        pause(world, 2)
        side.send(commit(200, insert(1, 2), insert(2, 2)))
        side.send(commit(300, insert(1, 3), insert(2, 3)))
        vector_reaches(world, 308)
        side.stop()
        world.catalog.resume_table(SUBID, Oid(102))
        world.catalog.set_skip(SUBID, Lsn(400))
        side.send(commit(400, insert(1, 4), insert(2, 4)), commit(500, insert(2, 5)))
        side.start()
        side.reaches(508)
        assert set(side.visible(1)) == {b"1", b"2", b"3"}
        assert set(side.visible(2)) == {b"1", b"2", b"3", b"5"}


def test_one_that_is_copied_again_has_its_old_rows_apart(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side, catalog = world.side, world.catalog
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        side.start()
        side.reaches(108)
        with side.lock:
            catalog.copy_table_anew(SUBID, Oid(102))
        now = rel(world, 2)
        assert (now.state, now.replaces, now.epoch != 1) == (SyncState.INIT, True, True)
        side.send(commit(200, insert(1, 2), insert(2, 2)))
        vector_reaches(world, 208)
        newest = catalog.newest_vector(SUBID)
        assert newest is not None and newest.elsewhere(Oid(102)) == 108
        assert set(side.visible(2)) == {b"1"}
        # Paused while it waits to join: it stands where it was copied.
        with side.lock:
            table = side.table(2)
            table.versions.append(model(side.sent, 2))
            table.cursors[now.cursor_name(catalog.system_identifier)] = 208
            catalog.update_rel(
                SUBID, Oid(102), state=SyncState.FINISHEDCOPY, lsn=Lsn(208)
            )
            assert pause(world, 2) == 208
        assert not rel(world, 2).rejoins
        catalog.resume_table(SUBID, Oid(102))
        joins(world, 2)
        side.reaches(208)
        assert side.visible(2) == model(side.sent, 2)
        newest = catalog.newest_vector(SUBID)
        assert newest is not None and not newest.apart


def test_an_advanced_origin_is_where_paused_tables_stand(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side, catalog = world.side, world.catalog
        side.send(commit(100, insert(1, 1), insert(2, 1)))
        side.start()
        side.reaches(108)
        pause(world, 2)
        side.stop()
        side.send(commit(200, insert(1, 2), insert(2, 2)))
        catalog.advance_origin(SUBID, Lsn(201))
        catalog.advance_origin(SUBID, Lsn(150))
        assert (side.floor, rel(world, 2).lsn) == (201, 201)
        side.send(commit(300, insert(1, 3), insert(2, 3)))
        side.start()
        vector_reaches(world, 308)
        catalog.resume_table(SUBID, Oid(102))
        side.reaches(308)
        assert set(side.visible(1)) == set(side.visible(2)) == {b"1", b"3"}


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 32))
def test_whatever_is_paused_every_published_state_is_a_state_of_the_source(
    seed: int,
) -> None:
    chance = random.Random(seed)
    with (
        TemporaryDirectory() as directory,
        World(Path(directory), batch_rows=chance.choice((1, 3, 100))) as world,
    ):
        side, lsn, key = world.side, 100, 0
        paused: set[int] = set()
        troubles = {"left": chance.randrange(6)}
        coin, guard = random.Random(seed + 1), threading.Lock()

        def trouble(location: str) -> None:
            """Some tables commit, others do not, or nobody hears of it."""
            with guard:
                if troubles["left"] and coin.random() < 0.5:
                    troubles["left"] -= 1
                    raise StorageError("trouble", sqlstate="58030")

        world.lake.before_commit = world.lake.after_commit = trouble
        side.start()

        def send() -> None:
            nonlocal lsn, key
            changes = []
            for relid in chance.sample((1, 2, 3), chance.randint(1, 3)):
                key += 1
                changes.append(insert(relid, key))
            side.send(commit(lsn, *changes))
            lsn += 100

        def stop_and_go() -> None:
            free = [r for r in (1, 2, 3) if r not in paused]
            if free:
                paused.add(chosen := chance.choice(free))
                pause(world, chosen)

        def go() -> None:
            if paused:
                paused.discard(chosen := chance.choice(sorted(paused)))
                world.catalog.resume_table(SUBID, Oid(100 + chosen))

        def restart() -> None:
            side.stop()
            side.start()

        steps: list[Callable[[], None]] = [send, send, send, stop_and_go, go, restart]
        for _ in range(chance.randint(5, 25)):
            chance.choice(steps)()
        while paused:
            go()
        send()
        side.reaches(lsn - 92)
        joins(world, 1, 2, 3)
        for relid in (1, 2, 3):
            assert side.visible(relid) == model(side.sent, relid)
        published_is_consistent(side)
