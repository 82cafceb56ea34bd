"""REFRESH PUBLICATION WITH (recopy = true) on a real node: the way out when the slot is lost, and
when rows are not the source's; whoever reads meanwhile has the old rows or the new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database
from tests.node.conftest import Subscribe, create

from wal2lake.catalog.mapped.progress import receiver_name
from wal2lake.errors import PublisherError
from wal2lake.model import Oid
from wal2lake.observe.failpoints import arm
from wal2lake.observe.telemetry import read_process
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

SLOTS = "select slot_name from pg_replication_slots where database = current_database()"
ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"
RECOPY = "alter subscription {} refresh publication with (recopy = true)"
WAY_OUT = "REFRESH PUBLICATION WITH (recopy = true)"


def heard(node: Node, sql: str) -> list[tuple[str, str]]:
    """Severity and text of a statement's notices."""
    told: list[Failure] = []
    with Client(node.conninfo(), on_notice=told.append) as client:
        client.rows(sql)
    return [(n.severity, n.message) for n in told]


def refused(node: Node, sql: str) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        node.sql(sql)
    return caught.value


class Watcher:
    """Counts the rows of a table without pause, at the front door and in its files."""

    def __init__(self, node: Node, schema: str, table: str) -> None:
        self._node = node
        self._name = f"{schema}.{table}"
        self._path = str(node.directory / "warehouse" / schema / table)
        self.seen: dict[str, list[int]] = {"front door": [], "files": []}
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(name, count), daemon=True)
            for name, count in (
                ("front door", self._at_the_door),
                ("files", self._in_the_files),
            )
        ]

    def _at_the_door(self) -> Iterator[int]:
        with self._node.connect() as client:
            while True:
                yield int(str(client.rows(f"select count(*) from {self._name}")[0][0]))

    def _in_the_files(self) -> Iterator[int]:
        while True:
            found = QueryBuilder().register("t", DeltaTable(self._path))
            table = found.execute("select count(*) as n from t").read_all()
            yield int(table["n"][0].as_py())

    def _watch(self, name: str, counts: Callable[[], Iterator[int]]) -> None:
        try:
            for count in counts():
                if not self.seen[name] or self.seen[name][-1] != count:
                    self.seen[name].append(count)
                if self._stop.is_set():
                    return
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Watcher:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: all(self.seen.values()) or self.failures)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


# ---- with a new slot ------------------------------------------------------------------------


@pytest.mark.slow
def test_after_a_dropped_slot_readers_have_all_old_rows_until_they_have_all_new_ones(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema rc; create table rc.t (id int primary key, v text);"
        " insert into rc.t select i, 'old' from generate_series(1, 1000) i;"
        " create table rc.log (v text); insert into rc.log values ('once');"
        " create publication rc for tables in schema rc"
    )
    mirror = subscribe(pg18, "rc")
    mirror.synced()
    pg18.psql(
        "update rc.t set v = 'newer' where id <= 10; insert into rc.log values ('b')"
    )
    mirror.assert_equal(["rc.t", "rc.log"])
    node.sql("alter subscription rc disable")
    wait_until(
        lambda: pg18.psql("select active from pg_replication_slots") == "f",
        describe="the slot is free",
    )
    pg18.psql(
        "select pg_drop_replication_slot('rc'); delete from rc.t where id % 2 = 0;"
        " insert into rc.t select i, 'new' from generate_series(2001, 5000) i;"
        " truncate rc.log; insert into rc.log values ('alone');"
        " create table rc.late (id int primary key); insert into rc.late values (7)"
    )
    node.sql("alter subscription rc enable")
    (error,) = node.wait_for(ERROR.format("rc"))[0]
    assert 'replication slot "rc" does not exist' in str(error)
    assert WAY_OUT in str(error)
    with Watcher(node, "rc", "t") as watcher:
        notices = heard(node, RECOPY.format("rc"))
        mirror.synced()
        wait_until(
            lambda: (
                watcher.failures or all(s[-1] == 3500 for s in watcher.seen.values())
            ),
            describe=lambda: f"both have the new rows: {watcher.seen}",
        )
    assert not watcher.failures
    assert watcher.seen == {"front door": [1000, 3500], "files": [1000, 3500]}
    assert notices[0] == ("NOTICE", 'created replication slot "rc" on publisher')
    assert sorted(notices[1:]) == [
        ("NOTICE", 'table "rc.late" added to subscription "rc", and will be copied'),
        ("NOTICE", 'table "rc.log" will be copied again'),
        ("NOTICE", 'table "rc.t" will be copied again'),
    ]
    assert pg18.psql(SLOTS) == "rc"
    assert node.sql(ERROR.format("rc")) == []
    pg18.psql("insert into rc.t values (0, 'streamed'); delete from rc.t where id = 1;")
    # A refresh is in it: a table that was published meanwhile has come, too.
    mirror.assert_equal(["rc.t", "rc.log", "rc.late"])


