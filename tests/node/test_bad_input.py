"""What goes wrong at the publisher or between the two: PostgreSQL's text and SQLSTATE, a
remedy, and nothing lost: each test ends with the cause corrected and the data arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

ERRORS = "select error from wal2lake.subscription_errors where subname = '{}'"


def publish(source: Database, name: str) -> None:
    """Schema, table ``t`` with a row, and publication, all of the subscription's name."""
    source.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text);"
        f" insert into {name}.t values (1, 'one'); create publication {name}"
        f" for table {name}.t"
    )


def refused(
    node: Node, source: Database, name: str, *, conninfo: str | None = None
) -> PublisherError:
    """The error of a CREATE SUBSCRIPTION that must fail, and that leaves nothing."""
    slots = (
        "select count(*) from pg_replication_slots where active or plugin is not null"
    )
    before = source.psql(slots)
    try:
        node.sql(
            f"create subscription {name} connection"
            f" {quote_literal(conninfo or source.conninfo())} publication {name}"
        )
    except PublisherError as error:
        assert error.hint, "there is a remedy"
        assert source.psql(slots) == before
        assert node.sql(f"select 1 from pg_subscription where subname = '{name}'") == []
        return error
    raise AssertionError("the subscription was created")


def arrives(source: Database, mirror: Mirror, name: str) -> None:
    """The cause is corrected: old rows and new ones are there."""
    mirror.synced()
    source.psql(f"insert into {name}.t values (99, 'after')")
    mirror.assert_equal([f"{name}.t"])


def wait_for_error(node: Node, name: str, *parts: str) -> str:
    """Until wal2lake.subscription_errors has an error with these texts."""
    rows = node.wait_for(
        ERRORS.format(name),
        lambda rows: any(all(p in str(row[0]) for p in parts) for row in rows),
    )
    return str(rows[0][0])


# ---- connecting -----------------------------------------------------------------------


def test_an_unreachable_publisher(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "b1")
    # A port that was bound and is not listened on.
    error = refused(node, pg18, "b1", conninfo=pg18.conninfo(port="1"))
    assert error.sqlstate == "08006"
    assert error.message.startswith(
        'subscription "b1" could not connect to the publisher: connection to server at'
    )
    assert "Connection refused" in error.message
    error = refused(node, pg18, "b1", conninfo=pg18.server.conninfo("nope"))
    assert 'database "nope" does not exist' in error.message
    arrives(pg18, subscribe(pg18, "b1"), "b1")


@pytest.fixture
def strict() -> Iterator[Database]:
    """A server of its own: without logical decoding, and role ``careful`` needs its
    password."""
    with PostgresServer(18, settings={"wal_level": "replica"}) as server:
        hba = server.data / "pg_hba.conf"
        rules = "host all careful 127.0.0.1/32 scram-sha-256\n" + hba.read_text()
        hba.write_text(rules)
        # Reloads pg_hba.conf as well.
        server.set(log_connections="on")
        yield Database(server, "postgres")


def test_wal_level_too_low_then_a_wrong_password_then_one_that_is_changed(
    strict: Database, node: Node
) -> None:
    publish(strict, "b2")
    error = refused(node, strict, "b2")
    assert (error.sqlstate, error.message) == (
        "08P01",
        'could not create replication slot "b2": ERROR:  logical decoding requires'
        ' "wal_level" >= "logical"',
    )
    assert '"wal_level" to "logical"' in str(error.hint)

    strict.server.set(wal_level="logical")
    strict.server.restart()
    strict.psql(
        "create role careful login replication password 'right';"
        " grant usage on schema b2 to careful; grant select on b2.t to careful"
    )
    wrong = strict.conninfo(user="careful", password="wrong")
    error = refused(node, strict, "b2", conninfo=wrong)
    assert error.sqlstate == "08006"
    assert 'password authentication failed for user "careful"' in error.message
    assert "wrong" not in error.message

    right = strict.conninfo(user="careful", password="right")
    node.sql(f"create subscription b2 connection {quote_literal(right)} publication b2")
    mirror = Mirror(node, strict.conninfo(), "b2")
    try:
        arrives(strict, mirror, "b2")
        shown = node.value(
            "select subconninfo from pg_subscription where subname = 'b2'"
        )
        assert "password='right'" in str(shown), "to its owner"
        strict.psql(
            "alter role careful password 'changed';"
            " select pg_terminate_backend(pid) from pg_stat_replication;"
            " insert into b2.t values (2, 'while nobody could come in')"
        )
        wait_for_error(node, "b2", "password authentication failed")
        strict.psql("alter role careful password 'right'")
        mirror.assert_equal(["b2.t"])
        node.wait_for(ERRORS.format("b2"), lambda rows: rows == [])
    finally:
        strict.psql("alter role careful password 'right'")
        node.sql("drop subscription b2")
        node.sql("drop schema b2 cascade")


# ---- slots ----------------------------------------------------------------------------


def test_a_slot_of_that_name_that_is_there_already(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "b3")
    pg18.psql("select pg_create_logical_replication_slot('b3', 'pgoutput')")
    error = refused(node, pg18, "b3")
    assert (error.sqlstate, error.message) == (
        "08P01",
        'could not create replication slot "b3": ERROR:  replication slot "b3" already'
        " exists",
    )
    assert "create_slot = false" in str(error.hint)
    pg18.psql("select pg_drop_replication_slot('b3')")
    arrives(pg18, subscribe(pg18, "b3"), "b3")


