"""What hints of a stopped subscription say, followed on a whole node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, Rows

ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"


def are_without(text: str, rows: Rows) -> bool:
    """Whether none of the errors has this text."""
    return all(text not in str(row[0]) for row in rows)


def stopped(node: Node, name: str, text: str) -> str:
    """The error of the subscription (or of a table of it), once it is this one."""
    rows = node.wait_for(
        ERROR.format(name), lambda rows: any(text in (row[0] or "") for row in rows)
    )
    return next(str(row[0]) for row in rows if text in (row[0] or ""))


def test_a_table_is_dropped_and_refreshed_with_another_type_and_another_column(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rm; create table rm.a (id int primary key, v int[]);"
        " insert into rm.a values (1, '{1}');"
        " create publication rm for tables in schema rm"
    )
    mirror = subscribe(pg18, "rm")
    mirror.synced()
    pg18.psql("insert into rm.a values (2, '{{1,2},{3,4}}')")
    error = stopped(node, "rm", "multidimensional array")
    assert 'add "rm.a.v = string" to type_mappings' in error
    node.sql("alter subscription rm set (type_mappings = 'rm.a.v = string')")
    node.sql("drop table rm.a")
    node.sql("alter subscription rm refresh publication")
    mirror.synced()
    pg18.psql("insert into rm.a values (3, '{{5}}')")
    mirror.caught_up()
    assert node.sql("select id, v from rm.a order by id") == [
        ("1", "{1}"),
        ("2", "{{1,2},{3,4}}"),
        ("3", "{{5}}"),
    ]
    pg18.psql("alter table rm.a add column n int; insert into rm.a values (4, null, 4)")
    error = stopped(node, "rm", 'is missing replicated column: "n"')
    assert "drop the table here and run ALTER SUBSCRIPTION" in error
    node.sql("drop table rm.a")
    node.sql("alter subscription rm refresh publication")
    mirror.synced()
    pg18.psql("update rm.a set n = id")
    mirror.caught_up()
    rows = node.sql("select id, n from rm.a order by id")
    assert rows == [(str(i), str(i)) for i in range(1, 5)]
    assert node.sql(ERROR.format("rm")) == []


def test_changes_of_a_table_that_the_source_has_dropped_are_skipped(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """The log still has them; REFRESH cannot create what is not there any more. One that is
    still there is created by it."""
    pg18.psql(
        "create schema rd; create table rd.a (id int primary key);"
        " create publication rd for tables in schema rd"
    )
    mirror = subscribe(pg18, "rd")
    mirror.synced()
    pg18.psql(
        "create table rd.gone (id int primary key, v text);"
        " insert into rd.gone values (1, 'x'); drop table rd.gone;"
        " insert into rd.a values (1)"
    )
    missing = 'logical replication target relation "rd.{}" does not exist'
    error = stopped(node, "rd", missing.format("gone"))
    assert "dropped it, or its changes are to be skipped, create a table" in error
    node.sql("create table rd.gone (any_column int)")
    mirror.caught_up()
    assert node.sql("select id from rd.a") == [("1",)]
    assert node.sql("select * from rd.gone") == []
    node.sql("drop table rd.gone")
    pg18.psql("create table rd.new (id int primary key); insert into rd.new values (7)")
    error = stopped(node, "rd", missing.format("new"))
    assert "still has the table, ALTER SUBSCRIPTION ... REFRESH" in error
    node.sql("alter subscription rd refresh publication")
    mirror.synced()
    mirror.assert_equal(["rd.a", "rd.new"])
    assert node.sql(ERROR.format("rd")) == []


def test_keys_that_do_not_fit_are_mended_as_the_hints_say(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rp; create table rp.n (id int not null unique, v text);"
        " alter table rp.n replica identity using index n_id_key;"
        " create table rp.k (id int primary key, v text not null);"
        " insert into rp.n values (1, 'n'); insert into rp.k values (1, 'k');"
        " create publication rp for tables in schema rp"
    )
    node.sql(
        "create schema rp; create table rp.n (id int, v text);"
        " create table rp.k (id int, v text, primary key (id, v))"
    )
    mirror = subscribe(pg18, "rp")
    mirror.synced()
    again = "drop table rp.{0}", "alter subscription rp refresh publication"
    pg18.psql("update rp.n set v = 'changed'")
    error = stopped(node, "rp", "has neither REPLICA IDENTITY index nor PRIMARY KEY")
    assert "Give the table a primary key at the source; then drop the table" in error
    pg18.psql("alter table rp.n add primary key (id)")
    for sql in again:
        node.sql(sql.format("n"))
    mirror.synced()
    mirror.assert_equal(["rp.n"])
    pg18.psql("update rp.k set v = 'changed'")
    error = stopped(node, "rp", "did not send replica identity column expected")
    assert "The keys of both sides differ: drop the table" in error
    for sql in again:
        node.sql(sql.format("k"))
    mirror.synced()
    mirror.assert_equal(["rp.n", "rp.k"])
    assert node.sql(ERROR.format("rp")) == []


@pytest.mark.slow
def test_each_copy_that_cannot_be_made_goes_on_as_its_hint_says(
    pg18: Database, node: Node
) -> None:
    """One subscription; each table's copy is refused for a reason of its own."""
    pg18.psql(
        "create schema rt; create role rt_reader login replication;"
        " grant usage on schema rt to rt_reader;"
        " create table rt.narrow (id int primary key, v text, w int);"
        " create table rt.taken (id int primary key, v text);"
        " create table rt.twice (id int, v text);"
        " create table rt.secret (id int primary key);"
        " insert into rt.narrow values (1, 'a', 1); insert into rt.taken values (1, 'new');"
        " insert into rt.twice values (1, 'a'), (1, 'b'); insert into rt.secret values (1);"
        " grant select on rt.narrow, rt.taken, rt.twice to rt_reader;"
        " create publication rt for tables in schema rt"
    )
    node.sql(
        "create schema rt; create table rt.narrow (id int primary key, v text);"
        " create table rt.taken (id int primary key, v text);"
        " insert into rt.taken values (1, 'old');"
        " create table rt.twice (id int primary key, v text)"
    )
    as_reader = pg18.conninfo() + " user=rt_reader"
    node.sql(
        f"create subscription rt connection {quote_literal(as_reader)} publication rt"
    )
    try:
        node.wait_for(
            ERROR.format("rt"), lambda rows: len({str(row[0]) for row in rows}) >= 4
        )
        for text, hint, remedies in (
            (
                'missing replicated column: "w"',
                "ALTER TABLE ... ADD COLUMN on the target, and the copy begins anew",
                [(node.sql, "alter table rt.narrow add column w int")],
            ),
            (
                'unique constraint "taken_pkey"',
                "The table has rows that are copied now. Remove them",
                [(node.sql, "delete from rt.taken")],
            ),
            (
                'unique constraint "twice_pkey"',
                "Remove all but one of them at the publisher (a table that has no key needs"
                " REPLICA IDENTITY FULL for that), then ALTER SUBSCRIPTION ... DISABLE and"
                " ENABLE",
                [
                    (pg18.psql, "alter table rt.twice replica identity full"),
                    (pg18.psql, "delete from rt.twice where v = 'b'"),
                    (node.sql, "alter subscription rt disable"),
                    (node.sql, "alter subscription rt enable"),
                ],
            ),
            (
                "permission denied for table secret",
                "Grant SELECT on its published columns to the role of the connection",
                [(pg18.psql, "grant select on rt.secret to rt_reader")],
            ),
        ):
            assert hint in stopped(node, "rt", text)
            for run, sql in remedies:
                run(sql)
            node.wait_for(ERROR.format("rt"), partial(are_without, text))
        mirror = Mirror(node, pg18.conninfo(), "rt")
        mirror.synced()
        pg18.psql("insert into rt.twice values (2, 'c'); delete from rt.taken")
        mirror.caught_up()
        mirror.assert_equal(["rt.narrow", "rt.taken", "rt.twice", "rt.secret"])
        assert node.sql(ERROR.format("rt")) == []
    finally:
        node.sql("drop subscription rt")
        node.sql("drop schema rt cascade")
        pg18.psql(
            "drop schema rt cascade; drop owned by rt_reader; drop role rt_reader"
        )


