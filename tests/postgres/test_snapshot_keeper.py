"""The keeper's snapshot at a real server: for the stream it was started with, and not for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.pg import Publisher, connect
from wal2lake.pg.client import Client
from wal2lake.receive import keeper as module
from wal2lake.receive.keeper import SnapshotKeeper
from wal2lake.receive.patience import Patience
from wal2lake.receive.source.pins import Pins
from wal2lake.tablesync.plan import copy_statement, page_ranges
from wal2lake.testing.waits import wait_until

SUBSCRIPTION = Oid(1)
T, U = Oid(7), Oid(8)

LOCKS = (
    "select count(*) from pg_locks l join pg_class c on c.oid = l.relation"
    " where c.relname in ('t', 'u') and mode = 'AccessShareLock'"
)


class World:
    """A catalog with a subscription to tables t and u, and their publisher."""

    def __init__(self, directory: Path, source: Database) -> None:
        self.source = source
        source.psql("create table t (id int); create table u (id int)")
        self.catalog = Catalog.create(directory / "catalog.sqlite", "boss", None)
        self.catalog.create_subscription(
            Subscription(
                SUBSCRIPTION, "s", Oid(10), True, source.conninfo(), "s", ("p",)
            ),
            [self.rel(T, "t")],
            {},
        )

    def conninfo(self, value: str) -> None:
        """It connects by another string."""
        self.catalog.update_subscription(SUBSCRIPTION, conninfo=value)

    def rel(self, oid: Oid, name: str) -> SubscriptionRel:
        return SubscriptionRel(
            SUBSCRIPTION, oid, "public", name, SyncState.INIT, None, int(oid)
        )

    @contextmanager
    def keeping(self, retry: float = 0.1, limit: float = 1.0) -> Iterator[None]:
        subscription = self.catalog.subscription(SUBSCRIPTION)
        assert subscription is not None
        streaming = threading.Event()
        streaming.set()
        one = SnapshotKeeper(
            self.catalog,
            subscription,
            streaming,
            retry_interval_seconds=retry,
            max_lock_wait_seconds=limit,
        )
        one.start()
        try:
            yield
        finally:
            one.stop()
        wait_until(self.nothing_held, describe="nothing is held at the publisher")

    def states(self) -> dict[str, str]:
        return {r.remote_name: r.state.value for r in self.catalog.rels(SUBSCRIPTION)}

    def held(self) -> tuple[int, ...]:
        """Relids that a published snapshot covers."""
        found = self.catalog.snapshot_held(SUBSCRIPTION)
        return () if found is None else found.relids

    def slots(self) -> str:
        return self.source.psql(
            "select slot_name from pg_replication_slots where database ="
            " current_database()"
        )

    def nothing_held(self) -> bool:
        return self.slots() == "" and self.source.psql(LOCKS) == "0"

    def present(self, oid: Oid) -> SubscriptionRel:
        """The relation as it is, with the S of the snapshot that is held."""
        held = self.catalog.snapshot_held(SUBSCRIPTION)
        assert held is not None
        (found,) = [r for r in self.catalog.rels(SUBSCRIPTION) if r.relid == oid]
        return replace(found, lsn=held.lsn)

    def finish(self, oid: Oid) -> None:
        """A copy is committed."""
        assert self.catalog.finish_copies([self.present(oid)]) == {oid}

    def fail(self, oid: Oid) -> None:
        """As tablesync notes it."""
        self.catalog.update_rel(SUBSCRIPTION, oid, error="duplicate key")


@pytest.fixture
def world(pg18: Database, tmp_path: Path) -> World:
    return World(tmp_path, pg18)


def test_a_snapshot_is_held_until_its_tables_are_copied(world: World) -> None:
    with world.keeping():
        wait_until(lambda: world.held() == (T,))
        assert world.states() == {"t": "d"}
        assert world.slots().startswith("pg_1_sync_")
        world.catalog.add_rels([world.rel(U, "u")])
        world.finish(T)
        wait_until(lambda: world.held() == (U,), describe="the next one's turn")
        world.finish(U)
        wait_until(world.nothing_held)
        assert world.held() == ()


def test_tables_of_another_generation_are_left_to_the_next_receiver(
    world: World,
) -> None:
    with world.keeping():
        wait_until(lambda: world.held() == (T,))
        # As ALTER SUBSCRIPTION ... ADD PUBLICATION.
        world.catalog.update_subscription(
            SUBSCRIPTION, publications=("p", "q"), bump=True
        )
        world.catalog.add_rels([world.rel(U, "u")])
        wait_until(world.nothing_held, describe="the old stream's snapshot is let go")
        assert world.held() == ()
        assert world.states()["u"] == "i"
    with world.keeping():
        wait_until(lambda: world.held() == (T, U))


def test_a_change_while_the_slot_is_being_made_publishes_nothing(world: World) -> None:
    making = (
        "select count(*) from pg_stat_activity where query like"
        " 'CREATE_REPLICATION_SLOT%' and state = 'active'"
        " and datname = current_database()"
    )
    with Client(world.source.conninfo()) as client:
        # A slot waits for transactions that run.
        client.rows("begin; insert into public.t values (1)")
        with world.keeping():
            wait_until(lambda: world.source.psql(making) == "1")
            world.catalog.update_subscription(
                SUBSCRIPTION, publications=("p", "q"), bump=True
            )
            client.rows("commit")
            wait_until(
                lambda: world.nothing_held() and world.states() == {"t": "i"},
                describe="it has given up what it had made",
            )
            assert world.held() == ()


def test_a_snapshot_is_not_held_for_failing_copies_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HELD_SECONDS", 0.5)
    looks: list[None] = []
    step = SnapshotKeeper._step

    def counted(self: SnapshotKeeper) -> None:
        looks.append(None)
        step(self)

    monkeypatch.setattr(SnapshotKeeper, "_step", counted)
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping():
        wait_until(lambda: world.held() == (T, U))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        world.fail(T)
        world.catalog.update_rel(SUBSCRIPTION, U, rows_copied=10)
        # One of them is copied still: it is worth it.
        looks.clear()
        wait_until(lambda: len(looks) >= 5, describe="a second has passed")
        assert world.catalog.snapshot_held(SUBSCRIPTION) == first
        world.finish(U)
        wait_until(world.nothing_held, describe="locks, slot and xmin are let go")
        assert world.held() == ()
        # The floor stays for the one whose copy may be committed.
        assert world.states() == {"t": "d", "u": "f"}
        world.catalog.update_rel(SUBSCRIPTION, U, lsn=Lsn(2**40))
        assert world.catalog.publish(SUBSCRIPTION, Lsn(2**40), {}) == 0
        wait_until(lambda: world.held() == (T,), describe="it is tried again")
        assert first is not None
        again = world.catalog.snapshot_held(SUBSCRIPTION)
        assert again is not None and again.lsn > first.lsn
        assert world.catalog.publish(SUBSCRIPTION, Lsn(2**40), {}) == again.lsn


def test_an_attempt_at_work_keeps_its_snapshot_whatever_the_one_before_ended_with(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is shown until the copy has succeeded, however long its only range takes."""
    monkeypatch.setattr(module, "_HELD_SECONDS", 0.3)
    looks: list[None] = []
    step = SnapshotKeeper._step

    def counted(self: SnapshotKeeper) -> None:
        looks.append(None)
        step(self)

    monkeypatch.setattr(SnapshotKeeper, "_step", counted)
    with world.keeping():
        wait_until(lambda: world.held() == (T,))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        world.catalog.begin_copies([world.present(T)])
        world.fail(T)
        looks.clear()
        wait_until(lambda: len(looks) >= 5, describe="a second has passed")
        assert world.catalog.snapshot_held(SUBSCRIPTION) == first
        world.catalog.end_attempts([(world.present(T), "again", "22000", False)])
        wait_until(world.nothing_held, describe="it is let go")


