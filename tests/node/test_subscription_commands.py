"""CREATE, ALTER and DROP SUBSCRIPTION and the views about them, against a real publisher."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

SLOTS = "select slot_name from pg_replication_slots where database = current_database()"


def publish(source: Database, name: str, more: str = "") -> None:
    """Schema, table ``t`` with a row, and publication, all of the subscription's name."""
    source.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text);"
        f" insert into {name}.t values (1, 'one');"
        f" create publication {name} for table {name}.t; {more}"
    )


def refused(node: Node, sql: str) -> PublisherError:
    """The error of a statement that must fail."""
    try:
        node.sql(sql)
    except PublisherError as error:
        return error
    raise AssertionError(f"not refused: {sql}")


def heard(node: Node, sql: str) -> list[tuple[str, str, str]]:
    """Severity, SQLSTATE and text of a statement's notices."""
    told: list[Failure] = []
    with Client(node.conninfo(), on_notice=told.append) as client:
        client.rows(sql)
    return [(n.severity, n.sqlstate, n.message) for n in told]


# ---- options ------------------------------------------------------------------------

HONOURED = (
    "connect = true, create_slot = true, enabled = on, copy_data = 1, slot_name = 'o1_slot',"
    " create_tables = true, synchronous_commit = 'off', streaming = off, binary = false,"
    " two_phase = false, origin = any, disable_on_error = false, failover = false,"
    " password_required = false, run_as_owner = true, table_format = 'delta'"
)


def test_options_that_are_honoured_are_accepted_and_shown(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "o1")
    mirror = subscribe(pg18, "o1", f"with ({HONOURED})")
    mirror.synced()
    mirror.assert_equal(["o1.t"])
    # The copy's own slot is dropped a moment after the table is ready.
    wait_until(lambda: pg18.psql(SLOTS) == "o1_slot", describe="one slot")
    assert node.sql(
        "select subslotname, subenabled, subsynccommit, substream, subbinary,"
        " subtwophasestate, suborigin, subdisableonerr, subfailover, subpasswordrequired,"
        " subrunasowner, subpublications from pg_subscription where subname = 'o1'"
    ) == [
        ("o1_slot", "t", "off", "f", "f", "d", "any", "f", "f", "f", "t", "{o1}"),
    ]


def test_without_copy_only_later_changes_arrive_and_without_tables_none_is_made(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "o3")
    create = (
        f"create subscription o3 connection {quote_literal(pg18.conninfo())}"
        " publication o3 with (create_tables = false, copy_data = false)"
    )
    error = refused(node, create)
    assert (error.sqlstate, error.message) == (
        "42P01",
        'relation "o3.t" does not exist',
    )
    assert error.hint == "Create the table, or use create_tables = true."
    assert pg18.psql(SLOTS) == "", "no slot of a command that failed"
    node.sql("create schema o3; create table o3.t (id int primary key, v text)")
    mirror = subscribe(pg18, "o3", "with (create_tables = false, copy_data = false)")
    pg18.psql("insert into o3.t values (2, 'two')")
    mirror.caught_up()
    assert node.sql("select * from o3.t") == [("2", "two")]


def test_created_unconnected_it_starts_once_slot_enable_and_refresh_are_given(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "o4")
    create = (
        f"create subscription o4 connection {quote_literal(pg18.conninfo())}"
        " publication o4 with (connect = false)"
    )
    assert heard(node, create) == [
        ("WARNING", "01000", "subscription was created, but is not connected")
    ]
    assert pg18.psql(SLOTS) == ""
    assert node.sql("select subenabled from pg_subscription where subname = 'o4'") == [
        ("f",)
    ]
    pg18.psql("select pg_create_logical_replication_slot('o4', 'pgoutput')")
    node.sql("alter subscription o4 enable")
    node.sql("alter subscription o4 refresh publication")
    mirror = Mirror(node, pg18.conninfo(), "o4")
    try:
        mirror.synced()
        pg18.psql("insert into o4.t values (2, 'two')")
        mirror.assert_equal(["o4.t"])
    finally:
        node.sql("drop subscription o4")
        node.sql("drop schema if exists o4 cascade")
    assert pg18.psql(SLOTS) == ""


