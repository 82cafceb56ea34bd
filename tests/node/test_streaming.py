"""Transactions that a source sends while they run; postgres/test_streams.py has all versions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from benchmarks.usage import forget_high_water, high_water
from tests.conftest import Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = ("st.t", "st.f")

SCHEMA = (
    "create schema st; create type st.mood as enum ('sad', 'ok');"
    " create table st.t (id int primary key, v text, m st.mood);"
    " alter table st.t alter v set storage external;"
    " create table st.f (id int primary key, n numeric(12,3), at timestamptz);"
)

MIXED = (
    # Savepoints: kept, rolled back, nested, and a parent rolled back over a released child.
    "begin;"
    " insert into st.t select i, repeat('x', 900) || i, 'ok' from generate_series(1, 400) i;"
    " savepoint a; insert into st.f select i, i / 8.0, now() from generate_series(1, 400) i;"
    " update st.t set v = repeat('y', 3000) where id % 7 = 0; release a;"
    " savepoint b; delete from st.t where id < 50; insert into st.t values (-1, 'never', 'sad');"
    " savepoint c; update st.f set n = -n; release c; rollback to b;"
    " update st.t set m = 'sad' where id % 5 = 0; update st.t set id = id + 10000 where id > 380;"
    " savepoint d; truncate st.f; insert into st.f values (1, 1, null); rollback to d;"
    " delete from st.f where id % 3 = 0; update st.t set id = -id where id between 100 and 120;"
    " commit;"
    # Rolled back as a whole, then one whose subtransactions are all rolled back.
    " begin; insert into st.t select i, repeat('z', 900), null"
    "   from generate_series(20000, 20400) i; rollback;"
    " begin; savepoint a; insert into st.t select i, repeat('z', 900), null"
    "   from generate_series(20000, 20400) i; rollback to a; insert into st.f values (-5); commit;"
    # With TRUNCATE that stays.
    " begin; insert into st.f select i from generate_series(1000, 1900) i; truncate st.f;"
    " insert into st.f select i, i from generate_series(1, 300) i; commit"
)


def stream_small(source: Database) -> None:
    """Make the source stream as early as it can."""
    name = source.name
    source.psql(f"alter database {name} set logical_decoding_work_mem = '64kB'")
    version = int(source.psql("show server_version_num")) // 10000
    if version >= 16:
        setting = "debug_logical_replication_streaming"
        source.psql(f"alter database {name} set {setting} = 'immediate'")


def streamed(source: Database, slot: str) -> int:
    """How many transactions the source has streamed to a slot."""
    found = source.psql(
        "select coalesce(max(stream_txns), 0) from pg_stat_replication_slots"
        f" where slot_name = '{slot}'"
    )
    return int(found)


@pytest.mark.slow
@pytest.mark.parametrize("version", [14, 18])
def test_savepoints_and_rollbacks_of_streamed_transactions_end_as_at_the_source(
    database: Callable[[int], Database],
    node: Node,
    subscribe: Callable[..., Mirror],
    version: int,
) -> None:
    source = database(version)
    source.psql(SCHEMA + "create publication st for table st.t, st.f")
    stream_small(source)
    mirror = subscribe(source, "st")
    mirror.synced()
    source.psql(MIXED)
    mirror.assert_equal(TABLES)
    source.psql("insert into st.f values (-7, 1, null)")
    mirror.assert_equal(TABLES)
    wait_until(
        lambda: streamed(source, "st") >= 3,
        describe=lambda: f"streamed: {streamed(source, 'st')}",
    )
    asked = "select substream from pg_subscription where subname = 'st'"
    assert node.value(asked) == "p", "PostgreSQL 18's default"
    node.sql("alter subscription st set (streaming = off)")
    assert node.value(asked) == "f"
    source.psql("truncate st.t, st.f; " + MIXED)
    mirror.assert_equal(TABLES)


@pytest.mark.parametrize("streaming", ["on", "parallel"])
def test_a_large_transaction_is_there_whole_at_its_commit(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror], streaming: str
) -> None:
    pg18.psql(
        "create schema st; create table st.t (id int primary key, v text);"
        " insert into st.t values (0, 'before'); create publication st for table st.t"
    )
    pg18.psql(f"alter database {pg18.name} set logical_decoding_work_mem = '1MB'")
    mirror = subscribe(pg18, "st", f"with (streaming = {streaming})")
    mirror.synced()
    rows = "select i, md5(i::text) || md5((-i)::text) from generate_series({0}, {1}) i"
    pg18.psql(
        f"begin; insert into st.t {rows.format(1, 200_000)};"
        f" savepoint s; insert into st.t {rows.format(200_001, 300_000)}; rollback to s;"
        f" insert into st.t {rows.format(200_001, 350_000)};"
        " update st.t set v = 'changed' where id % 1000 = 0; commit;"
        " insert into st.t values (-1, 'after')"
    )
    mirror.caught_up()
    question = (
        "select count(*), sum(id), count(case when v = 'changed' then 1 end), min(v), max(v)"
        " from st.t"
    )
    assert node.sql(question) == [tuple(pg18.psql(question).split("|"))]
    assert streamed(pg18, "st") >= 1


def test_interleaved_large_transactions_are_equal_row_by_row(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """Each of them writes in turns, and goes back on some; the last to begin is the first to
    end."""
    pg18.psql(
        "create schema st; create table st.t (id int primary key, v text);"
        " insert into st.t select i, 'before ' || i from generate_series(1, 100) i;"
        " create publication st for table st.t"
    )
    pg18.psql(f"alter database {pg18.name} set logical_decoding_work_mem = '64kB'")
    mirror = subscribe(pg18, "st")
    mirror.synced()
    writers, rounds, rows = 5, 4, 80
    with ExitStack() as sessions:
        open_ones = [
            sessions.enter_context(mirror.source()) for _ in range(writers + 1)
        ]
        for session in open_ones:
            session.execute("begin")
        for turn in range(rounds):
            for number, session in enumerate(open_ones):
                first = 1000 * (number + 1) + 2 * rows * turn
                insert = (
                    "insert into st.t select i, repeat(md5(i::text), 30)"
                    " from generate_series({}, {}) i"
                )
                session.execute(insert.format(first, first + rows - 1))
                session.execute("savepoint s")
                session.execute(insert.format(first + rows, first + 2 * rows - 1))
                session.execute(
                    f"update st.t set v = 'gone' where id between {first} and {first + 9}"
                )
                kept = (turn + number) % 2
                session.execute("release s" if kept else "rollback to s")
                session.execute(
                    f"update st.t set v = 'turn {turn} of {number}'"
                    f" where id = {number + 1} or id = {first + 20}"
                )
                session.execute(f"delete from st.t where id = {first + 30}")
        open_ones.pop().execute("rollback")
        for session in reversed(open_ones):
            session.execute("commit")
    mirror.assert_equal(["st.t"])
    assert_equal_outside(node, pg18.conninfo(), ("st.t",))
    wait_until(
        lambda: streamed(pg18, "st") >= writers,
        describe=lambda: f"streamed: {streamed(pg18, 'st')}",
    )


MIB = 1 << 20


def test_the_memory_of_a_receiver_does_not_grow_with_a_transaction(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema st; create table st.t (id int primary key, v text);"
        " create publication st for table st.t"
    )
    pg18.psql(f"alter database {pg18.name} set logical_decoding_work_mem = '4MB'")
    mirror = subscribe(pg18, "st")
    mirror.synced()

    def receiver() -> int:
        (pid,) = (w.pid for w in node.status().workers if w.subscription == "st")
        return pid

    def peak_bytes(first: int, size: int) -> int:
        forget_high_water(receiver())
        pg18.psql(
            "insert into st.t select i, repeat(md5(i::text), 60)"
            f" from generate_series({first}, {first + size // 1920}) i"
        )
        mirror.caught_up()
        return high_water(receiver())

    pid = receiver()
    # Both are beyond what a segment holds; the larger one is beyond all buffers together.
    small, large = 64 * MIB, 256 * MIB
    peaks = [peak_bytes(0, small), peak_bytes(1_000_000, large)]
    assert receiver() == pid, "another one would have a memory of its own"
    assert streamed(pg18, "st") >= 2
    # The queues between its threads have 96 MiB; to hold the rest would take 192.
    assert peaks[1] - peaks[0] < 128 * MIB, peaks