def test_what_somebody_does_about_a_failing_table_ends_its_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HELD_SECONDS", 0.3)
    failed = Patience.failed

    def long(
        self: Patience, rel: SubscriptionRel, version: int | None, now: float, _: float
    ) -> None:
        failed(self, rel, version, now, 600.0)

    monkeypatch.setattr(Patience, "failed", long)
    with world.keeping():
        wait_until(lambda: world.held() == (T,))
        world.fail(T)
        wait_until(world.nothing_held)
        # A DELETE at the front door publishes a version.
        world.catalog.publish(SUBSCRIPTION, Lsn(0), {int(T): 5})
        wait_until(lambda: world.held() == (T,), timeout_seconds=10)


def test_a_table_that_has_left_and_come_back_gets_a_snapshot_of_its_own(
    world: World,
) -> None:
    """Its relid was covered still, so the old snapshot was held for it, for ever, and it was
    never copied: what was committed while it was not published is not in that one's stream."""
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping():
        wait_until(lambda: world.held() == (T, U))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        assert first is not None
        # Two REFRESHes of the same publications: the generation stays.
        world.catalog.remove_rel(SUBSCRIPTION, T)
        world.catalog.add_rels([replace(world.rel(T, "t"), epoch=99)])
        world.finish(U)
        wait_until(lambda: world.held() == (T,), describe="the next one's turn")
        again = world.catalog.snapshot_held(SUBSCRIPTION)
        assert again is not None and again.lsn > first.lsn
        assert world.states() == {"t": "d", "u": "f"}