def test_a_slot_made_by_hand_is_taken_over_with_create_slot_false(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "o5")
    pg18.psql("select pg_create_logical_replication_slot('by_hand', 'pgoutput')")
    mirror = subscribe(
        pg18,
        "o5",
        "with (create_slot = false, slot_name = by_hand, copy_data = false)",
    )
    pg18.psql("insert into o5.t values (2, 'two')")
    mirror.caught_up()
    assert node.sql("select * from o5.t") == [("2", "two")]


# ---- ALTER --------------------------------------------------------------------------


def test_changes_made_while_disabled_arrive_when_enabled(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "a1")
    mirror = subscribe(pg18, "a1")
    mirror.synced()
    node.sql("alter subscription a1 disable")
    wait_until(
        lambda: pg18.psql("select active from pg_replication_slots") == "f",
        describe="the walsender has gone",
    )
    node.wait_for("select pid from pg_stat_subscription", lambda rows: _all_null(rows))
    pg18.psql(
        "insert into a1.t select i, 'while disabled' from generate_series(2, 100) i;"
        " update a1.t set v = 'changed' where id = 1; delete from a1.t where id = 50"
    )
    assert node.sql("select * from a1.t") == [("1", "one")]
    assert pg18.psql("select active from pg_replication_slots") == "f"
    node.sql("alter subscription a1 enable")
    wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "t")
    mirror.assert_equal(["a1.t"])


def _all_null(rows: list[tuple[str | None, ...]]) -> bool:
    return all(value is None for row in rows for value in row)


def test_refresh_takes_tables_that_were_added_and_is_refused_while_disabled(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "a2")
    mirror = subscribe(pg18, "a2")
    mirror.synced()
    pg18.psql(
        "create table a2.later (id int primary key); insert into a2.later values (1);"
        " alter publication a2 add table a2.later; insert into a2.later values (2)"
    )
    assert node.sql("select count(*) from pg_class where relname = 'later'") == [("0",)]
    node.sql("alter subscription a2 disable")
    error = refused(node, "alter subscription a2 refresh publication")
    assert (error.sqlstate, error.message) == (
        "55000",
        "ALTER SUBSCRIPTION ... REFRESH is not allowed for disabled subscriptions",
    )
    node.sql("alter subscription a2 enable")
    node.sql("alter subscription a2 refresh publication with (copy_data = true)")
    mirror.synced()
    pg18.psql("insert into a2.later values (3)")
    mirror.assert_equal(["a2.t", "a2.later"])


