"""What becomes of a subscription whose source changes under it, and of several that meet."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

import pytest
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

ERRORS = (
    "select tablename, error from wal2lake.subscription_errors where subname = '{}'"
)
TABLES = (
    "select srrelid::regclass::text, srsubstate from pg_subscription_rel r"
    " join pg_subscription s on s.oid = r.srsubid where subname = '{}' order by 1"
)
COUNTED = (
    "select sync_error_count > 0, apply_error_count from pg_stat_subscription_stats"
    " where subname = '{}'"
)


def state_of(node: Node, table: str) -> str | None:
    """Where the copy of a table of subscription ``ren`` stands."""
    states = {str(name): state for name, state in node.sql(TABLES.format("ren"))}
    return states[table]


def fails(node: Node, name: str, text: str) -> str | None:
    """Until the subscription has an error that begins so; which table's it is."""
    found = node.wait_for(
        ERRORS.format(name), lambda rows: any(str(r[1]).startswith(text) for r in rows)
    )
    return next(r[0] for r in found if str(r[1]).startswith(text))


@pytest.mark.slow
def test_a_table_is_renamed_and_moved_while_it_streams_and_while_it_is_copied(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """As in PostgreSQL: it is another table then, which REFRESH takes in with all its rows."""
    pg18.psql(
        "create schema ren; create table ren.t (id int primary key, v text);"
        " insert into ren.t values (1, 'one');"
        " create table ren.gone (id int primary key); insert into ren.gone values (1);"
        " create publication ren for table ren.t, ren.gone"
    )
    mirror = subscribe(pg18, "ren", "with (enabled = false)")
    # Before the copy: there is no table of that name, which is tried again and counted.
    pg18.psql("alter table ren.gone rename to here")
    node.sql("alter subscription ren enable")
    missing = 'table "ren.gone" not found on publisher'
    assert fails(node, "ren", missing) == "gone"
    node.wait_for(COUNTED.format("ren"), lambda rows: rows == [("t", "0")])
    node.wait_for(TABLES.format("ren"), lambda rows: ("ren.t", "r") in rows)
    assert state_of(node, "ren.gone") in ("i", "d")
    node.sql("alter subscription ren refresh publication")
    mirror.synced()
    mirror.assert_equal(["ren.t", "ren.here"])
    assert node.sql(ERRORS.format("ren")) == []

    # While it streams.
    pg18.psql(
        "create schema ren_moved; alter table ren.t rename to u;"
        " alter table ren.u set schema ren_moved; insert into ren_moved.u values (2, 'two')"
    )
    fails(
        node,
        "ren",
        'logical replication target relation "ren_moved.u" does not exist',
    )
    node.sql("alter subscription ren refresh publication")
    mirror.synced()
    pg18.psql("update ren_moved.u set v = 'updated'")
    mirror.assert_equal(["ren_moved.u", "ren.here"])
    assert [t for t, _ in node.sql(TABLES.format("ren"))] == ["ren.here", "ren_moved.u"]
    assert node.sql("select id, v from ren.t") == [("1", "one")], "ours to keep"

    # While it is copied: the copy gives way, and there is no table of that name then.
    pg18.psql(
        "create table ren.large (id int primary key, v text);"
        " insert into ren.large select i, repeat('x', 230) from generate_series(1, 60000) i;"
        " alter publication ren add table ren.large"
    )
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        # More than the sockets in between hold.
        proxy.limit(2_000_000)
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        node.sql(f"alter subscription ren connection {quote_literal(through)}")
        node.sql("alter subscription ren refresh publication")
        wait_until(
            lambda: pg18.psql(
                "select 1 from pg_stat_activity where query like 'COPY %large%'"
                f" and state = 'active' and datname = '{pg18.name}'"
            ),
            timeout_seconds=60,
            describe="its rows are being read",
        )
        pg18.psql(
            "alter table ren.large rename to renamed;"
            " insert into ren.renamed values (0, 'after')"
        )
        proxy.limit(None)
        missing = 'table "ren.large" not found on publisher'
        assert fails(node, "ren", missing) == "large"
        node.sql("alter subscription ren refresh publication")
        mirror.synced()
        mirror.assert_equal(["ren.renamed", "ren.here"])
        node.sql(f"alter subscription ren connection {quote_literal(pg18.conninfo())}")
    node.sql("drop schema if exists ren_moved cascade")


def test_a_filter_and_a_column_list_are_altered_while_they_are_streamed(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema alt; create table alt.t (id int primary key, v text, w text);"
        " insert into alt.t values (1, 'one', 'w'), (20, 'twenty', 'w');"
        " create publication alt for table alt.t where (id < 10)"
    )
    mirror = subscribe(pg18, "alt")
    mirror.synced()
    rows = "select * from alt.t order by id"
    assert node.sql(rows) == [("1", "one", "w")]
    # What came by the old filter stays, and what it kept away does not come by itself.
    pg18.psql(
        "alter publication alt set table alt.t where (id >= 10);"
        " insert into alt.t values (2, 'two', 'w'), (21, 'new', 'w');"
        " update alt.t set v = 'ten' where id = 20; update alt.t set v = 'x' where id = 1;"
        " delete from alt.t where id = 1"
    )
    mirror.caught_up()
    assert node.sql(rows) == [("1", "one", "w"), ("21", "new", "w")]
    # A narrower list: the rest of a row is null, and stays as it was.
    pg18.psql(
        "alter publication alt set table alt.t (id, v);"
        " insert into alt.t values (30, 'narrow', 'unsent');"
        " update alt.t set v = 'newer', w = 'unsent' where id = 21;"
    )
    mirror.caught_up()
    assert node.sql(rows) == [
        ("1", "one", "w"),
        ("21", "newer", "w"),
        ("30", "narrow", None),
    ]
    # A wider one, with a column that is not here: it waits, and nothing is lost.
    pg18.psql(
        "alter table alt.t add column z int; alter publication alt set table alt.t;"
        " insert into alt.t values (31, 'wide', 'sent', 7)"
    )
    fails(
        node,
        "alt",
        'logical replication target relation "alt.t" is missing replicated column: "z"',
    )
    pg18.psql("alter table alt.t drop column z")
    assert len(node.sql(rows)) == 3
    node.sql("drop table alt.t")
    node.sql("alter subscription alt refresh publication")
    mirror.synced()
    mirror.assert_equal(["alt.t"])


@pytest.mark.slow
def test_subscriptions_of_two_databases_and_of_one_write_into_one_table(
    database: Callable[..., Database], node: Node, subscribe: Subscribe
) -> None:
    """Each with keys of its own, onto rows of the node's; one of them by a slot that was there
    before, and without a copy."""
    first, second = database(18), database(18)
    for number, source in enumerate((first, second), start=1):
        source.psql(
            "create schema sev; create table sev.t (id int primary key, v text);"
            f" insert into sev.t select {number}000 + i, 'copied' from generate_series(1, 9) i;"
            f" create publication sev{number} for table sev.t;"
        )
    first.psql(
        "create table sev.other (id int primary key); insert into sev.other values (1);"
        " create publication sev3 for table sev.other"
    )
    node.sql("create schema sev; create table sev.t (id int primary key, v text)")
    # A part of the third one's rows, loaded by other means; then a slot made by hand.
    node.sql("insert into sev.t values (1, 'ours'), (3001, 'loaded')")
    third = database(18)
    third.psql(
        "create schema sev; create table sev.t (id int primary key, v text);"
        " insert into sev.t values (3001, 'loaded'), (3002, 'not loaded');"
        " create publication sev4 for table sev.t;"
    )
    slot = f"by_hand_{third.name}"
    third.psql(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    third.psql(
        "insert into sev.t values (3003, 'since');"
        " update sev.t set v = v || ', changed'"
    )
    mirrors = [
        subscribe(first, "sev1"),
        subscribe(second, "sev2"),
        subscribe(first, "sev3"),
        subscribe(
            third,
            "sev4",
            f"with (create_slot = false, slot_name = {slot}, copy_data = false)",
        ),
    ]
    try:
        for mirror in mirrors:
            mirror.synced()
        first.psql(
            "update sev.t set v = 'first' where id = 1001; insert into sev.other values (2)"
        )
        second.psql(
            "delete from sev.t where id = 2009; insert into sev.t values (2010, 'new')"
        )
        third.psql("delete from sev.t where id = 3003")
        for mirror in mirrors:
            mirror.caught_up()
        for number, source in enumerate((first, second), start=1):
            query = f"select id, v from sev.t where id / 1000 = {number} order by id"
            with Mirror(node, source.conninfo(), "").source() as session:
                theirs = session.query(query)
            node.wait_for(query, partial(operator.eq, theirs))
        mirrors[2].assert_equal(["sev.other"])
        # A row that is not here cannot be updated: no more and no less than was loaded.
        assert node.sql(
            "select id, v from sev.t where id < 1000 or id >= 3000 order by id"
        ) == [("1", "ours"), ("3001", "loaded, changed")]
        # One goes; the others write on.
        node.sql("drop subscription sev1")
        second.psql("insert into sev.t values (2011, 'later')")
        node.wait_for("select 1 from sev.t where id = 2011")
        assert (
            first.psql(
                "select string_agg(slot_name, ' ') from pg_replication_slots"
                " where database = current_database()"
            )
            == "sev3"
        )
    finally:
        for name in ("sev1", "sev2", "sev3", "sev4"):
            node.sql(f"drop subscription if exists {name}")
        node.sql("drop schema if exists sev cascade")


def test_made_by_hand_without_a_connection_in_another_order(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """The manual's steps: slot, ENABLE, REFRESH; rows are written between each of them."""
    pg18.psql(
        "create schema hand; create table hand.t (id int primary key);"
        " insert into hand.t values (1); create publication hand for table hand.t"
    )
    write = "insert into hand.t select max(id) + 1 from hand.t"
    mirror = subscribe(pg18, "hand", "with (connect = false, slot_name = by_hand)")
    assert node.sql(TABLES.format("hand")) == []
    node.sql("alter subscription hand enable")
    fails(node, "hand", 'replication slot "by_hand" does not exist')
    pg18.psql(
        f"{write}; select pg_create_logical_replication_slot('by_hand', 'pgoutput')"
    )
    pg18.psql(write)
    node.sql("alter subscription hand refresh publication")
    pg18.psql(write)
    mirror.synced()
    mirror.assert_equal(["hand.t"])
    assert node.value("select count(*) from hand.t") == "4"
    assert node.sql(ERRORS.format("hand")) == []
    node.sql("alter subscription hand disable")
    node.sql(
        "alter subscription hand connection "
        + quote_literal(pg18.conninfo(application_name="elsewhere"))
    )
    pg18.psql(write)
    node.sql("alter subscription hand enable")
    node.wait_for("select count(*) from hand.t", lambda rows: rows == [("5",)])
