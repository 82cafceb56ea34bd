"""Table synchronisation on a real node: one table's failure is its own, commands end copies
before they answer, and what dies in any state ends equal."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql, Subscribe, create

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.pg import connect
from wal2lake.settings import FILE_NAME
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def publish(source: Database, name: str, *tables: str) -> None:
    """Tables of three rows each in a schema of the publication's name."""
    source.psql(
        f"create schema {name};"
        + "".join(
            f"create table {name}.{table} (id int primary key, v text);"
            f"insert into {name}.{table} select i, '{table} ' || i"
            " from generate_series(1, 3) i;"
            for table in tables
        )
        + f"create publication {name} for tables in schema {name}"
    )


def states(node: Node, name: str) -> dict[str, str]:
    rows = node.sql(
        "select tablename, state from wal2lake.sync_progress"
        f" where subname = '{name}' order by 1"
    )
    return {str(table): str(state) for table, state in rows}


def reaches(node: Node, name: str, expected: dict[str, str]) -> None:
    wait_until(
        lambda: states(node, name) == expected,
        timeout_seconds=60,
        describe=lambda: (
            f"{expected}; it is {states(node, name)}\n{node.log_text()[-3000:]}"
        ),
    )


def fails(node: Node, name: str, table: str, text: str) -> None:
    """Until the copy of a table shows an error that begins so."""
    node.wait_for(
        "select error from wal2lake.subscription_errors"
        f" where subname = '{name}' and tablename = '{table}'",
        lambda rows: bool(rows) and str(rows[0][0]).startswith(text),
    )


# ---- one fails, the others go on ---------------------------------------------------------