@pytest.mark.slow
def test_a_table_that_comes_without_a_copy_begins_with_what_comes_afterwards(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """As in PostgreSQL 18, whose worker has passed the rows by; here whether it has or not."""
    publish(pg18, "a6")
    mirror = subscribe(pg18, "a6")
    mirror.synced()
    node.sql("create table a6.later (id int primary key)")
    pg18.psql(
        "create table a6.later (id int primary key); alter publication a6 add table a6.later"
    )
    pg18.psql("insert into a6.later values (1); insert into a6.t values (10)")
    node.wait_for("select 1 from a6.t where id = 10")
    # One that has not been received yet, perhaps.
    pg18.psql("insert into a6.later values (2)")
    node.sql("alter subscription a6 refresh publication with (copy_data = false)")
    pg18.psql("insert into a6.later values (3)")
    node.wait_for("select 1 from a6.later where id = 3")
    assert node.sql("select id from a6.later") == [("3",)]
    assert node.sql(
        "select srsubstate, srsublsn from pg_subscription_rel"
        " where srrelid = 'a6.later'::regclass"
    ) == [("r", None)]


def test_what_is_not_there_or_not_yet_possible_is_refused_in_postgresqls_words(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "a3")
    subscribe(pg18, "a3").synced()
    connection = quote_literal(pg18.conninfo())
    cases = [
        (
            "alter subscription nope enable",
            "42704",
            'subscription "nope" does not exist',
        ),
        ("drop subscription nope", "42704", 'subscription "nope" does not exist'),
        (
            f"create subscription a3 connection {connection} publication a3",
            "42710",
            'subscription "a3" already exists',
        ),
        (
            "alter subscription a3 set (slot_name = none)",
            "55000",
            "cannot set slot_name = NONE for enabled subscription",
        ),
        (
            "create subscription x connection 'nonsense' publication p",
            "42601",
            None,
        ),
        (
            f"create subscription x connection {connection} publication p, p",
            "42710",
            'publication name "p" used more than once',
        ),
        (
            f"create subscription x connection {connection} publication p"
            " with (nosuch = 1)",
            "42601",
            'unrecognized subscription parameter: "nosuch"',
        ),
        (
            f"create subscription x connection {connection} publication p"
            " with (connect = false, create_slot = true)",
            "42601",
            "connect = false and create_slot = true are mutually exclusive options",
        ),
        (
            "alter subscription a3 owner to nobody",
            "42704",
            'role "nobody" does not exist',
        ),
        (
            "alter subscription a3 set (two_phase = true)",
            "55000",
            'cannot set option "two_phase" for enabled subscription',
        ),
        (
            "begin; drop subscription a3",
            "25001",
            "DROP SUBSCRIPTION cannot run inside a transaction block",
        ),
    ]
    for sql, sqlstate, message in cases:
        error = refused(node, sql)
        assert (error.sqlstate, error.message) == (
            sqlstate,
            message or error.message,
        ), sql
    assert heard(node, "drop subscription if exists nope") == [
        ("NOTICE", "00000", 'subscription "nope" does not exist, skipping')
    ]


# ---- transaction blocks -------------------------------------------------------------

LIST = (
    "select subname, subenabled, subslotname, subbinary, subpublications, rolname = 'blk_owner',"
    " obj_description(s.oid, 'pg_subscription') from pg_subscription s"
    " join pg_roles r on r.oid = subowner where subname like 'blk%' order by 1"
)
PUBLISHED = (
    "select pubname, puballtables, pubinsert, pubdelete, prattrs, relname"
    " from pg_publication p left join pg_publication_rel r on prpubid = p.oid"
    " left join pg_class c on c.oid = prrelid where pubname like 'blk%' order by 1, 6"
)
BLOCKS = [
    # Each ends in COMMIT or ROLLBACK; the lists are compared after each statement.
    ["create subscription blk {c} publication p with (connect = false)", "rollback"],
    [
        "create subscription blk {c} publication p with (connect = false)",
        "comment on subscription blk is 'first'",
        "savepoint a",
        "create subscription blk2 {c} publication p with (connect = false)",
        "alter subscription blk rename to blk3",
        "rollback to a",
        "alter subscription blk add publication q with (refresh = false)",
        "commit",
    ],
    ["create subscription blk {c} publication p with (connect = false)", "commit"],
    ["alter subscription blk set (binary = true)", "rollback"],
    [
        "alter subscription blk set (binary = true)",
        "alter subscription blk set publication r with (refresh = false)",
        "alter subscription blk drop publication q with (refresh = false)",
        "rollback",
    ],
    [
        "alter subscription blk set publication r, s with (refresh = false)",
        "alter subscription blk drop publication s with (refresh = false)",
        "alter subscription blk owner to blk_owner",
        "alter subscription blk rename to blk4",
        "alter subscription blk4 connection 'dbname=elsewhere'",
        "alter subscription blk4 skip (lsn = '0/123456')",
        "commit",
    ],
    ["alter subscription blk4 enable", "alter subscription blk4 disable", "rollback"],
    ["drop subscription blk4", "commit"],
    ["alter subscription blk4 refresh publication", "rollback"],
    ["alter subscription blk4 set (failover = true)", "rollback"],
    ["alter subscription blk4 set (two_phase = false)", "rollback"],
    ["alter subscription blk4 set publication r", "rollback"],
    ["create subscription blk5 {c} publication p", "rollback"],
    [
        "alter subscription blk4 set (slot_name = none)",
        "drop subscription blk4",
        "rollback",
    ],
    [
        "alter subscription blk4 set (slot_name = none)",
        "drop subscription blk4",
        "create subscription blk4 {c} publication z with (connect = false)",
        "alter subscription blk4 set (slot_name = none)",
        "commit",
    ],
    ["drop subscription blk4", "rollback"],
    ["drop subscription blk4", "drop subscription blk4", "rollback"],
    ["drop subscription blk4", "commit"],
    [
        "create subscription blk6 {c} publication blk_source with"
        " (create_slot = false, slot_name = none, enabled = false, copy_data = false)",
        "rollback",
    ],
    [
        "create subscription blk6 {c} publication blk_source with"
        " (create_slot = false, slot_name = none, enabled = false, copy_data = false)",
        "drop subscription blk6",
        "create subscription blk6 {c} publication blk_source with"
        " (create_slot = false, slot_name = none, enabled = false, copy_data = false)",
        "commit",
    ],
    ["drop subscription blk6", "commit"],
    ["create publication blk for table blk.t", "rollback"],
    [
        "create publication blk for table blk.t",
        "alter publication blk set table blk.t (id)",
        "alter publication blk set (publish = 'insert')",
        "savepoint a",
        "drop publication blk",
        "rollback to savepoint a",
        "alter publication blk rename to blk7",
        "alter publication blk7 owner to blk_owner",
        "commit",
    ],
    ["alter publication blk7 drop table blk.t", "rollback"],
    ["drop publication blk7", "create publication blk7 for all tables", "commit"],
    ["drop publication blk7", "drop publication blk7", "commit"],
    ["drop publication blk7", "commit"],
]


@pytest.mark.slow
def test_blocks_end_as_postgresqls(pg18: Database, node: Node) -> None:
    """The same blocks at PostgreSQL: what each statement answers, what its own session and
    another one see after it."""
    pg18.psql(
        "create schema blk; create table blk.t (id int primary key, v text);"
        " create publication blk_source for table blk.t; create role blk_owner superuser"
    )
    node.sql(
        "create schema blk; create table blk.t (id int primary key, v text);"
        " create publication blk_source for table blk.t;"
        " create role blk_owner superuser"
    )
    connection = f"connection {quote_literal(pg18.conninfo())}"
    found = []
    for conninfo in (pg18.conninfo(), node.conninfo()):
        told: list[object] = []
        with Client(conninfo) as mine, Client(conninfo) as others:

            def run(client: Client, sql: str) -> object:
                try:
                    return client.rows(sql)
                except PublisherError as error:
                    return error.sqlstate, error.message

            for block in BLOCKS:
                run(mine, "begin")
                for statement in block:
                    told.append((block, run(mine, statement.format(c=connection))))
                    for client in (mine, others):
                        told.extend(run(client, sql) for sql in (LIST, PUBLISHED))
            assert run(others, LIST) == []
            run(mine, "drop publication blk_source; drop role blk_owner")
        found.append(told)
    pairs = zip(*found, strict=True)
    assert [(theirs, ours) for theirs, ours in pairs if theirs != ours] == []
    node.sql("drop schema blk cascade")


def test_commands_say_which_tables_come_go_and_are_copied(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "n1", "create table n1.u (id int primary key);")
    mirror = subscribe(pg18, "n1")
    mirror.synced()
    pg18.psql("alter publication n1 add table n1.u")
    refresh = "alter subscription n1 refresh publication"
    assert [text for _, _, text in heard(node, refresh)] == [
        'table "n1.u" added to subscription "n1", and will be copied'
    ]
    mirror.synced()
    pg18.psql("alter publication n1 drop table n1.u")
    assert [text for _, _, text in heard(node, refresh)] == [
        'table "n1.u" removed from subscription "n1"'
    ]
    again = ("NOTICE", "00000", 'table "n1.t" will be copied again')
    assert again in heard(node, f"{refresh} with (recopy = true)")
    mirror.synced()
    relid = node.value("select 'n1.t'::regclass::oid")
    assert again in heard(node, f"select wal2lake.recopy_table({relid})")
    mirror.synced()
    # What runs, and how large a table is.
    size = "select pg_total_relation_size('n1.t'), pg_table_size('n1.t')"
    ((total, table),) = node.sql(size)
    assert int(str(total)) == int(str(table)) > 0
    mine = "select query from pg_stat_activity where pid = pg_backend_pid()"
    assert node.sql(mine) == [(mine,)]


# ---- DROP ---------------------------------------------------------------------------


def test_drop_leaves_no_slot_no_connection_and_no_log_behind(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "d1")
    subscribe(pg18, "d1").synced()
    oid = node.value("select oid from pg_subscription where subname = 'd1'")
    assert (node.directory / "log" / str(oid)).is_dir()
    assert heard(node, "drop subscription d1") == [
        ("NOTICE", "00000", 'dropped replication slot "d1" on publisher')
    ]
    assert pg18.psql(SLOTS) == ""
    # A session ends a moment after its slot has gone.
    wait_until(
        lambda: (
            pg18.psql(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and application_name <> 'psql'"
            )
            == "0"
        ),
        describe="the node's sessions have gone",
    )
    assert not (node.directory / "log" / str(oid)).exists()
    for view in ("pg_subscription_rel", "pg_stat_subscription"):
        column = "srsubid" if view == "pg_subscription_rel" else "subid"
        assert node.sql(f"select 1 from {view} where {column} = {oid}") == []


def test_a_subscription_whose_slot_was_dropped_by_hand_can_be_given_up(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "d2")
    subscribe(pg18, "d2").synced()
    node.sql("alter subscription d2 disable")
    wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "f")
    pg18.psql("select pg_drop_replication_slot('d2')")
    error = refused(node, "drop subscription d2")
    assert error.sqlstate == "08006"
    assert error.message.startswith(
        'could not drop replication slot "d2" on publisher: ERROR: '
    )
    assert 'replication slot "d2" does not exist' in error.message
    node.sql("alter subscription d2 set (slot_name = none)")
    node.sql("drop subscription d2")
    assert node.sql("select * from d2.t") == [("1", "one")], "tables stay"