def test_a_snapshot_below_what_is_complete_already_is_not_published(
    world: World,
) -> None:
    """The connection has found another server than the stream's, one that lags: what lies
    between would be neither in the copy nor applied."""
    world.catalog.update_subscription(SUBSCRIPTION, floor=Lsn(2**40))
    with world.keeping():
        wait_until(lambda: world.catalog.errors(), describe="it says so")
        (noted,) = world.catalog.errors()
        assert f"below {Lsn(2**40)}" in noted.error
        assert noted.error.endswith("a standby that lags, perhaps. Let it name one.")
        assert world.held() == ()
        world.catalog.update_subscription(SUBSCRIPTION, floor=Lsn(1))
        wait_until(lambda: world.held() == (T,))
        assert world.catalog.errors() == []


def test_a_table_that_cannot_be_locked_waits_for_itself(world: World) -> None:
    world.source.psql("drop table u")
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping(retry=0.5):
        wait_until(lambda: world.held() == (T,), describe="the other one is copied")
        world.finish(T)
        # No copy of it can have begun: the floor need not wait.
        wait_until(lambda: world.states() == {"t": "f", "u": "i"})
        (rel,) = [r for r in world.catalog.rels(SUBSCRIPTION) if r.relid == U]
        assert rel.error == 'table "public.u" not found on publisher'
        wait_until(
            lambda: [x.sync_errors > 1 for x in world.catalog.stats()] == [True],
            describe="each attempt is counted",
        )
        world.source.psql("create table u (id int)")
        wait_until(lambda: world.held() == (U,))


def test_select_on_some_columns_is_enough(world: World) -> None:
    """As it is for PostgreSQL's own copy of a column list; LOCK TABLE asks for the whole table."""
    world.source.psql(
        "create role keeper_columns login replication;"
        " alter table t add secret text; insert into t values (1, 's');"
        " grant select (id) on t to keeper_columns;"
        " create publication p for table t (id)"
    )
    world.catalog.add_rels([world.rel(U, "u")])
    world.conninfo(world.source.conninfo(user="keeper_columns"))
    try:
        with world.keeping():
            wait_until(lambda: world.held() == (T,), describe="t is covered")
            assert world.source.psql(LOCKS) == "1", "u's was let go with its savepoint"
            (rel,) = [r for r in world.catalog.rels(SUBSCRIPTION) if r.relid == U]
            assert "permission denied for table u\nHINT:  Grant SELECT" in str(
                rel.error
            )
            columns = world.source.conninfo(user="keeper_columns")
            with connect(columns, application_name="x") as session:
                (t,) = Publisher(session).tables([("public", "t")], ("p",)).values()
                t = replace(t, pages=10_000)
                ranges = page_ranges(t, range_bytes=1 << 20, min_ranges=2)
                read = [
                    b"".join(session.copy_out(copy_statement(t, one), block_bytes=9))
                    for one in ranges
                ]
            assert read == [b"1\n"]
            # Nobody moves its rows meanwhile.
            with pytest.raises(RuntimeError, match="lock timeout"):
                world.source.psql("set lock_timeout = 200; vacuum full t")
    finally:
        wait_until(world.nothing_held)
        world.source.psql("drop owned by keeper_columns; drop role keeper_columns")