def test_another_server_is_taken_as_the_new_source(
    pg16: Database, pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    tables = (
        "create schema rs; create table rs.t (id int primary key, v text);"
        " create publication rs for table rs.t;"
    )
    pg18.psql(f"{tables} insert into rs.t values (1, 'eighteen'), (2, 'two')")
    pg16.psql(f"{tables} insert into rs.t values (1, 'sixteen')")
    mirror = subscribe(pg18, "rs")
    mirror.synced()
    node.sql(f"alter subscription rs connection {quote_literal(pg16.conninfo())}")
    (error,) = node.wait_for(
        ERROR.format("rs"), lambda rows: "system identifier" in str(rows)
    )[0]
    assert WAY_OUT in str(error)
    pg18.psql("insert into rs.t values (3, 'not any more')")
    node.sql(RECOPY.format("rs"))
    mirror = Mirror(node, pg16.conninfo(), "rs")
    mirror.synced()
    pg16.psql("insert into rs.t values (4, 'streamed')")
    mirror.assert_equal(["rs.t"])


def _slot_status(node: Node, subscription: str) -> str | None:
    """What the receiver has last heard of the slot."""
    oid = node.value(
        f"select oid from pg_subscription where subname = '{subscription}'"
    )
    read = read_process(node.directory / "run", receiver_name(Oid(int(str(oid)))))
    gauges = {} if read is None else read.gauges
    return next(
        (
            dict(labels)["status"]
            for name, labels in gauges
            if name == "source_slot_wal_status"
        ),
        None,
    )


@pytest.mark.slow
def test_an_invalidated_slot_is_replaced_while_the_subscription_is_disabled(
    node: Node,
) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}
    with PostgresServer(18, settings=settings) as server:
        source = Database(server, "postgres")
        source.psql(
            "create table inv (id int primary key); insert into inv values (1);"
            " create publication inv for table inv"
        )
        create(node, source, "inv")
        mirror = Mirror(node, source.conninfo(), "inv")
        mirror.synced()
        node.sql("alter subscription inv disable")

        def lost() -> bool:
            source.psql(
                "insert into inv select max(id) + 1 from inv;"
                " select pg_switch_wal(); checkpoint"
            )
            return source.psql("select wal_status from pg_replication_slots") == "lost"

        wait_until(lost, describe="the slot has lost its WAL")
        # The receiver ends with an error, and its measurements say why.
        node.sql("alter subscription inv enable")
        wait_until(lambda: _slot_status(node, "inv") == "lost", describe="it is known")
        node.sql("alter subscription inv disable")
        assert heard(node, RECOPY.format("inv")) == [
            ("NOTICE", 'dropped replication slot "inv" on publisher'),
            ("NOTICE", 'created replication slot "inv" on publisher'),
            ("NOTICE", 'table "public.inv" will be copied again'),
        ]
        assert node.value("select count(*) from inv") == "1"
        node.sql("alter subscription inv enable")
        mirror.synced()
        source.psql("insert into inv values (0)")
        mirror.assert_equal(["public.inv"])
        wait_until(lambda: _slot_status(node, "inv") == "reserved", timeout_seconds=20)
        node.sql("drop subscription inv")
        node.sql("drop table inv")


# ---- with the slot that is there --------------------------------------------------------------


def test_tables_are_copied_anew_while_the_source_is_written(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema rl; create table rl.t (id int primary key, v int);"
        " insert into rl.t select i, 0 from generate_series(1, 2000) i;"
        " create table rl.keyless (v int);"
        " create publication rl for tables in schema rl"
    )
    node.sql("create schema rl")
    node.sql("create table rl.t (id int primary key, v int)")
    node.sql("insert into rl.t values (2, -1), (100000, -1)")
    mirror = subscribe(pg18, "rl")
    (error,) = node.wait_for(ERROR.format("rl"))[0]
    assert "duplicate key value violates unique constraint" in str(error)
    assert WAY_OUT in str(error)
    log = node.directory / "log"
    before = [path.stat().st_ino for path in log.iterdir()]
    stop = threading.Event()

    def write() -> None:
        number = 2000
        while not stop.is_set():
            number += 1
            pg18.psql(
                f"begin; insert into rl.t values ({number}, 1);"
                f" insert into rl.keyless values ({number});"
                f" update rl.t set v = v + 1 where id % 50 = {number % 50};"
                f" delete from rl.t where id = {number - 1990}; commit"
            )

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for _ in range(2):
            # First the table that could not be copied, then tables that are whole.
            told = heard(node, RECOPY.format("rl"))
            assert {severity for severity, _ in told} == {"NOTICE"}
            mirror.synced()
    finally:
        stop.set()
        writer.join(30)
    mirror.assert_equal(["rl.t", "rl.keyless"])
    assert [path.stat().st_ino for path in log.iterdir()] == before
    assert node.sql(ERROR.format("rl")) == []


