"""A publisher that is a standby, becomes a primary, or has less history than its subscriber."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer, find_installation
from wal2lake.testing.waits import wait_until

TABLES = ["public.t"]
ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"
SYNCED = {"sync_replication_slots": "on"}


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer(18) as server:
        server.psql(
            "create table t (id int primary key, v text);"
            " insert into t select g, g::text from generate_series(1, 1000) g;"
            " create publication p for table t"
        )
        yield server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("standby")
    environ = {VARIABLE: str(directory / "points")}
    with Node(directory / "data", settings=FAST_RETRY, environ=environ) as node:
        yield node.init().start()
        assert node.stop() == 0


@pytest.fixture
def points(running: Node) -> Path:
    """Where failpoints of the node are armed."""
    return running.directory.parent / "points"


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """It has no subscription and no table; servers that are gone have their slots."""
    yield running
    for (name,) in running.sql("select subname from pg_subscription"):
        running.sql(f"alter subscription {name} disable")
        running.sql(f"alter subscription {name} set (slot_name = none)")
        running.sql(f"drop subscription {name}")
    running.sql("drop table if exists t, late")


def create(name: str, server: PostgresServer, options: str = "") -> str:
    return (
        f"create subscription {name} connection {quote_literal(server.conninfo())}"
        f" publication p {options}"
    )


def connect_to(node: Node, name: str, server: PostgresServer) -> None:
    conninfo = quote_literal(server.conninfo())
    node.sql(f"alter subscription {name} connection {conninfo}")


def wait_for_sync(primary: PostgresServer, standby: PostgresServer, slot: str) -> None:
    """Until the standby's slot would survive a failover."""

    def synced() -> bool:
        primary.psql("select pg_log_standby_snapshot()")
        return (
            standby.psql(
                "select synced and not temporary and invalidation_reason is null"
                f" from pg_replication_slots where slot_name = '{slot}'"
            )
            == "t"
        )

    wait_until(synced, timeout_seconds=90, describe=standby.log_text)


@contextmanager
def creating(node: Node, standby: PostgresServer) -> Iterator[subprocess.Popen[str]]:
    """psql while it creates a subscription; ended with it."""
    program = find_installation(18).bin / "psql"
    statement = create("from_standby", standby)
    with subprocess.Popen(
        [program, "-Xqd", node.conninfo(), "-c", statement],
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            yield client
        finally:
            client.kill()


@pytest.mark.slow
def test_a_standby_is_a_publisher_once_its_primary_has_logged_a_snapshot(
    primary: PostgresServer, node: Node
) -> None:
    with primary.standby("standby") as standby:
        wait_until(
            lambda: standby.has_replayed(primary.psql("select pg_current_wal_lsn()")),
            describe="the standby has the table",
        )
        with creating(node, standby) as client:
            assert client.stderr is not None
            client.stderr.readline()
            # It may be given up while it waits, and leaves nothing behind.
            client.send_signal(signal.SIGINT)
            client.wait(20)
            assert "canceling statement due to user request" in client.stderr.read()
        assert standby.psql("select count(*) from pg_replication_slots") == "0"
        assert node.sql("select 1 from pg_tables where tablename = 't'") == []
        with creating(node, standby) as client:
            assert client.stderr is not None
            # The slot cannot be there yet: nothing is written to the primary.
            assert client.stderr.readline() == (
                "NOTICE:  publisher is a standby server\n"
            )
            assert client.poll() is None

            def done() -> bool:
                primary.psql("select pg_log_standby_snapshot()")
                return client.poll() is not None

            wait_until(done, timeout_seconds=60, describe="the slot is there")
            rest = client.stderr.read()
        assert client.returncode == 0, rest
        assert "HINT:  Execute pg_log_standby_snapshot() on the primary." in rest

        def ready() -> bool:
            primary.psql("select pg_log_standby_snapshot()")
            return node.sql("select srsubstate from pg_subscription_rel") == [("r",)]

        wait_until(ready, timeout_seconds=90, describe=node.log_text)
        mirror = Mirror(node, primary.conninfo(), "from_standby")
        assert mirror.differences(TABLES) == []
        primary.psql(
            "delete from t where id <= 10; update t set v = 'x' where id = 11;"
            " insert into t values (2000, 'new')"
        )
        wait_until(
            lambda: mirror.differences(TABLES) == [],
            timeout_seconds=60,
            describe=node.log_text,
        )
        node.sql("drop subscription from_standby")
        assert standby.psql("select count(*) from pg_replication_slots") == "0"


def test_a_failover_slot_goes_on_at_the_promoted_standby_without_loss(
    primary: PostgresServer, node: Node
) -> None:
    with primary.standby("standby", **SYNCED) as standby:
        primary.set(synchronized_standby_slots="standby")
        node.sql(create("failover", primary, "with (failover = true)"))
        Mirror(node, primary.conninfo(), "failover").synced()
        wait_for_sync(primary, standby, "failover")
        stop = threading.Event()
        written: list[int] = []

        def write() -> None:
            number = 10_000
            try:
                while not stop.is_set():
                    primary.psql(
                        "begin; delete from t where id = (select min(id) from t);"
                        f" insert into t values ({number}, 'w'); commit"
                    )
                    written.append(number)
                    number += 1
            except RuntimeError:
                return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: len(written) > 20, timeout_seconds=60)
            primary.kill()
        finally:
            stop.set()
            writer.join()
        standby.promote()
        connect_to(node, "failover", standby)
        mirror = Mirror(node, standby.conninfo(), "failover")
        mirror.assert_equal(TABLES)
        standby.psql("insert into t values (99999, 'after')")
        mirror.assert_equal(TABLES)
        assert node.sql(ERROR.format("failover")) == []
        node.sql("drop subscription failover")
        assert standby.psql("select count(*) from pg_replication_slots") == "0"