def test_who_alters_a_table_that_is_copied_does_not_wait_for_the_others(
    world: World,
) -> None:
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping():
        wait_until(lambda: world.held() == (T, U))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        world.finish(T)
        world.source.psql("set lock_timeout = '20s'; alter table t add v text")
        assert world.catalog.snapshot_held(SUBSCRIPTION) == first
        with pytest.raises(RuntimeError, match="lock timeout"):
            world.source.psql("set lock_timeout = 100; alter table u add v text")
        # Who waits for the other one keeps nobody from this one, in the end.
        with Client(world.source.conninfo()) as client:
            client.rows("begin; lock table public.t in access share mode")
            assert world.source.psql(LOCKS) == "2"
        world.finish(U)


def test_who_alters_a_table_whose_copy_fails_need_not_wait_for_a_minute(
    world: World,
) -> None:
    """Its readers queue behind him, he behind the snapshot's lock. Copies that work never give
    way here."""
    with world.keeping(limit=0):
        wait_until(lambda: world.held() == (T,))
        world.catalog.begin_copies([world.present(T)])
        with pytest.raises(RuntimeError, match="lock timeout"):
            world.source.psql("set lock_timeout = '2s'; alter table t add v text")
        world.catalog.end_attempts([(world.present(T), "lock timeout", "55P03", False)])
        world.source.psql("set lock_timeout = '20s'; alter table t add v text")
        wait_until(lambda: world.held() == (T,), describe="it is copied then")


@pytest.mark.parametrize(
    "statement",
    [
        "truncate t, u",
        "alter table t alter id type bigint",
        "alter table u add v text",
        "vacuum full t",
        "drop table u",
        "create index on t (id)",
    ],
)
def test_nobody_waits_for_a_lock_longer_than_the_setting_says(
    world: World, statement: str
) -> None:
    """TRUNCATE of two tables waits for both in turn, and all their writers behind it."""
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping(limit=1.0):
        wait_until(lambda: world.held() == (T, U))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        began = time.monotonic()
        world.source.psql(f"set lock_timeout = '5s'; {statement}")
        assert time.monotonic() - began < 1.8
        assert world.catalog.snapshot_held(SUBSCRIPTION) == first, "others are copied"
        world.source.psql("set lock_timeout = 200; insert into t values (1)")


def test_a_lock_that_somebody_else_has_is_not_waited_for(world: World) -> None:
    """The keeper would queue behind him with all other locks in hand."""
    source = world.source.conninfo()
    with Client(source) as client:
        client.rows("begin; lock table public.t in access exclusive mode")
        pins = Pins(connect(source, application_name="x"), "mark", 1.0)
        try:
            assert pins.begin([world.rel(T, "t"), world.rel(U, "u")]) == {}
            assert world.source.psql(LOCKS) == "1"
        finally:
            pins.close()


def test_a_session_that_reads_is_ended_for_who_waits_for_it(world: World) -> None:
    with world.keeping(limit=0.5):
        wait_until(lambda: world.held() == (T,))
        with (
            connect(world.source.conninfo(), application_name="x") as reader,
            connect(world.source.conninfo(), application_name="y") as other,
        ):
            mine = world.catalog.sync_name(SUBSCRIPTION)
            for session, mark in ((reader, mine), (other, "pg_2_sync_1")):
                session.execute("begin")
                Publisher(session).mark_transaction(mark)
                session.query("select * from public.t")
            other.execute("rollback")
            began = time.monotonic()
            world.source.psql("set lock_timeout = '5s'; truncate t")
            assert time.monotonic() - began < 1.2
            wait_until(lambda: not reader.is_alive())
            assert other.is_alive()


def test_a_table_that_was_taken_out_of_a_snapshot_gets_the_next_one(
    world: World,
) -> None:
    world.catalog.add_rels([world.rel(U, "u")])
    with world.keeping():
        wait_until(lambda: world.held() == (T, U))
        first = world.catalog.snapshot_held(SUBSCRIPTION)
        assert first is not None
        world.catalog.uncover(first, [T])
        assert world.held() == (U,)
        world.finish(U)
        wait_until(lambda: world.held() == (T,), describe="the next one's turn")
        again = world.catalog.snapshot_held(SUBSCRIPTION)
        assert again is not None and again.lsn > first.lsn