@pytest.mark.slow
def test_prepared_transactions_are_whole_under_the_old_slot_and_a_new_one(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema rp; create table rp.t (id int primary key, v text);"
        " insert into rp.t values (1, 'one');"
        " create publication rp for table rp.t"
    )
    mirror = subscribe(pg18, "rp", "with (two_phase = true)")
    state = "select subtwophasestate from pg_subscription where subname = 'rp'"
    node.wait_for(state, lambda rows: rows == [("e",)])
    mirror.assert_equal(["rp.t"])
    pg18.psql(
        "begin; insert into rp.t values (2, 'before'); prepare transaction 'rp_before'"
    )
    node.sql(RECOPY.format("rp"))
    pg18.psql(
        "begin; insert into rp.t values (3, 'during'); prepare transaction 'rp_during'"
    )
    assert node.value(state) == "e", "the slot is the same"
    # The snapshot waits for what is prepared.
    pg18.psql("commit prepared 'rp_before'; insert into rp.t values (4, 'after')")
    pg18.psql("commit prepared 'rp_during'")
    mirror.synced()
    mirror.assert_equal(["rp.t"])
    node.sql("alter subscription rp disable")
    wait_until(
        lambda: pg18.psql("select active from pg_replication_slots") == "f",
        describe="the slot is free",
    )
    pg18.psql(
        "select pg_drop_replication_slot('rp'); insert into rp.t values (5, 'gap');"
    )
    node.sql(RECOPY.format("rp"))
    assert node.value(state) == "p"
    node.sql("alter subscription rp enable")
    mirror.synced()
    node.wait_for(state, lambda rows: rows == [("e",)])
    pg18.psql("begin; delete from rp.t where id = 1; prepare transaction 'rp_last'")
    node.wait_for("select 1 from pg_prepared_xacts")
    pg18.psql("commit prepared 'rp_last'")
    mirror.assert_equal(["rp.t"])


# ---- refusals ----------------------------------------------------------------------------------


def test_what_cannot_be_copied_anew_is_refused_and_nothing_happens(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema rx; create table rx.t (id int primary key, v text);"
        " insert into rx.t values (1, 'one');"
        " create publication rx for table rx.t; create publication ry for table rx.t"
    )
    mirror = subscribe(pg18, "rx")
    mirror.synced()
    subscribe(pg18, "ry", "with (copy_data = false)")
    error = refused(node, RECOPY.format("rx"))
    assert (error.sqlstate, error.message) == (
        "55000",
        'table "rx.t" cannot be copied again: subscription "ry" fills it, too',
    )
    node.sql("drop subscription ry")
    error = refused(
        node, "alter subscription rx refresh publication"
        " with (recopy = true, copy_data = false)"
    )  # fmt: skip
    assert (error.sqlstate, error.message) == (
        "42601",
        "copy_data = false and recopy = true are mutually exclusive options",
    )
    with node.connect() as client:
        client.rows("begin")
        with pytest.raises(PublisherError) as caught:
            client.rows(RECOPY.format("rx"))
    assert (caught.value.sqlstate, caught.value.message) == (
        "25001",
        "ALTER SUBSCRIPTION ... REFRESH cannot run inside a transaction block",
    )
    node.sql("alter subscription rx disable")
    assert refused(
        node, "alter subscription rx refresh publication with (recopy = false)"
    ).message == (
        "ALTER SUBSCRIPTION ... REFRESH is not allowed for disabled subscriptions"
    )
    # A slot that is somebody else's is not dropped.
    pg18.psql("select pg_create_physical_replication_slot('rx_other')")
    try:
        node.sql("alter subscription rx set (slot_name = 'rx_other')")
        error = refused(node, RECOPY.format("rx"))
        assert error.message == (
            "cannot use physical replication slot for logical decoding"
        )
        node.sql("alter subscription rx set (slot_name = none)")
        error = refused(node, RECOPY.format("rx"))
        assert (error.sqlstate, error.message) == (
            "55000",
            "cannot copy the tables of a subscription that does not have a slot name",
        )
    finally:
        node.sql("alter subscription rx set (slot_name = 'rx')")
        pg18.psql("select pg_drop_replication_slot('rx_other')")
    node.sql("alter subscription rx enable")
    pg18.psql("insert into rx.t values (2, 'two')")
    mirror.assert_equal(["rx.t"])
    assert node.value(
        "select srsubstate from pg_subscription_rel r join pg_subscription s"
        " on s.oid = srsubid where subname = 'rx'"
    ) == ("r")