@pytest.mark.slow
def test_a_subscriber_ahead_of_the_promoted_standby_is_told_so(
    primary: PostgresServer, node: Node
) -> None:
    with primary.standby("standby", **SYNCED) as standby:
        # Nothing here makes the slot wait for the standby.
        node.sql(create("ahead", primary, "with (failover = true)"))
        mirror = Mirror(node, primary.conninfo(), "ahead")
        mirror.synced()
        wait_for_sync(primary, standby, "ahead")
        standby.stop()
        primary.psql("insert into t values (5000, 'lost')")
        mirror.caught_up()
        primary.kill()
        standby.start()
        standby.promote()
        connect_to(node, "ahead", standby)
        told = "which has been received"
        node.wait_for(ERROR.format("ahead"), lambda r: told in str(r))
        # Nor does it go on by itself once the new primary has written more than that.
        standby.psql(
            "insert into t select g, 'other' from generate_series(6000, 9000) g;"
            " select pg_switch_wal()"
        )
        left = "which left timeline 1 at"
        (error,) = node.wait_for(ERROR.format("ahead"), lambda r: left in str(r))[0]
        assert node.sql("select v from t where id >= 5000") == [("lost",)]
        # The way out that the hint names.
        assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error)
        node.sql("alter subscription ahead refresh publication with (recopy = true)")
        mirror = Mirror(node, standby.conninfo(), "ahead")
        mirror.synced()
        mirror.assert_equal(TABLES)


@pytest.mark.slow
def test_a_promotion_in_the_middle_of_a_copy_with_a_transaction_prepared(
    primary: PostgresServer, node: Node, points: Path
) -> None:
    """The snapshot is the old server's: what it began is copied again from the new one. What
    was prepared before the promotion is committed after it, once."""
    with primary.standby("standby", **SYNCED) as standby:
        primary.set(synchronized_standby_slots="standby")
        node.sql(create("cut", primary, "with (failover = true, two_phase = true)"))
        mirror = Mirror(node, primary.conninfo(), "cut")
        mirror.synced()
        node.wait_for(
            "select subtwophasestate from pg_subscription where subname = 'cut'",
            lambda rows: rows == [("e",)],
        )
        primary.psql(
            "create table late (id int primary key, v text);"
            " insert into late select g, 'old' from generate_series(1, 1000) g;"
            " alter publication p add table late"
        )
        arm(points, "copy.range_recorded", "pause 30")
        node.sql("alter subscription cut refresh publication")
        wait_until(
            lambda: not (points / "copy.range_recorded").exists(),
            timeout_seconds=60,
            describe="the copy has begun",
        )
        primary.psql(
            "begin; insert into t values (7000, 'prepared'); update t set v = 'prepared'"
            " where id = 1; insert into late values (7000, 'prepared');"
            " prepare transaction 'x'"
        )
        primary.psql(
            "begin; insert into t values (7001, 'given up'); prepare transaction 'y';"
        )
        primary.psql(
            "update late set v = 'newer' where id = 5; delete from t where id = 2"
        )
        node.wait_for(
            "select count(*) from pg_prepared_xacts", lambda rows: rows == [("2",)]
        )
        mirror.caught_up()
        wait_for_sync(primary, standby, "cut")
        end = primary.psql("select pg_current_wal_flush_lsn()")
        wait_until(lambda: standby.has_replayed(end), describe="it has everything")
        primary.kill()
        standby.promote()
        connect_to(node, "cut", standby)
        mirror = Mirror(node, standby.conninfo(), "cut")
        standby.psql(
            "insert into t values (7002, 'after'); delete from late where id = 9"
        )
        standby.psql("commit prepared 'x'; rollback prepared 'y'")
        mirror.synced()
        mirror.assert_equal([*TABLES, "public.late"])
        assert node.sql(
            "select id, v from t where id >= 7000 or id = 1 order by id"
        ) == [
            ("1", "prepared"),
            ("7000", "prepared"),
            ("7002", "after"),
        ]
        assert node.sql("select 1 from pg_prepared_xacts") == []
        assert node.sql(ERROR.format("cut")) == []
        node.sql("drop subscription cut")
        wait_until(
            lambda: standby.psql("select count(*) from pg_replication_slots") == "0",
            describe="no slot is left",
        )


