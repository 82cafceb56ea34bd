"""auto_refresh: tables join and leave a subscription as they do its publications."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.pg import connect
from wal2lake.pg.publications import (
    publication_fingerprint,
    published_states,
    relations_that_exist,
)
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, Rows
from wal2lake.testing.postgres import PostgresServer

Subscribe = Callable[..., Mirror]

OPTIONS = "with (auto_refresh = true)"

STATES = (
    "select c.relname, r.srsubstate from pg_subscription_rel r join pg_class c"
    " on c.oid = r.srrelid join pg_subscription s on s.oid = r.srsubid"
    " where s.subname = '{}' order by 1"
)
HISTORY = (
    "select tablename, change from wal2lake.schema_history where subname = '{}'"
    " order by noted_at, 1"
)
ERRORS = (
    "select error, sqlstate from wal2lake.subscription_errors"
    " where subname = '{}' and worker = 'auto refresh'"
)


def tables(node: Node, name: str, *expected: str) -> None:
    """Wait until exactly these tables are ready."""
    rows: Rows = [(table, "r") for table in sorted(expected)]
    node.wait_for(STATES.format(name), lambda found: found == rows)


def equal(mirror: Mirror, *names: str) -> None:
    mirror.caught_up()
    mirror.synced()
    mirror.assert_equal(names)


def test_tables_of_a_schema_come_and_go(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar1; create table ar1.a (id int primary key, v text);"
        " insert into ar1.a values (1, 'one'); create publication ar1 for tables in schema ar1"
    )
    mirror = subscribe(pg18, "ar1", OPTIONS)
    tables(node, "ar1", "a")
    assert node.sql(
        "select auto_refresh from wal2lake.subscription_options where subname = 'ar1'"
    ) == [("t",)]
    # Rows before, between and after the look.
    pg18.psql(
        "create table ar1.b (id int primary key, v text);"
        " insert into ar1.b select g, 'r' || g from generate_series(1, 500) g;"
        " update ar1.b set v = 'changed' where id < 10"
    )
    pg18.psql("create table ar1.none (id int primary key); drop table ar1.none")
    tables(node, "ar1", "a", "b")
    pg18.psql(
        "update ar1.b set v = 'again' where id < 5; delete from ar1.b where id = 7"
    )
    equal(mirror, "ar1.a", "ar1.b")

    # One that leaves keeps its rows; it comes back with those of the publisher.
    pg18.psql("create schema elsewhere; alter table ar1.b set schema elsewhere")
    tables(node, "ar1", "a")
    before = node.sql("select count(*) from ar1.b")
    pg18.psql(
        "delete from elsewhere.b where id > 400; alter table elsewhere.b set schema ar1"
    )
    tables(node, "ar1", "a", "b")
    assert before == [("499",)]
    equal(mirror, "ar1.a", "ar1.b")

    # Another table of the name.
    pg18.psql(
        "drop table ar1.a; create table ar1.a (id int primary key, v text);"
        " insert into ar1.a values (7, 'seven')"
    )
    node.wait_for("select id from ar1.a", lambda rows: rows == [("7",)])
    equal(mirror, "ar1.a", "ar1.b")
    assert node.sql(HISTORY.format("ar1")) == [
        ("b", "published"),
        ("b", "no longer published"),
        ("b", "published"),
        ("a", "dropped and created again at the publisher"),
    ]
    assert node.sql(ERRORS.format("ar1")) == []
    pg18.psql("drop schema elsewhere")


def test_a_publication_that_is_altered_changes_the_copies(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar2; create table ar2.a (id int primary key, v text);"
        " create table ar2.b (id int primary key, v text);"
        " insert into ar2.a select g, 'r' || g from generate_series(1, 20) g;"
        " insert into ar2.b values (1, 'one'); create publication ar2 for table ar2.a"
    )
    subscribe(pg18, "ar2", OPTIONS)
    tables(node, "ar2", "a")
    pg18.psql("alter publication ar2 set table ar2.a where (id > 10), ar2.b")
    tables(node, "ar2", "a", "b")
    node.wait_for(
        "select min(id), count(*) from ar2.a", lambda rows: rows == [("11", "10")]
    )
    tables(node, "ar2", "a", "b")
    # What was changed in between is not sent: only a copy brings it.
    pg18.psql(
        "alter publication ar2 drop table ar2.b; update ar2.b set v = 'unseen';"
        " alter publication ar2 add table ar2.b"
    )
    node.wait_for("select v from ar2.b", lambda rows: rows == [("unseen",)])
    tables(node, "ar2", "a", "b")
    pg18.psql("alter publication ar2 set (publish = 'insert')")
    node.wait_for(
        HISTORY.format("ar2"),
        lambda rows: ("b", "the publication publishes fewer operations") in rows,
    )
    pg18.psql(
        "update ar2.b set v = 'not sent'; alter publication ar2"
        " set (publish = 'insert, update, delete, truncate')"
    )
    node.wait_for("select v from ar2.b", lambda rows: rows == [("not sent",)])
    # The owner's name is of no concern.
    pg18.psql(
        "alter publication ar2 owner to current_user; insert into ar2.b values (2)"
    )
    node.wait_for("select count(*) from ar2.b", lambda rows: rows == [("2",)])
    assert node.sql(HISTORY.format("ar2"))[:2] == [
        ("a", "row filter or column list changed"),
        ("b", "published"),
    ]

    # Without its publication nothing leaves, and it is said.
    pg18.psql("drop publication ar2")
    ((error, state),) = node.wait_for(ERRORS.format("ar2"))
    assert 'publication "ar2" does not exist' in str(error)
    assert (
        "Create it on the publisher: its tables are then copied again. Or leave it out:"
        in (str(error))
    )
    assert state == "42704"
    pg18.psql("delete from ar2.b; create publication ar2 for tables in schema ar2")
    node.wait_for(ERRORS.format("ar2"), lambda rows: rows == [])
    node.wait_for("select count(*) from ar2.b", lambda rows: rows == [("0",)])
    node.wait_for("select count(*) from ar2.a", lambda rows: rows == [("20",)])


def test_a_table_that_cannot_join_stops_no_other(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar3; create table ar3.a (id int primary key);"
        " create publication ar3 for tables in schema ar3"
    )
    node.sql("create schema ar3; create table ar3.ours (id int primary key)")
    node.sql("insert into ar3.ours values (1)")
    mirror = subscribe(pg18, "ar3", OPTIONS)
    tables(node, "ar3", "a")
    pg18.psql(
        "begin; create table ar3.ours (id int primary key);"
        " create table ar3.b (id int primary key); insert into ar3.b values (1); commit"
    )
    tables(node, "ar3", "a", "b")
    ((error, state),) = node.wait_for(ERRORS.format("ar3"))
    assert 'relation "ar3.ours" already exists' in str(error)
    assert (
        "Rename or drop the table here, and it is created and copied. To add the"
        in (str(error))
    )
    assert state == "42P07"
    pg18.psql("insert into ar3.a values (1)")
    equal(mirror, "ar3.a", "ar3.b")
    assert node.sql("select count(*) from ar3.ours") == [("1",)]
    node.sql("alter table ar3.ours rename to mine")
    tables(node, "ar3", "a", "b", "ours")
    node.wait_for(ERRORS.format("ar3"), lambda rows: rows == [])

    # Neither while it is disabled nor once the option is off.
    node.sql("alter subscription ar3 disable")
    pg18.psql("create table ar3.c (id int primary key)")
    node.sql("alter subscription ar3 enable")
    tables(node, "ar3", "a", "b", "c", "ours")
    node.sql("alter subscription ar3 set (auto_refresh = false)")
    pg18.psql("create table ar3.d (id int primary key)")
    node.sql("alter subscription ar3 refresh publication")
    node.wait_for(STATES.format("ar3"), lambda rows: ("d", "r") in rows)
    assert ("d", "published") not in node.sql(HISTORY.format("ar3"))


@pytest.mark.slow
def test_partitions_of_a_root(pg18: Database, node: Node, subscribe: Subscribe) -> None:
    pg18.psql(
        "create schema ar4; create table ar4.r (id int, k int, primary key (id, k))"
        " partition by list (k); create table ar4.r1 partition of ar4.r for values in (1);"
        " create table ar4.spare (id int not null, k int not null);"
        " insert into ar4.r values (1, 1); insert into ar4.spare values (2, 2);"
        " create publication ar4 for table ar4.r with (publish_via_partition_root)"
    )
    mirror = subscribe(pg18, "ar4", OPTIONS)
    tables(node, "ar4", "r")
    pg18.psql(
        "create table ar4.r3 partition of ar4.r for values in (3);"
        " insert into ar4.r values (3, 3)"
    )
    equal(mirror, "ar4.r")
    pg18.psql("alter table ar4.r attach partition ar4.spare for values in (2)")
    node.wait_for("select count(*) from ar4.r", lambda rows: rows == [("3",)])
    tables(node, "ar4", "r")
    equal(mirror, "ar4.r")
    pg18.psql("alter table ar4.r detach partition ar4.r1")
    node.wait_for("select count(*) from ar4.r", lambda rows: rows == [("2",)])
    tables(node, "ar4", "r")
    pg18.psql("drop table ar4.r3")
    node.wait_for(
        HISTORY.format("ar4"),
        lambda rows: (
            [change for _, change in rows]
            == [
                "a partition with rows was attached",
                "a partition was detached",
                "a partition was dropped at the publisher",
            ]
        ),
    )
    assert node.sql("select count(*) from ar4.r") == [("2",)]


@pytest.mark.slow
def test_a_table_that_is_renamed(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar5; create table ar5.a (id int primary key); insert into ar5.a"
        " values (1); create publication ar5 for all tables"
    )
    subscribe(pg18, "ar5", "with (auto_refresh = true, schema_changes = follow)")
    tables(node, "ar5", "a")
    # It is the same table, before its next row and after.
    pg18.psql(
        "alter table ar5.a rename to b; create table ar5.other (id int primary key)"
    )
    tables(node, "ar5", "a", "other")
    pg18.psql(
        "insert into ar5.b values (2); create table ar5.last (id int primary key)"
    )
    tables(node, "ar5", "a", "last", "other")
    node.wait_for("select count(*) from ar5.a", lambda rows: rows == [("2",)])
    node.sql("alter subscription ar5 set (schema_changes = manual)")
    pg18.psql(
        "alter table ar5.other rename to another; insert into ar5.another values (1)"
    )
    tables(node, "ar5", "a", "another", "last")
    node.wait_for("select count(*) from ar5.another", lambda rows: rows == [("1",)])


@pytest.mark.slow
def test_a_table_of_another_subscription_does_not_join(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar6; create table ar6.a (id int primary key); create table ar6.b"
        " (id int primary key); create publication ar6 for table ar6.a;"
        " create publication ar7 for table ar6.b"
    )
    subscribe(pg18, "ar6")
    subscribe(pg18, "ar7", OPTIONS)
    tables(node, "ar7", "b")
    pg18.psql("insert into ar6.a values (1); alter publication ar7 add table ar6.a")
    ((error, state),) = node.wait_for(ERRORS.format("ar7"))
    assert 'table "ar6.a" is filled by subscription "ar6"' in str(error)
    assert "Leave it out of one of the publications, or let both" in str(error)
    assert state == "42P07"
    pg18.psql("alter publication ar7 drop table ar6.a")
    node.wait_for(ERRORS.format("ar7"), lambda rows: rows == [])
    tables(node, "ar7", "b")


@pytest.mark.slow
def test_commands_beside_the_watch(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ar8; create table ar8.t0 (id int primary key);"
        " create publication ar8 for tables in schema ar8"
    )
    mirror = subscribe(pg18, "ar8", OPTIONS)
    for n in range(1, 7):
        pg18.psql(
            f"create table ar8.t{n} (id int primary key); insert into ar8.t{n} values (1)"
        )
        node.sql("alter subscription ar8 refresh publication")
        node.sql("alter subscription ar8 disable")
        pg18.psql(f"insert into ar8.t{n} values (2); drop table ar8.t{n - 1}")
        node.sql("alter subscription ar8 enable")
    tables(node, "ar8", "t6")
    equal(mirror, "ar8.t6")
    # It is dropped whatever the watch does.
    pg18.psql("create table ar8.last (id int primary key)")
    node.sql("drop subscription ar8")
    assert pg18.psql(
        "select count(*) from pg_replication_slots where slot_name = 'ar8'"
    )
    assert node.sql("select 1 from pg_subscription where subname = 'ar8'") == []


def test_a_node_answers_such_a_subscriber(node: Node) -> None:
    node.sql("create schema ar9; create table ar9.t (id int primary key, v text)")
    node.sql("create publication ar9 for table ar9.t")
    try:
        with connect(node.conninfo(), application_name="test") as session:
            before = publication_fingerprint(session, ("ar9",))
            (state,) = published_states(session, ("ar9",))
            assert (state.namespace, state.name, state.operations) == (
                "ar9",
                "t",
                "iudt",
            )
            assert state.through
            node.sql("create table ar9.u (id int primary key)")
            node.sql("alter publication ar9 add table ar9.u")
            assert publication_fingerprint(session, ("ar9",)) != before
            assert len(published_states(session, ("ar9",))) == 2
            assert relations_that_exist(session, {int(state.oid)}) == {int(state.oid)}
    finally:
        node.sql("drop publication ar9; drop schema ar9 cascade")


@pytest.mark.slow
def test_the_owners_privileges_and_a_publisher_that_is_away(
    node: Node, subscribe: Subscribe
) -> None:
    with PostgresServer(18) as server:
        server.psql(
            "create schema ar10; create table ar10.a (id int primary key);"
            " create publication ar10 for all tables"
        )
        subscribe(Database(server, "postgres"), "ar10", OPTIONS)
        tables(node, "ar10", "a")
        node.sql(
            "create role ar10_keeper; grant create on database lake to ar10_keeper"
        )
        node.sql("alter table ar10.a owner to ar10_keeper")
        try:
            node.sql("alter subscription ar10 set (password_required = false)")
            node.sql("alter subscription ar10 owner to ar10_keeper")
            server.psql("create table ar10.b (id int primary key)")
            ((error, state),) = node.wait_for(ERRORS.format("ar10"))
            assert state == "42501"
            assert "permission denied for schema ar10" in str(error)
            node.sql("grant create, usage on schema ar10 to ar10_keeper")
            tables(node, "ar10", "a", "b")
            node.wait_for(ERRORS.format("ar10"), lambda rows: rows == [])
            assert node.sql(
                "select pg_get_userbyid(relowner) from pg_class"
                " where oid = 'ar10.b'::regclass"
            ) == [("ar10_keeper",)]

            server.stop()
            node.wait_for(ERRORS.format("ar10"))
            server.start()
            server.psql("create table ar10.c (id int primary key)")
            tables(node, "ar10", "a", "b", "c")
            node.wait_for(ERRORS.format("ar10"), lambda rows: rows == [])
            # It holds no transaction open, and one connection.
            assert server.psql(
                "select count(*), count(xact_start) from pg_stat_activity"
                " where application_name like 'pg\\_%\\_auto\\_refresh' and state = 'idle'"
            ).split() in (["1|0"], ["0|0"])
        finally:
            node.sql("drop subscription ar10")
            node.sql("drop schema ar10 cascade")
            node.sql(
                "revoke create on database lake from ar10_keeper; drop role ar10_keeper"
            )