# ---- death -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "action"),
    [
        ("recopy.slot_created", "kill"),
        *[
            pytest.param(point, action, marks=pytest.mark.slow)
            for point in (
                "recopy.marked",
                "recopy.slot_dropped",
                "recopy.given_up",
                "recopy.log_removed",
                "recopy.slot_created",
                "recopy.recorded",
                "copy.committed",
                "copy.state_written",
            )
            for action in ("kill", "kill-tree")
            if (point, action) != ("recopy.slot_created", "kill")
        ],
    ],
)
def test_sigkill_at_each_step_of_a_recopy_ends_equal(
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
    point: str,
    action: str,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    pg18.psql(
        "create table a (id int primary key, v text);"
        " insert into a select i, 'old' from generate_series(1, 500) i;"
        " create table b (v int); insert into b values (1);"
        " create publication k for table a, b"
    )
    create(node, pg18, "k")
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    pg18.psql("update a set v = 'newer' where id = 7; insert into b values (2)")
    mirror.assert_equal(["public.a", "public.b"])
    # A slot that was moved by hand: it is there to be dropped.
    node.sql("alter subscription k disable")
    wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "f")
    pg18.psql(
        "delete from a where id <= 100; insert into a values (1000, 'new');"
        " select pg_replication_slot_advance('k', pg_current_wal_lsn());"
        " update a set v = 'newest' where id = 1000; insert into b values (3)"
    )
    node.sql("alter subscription k enable")
    node.wait_for(ERROR.format("k"), lambda rows: "advanced by hand" in str(rows))
    arm(points, point, action)
    if point.startswith("recopy"):
        refused(node, RECOPY.format("k"))
    else:
        node.sql(RECOPY.format("k"))
        wait_until(lambda: not (points / point).exists(), timeout_seconds=60)
    assert not (points / point).exists(), f"{point} was not reached"
    if action == "kill-tree":
        node.wait_end()
        node.start()
    node.wait_for("select 1")
    assert node.value("select count(*) from a") in ("500", "401")
    mirror.synced()
    wait_until(lambda: pg18.psql(SLOTS) == "k", describe="there is one slot")
    pg18.psql("insert into a values (2000, 'streamed')")
    mirror.assert_equal(["public.a", "public.b"])
    assert node.sql(ERROR.format("k")) == []
    assert sorted(p.name for p in (node.directory / "log").glob("[0-9]*")) == [
        str(node.value("select oid from pg_subscription"))
    ]


@pytest.mark.slow
def test_a_recopy_that_fails_is_taken_back_or_gone_on_with(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    pg18.psql(
        "create table a (id int primary key); insert into a values (1);"
        " create publication f for table a"
    )
    create(node, pg18, "f")
    mirror = Mirror(node, pg18.conninfo(), "f")
    mirror.synced()
    copied = "select rows_copied from wal2lake.sync_progress"
    node.sql("insert into a values (100)")
    arm(points, "recopy.marked", "error")
    refused(node, RECOPY.format("f"))
    pg18.psql("insert into a values (2)")
    mirror.caught_up()
    assert node.sql("select * from a order by id") == [("1",), ("2",), ("100",)]
    assert node.value(copied) == "1", "nothing was copied again"
    node.sql("alter subscription f disable")
    wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "f")
    pg18.psql("select pg_drop_replication_slot('f'); insert into a values (3)")
    arm(points, "recopy.given_up", "error")
    told: list[Failure] = []
    with (
        Client(node.conninfo(), on_notice=told.append) as client,
        pytest.raises(PublisherError),
    ):
        client.rows(RECOPY.format("f"))
    assert [(n.severity, n.message) for n in told] == [
        (
            "WARNING",
            'subscription "f" has no slot until this node has made one, which it goes on'
            " to try",
        )
    ]
    wait_until(lambda: pg18.psql(SLOTS) == "f", describe="it has made one")
    node.sql("alter subscription f enable")
    mirror.synced()
    mirror.assert_equal(["public.a"])