@pytest.mark.slow
def test_drop_while_the_publisher_is_down_changes_nothing_and_can_be_given_up(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "d3")
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        create = (
            f"create subscription d3 connection {quote_literal(through)} publication d3"
        )
        node.sql(create)
        mirror = Mirror(node, pg18.conninfo(), "d3")
        mirror.synced()
        proxy.refuse()
        proxy.cut()
        error = refused(node, "drop subscription d3")
        assert error.sqlstate == "08006"
        assert error.message.startswith(
            "could not connect to publisher when attempting to drop replication slot"
            ' "d3": '
        )
        assert error.hint == (
            "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then"
            " use ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from"
            " the slot."
        )
        # It is as it was, and goes on when the publisher is there again.
        proxy.accept()
        pg18.psql("insert into d3.t values (2, 'two')")
        mirror.assert_equal(["d3.t"])
        # What the hint says, with the publisher away for good.
        proxy.refuse()
        proxy.cut()
        node.sql("alter subscription d3 disable")
        node.sql("alter subscription d3 set (slot_name = none)")
        assert heard(node, "drop subscription d3") == []
        assert node.sql("select 1 from pg_subscription where subname = 'd3'") == []
        proxy.accept()
        assert pg18.psql(SLOTS) == "d3", "the slot is the publisher's to drop"
        # It is back: the name is free here, its slot is not.
        node.sql("truncate d3.t")
        error = refused(node, create)
        assert error.message == (
            'could not create replication slot "d3": ERROR:  replication slot "d3"'
            " already exists"
        )
        assert "create_slot = false" in str(error.hint)
        assert pg18.psql(SLOTS) == "d3", "not dropped by the command that failed"
        wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "f")
        pg18.psql("select pg_drop_replication_slot('d3')")
    mirror = subscribe(pg18, "d3")
    mirror.synced()
    pg18.psql("insert into d3.t values (3, 'three')")
    mirror.assert_equal(["d3.t"])