@pytest.mark.slow
def test_tables_that_cannot_be_copied_show_why_and_the_others_go_on(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """As many as there are workers, and the first in order."""
    publish(pg18, "s1", "a", "b", "c", "d", "e")
    node.sql("create schema s1")
    for table in ("a", "b"):
        node.sql(f"create table s1.{table} (id int primary key, v text)")
        node.sql(f"insert into s1.{table} values (2, 'ours')")
    mirror = subscribe(pg18, "s1")
    reaches(node, "s1", {"a": "d", "b": "d", "c": "r", "d": "r", "e": "r"})
    for table in ("a", "b"):
        fails(node, "s1", table, "duplicate key value violates unique constraint")
    pg18.psql("insert into s1.c values (10, 'streamed')")
    node.wait_for("select 1 from s1.c where id = 10")
    assert node.sql("select * from s1.a") == [("2", "ours")]
    assert node.sql(
        "select srsubstate, count(*), count(srsublsn) from pg_subscription_rel r"
        " join pg_subscription s on s.oid = srsubid where subname = 's1'"
        " group by 1 order by 1"
    ) == [("d", "2", "0"), ("r", "3", "3")]
    for table in ("a", "b"):
        node.sql(f"delete from s1.{table}")
    mirror.synced()
    mirror.assert_equal([f"s1.{table}" for table in "abcde"])
    assert not node.sql(
        "select 1 from wal2lake.subscription_errors where tablename in ('a', 'b')"
    )


def test_a_value_that_does_not_fit_stops_its_table_until_a_new_snapshot(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "s2", "a", "b")
    node.sql("create schema s2")
    node.sql("create table s2.a (id int primary key, v int)")
    mirror = subscribe(pg18, "s2")
    reaches(node, "s2", {"a": "d", "b": "r"})
    fails(node, "s2", "a", "invalid input syntax for type integer")
    pg18.psql("update s2.a set v = id * 10")
    # What the snapshot sees does not change. A new one is taken.
    node.sql("alter subscription s2 disable")
    node.sql("alter subscription s2 enable")
    mirror.synced()
    mirror.assert_equal(["s2.a", "s2.b"])


def test_rows_of_the_source_that_have_one_key_here_are_not_copied(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """PostgreSQL 18 says 23505 of each of them; disable_on_error disables."""
    pg18.psql(
        "create schema s10;"
        " create table s10.same (i int); insert into s10.same values (1), (1), (2);"
        " create table s10.narrow (i int, j int, primary key (i, j));"
        "   insert into s10.narrow values (1, 1), (1, 2);"
        " create table s10.equal (i numeric); insert into s10.equal values (1.0), (1.00);"
        " create table s10.spelled (i text primary key);"
        "   insert into s10.spelled values ('1'), ('01');"
        " create table s10.part (i int);"
        "   create unique index on s10.part (i) where i > 1;"
        "   insert into s10.part values (1), (1);"
        " create table s10.unequal (i int); insert into s10.unequal values (1), (2);"
        " alter table s10.same replica identity full;"
        " alter table s10.equal replica identity full;"
        " alter table s10.part replica identity full;"
        " create publication s10 for tables in schema s10"
    )
    tables = ("equal", "narrow", "part", "same", "spelled")
    node.sql("create schema s10")
    for table in (*tables, "unequal"):
        kind = "numeric" if table == "equal" else "int"
        more = ", j int" if table == "narrow" else ""
        node.sql(f"create table s10.{table} (i {kind} primary key{more})")
    mirror = subscribe(pg18, "s10")
    for table in tables:
        fails(node, "s10", table, "duplicate key value violates unique constraint")
        assert node.sql(f"select count(*) from s10.{table}") == [("0",)]
    assert node.sql(
        "select distinct sqlstate from wal2lake.subscription_errors"
        " where subname = 's10'"
    ) == [("23505",)]
    reaches(node, "s10", dict.fromkeys(tables, "d") | {"unequal": "r"})
    node.sql("alter subscription s10 set (disable_on_error = true)")
    node.wait_for(
        "select 1 from pg_subscription where subname = 's10' and not subenabled"
    )
    # As the HINT says.
    pg18.psql(
        "delete from s10.same where ctid = '(0,1)'; delete from s10.equal where"
        " ctid = '(0,1)'; delete from s10.part where ctid = '(0,1)';"
        " delete from s10.narrow where j = 2; delete from s10.spelled where i = '01'"
    )
    node.sql("alter subscription s10 enable")
    mirror.synced()
    assert node.sql("select i from s10.same order by i") == [("1",), ("2",)]
    assert node.sql("select i from s10.spelled") == [("1",)]


@pytest.mark.slow
def test_rows_of_a_table_that_has_taken_the_name_of_the_copied_one_are_compared(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """PostgreSQL 18 says 23505, insert_exists."""
    publish(pg18, "s11", "t")
    mirror = subscribe(pg18, "s11")
    mirror.synced()
    pg18.psql(
        "begin; alter table s11.t rename to old;"
        " create table s11.t (like s11.old including all);"
        " insert into s11.t values (1, 'new'); commit"
    )
    node.wait_for(
        "select sqlstate from wal2lake.subscription_errors where subname = 's11'",
        lambda rows: ("23505",) in rows,
    )
    assert node.sql("select count(*) from s11.t where id = 1") == [("1",)]
    node.sql("delete from s11.t where id = 1")
    node.wait_for("select 1 from s11.t where id = 1 and v = 'new'")


@pytest.mark.slow
def test_rows_are_compared_once_a_publication_has_kept_changes_back(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """Without a REFRESH. PostgreSQL 18 says 23505, insert_exists."""
    pg18.psql(
        "create schema s12; create table s12.out (id int primary key, v text);"
        " create table s12.filtered (id int primary key, v text);"
        " create table s12.same (id int primary key, v text);"
        " insert into s12.out values (1, 'a'); insert into s12.filtered values (1, 'a');"
        " create publication s12 for table s12.out, s12.filtered, s12.same"
    )
    mirror = subscribe(pg18, "s12")
    mirror.synced()
    pg18.psql(
        "alter publication s12 drop table s12.out; delete from s12.out;"
        " alter publication s12 add table s12.out"
    )
    pg18.psql(
        "insert into s12.out values (1, 'again'); insert into s12.same values (1)"
    )

    def stands(table: str) -> None:
        node.wait_for(
            "select error from wal2lake.subscription_errors where subname = 's12'",
            lambda rows: any(f's12.{table}"' in str(row) for row in rows),
        )
        assert node.sql(f"select v from s12.{table} where id = 1") == [("a",)]
        node.sql(f"delete from s12.{table} where id = 1")
        node.wait_for(f"select 1 from s12.{table} where id = 1 and v = 'again'")

    stands("out")
    pg18.psql(
        "alter publication s12 set table s12.out, s12.same,"
        " s12.filtered where (id > 1); delete from s12.filtered"
    )
    pg18.psql(
        "alter publication s12 set table s12.out, s12.same, s12.filtered;"
        " insert into s12.filtered values (1, 'again')"
    )
    stands("filtered")
    assert node.sql("select count(*) from s12.same") == [("1",)]


@pytest.mark.slow
def test_two_subscriptions_copy_at_the_same_time_and_one_that_fails_harms_nobody(
    pg18: Database,
    pg16: Database,
    node: Node,
    subscribe: Subscribe,
) -> None:
    names = [f"t{n}" for n in range(12)]
    publish(pg18, "s3", *names)
    publish(pg16, "s4", "u1")
    node.sql("create schema s3")
    for name in names[:4]:
        node.sql(f"create table s3.{name} (id int primary key, v int)")
    subscribe(pg18, "s3")
    mirror = subscribe(pg16, "s4")
    mirror.synced()
    mirror.assert_equal(["s4.u1"])
    bad = dict.fromkeys(names[:4], "d")
    reaches(node, "s3", {**bad, **dict.fromkeys(names[4:], "r")})
    for name in names[:4]:
        fails(node, "s3", name, "invalid input syntax for type integer")


# ---- workers ------------------------------------------------------------------------------


def set_in_file(node: Node, name: str, value: object) -> None:
    """Write a setting into the node's file, and have it read again."""
    path = node.directory / FILE_NAME
    text, found = re.subn(
        rf"^(# )?{name} = .*$", f"{name} = {value}", path.read_text(), flags=re.M
    )
    assert found == 1
    path.write_text(text)
    assert node.value("select pg_reload_conf()") == "t"


@pytest.mark.slow
def test_workers_are_shown_as_they_copy_and_a_reload_changes_how_many(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    """Five tables that are no small ones; only those of a worker are in the view. Neither the
    engine nor, for what does not concern it, a receiver starts again."""
    names = [f"t{n}" for n in range(5)]
    publish(pg18, "sw", *names)
    for name in names:
        pg18.psql(
            f"insert into sw.{name} select i, repeat('x', 500)"
            " from generate_series(10, 1300) i; analyze"
        )
    session = node.connect()
    show = "show max_sync_workers_per_subscription"

    def copying() -> list[tuple[str | None, ...]]:
        return node.sql(
            "select s.pid, r.srsubstate, r.srrelid, last_msg_receipt_time,"
            " coalesce(leader_pid::text, received_lsn::text, latest_end_lsn::text)"
            " from pg_stat_subscription s left join pg_subscription_rel r"
            " on r.srsubid = s.subid and r.srrelid = s.relid"
            " where subname = 'sw' and worker_type = 'table synchronization'"
        )

    def pid_of(role: str) -> int:
        (found,) = [
            w.pid
            for w in node.status().workers
            if w.role == role and w.subscription in ("", "sw")
        ]
        return found

    try:
        set_in_file(node, "max_sync_workers_per_subscription", 1)
        wait_until(lambda: session.rows(show) == [("1",)], describe="one worker")
        arm(points, "copy.range_recorded", "always pause 1")
        mirror = subscribe(pg18, "sw")
        rows = wait_until(copying, describe="a worker copies")
        assert rows is not None
        wait_until(lambda: any(row[3] for row in copying()), describe="rows have come")
        engine, receiver = pid_of("engine"), pid_of("receiver")
        assert [(row[0], row[1], row[4]) for row in rows] == [(str(engine), "d", None)]
        set_in_file(node, "max_sync_workers_per_subscription", 3)
        seen = {len(rows)}

        def three() -> bool:
            seen.add(len(copying()))
            return max(seen) >= 3

        wait_until(three, describe="three workers copy")
        assert max(seen) == 3, "as many as the setting says, whatever waits"
        (points / "copy.range_recorded").unlink()
        assert session.rows(show) == [("3",)]
        mirror.synced()
        mirror.assert_equal(["sw.t4"])
        assert copying() == []
        assert pid_of("receiver") == receiver, "its snapshot was not lost"

        # The next receiver reads the file, too: its log is where it was all the same.
        set_in_file(node, "directory", '"elsewhere"')
        set_in_file(node, "wal_receiver_status_interval_ms", 200)
        wait_until(lambda: pid_of("receiver") != receiver, describe="another receiver")
        assert session.rows("show wal_receiver_status_interval") == [("200ms",)]
        replied = "select max(reply_time) from pg_stat_replication"
        replies: set[str] = set()

        def several() -> bool:
            replies.add(pg18.psql(f"{replied} where application_name = 'sw'"))
            return len(replies) > 3

        # Nothing moves; by default it is a report in ten seconds.
        wait_until(several, timeout_seconds=8, describe="reports")
        pg18.psql("insert into sw.t4 values (9999, 'more')")
        node.wait_for("select 1 from sw.t4 where id = 9999")
        assert not (node.directory / "elsewhere").exists()
        assert 'parameter "log.directory" cannot be changed' in node.log_text()
        assert pid_of("engine") == engine
    finally:
        session.close()
        set_in_file(node, "directory", '""')
        set_in_file(node, "max_sync_workers_per_subscription", 2)
        set_in_file(node, "wal_receiver_status_interval_ms", 10_000)


# ---- tables that go -----------------------------------------------------------------------


def test_a_drop_at_the_source_that_waits_for_the_copy_does_not_stop_it_for_ever(
    pg18: Database, node: Node, subscribe: Subscribe, psql: Psql
) -> None:
    """DROP waits for the snapshot's lock, and readers queue behind it: a deadlock that no
    server sees. A copy that fails anyhow gives way."""
    publish(pg18, "s5", "a", "b")
    node.sql("create schema s5")
    node.sql("create table s5.a (id int primary key, v text)")
    node.sql("insert into s5.a values (2, 'ours')")
    mirror = subscribe(pg18, "s5")
    reaches(node, "s5", {"a": "d", "b": "r"})
    psql(pg18.conninfo(), "-c", "set lock_timeout = '40s'", "-c", "drop table s5.a")
    fails(node, "s5", "a", 'table "s5.a" not found on publisher')
    pg18.psql("insert into s5.b values (10, 'streamed')")
    node.wait_for("select 1 from s5.b where id = 10")
    node.sql("alter subscription s5 refresh publication")
    mirror.synced()
    mirror.assert_equal(["s5.b"])


@pytest.mark.slow
def test_tables_are_copied_beside_writers_and_sessions_that_rewrite_them(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """One TRUNCATE waited 10 s for the snapshot's lock, and the writers of its tables behind it.
    Tables that wait for their copy, are being copied and have been copied are rewritten as fast
    as the server can at first, and more slowly until all are copied (a busy machine must get
    there, too); PostgreSQL's subscriber ends equal, too."""
    small = [f"t{n}" for n in range(17)]
    publish(pg18, "sl", *small, "big", "gone")
    pg18.psql(
        "insert into sl.big select i, repeat(i::text, 30)"
        " from generate_series(10, 20000) i; analyze sl.big"
    )
    stop = threading.Event()
    slowest = [0.0]
    failed: list[Exception] = []

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with connect(pg18.conninfo(), application_name="writer") as session:
            session.execute("set statement_timeout = '15s'")
            while not stop.is_set():
                # Always in the same order: two writers are no deadlock.
                one, other = sorted(chance.sample([*small, "big"], 2))
                began = time.monotonic()
                session.execute(
                    f"insert into sl.{one} values ({chance.randint(1, 99)}, 'new')"
                    " on conflict (id) do update set v = sl."
                    f"{one}.v || 'x';"
                    f"delete from sl.{other} where id = {chance.randint(1, 99)}"
                )
                slowest[0] = max(slowest[0], time.monotonic() - began)
                time.sleep(0.005)

    def rewrite() -> None:
        chance = random.Random(7)
        began = time.monotonic()
        with connect(pg18.conninfo(), application_name="rewriter") as session:
            session.execute("set statement_timeout = '15s'")
            while not stop.is_set():
                one, other = sorted(chance.sample(small, 2))
                name = chance.choice([one, "big"])
                for statement in chance.choice(
                    [
                        [f"truncate sl.{one}, sl.{other}"],
                        [f"alter table sl.{name} alter v type text using v || ''"],
                        [f"alter table sl.{name} alter v set default 'd'"],
                        [f"vacuum full sl.{name}"],
                        [f"create index i on sl.{name} (v)", "drop index sl.i"],
                    ]
                ):
                    session.execute(statement)
                time.sleep((time.monotonic() - began) / 300)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    threads = [
        threading.Thread(target=guarded, args=(work,))
        for work in (partial(write, 1), partial(write, 2), rewrite)
    ]
    try:
        for thread in threads:
            thread.start()
        mirror = subscribe(pg18, "sl")
        pg18.psql("set lock_timeout = '3s'; drop table sl.gone")
        # The dropped one waits for REFRESH, in i or in d: as far as it had come.
        node.wait_for(
            "select srrelid::regclass::text, srsubstate from pg_subscription_rel"
            " where srsubid = (select oid from pg_subscription where subname = 'sl')"
            " and srsubstate <> 'r'",
            lambda rows: [name for name, _ in rows] == ["sl.gone"],
            timeout_seconds=120,
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed
    assert slowest[0] < 2.0
    node.sql("alter subscription sl refresh publication")
    mirror.synced()
    mirror.assert_equal([f"sl.{name}" for name in [*small, "big"]])
    assert not node.sql(
        "select subname, error from wal2lake.subscription_errors where subname = 'sl'"
    )


def test_a_table_dropped_at_the_node_during_its_copy_takes_the_copy_with_it(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    publish(pg18, "s6", "a")
    arm(points, "lake.files_synced", "pause 3")
    mirror = subscribe(pg18, "s6")
    wait_until(lambda: not (points / "lake.files_synced").exists())
    node.sql("drop table s6.a")
    node.sql("create table s6.a (id int primary key, v text)")
    # Only what is copied from now on.
    node.sql("alter subscription s6 refresh publication")
    mirror.synced()
    mirror.assert_equal(["s6.a"])
    assert not node.sql("select 1 from wal2lake.subscription_errors")


# ---- commands that end a copy ------------------------------------------------------------


@pytest.mark.slow
def test_nothing_of_a_dropped_subscriptions_copy_is_committed_afterwards(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    """Its commit was under way, and met the copy of the next subscription."""
    publish(pg18, "s7", "a")
    arm(points, "lake.files_synced", "pause 5")
    subscribe(pg18, "s7")
    wait_until(lambda: not (points / "lake.files_synced").exists())
    node.sql("drop subscription s7")
    node.sql("truncate s7.a")
    mirror = subscribe(pg18, "s7")
    mirror.synced()
    mirror.assert_equal(["s7.a"])


def test_drop_does_not_wait_for_ranges_that_are_still_read(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    publish(pg18, "s8", "a")
    arm(points, "copy.range_recorded", "pause 20")
    subscribe(pg18, "s8")
    wait_until(lambda: not (points / "copy.range_recorded").exists())
    node.sql("drop subscription s8")
    mirror = subscribe(pg18, "s8")
    mirror.synced()
    mirror.assert_equal(["s8.a"])
    assert not node.sql("select 1 from wal2lake.subscription_errors")


@pytest.mark.slow
def test_nothing_is_committed_while_the_subscription_is_disabled(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    publish(pg18, "s9", "a")
    arm(points, "copy.range_recorded", "pause 2")
    mirror = subscribe(pg18, "s9")
    wait_until(lambda: not (points / "copy.range_recorded").exists())
    node.sql("alter subscription s9 disable")
    node.sql("insert into s9.a values (2, 'ours')")
    node.sql("alter subscription s9 enable")
    fails(node, "s9", "a", "duplicate key value")
    assert node.sql("select * from s9.a") == [("2", "ours")]
    node.sql("delete from s9.a")
    mirror.synced()
    mirror.assert_equal(["s9.a"])


def test_refresh_ends_the_copy_of_a_table_that_it_removes(
    pg18: Database, node: Node, subscribe: Subscribe, points: Path
) -> None:
    pg18.psql(
        "create schema s10; create table s10.a (id int primary key, v text);"
        " create table s10.b (id int primary key, v text);"
        " insert into s10.a values (1, 'one'); insert into s10.b values (1, 'one');"
        " create publication s10 for table s10.a"
    )
    mirror = subscribe(pg18, "s10")
    mirror.synced()
    pg18.psql("alter publication s10 add table s10.b")
    arm(points, "copy.range_recorded", "pause 3")
    node.sql("alter subscription s10 refresh publication")
    wait_until(lambda: not (points / "copy.range_recorded").exists())
    pg18.psql("alter publication s10 drop table s10.b")
    node.sql("alter subscription s10 refresh publication")
    assert node.sql("select * from s10.b") == []
    # It comes back while the first copy's range is still in somebody's hands.
    pg18.psql("alter publication s10 add table s10.b")
    node.sql("alter subscription s10 refresh publication")
    mirror.synced()
    mirror.assert_equal(["s10.a", "s10.b"])


# ---- death in each state --------------------------------------------------------------------


# The steps of a copy are killed with one victim in tests/faults/test_kill.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "action"),
    [
        pytest.param("subscription.recorded", "kill", id="i"),
        pytest.param("copy.snapshot_taken", "kill-tree", id="d"),
        pytest.param("copy.committed", "kill-tree", id="d, committed"),
        pytest.param("copy.state_written", "kill-tree", id="f"),
        pytest.param("apply.vector_recorded", "kill-tree", id="s"),
    ],
)
def test_sigkill_in_each_state_of_a_table_ends_equal(
    point: str,
    action: str,
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    tables = [f"t{n}" for n in range(6)]
    publish(pg18, "k", *tables)
    names = [f"k.{table}" for table in tables]

    def write(round_: int) -> None:
        # One transaction over all tables: none may have a part of it.
        pg18.transactions(
            [
                ";".join(
                    f"insert into {name} values ({100 * round_ + n}, 'round {round_}');"
                    f"update {name} set v = v || '.' where id = 1;"
                    f"delete from {name} where id = {100 * (round_ - 1) + n}"
                    for name in names
                )
                for n in range(10, 20)
            ]
        )

    arm(points, point, action)
    try:
        create(node, pg18, "k")
    except PublisherError:
        assert point == "subscription.recorded"
    write(1)
    wait_until(
        lambda: not (points / point).exists(),
        timeout_seconds=60,
        describe=f"{point} is reached",
    )
    if action == "kill-tree":
        node.wait_end()
    write(2)
    if action == "kill-tree":
        node.start()
    else:
        node.wait_ready()
    write(3)
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    mirror.assert_equal(names)
