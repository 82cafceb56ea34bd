"""Hints about columns, conflicts and shared tables, followed on a node."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.node.test_remedies import ERROR, stopped

from wal2lake.errors import PublisherError
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def test_a_column_that_differs_in_case_and_a_conflict_end_as_their_hints_say(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """The log has the column after the publication has left it out, so the table is copied.
    Conflicts are resolved in a partitioned table, too."""
    pg18.psql(
        "create schema ra; create table ra.a (id int primary key, v text);"
        " create table ra.u (id int primary key, v text);"
        " insert into ra.a values (1, 'a'); insert into ra.u values (1, 'u');"
        " create publication ra for table ra.a, ra.u"
    )
    node.sql("create schema ra")
    node.sql(
        "create table ra.u (id int primary key, v text) with (partition_columns = 'id')"
    )
    mirror = subscribe(
        pg18, "ra", "with (conflict_resolution = 'update_missing = error')"
    )
    mirror.synced()
    pg18.psql("alter table ra.a add \"V\" int; insert into ra.a values (2, 'b', 2)")
    error = stopped(node, "ra", 'is missing replicated column: "V"')
    assert "with a column list of the publication; then drop the table here" in error
    pg18.psql("alter publication ra set table ra.a (id, v), ra.u")
    node.sql("drop table ra.a")
    node.sql("alter subscription ra refresh publication")
    mirror.synced()
    pg18.psql("insert into ra.a values (3, 'c', 3)")
    mirror.caught_up()
    assert node.sql("select id, v from ra.a order by id") == [
        ("1", "a"),
        ("2", "b"),
        ("3", "c"),
    ]
    node.sql("delete from ra.u")
    pg18.psql("update ra.u set v = 'w'; insert into ra.u values (2, 'x')")
    error = stopped(node, "ra", "conflict=update_missing")
    assert "choose another conflict_resolution (ALTER SUBSCRIPTION ... SET)" in error
    skip = re.search(
        r"Skip this one \(ALTER SUBSCRIPTION \.\.\. (SKIP .*?'\))\)", error
    )
    assert skip is not None
    node.sql(f"alter subscription ra {skip[1]}")
    mirror.caught_up()
    # Each statement is a transaction: the one behind the skipped one is applied.
    assert node.sql("select id, v from ra.u") == [("2", "x")]
    assert node.sql(ERROR.format("ra")) == []
    pg18.psql("update ra.u set v = 'y' where id = 1; insert into ra.u values (3, 'z')")
    assert "choose another" in stopped(node, "ra", "conflict=update_missing")
    node.sql(
        "alter subscription ra set (conflict_resolution = 'update_missing = skip')"
    )
    mirror.caught_up()
    rows = node.sql("select id, v from ra.u order by id")
    assert rows == [("2", "x"), ("3", "z")]
    assert node.sql(ERROR.format("ra")) == []
    node.sql(
        "alter subscription ra set (conflict_resolution = 'update_missing = error')"
    )
    pg18.psql("update ra.u set v = 'y' where id = 1; insert into ra.u values (4, 'z')")
    assert "or drop the table here" in stopped(node, "ra", "conflict=update_missing")
    node.sql("drop table ra.u")
    node.sql("alter subscription ra refresh publication")
    mirror.synced()
    mirror.caught_up()
    rows = node.sql("select id, v from ra.u order by id")
    assert rows == [("1", "y"), ("2", "x"), ("3", "z"), ("4", "z")]
    assert node.sql(ERROR.format("ra")) == []


@pytest.mark.slow
def test_columns_that_another_subscription_has_followed_away(
    pg18: Database,
    database: Callable[..., Database],
    node: Node,
    subscribe: Callable[..., Mirror],
) -> None:
    """The second publisher alters its tables as the first one does, but later."""
    second = database(18, "rw_second")
    for source in (pg18, second):
        source.psql(
            "create schema rw; create table rw.d (id int primary key, gone text);"
            " create table rw.r (id int primary key, old text);"
            " create publication rw for tables in schema rw;"
            " create publication rw2 for tables in schema rw"
        )
    follow = "with (schema_changes = follow)"
    first = subscribe(pg18, "rw", follow)
    first.synced()
    late = subscribe(second, "rw2", follow.replace(")", ", copy_data = false)"))
    late.synced()
    late.caught_up()
    node.sql("alter subscription rw2 disable")
    second.psql("insert into rw.d values (2, 'g'); insert into rw.r values (2, 'b')")
    for source, number in ((pg18, 1), (second, 4)):
        source.psql(
            "alter table rw.d drop gone; alter table rw.r rename old to fresh;"
            f" insert into rw.d values ({number});"
            f" insert into rw.r values ({number}, 'a{number}')"
        )
    first.caught_up()
    node.sql("alter subscription rw2 enable")
    add = (
        "ALTER TABLE ... ADD COLUMN on the target lets it go on. When that ALTER TABLE"
    )
    error = stopped(node, "rw2", 'is missing replicated column: "gone"')
    assert f"{add} comes the column is dropped again." in error
    node.sql("alter table rw.d add column gone text")
    error = stopped(node, "rw2", 'is missing replicated column: "old"')
    assert f"{add} has come, UPDATE moves their values to the new name." in error
    node.sql("alter table rw.r add column old text")
    late.caught_up()
    assert node.sql(ERROR.format("rw2")) == []
    assert node.sql("select * from rw.d order by id") == [("1",), ("2",), ("4",)]
    node.sql("update rw.r set fresh = old where old is not null")
    node.sql("alter table rw.r drop column old")
    rows = [("1", "a1"), ("2", "b"), ("4", "a4")]
    assert node.sql("select id, fresh from rw.r order by id") == rows
    second.psql("update rw.r set fresh = 'c' where id = 2")
    late.caught_up()
    assert node.sql("select fresh from rw.r where id = 2") == [("c",)]


@pytest.mark.slow
def test_a_shared_table_is_copied_again_once_the_other_subscription_is_gone(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror], points: Path
) -> None:
    pg18.psql(
        "create schema rb; create table rb.t (id int primary key);"
        " insert into rb.t values (1);"
        " create publication rb for table rb.t; create publication rb2 for table rb.t"
    )
    mirror = subscribe(pg18, "rb")
    mirror.synced()
    origin = node.value("select 'pg_' || oid from pg_subscription where subname = 'rb'")
    advance = f"select pg_replication_origin_advance('{origin}', '0/1')"
    with pytest.raises(PublisherError) as caught:
        node.sql(advance)
    assert caught.value.hint == 'ALTER SUBSCRIPTION "rb" DISABLE ends it.'
    node.sql("alter subscription rb disable")
    with pytest.raises(PublisherError) as caught:
        node.sql(advance)
    assert "cannot go back to 0/1" in caught.value.message
    assert str(caught.value.hint).startswith("wal2lake.recopy_table() copies a table")
    node.sql("alter subscription rb enable")
    subscribe(pg18, "rb2", "with (copy_data = false)")
    with pytest.raises(PublisherError) as caught:
        node.sql("select wal2lake.pause_table('rb.t')")
    assert caught.value.hint == "Name one of them as the second argument."
    for what in ("pause", "resume"):
        node.sql(f"select wal2lake.{what}_table('rb.t', 'rb')")
    node.sql("delete from rb.t")
    again = "alter subscription rb refresh publication with (recopy = true)"
    with node.connect() as client, pytest.raises(PublisherError) as caught:
        client.rows(again)
    assert 'subscription "rb2" fills it, too' in caught.value.message
    assert "Let one of the two have the table" in str(caught.value.hint)
    node.sql("drop subscription rb2")
    node.sql(again)
    mirror.synced()
    mirror.assert_equal(["rb.t"])
    # One that comes in the middle of the copy.
    point = points / "copy.range_recorded"
    point.write_text("pause 8")
    node.sql(again)
    wait_until(lambda: not point.exists(), describe="the copy is under way")
    subscribe(pg18, "rb2", "with (copy_data = false)")
    error = stopped(node, "rb", "another subscription fills it, too")
    assert (
        "Let one of the two have it: ALTER SUBSCRIPTION ... DROP PUBLICATION, or DROP"
        " SUBSCRIPTION."
    ) in error
    node.sql("drop subscription rb2")
    mirror.synced()
    mirror.assert_equal(["rb.t"])
    assert node.sql(ERROR.format("rb")) == []


def test_a_shared_table_is_followed_once_one_subscription_lets_go_of_it(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rc; create table rc.t (id int primary key, v text);"
        " create table rc.o (id int primary key); insert into rc.t values (1, 'a');"
        " create publication rc for table rc.t;"
        " create publication rc2 for table rc.t; create publication rc2o for table rc.o"
    )
    mirror = subscribe(pg18, "rc", "with (schema_changes = follow)")
    mirror.synced()
    subscribe(pg18, "rc2", "with (copy_data = false)")
    node.sql("alter subscription rc2 add publication rc2o")
    pg18.psql(
        "alter table rc.t alter v type int using 7; insert into rc.t values (2, 8)"
    )
    error = stopped(node, "rc", "another subscription fills the table, too")
    assert "Let one of the two have the table (ALTER SUBSCRIPTION ... DROP" in error
    node.sql("alter subscription rc2 drop publication rc2")
    # The copy begins once the ALTER TABLE is followed.
    mirror.caught_up()
    mirror.synced()
    mirror.caught_up()
    mirror.assert_equal(["rc.t"])
    assert node.sql(ERROR.format("rc")) == []