def test_max_replication_slots_is_reached_at_once_or_by_the_copy(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "b4")
    fill = (
        "select pg_create_physical_replication_slot('fill' || i) from generate_series(1,"
        " current_setting('max_replication_slots')::int"
        " - (select count(*)::int from pg_replication_slots)) i"
    )
    try:
        pg18.psql(fill)
        error = refused(node, pg18, "b4")
        assert error.sqlstate == "08P01"
        assert error.message == (
            'could not create replication slot "b4": ERROR:  all replication slots are'
            " in use"
        )
        assert "max_replication_slots" in str(error.hint)
        # One is left for the subscription, none for the snapshot of its copy.
        pg18.psql("select pg_drop_replication_slot('fill1')")
        mirror = subscribe(pg18, "b4")
        wait_for_error(node, "b4", "all replication slots are in use")
        pg18.psql("insert into b4.t values (2, 'before its copy')")
    finally:
        pg18.psql(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name like 'fill%'"
        )
    arrives(pg18, mirror, "b4")
    node.wait_for(ERRORS.format("b4"), lambda rows: rows == [])


# ---- publications and tables ------------------------------------------------------------


def test_a_missing_publication_is_a_warning_and_can_be_made_later(
    pg18: Database, node: Node
) -> None:
    told: list[Failure] = []
    with Client(node.conninfo(), on_notice=told.append) as client:
        client.rows(
            f"create subscription b5 connection {quote_literal(pg18.conninfo())}"
            " publication b5"
        )
    try:
        assert [(n.severity, n.message) for n in told] == [
            ("WARNING", 'publication "b5" does not exist on the publisher'),
            ("NOTICE", 'created replication slot "b5" on publisher'),
        ]
        publish(pg18, "b5")
        node.sql("alter subscription b5 refresh publication")
        arrives(pg18, Mirror(node, pg18.conninfo(), "b5"), "b5")
    finally:
        node.sql("drop subscription b5")
        node.sql("drop schema if exists b5 cascade")


def test_a_table_that_is_here_and_lacks_a_column(pg18: Database, node: Node) -> None:
    """As PostgreSQL: the subscription is created, and its worker reports the missing column
    until ALTER TABLE adds it. The copy and the stream find it, in the same words."""
    publish(pg18, "b6")
    pg18.psql("create table b6.w (id int primary key, v text, x int)")
    missing = 'logical replication target relation "b6.{}" is missing replicated column'
    node.sql(
        "create schema b6; create table b6.t (id int primary key);"
        " create table b6.w (id int primary key)"
    )
    told: list[Failure] = []
    with Client(node.conninfo(), on_notice=told.append) as client:
        client.rows(
            f"create subscription b6 connection {quote_literal(pg18.conninfo())}"
            " publication b6"
        )
        try:
            warning, _ = told
            assert (warning.severity, warning.sqlstate, warning.message) == (
                "WARNING",
                "55000",
                missing.format("t") + ': "v"',
            )
            assert "ALTER TABLE ... ADD COLUMN" in str(warning.hint)
            wait_for_error(node, "b6", missing.format("t") + ': "v"')
            node.sql("alter table b6.t add column v text")
            mirror = Mirror(node, pg18.conninfo(), "b6")
            arrives(pg18, mirror, "b6")

            # The same by REFRESH, without a copy: the stream's worker reports it.
            pg18.psql("alter publication b6 add table b6.w")
            told.clear()
            client.rows(
                "alter subscription b6 refresh publication with (copy_data = false)"
            )
            assert missing.format("w") + 's: "v", "x"' in [n.message for n in told]
            pg18.psql("insert into b6.w values (1, 'one', 1)")
            wait_for_error(node, "b6", missing.format("w") + 's: "v", "x"')
            node.sql("alter table b6.w add v text, add x int")
            mirror.assert_equal(["b6.t", "b6.w"])
        finally:
            client.rows("drop subscription b6; drop schema b6 cascade")


def test_a_table_that_cannot_be_created(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "b7")
    pg18.psql(
        'create table b7.cases (id int primary key, name text, "NAME" text);'
        " alter publication b7 add table b7.cases"
    )
    error = refused(node, pg18, "b7")
    assert "NAME" in error.message
    assert node.sql("select 1 from pg_class where relname in ('t', 'cases')") == []
    pg18.psql('alter table b7.cases rename column "NAME" to other')
    arrives(pg18, subscribe(pg18, "b7"), "b7")


def test_update_without_identity_is_refused_there_and_without_a_key_here(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "b8")
    pg18.psql(
        "create table b8.n (id int); create table b8.k (id int primary key, v text);"
        " insert into b8.n values (1); insert into b8.k values (1, 'one');"
        " alter publication b8 add table b8.n, b8.k"
    )
    node.sql("create schema b8")
    node.sql("create table b8.k (id int, v text)")
    mirror = subscribe(pg18, "b8")
    mirror.synced()
    with pytest.raises(RuntimeError, match="does not have a replica identity"):
        pg18.psql("update b8.n set id = 2")
    pg18.psql(
        "insert into b8.t values (2, 'before'); update b8.k set v = 'new';"
        " insert into b8.t values (3, 'behind')"
    )
    text = wait_for_error(node, "b8", "nor PRIMARY KEY and published", "HINT:")
    assert '"b8.k" has neither REPLICA IDENTITY index nor PRIMARY KEY' in text
    assert "CONTEXT:  processing remote data for replication origin" in text
    assert "finished at" in text
    # What was committed before the refused transaction is here, nothing of or after it.
    node.wait_for("select id from b8.t order by id", lambda r: r == [("1",), ("2",)])
    assert node.sql("select * from b8.k") == [("1", "one")]
    # The hint, followed: there is a key there, and the table is made anew here.
    node.sql("drop table b8.k")
    node.sql("alter subscription b8 refresh publication")
    mirror.synced()
    pg18.psql("update b8.k set v = 'newer'")
    mirror.assert_equal(["b8.t", "b8.k"])
    wait_until(lambda: node.sql(ERRORS.format("b8")) == [])