@pytest.mark.slow
def test_a_table_copied_above_where_the_promoted_standby_goes_on_is_told(
    primary: PostgresServer, node: Node
) -> None:
    """A copy does not wait for the standby, as the stream of a failover slot does: its rows may
    be of transactions that the new primary never had."""
    with primary.standby("standby", **SYNCED) as standby:
        primary.psql(
            "create table late (id int primary key, v text);"
            " create publication later for table late"
        )
        primary.set(synchronized_standby_slots="standby")
        node.sql(create("above", primary, "with (failover = true)"))
        Mirror(node, primary.conninfo(), "above").synced()
        wait_for_sync(primary, standby, "above")
        standby.stop()
        primary.psql("insert into late values (1, 'lost')")
        node.sql("alter subscription above add publication later")
        state = (
            "select srsubstate from pg_subscription_rel"
            " where srrelid = 'public.late'::regclass"
        )
        node.wait_for(state, lambda rows: rows == [("f",)])
        primary.kill()
        standby.start()
        standby.promote()
        connect_to(node, "above", standby)
        standby.psql(
            "insert into late select g, 'other' from generate_series(1, 3000) g;"
            " select pg_switch_wal(); insert into late values (5000, 'after')"
        )
        told = "which has been copied"
        (error,) = node.wait_for(ERROR.format("above"), lambda r: told in str(r))[0]
        assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error)
        node.sql("alter subscription above refresh publication with (recopy = true)")
        mirror = Mirror(node, standby.conninfo(), "above")
        mirror.synced()
        mirror.assert_equal([*TABLES, "public.late"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lagging standby", "restored backup"])
def test_a_source_with_a_shorter_history_is_an_error(
    kind: str, primary: PostgresServer, node: Node
) -> None:
    node.sql(create("shorter", primary))
    mirror = Mirror(node, primary.conninfo(), "shorter")
    mirror.synced()
    if kind == "lagging standby":
        other = primary.standby("standby")
        other.stop()
        other.set(primary_conninfo="", primary_slot_name="")
    else:
        other = PostgresServer(
            18,
            backup_of=primary,
            signal_file="recovery.signal",
            settings={"restore_command": "false"},
        )
    with other:
        primary.psql("insert into t values (3000, 'later')")
        mirror.assert_equal(TABLES)
        if kind == "lagging standby":
            other.start()
        connect_to(node, "shorter", other)
        (error,) = node.wait_for(
            ERROR.format("shorter"), lambda r: "which has been received" in str(r)
        )[0]
        if kind == "lagging standby":
            assert "publisher's history ends at" in str(error)
            assert "It may be a lagging standby, or restored from a backup." in str(
                error
            )
        else:
            # However much is written there, it stays another history.
            other.psql(
                "insert into t select g, 'other' from generate_series(6000, 9000) g;"
                " select pg_switch_wal()"
            )
            left = "which left timeline 1 at"
            node.wait_for(ERROR.format("shorter"), lambda r: left in str(r))
        rows = node.sql("select id, v from t where id > 1000")
        assert rows == [("3000", "later")]
        # Back at its own source it goes on.
        connect_to(node, "shorter", primary)
        primary.psql("insert into t values (3001, 'more')")
        mirror.assert_equal(TABLES)
        assert node.sql(ERROR.format("shorter")) == []