@pytest.mark.slow
def test_a_value_is_cut_by_policy_and_a_row_that_left_unsent_is_removed_here(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rk; create table rk.short (id int primary key, v text);"
        " create table rk.f (id int primary key, v int);"
        " alter table rk.f replica identity full;"
        " insert into rk.short values (1, 'ab'); insert into rk.f values (1, 10);"
        " create publication rk for table rk.short, rk.f where (v > 5)"
    )
    node.sql("create schema rk")
    node.sql("create table rk.short (id int primary key, v varchar(1))")
    mirror = subscribe(pg18, "rk")
    error = stopped(node, "rk", "value too long for type character varying(1)")
    assert 'Add "rk.short.v = null" (or clamp' in error
    node.sql("alter subscription rk set (value_policies = 'rk.short.v = clamp')")
    mirror.synced()
    pg18.psql("insert into rk.short values (2, 'cd')")
    # The filter is narrower when the row is deleted: nobody tells us.
    pg18.psql(
        "alter publication rk set table rk.short, rk.f where (v > 100);"
        " delete from rk.f where id = 1; insert into rk.f values (1, 101)"
    )
    error = stopped(
        node, "rk", 'conflict detected on relation "rk.f": conflict=insert_exists'
    )
    assert 'Key already exists in unique index "f_pkey".' in error
    assert "Delete the row that has this key here" in error
    named = "select tablename, key from wal2lake.conflicts where subname = 'rk'"
    assert node.sql(named) == [("f", "(id)=(1)")]
    node.sql("delete from rk.f where id = 1")
    mirror.caught_up()
    assert node.sql("select id, v from rk.f") == [("1", "101")]
    assert node.sql("select id, v from rk.short order by id") == [
        ("1", "a"),
        ("2", "c"),
    ]
