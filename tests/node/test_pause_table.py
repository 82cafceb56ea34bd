"""One table of a subscription is paused, resumed and copied again while the others go on; and
pg_replication_origin_advance, against real publishers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import refused

from wal2lake.model import Lsn
from wal2lake.pg.client import Client, Failure
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

PROGRESS = (
    "select tablename, state, paused_since is not null, stands_at"
    " from wal2lake.sync_progress where subname = '{}' order by 1"
)
STATES = "select state from wal2lake.sync_progress where subname = '{}'"


def publish(source: Database, name: str) -> None:
    source.psql(
        f"create schema {name};"
        f" create table {name}.t (id int primary key, v text);"
        f" create table {name}.u (id int primary key, v text);"
        f" insert into {name}.t values (1, 'one'); insert into {name}.u values (1, 'one');"
        f" create publication {name} for tables in schema {name}"
    )


def told(node: Node, sql: str) -> tuple[list[tuple[str | None, ...]], str]:
    """Rows, and all notices."""
    notices: list[Failure] = []
    with Client(node.conninfo(), on_notice=notices.append) as client:
        rows = client.rows(sql)
    return rows, " ".join(f"{n.message} {n.detail}" for n in notices)


def stopped(node: Node, name: str) -> Lsn:
    """The finish LSN of the transaction that cannot be applied."""
    (row,) = node.wait_for(
        "select error from wal2lake.subscription_errors"
        f" where subname = '{name}' and worker = 'apply'"
    )
    found = re.search(r"finished at ([0-9A-F]+/[0-9A-F]+)", str(row[0]))
    assert found is not None, row
    return Lsn.parse(found[1])


def ready(node: Node, name: str) -> None:
    node.wait_for(STATES.format(name), lambda rows: {r[0] for r in rows} == {"r"})


@pytest.mark.slow
def test_a_table_that_cannot_be_applied_is_paused_and_resumed(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    publish(pg18, "pz")
    mirror = subscribe(pg18, "pz")
    mirror.synced()
    # The transaction stops both tables.
    node.sql("insert into pz.t values (5, 'ours')")
    pg18.transactions(
        [
            "insert into pz.u values (2, 'before'); insert into pz.t values (2, 'before')",
            "insert into pz.u values (3, 'with it');"
            " insert into pz.t values (5, 'theirs'), (6, 'with it')",
            "insert into pz.u values (4, 'behind'); insert into pz.t values (7, 'behind')",
        ]
    )
    lsn = stopped(node, "pz")
    assert node.sql("select id from pz.u order by 1") == [("1",), ("2",)]

    rows, notices = told(node, "select wal2lake.pause_table('pz.t')")
    assert rows == [("",)]
    stands = re.search(r'table "pz.t" is paused at ([0-9A-F]+/[0-9A-F]+)', notices)
    assert stands is not None, notices
    at = Lsn.parse(stands[1])
    assert at <= lsn
    node.wait_for("select id from pz.u order by 1", lambda rows: len(rows) == 4)
    node.wait_for(
        "select 1 from wal2lake.subscription_errors where subname = 'pz'",
        lambda rows: rows == [],
    )
    assert node.sql(PROGRESS.format("pz")) == [
        ("t", "f", "t", str(at)),
        ("u", "r", "f", None),
    ]
    assert node.sql("select srsublsn from pg_subscription_rel where srsubstate = 'f'")

    # Who reads it is told; it is no part of the states that are published now.
    rows, notices = told(
        node, "select t.id, u.v from pz.t join pz.u using (id) order by 1"
    )
    assert rows == [("1", "one"), ("2", "before")]
    assert f'table "pz.t" stands at {at}, apart from the other tables' in notices
    assert "It has been paused since " in notices
    assert told(node, "select count(*) from pz.u") == ([("4",)], "")
    latest = "select tablename, lsn from wal2lake.snapshots where subname = 'pz' order by lsn"
    newest = node.sql(latest)[-1]
    assert newest[0] == "u"
    assert Lsn.parse(str(newest[1])) > lsn
    past = f"set wal2lake.as_of_lsn = '{newest[1]}'; select count(*) from pz."
    assert node.sql(past + "u") == [("4",)]
    assert refused(node, past + "t")[0] == "55000"

    # The log is kept for it, and the origin waits; the publisher's slot does not.
    (reader,) = node.sql(
        "select tablename, needed_lsn, segments > 0, bytes > 0 from wal2lake.log_readers"
        " where subname = 'pz' and reader = 'paused'"
    )
    assert reader == ("t", str(at), "t", "t")
    origin = "select remote_lsn from pg_replication_origin_status"
    assert Lsn.parse(str(node.value(origin))) <= at
    end = pg18.psql("select pg_current_wal_lsn()")
    confirmed = (
        "select confirmed_flush_lsn >= '{}' from pg_replication_slots"
        " where slot_name = 'pz'"
    )
    pg18.psql("insert into pz.u values (8, 'flushed')")
    node.wait_for("select id from pz.u", lambda rows: len(rows) == 5)
    assert pg18.psql(confirmed.format(end)) == "t"

    # What is written here to a paused table is seen; it is the way out, too.
    node.sql("delete from pz.t where id = 5")
    assert node.sql("select id from pz.t order by 1") == [("1",), ("2",)]
    assert told(node, "select wal2lake.pause_table('pz.t'::regclass, 'pz')")[1].count(
        "is paused already"
    )

    # Its state is durable.
    node.kill("tree")
    node.start()
    assert node.sql(PROGRESS.format("pz"))[0] == ("t", "f", "t", str(at))
    assert node.sql("select id from pz.t order by 1") == [("1",), ("2",)]
    pg18.psql(
        "update pz.t set v = 'later' where id = 7; insert into pz.u values (9, 'x')"
    )
    node.wait_for("select id from pz.u", lambda rows: len(rows) == 6)

    node.sql("select wal2lake.resume_table('pz.t')")
    mirror.assert_equal(["pz.t", "pz.u"])
    ready(node, "pz")
    assert told(node, "select count(*) from pz.t") == ([("5",)], "")
    assert "is not paused" in told(node, "select wal2lake.resume_table('pz.t')")[1]
    # A past state in which it had not come back yet does not have it.
    assert refused(node, past + "t")[0] == "55000"
    mirror.assert_equal(["pz.t", "pz.u"])


@pytest.mark.slow
def test_a_table_is_copied_again_alone(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    publish(pg18, "pc")
    mirror = subscribe(pg18, "pc")
    mirror.synced()
    node.sql("insert into pc.t values (50, 'ours')")
    node.sql("select wal2lake.recopy_table('pc.t')")
    ready(node, "pc")
    mirror.assert_equal(["pc.t", "pc.u"])

    # One that is paused, and cannot be applied.
    node.sql("insert into pc.t values (5, 'ours')")
    pg18.psql("insert into pc.t values (5, 'theirs')")
    stopped(node, "pc")
    node.sql("select wal2lake.pause_table('pc.t')")
    pg18.psql("insert into pc.u values (2, 'x')")
    node.wait_for("select id from pc.u", lambda rows: len(rows) == 2)
    # Without a snapshot there is no copy: readers have the old rows, and are told.
    node.sql("alter subscription pc disable")
    node.sql(
        "select wal2lake.recopy_table(oid) from pg_class where relname = 't'"
        " and relnamespace = 'pc'::regnamespace"
    )
    rows, notices = told(node, "select v from pc.t order by id")
    assert rows == [("one",), ("ours",)]
    assert "It is being copied again." in notices
    assert node.sql(PROGRESS.format("pc"))[0] == ("t", "i", "f", None)
    node.sql("alter subscription pc enable")
    ready(node, "pc")
    mirror.assert_equal(["pc.t", "pc.u"])
    assert told(node, "select v from pc.t order by id")[1] == ""

    # All of them, but for one that is paused: first with its slot, then with a new one.
    recopy = "alter subscription pc refresh publication with (recopy = true)"
    node.sql("select wal2lake.pause_table('pc.t')")
    pg18.psql("insert into pc.t values (7, 'x'); insert into pc.u values (7, 'x')")
    gone = "select 1 from pg_replication_slots where slot_name = 'pc' and not active"
    for state in "fi":
        if state == "i":
            node.sql("alter subscription pc disable")
            wait_until(lambda: pg18.psql(gone) == "1", describe="the slot is free")
            pg18.psql("select pg_drop_replication_slot('pc')")
            node.sql("alter subscription pc enable")
        node.sql("insert into pc.u values (90, 'ours')")
        assert 'table "pc.t" stays paused' in told(node, recopy)[1]
        node.wait_for(
            "select state from wal2lake.sync_progress"
            " where subname = 'pc' and tablename = 'u'",
            lambda rows: rows == [("r",)],
        )
        assert node.sql(PROGRESS.format("pc"))[0][:3] == ("t", state, "t")
        rows, notices = told(node, "select id from pc.t where id = 7")
        assert rows == []
        assert "It has been paused since " in notices
        ids = "select id from pc.u order by 1"
        assert node.sql(ids) == [("1",), ("2",), ("7",)]
    assert "copied again" in told(node, "select wal2lake.resume_table('pc.t')")[1]
    ready(node, "pc")
    mirror.assert_equal(["pc.t", "pc.u"])


def test_commands_with_a_paused_table(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    publish(pg18, "pd")
    pg18.psql("create table pd.w (id int); alter table pd.w replica identity full")
    # No cursor, since there was no copy: it has a position all the same.
    mirror = subscribe(pg18, "pd", "with (copy_data = false)")
    mirror.synced()
    for table in "tuw":
        node.sql(f"select wal2lake.pause_table('pd.{table}')")
    pg18.psql(
        "insert into pd.t values (2, 'p'); insert into pd.u values (2, 'p');"
        " insert into pd.w values (1), (1)"
    )
    node.sql("alter subscription pd disable")
    node.sql("alter subscription pd enable")
    node.sql("select wal2lake.resume_table('pd.w')")
    node.wait_for("select id from pd.w", lambda rows: len(rows) == 2)
    assert node.sql("select id from pd.t") == node.sql("select id from pd.u") == []
    # One leaves, one is dropped; the floor waits for nobody then.
    pg18.psql(
        "alter publication pd drop tables in schema pd;"
        " alter publication pd add table pd.t, pd.w"
    )
    node.sql("alter subscription pd refresh publication")
    assert told(node, "select id from pd.u")[1] == ""
    node.sql("drop table pd.t")
    pg18.psql("alter publication pd drop table pd.t; insert into pd.w values (2)")
    mirror.assert_equal(["pd.w"])
    node.sql("select wal2lake.pause_table('pd.w')")
    node.sql("drop subscription pd")
    assert told(node, "select count(*) from pd.w") == ([("3",)], "")


def test_who_may_and_what_is_refused(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    publish(pg18, "pr")
    mirror = subscribe(pg18, "pr")
    mirror.synced()
    node.sql("create schema if not exists pr_own; create table pr_own.x (id int)")
    pause = "select wal2lake.pause_table"
    assert refused(node, f"{pause}('pr.none')") == (
        "42P01",
        'relation "pr.none" does not exist',
    )
    assert refused(node, f"{pause}('pr_own.x')") == (
        "55000",
        'table "pr_own.x" is in no subscription',
    )
    assert refused(node, f"{pause}('pr.t', 'nope')") == (
        "42704",
        'subscription "nope" does not exist',
    )
    assert refused(node, f"begin; {pause}('pr.t'); commit") == (
        "25001",
        "wal2lake.pause_table() cannot run inside a transaction block",
    )
    assert refused(node, "select pause_table('pr.t')")[0] == "42883"
    assert node.sql(f"{pause}(null)") == [("",)]
    node.sql("drop role if exists pr_role; create role pr_role")
    who = "set role pr_role; "
    assert refused(node, f"{who}{pause}('pr.t')") == (
        "42501",
        "must be owner of subscription pr",
    )
    advance = "select pg_replication_origin_advance"
    assert refused(node, f"{who}{advance}('pg_1', '0/1')") == (
        "42501",
        "permission denied for function pg_replication_origin_advance",
    )
    assert refused(node, f"{advance}('pg_1', '0/1')") == (
        "42704",
        'replication origin "pg_1" does not exist',
    )
    name = node.value("select 'pg_' || oid from pg_subscription where subname = 'pr'")
    oid = node.value(f"select pg_replication_origin_oid('{name}')")
    state, message = refused(node, f"{advance}('{name}', '0/1')")
    assert state == "55006"
    assert re.fullmatch(
        rf"replication origin with ID {oid} is already active for PID \d+", message
    )
    node.sql("alter subscription pr disable")
    state, message = refused(node, f"{advance}('{name}', '0/1')")
    assert (state, message) == (
        "55000",
        f'replication origin "{name}" cannot go back to 0/1',
    )
    assert node.value("select pg_replication_origin_oid('x')") is None
    node.sql("drop schema pr_own cascade; drop role pr_role")


@pytest.mark.slow
def test_a_transaction_is_passed_over_by_advancing_the_origin(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    """The manual's other way to skip a transaction: section 29.8."""
    node = subscriber
    publish(pg18, "po")
    mirror = subscribe(pg18, "po", "with (disable_on_error = true)")
    mirror.synced()
    node.sql("insert into po.t values (5, 'ours')")
    pg18.transactions(
        [
            "insert into po.u values (2, 'before')",
            "insert into po.u values (3, 'with it'); insert into po.t values (5, 'theirs')",
            "insert into po.u values (4, 'behind'); insert into po.t values (7, 'behind')",
        ]
    )
    lsn = stopped(node, "po")
    enabled = "select subenabled from pg_subscription where subname = 'po'"
    node.wait_for(enabled, lambda rows: rows == [("f",)])
    name = node.value("select 'pg_' || oid from pg_subscription where subname = 'po'")
    after = Lsn(lsn + 1)
    node.sql(f"select pg_replication_origin_advance('{name}', '{after}')")
    progress = f"select pg_replication_origin_progress('{name}', true)"
    assert node.value(progress) == str(after)
    node.sql("alter subscription po enable")
    mirror.caught_up()
    assert node.sql("select id from po.u order by 1") == [("1",), ("2",), ("4",)]
    assert node.sql("select id, v from po.t order by 1") == [
        ("1", "one"),
        ("5", "ours"),
        ("7", "behind"),
    ]

    # Past all that has been received.
    node.sql("alter subscription po disable")
    pg18.psql("insert into po.u values (10, 'not wanted')")
    end = pg18.psql("select pg_current_wal_insert_lsn()")
    node.sql(f"select pg_replication_origin_advance('{name}', '{end}')")
    pg18.psql("insert into po.u values (11, 'wanted')")
    node.sql("alter subscription po enable")
    mirror.caught_up()
    assert node.sql("select id from po.u where id > 9") == [("11",)]
    # It goes on from there after a restart, too.
    node.kill("engine")
    node.kill("receiver")
    pg18.psql("insert into po.u values (12, 'wanted')")
    mirror.caught_up()
    assert node.sql("select id from po.u where id > 9 order by 1") == [("11",), ("12",)]