@pytest.mark.slow
def test_a_copy_onto_rows_of_the_same_key_stops_and_other_rows_stay(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """PostgreSQL's unique index refuses it; here, nothing would have noticed."""
    publish(pg18, "d4")
    subscribe(pg18, "d4").synced()
    node.sql("drop subscription d4")
    node.sql("insert into d4.t values (1000, 'ours')")
    mirror = subscribe(pg18, "d4")
    errors = (
        "select error from wal2lake.subscription_errors"
        " where subname = 'd4' and tablename = 't'"
    )
    told = node.wait_for(errors)
    assert str(told[0][0]).startswith(
        'duplicate key value violates unique constraint "t_pkey"\nHINT:'
    )
    pg18.psql("insert into d4.t values (2, 'two')")
    assert node.sql("select * from d4.t order by id") == [
        ("1", "one"),
        ("1000", "ours"),
    ]
    node.sql("delete from d4.t where id = 1")
    mirror.synced()
    mirror.caught_up()
    assert node.sql("select * from d4.t order by id") == [
        ("1", "one"),
        ("2", "two"),
        ("1000", "ours"),
    ]
    assert node.sql(errors) == []


# ---- views --------------------------------------------------------------------------


def test_the_nodes_views_show_the_subscription_its_tables_and_positions(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "v1")
    mirror = subscribe(pg18, "v1")
    mirror.synced()
    inserted = pg18.psql(
        "begin; insert into v1.t values (2, 'two');"
        " select pg_current_wal_insert_lsn(); commit"
    )
    target = mirror.caught_up()
    assert node.sql(
        "select subname, subenabled, subslotname, subpublications, subdbid ="
        " (select oid from pg_database) from pg_subscription where subname = 'v1'"
    ) == [("v1", "t", "v1", "{v1}", "t")]
    assert node.sql(
        "select srrelid::regclass, srsubstate, srsublsn is not null"
        " from pg_subscription_rel r join pg_subscription s on s.oid = r.srsubid"
        " where subname = 'v1'"
    ) == [("v1.t", "r", "t")]
    node.wait_for(
        "select 1 from pg_stat_subscription where subname = 'v1' and pid is not null"
        f" and worker_type = 'apply' and received_lsn >= '{target}'"
        f" and latest_end_lsn >= '{target}' and relid is null and leader_pid is null"
        " and last_msg_receipt_time > last_msg_send_time - interval '1 minute'"
        " and latest_end_time > now() - interval '1 hour'"
    )
    node.wait_for(
        "select 1 from pg_replication_origin_status o join pg_subscription s"
        " on o.external_id = 'pg_' || s.oid"
        " join pg_replication_origin r on r.roident = o.local_id"
        f" where subname = 'v1' and remote_lsn > '{inserted}' and roname = external_id"
    )


def test_an_unpublished_table_moves_all_three_positions_at_the_source(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "v2", "create table v2.unpublished (id int)")
    subscribe(pg18, "v2").synced()
    pg18.psql("insert into v2.unpublished select generate_series(1, 10000)")
    target = pg18.psql(END_OF_WAL)
    state = wait_until(
        lambda: pg18.psql(
            "select state, sync_state, write_lsn >= flush_lsn, flush_lsn >= replay_lsn,"
            " reply_time is not null from pg_stat_replication"
            f" where application_name = 'v2' and write_lsn >= '{target}'"
            f" and flush_lsn >= '{target}' and replay_lsn >= '{target}'"
        ),
        timeout_seconds=60,
        describe=lambda: pg18.psql(
            f"select '{target}', write_lsn, flush_lsn, replay_lsn from pg_stat_replication"
        ),
    )
    assert state == "streaming|async|t|t|t"
    assert (
        pg18.psql(
            f"select confirmed_flush_lsn >= '{target}' from pg_replication_slots"
            " where slot_name = 'v2'"
        )
        == "t"
    )


@pytest.mark.parametrize("level", ["on", "remote_apply"])
def test_a_synchronous_commit_at_the_source_returns(
    pg18: Database, node: Node, subscribe: Subscribe, level: str
) -> None:
    """Of a published and of an unpublished table. Without the node's word such a commit
    waits for ever (statement_timeout ends before the commit begins), so it has a thread."""
    name = f"s_{level}"
    publish(pg18, name, f"create table {name}.unpublished (id int)")
    mirror = subscribe(pg18, name)
    mirror.synced()

    def write() -> None:
        with Client(pg18.conninfo(), on_notice=told.append) as client:
            client.rows(f"set synchronous_commit = {level}")
            for i in range(2, 7):
                client.rows(f"insert into {name}.t values ({i}, 'sync')")
                client.rows(f"insert into {name}.unpublished values ({i})")
        # What remote_apply waits for: a reader here sees it.
        seen.append(node.value(f"select count(*) from {name}.t"))

    told: list[Failure] = []
    seen: list[str | None] = []
    writer = threading.Thread(target=write, daemon=True)
    try:
        pg18.server.set(synchronous_standby_names=name)
        wait_until(
            lambda: pg18.psql("select sync_state from pg_stat_replication") == "sync",
            describe="the subscription is a synchronous standby",
        )
        writer.start()
        wait_until(
            lambda: not writer.is_alive(),
            timeout_seconds=60,
            describe="ten commits have returned",
        )
    finally:
        # Lets go whoever waits.
        pg18.server.set(synchronous_standby_names="")
    assert told == [], "no wait was given up"
    if level == "remote_apply":
        assert seen == ["6"]
    mirror.assert_equal([f"{name}.t"])
