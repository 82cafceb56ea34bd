"""History tables: each change of a mirrored table with its whole old and new row."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pytest
from tests.conftest import Database
from tests.fakes.audited import (
    AUDIT,
    KEYED,
    KEYLESS,
    TABLES,
    audit,
    last_note,
    noted,
    recorded,
    transaction,
)
from tests.node.conftest import Subscribe

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node


def test_random_work_is_recorded_change_by_change(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        f"create schema hr; set search_path = hr; {TABLES} {AUDIT}"
        f" {audit('hr.k', 'hr.u')} create publication hr for table hr.k, hr.u"
    )
    mirror = subscribe(pg18, "hr", "with (history = 'hr_history')")
    mirror.synced()
    rng = random.Random(7)
    with psycopg.connect(
        pg18.conninfo(options="-c search_path=hr"), autocommit=True
    ) as source:
        for round_ in range(3):
            for _ in range(60):
                source.execute(transaction(rng))
            mirror.assert_equal(["hr.k", "hr.u"])
            for table, columns in (("k", KEYED), ("u", KEYLESS)):
                there = noted(pg18, table)
                here = recorded(node, f"hr_history.{table}", columns)
                assert here == there, (round_, table)
    copied = recorded(node, "hr_history.u", KEYLESS, ["snapshot"])
    assert Counter(str(new) for _, _, _, new in copied) == Counter(
        {str({"a": str(a), "b": "x"}): 3 for a in range(3)}
    )
    assert last_note(pg18) > 300


@pytest.mark.slow
def test_columns_follow_and_earlier_values_stay(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hf; create table hf.t (id int primary key, a int, b text);"
        " insert into hf.t values (1, 1, 'one'), (2, 2, 'two');"
        " create publication hf for table hf.t"
    )
    mirror = subscribe(
        pg18, "hf", "with (history = 'hf_history', schema_changes = follow)"
    )
    mirror.synced()
    for statements in (
        "update hf.t set a = 10 where id = 1",
        "alter table hf.t add c int[]; update hf.t set c = '{1,2}' where id = 1",
        "alter table hf.t rename b to bb; update hf.t set bb = 'uno' where id = 1",
        "alter table hf.t drop c; update hf.t set a = 11 where id = 1",
        # The column has another type, and all rows are copied anew.
        "alter table hf.t alter a type bigint; update hf.t set a = 12 where id = 1",
    ):
        pg18.transactions([statements])
        mirror.caught_up()
        mirror.synced()
    pg18.psql("update hf.t set a = 5000000000 where id = 2")
    mirror.assert_equal(["hf.t"])
    columns = [
        row[0]
        for row in node.sql(
            "select attname from pg_attribute where attrelid = 'hf_history.t'::regclass"
            " and attnum > 0 order by attnum"
        )
    ]
    assert set(columns) == {
        *("op", "commit_lsn", "ordinal", "xid", "commit_time", "origin"),
        *("old_id", "new_id", "was_old_a", "was_new_a", "old_a", "new_a"),
        *("old_b", "new_b", "old_c", "new_c", "old_bb", "new_bb"),
    }
    rows = node.sql(
        "select op, new_id, coalesce(was_old_a, old_a), coalesce(was_new_a, new_a),"
        " new_b, new_bb, new_c from hf_history.t where op = 'update'"
        " order by commit_lsn, ordinal"
    )
    assert rows[:4] == [
        ("update", "1", "1", "10", "one", None, None),
        ("update", "1", "10", "10", "one", None, "{1,2}"),
        ("update", "1", "10", "10", None, "uno", "{1,2}"),
        ("update", "1", "10", "11", None, "uno", None),
    ]
    assert rows[-1] == ("update", "2", "2", "5000000000", None, "two", None)


def _error(node: Node, sql: str) -> tuple[str | None, str | None, str | None]:
    with (
        psycopg.connect(node.conninfo(), autocommit=True) as session,
        pytest.raises(psycopg.Error) as raised,
    ):
        session.execute(sql)
    diag = raised.value.diag
    return diag.sqlstate, diag.message_primary, diag.message_hint


ENDS = (
    "ALTER SUBSCRIPTION ... SET (history = NONE) ends that; the history stays as a table"
    " like others."
)


def test_a_history_is_read_and_not_written(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hw; create table hw.t (id int primary key);"
        " create schema hv; create table hv.t (id int primary key);"
        " insert into hw.t values (1); create publication hw for table hw.t;"
        " create publication hv for table hw.t, hv.t; create publication hx for table hv.t"
    )
    mirror = subscribe(pg18, "hw", "with (history = 'hw_history')")
    mirror.synced()
    for sql in (
        "insert into hw_history.t (op) values ('x')",
        "update hw_history.t set op = 'x'",
        "delete from hw_history.t",
        "truncate hw_history.t",
    ):
        assert _error(node, sql)[:2] == (
            "55000",
            'cannot change table "t" because it is the history of a subscription\'s table',
        ), sql
    for sql, action in (
        ("alter table hw_history.t add x int", "alter"),
        ("alter table hw_history.t rename to s", "alter"),
        ("alter table hw_history.t set schema public", "alter"),
        ("drop table hw_history.t", "drop"),
        ("drop schema hw_history cascade", "drop"),
    ):
        assert _error(node, sql) == (
            "55000",
            f'cannot {action} table "t" because it is the history of a subscription\'s'
            " table",
            ENDS,
        ), sql
    conninfo = quote_literal(pg18.conninfo())
    create = f"create subscription hx connection {conninfo} publication"
    assert _error(node, f"{create} hv with (history = 'other')") == (
        "42P07",
        'tables "hv.t" and "hw.t" would have the same history table "other.t"',
        "Publish one of them to another subscription, with histories in another schema.",
    )
    assert _error(node, f"{create} hx with (history = 'hw_history')") == (
        "55000",
        '"hw_history.t" is the history of another table',
        "Name another schema for the histories.",
    )
    assert _error(node, f"{create} hx with (history = 'hw')") == (
        "42P07",
        'relation "hw.t" already exists',
        "Name another schema for the histories, or rename the relation.",
    )
    assert _error(node, f"{create} hx with (history = 'pg_x')")[0] == "42939"
    assert node.sql("select relname from pg_class where relname = 'other'") == []
    # Subscribers of the node have the publisher's transactions, and the history's by itself.
    node.sql("select pg_create_logical_replication_slot('hw', 'test_decoding')")
    pg18.psql(
        "begin; insert into hw.t values (9); delete from hw.t where id = 9; commit"
    )
    mirror.caught_up()
    decoded = node.sql(
        "select data from pg_logical_slot_get_changes('hw', null, null,"
        " 'include-xids', 'off')"
    )
    assert [str(row[0])[:28] for row in decoded if "hw" in str(row[0])] == [
        "table hw.t: INSERT: id[integ",
        "table hw.t: DELETE: id[integ",
        "table hw_history.t: INSERT: ",
        "table hw_history.t: INSERT: ",
    ]
    node.sql("select pg_drop_replication_slot('hw')")
    (before,) = node.sql(
        "select max(lsn) from wal2lake.snapshots where subname = 'hw'"
        " and schemaname = 'hw_history' and version = 0"
    )
    with psycopg.connect(node.conninfo(), autocommit=True) as session:
        session.execute(f"set wal2lake.as_of_lsn = '{before[0]}'")
        assert session.execute("select * from hw_history.t").fetchall() == []
    # The table may be renamed: its history stays.
    node.sql("alter table hw.t rename to renamed")
    node.sql("alter table hw.renamed rename to t")
    pg18.psql("insert into hw.t values (2)")
    mirror.caught_up()
    assert node.sql(
        "select op, new_id from hw_history.t order by commit_lsn, ordinal"
    ) == [("snapshot", "1"), ("insert", "9"), ("delete", None), ("insert", "2")]
    assert node.sql(
        "select history from wal2lake.subscription_options where subname = 'hw'"
    ) == [("hw_history",)]
    node.sql("drop subscription hw")
    # Nobody feeds it any more.
    node.sql("delete from hw_history.t where op <> 'snapshot'")
    node.sql("alter table hw_history.t alter op set default 'x'")
    mirror = subscribe(pg18, "hw", "with (history = 'hw_history', copy_data = false)")
    mirror.synced()
    pg18.psql("delete from hw.t where id = 2")
    mirror.caught_up()
    assert node.sql(
        "select op, old_id, new_id from hw_history.t order by commit_lsn, ordinal"
    ) == [("snapshot", None, "1"), ("delete", "2", None)]
    node.sql("drop subscription hw")
    node.sql("drop table hw_history.t")
    node.sql("drop schema hw_history cascade")


def test_histories_begin_end_and_move(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hm; create table hm.t (id int primary key, a int);"
        " create table hm.s (id int primary key, a int);"
        " insert into hm.t values (1, 1); insert into hm.s values (1, 1);"
        " create publication hm for table hm.t"
    )
    mirror = subscribe(pg18, "hm")
    mirror.synced()
    with psycopg.connect(node.conninfo(), autocommit=True) as session:
        hints: list[str | None] = []
        session.add_notice_handler(lambda diag: hints.append(diag.message_hint))
        session.execute("alter subscription hm set (history = 'hm_one')")
    assert hints == [
        "ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true) copies the tables"
        " again, with a row for each."
    ]
    assert node.sql("select * from hm_one.t") == []
    history = "select op, old_a, new_a from {}.{} order by commit_lsn, ordinal"
    pg18.psql("update hm.t set a = 2")
    mirror.caught_up()
    assert node.sql(history.format("hm_one", "t")) == [("update", "1", "2")]
    # A table that joins.
    pg18.psql("alter publication hm add table hm.s")
    node.sql("alter subscription hm refresh publication")
    mirror.synced()
    assert node.sql(history.format("hm_one", "s")) == [("snapshot", None, "1")]
    node.sql("select wal2lake.recopy_table('hm.s'::regclass)")
    pg18.psql("update hm.s set a = 3")
    mirror.caught_up()
    mirror.synced()
    rows = node.sql(history.format("hm_one", "s"))
    assert rows[:2] == [("snapshot", None, "1"), ("truncate", None, None)]
    assert rows[-1] in (("update", "1", "3"), ("snapshot", None, "3"))
    # While a table is paused, its history waits, too.
    node.sql("select wal2lake.pause_table('hm.t'::regclass)")
    pg18.psql("update hm.t set a = 4; update hm.s set a = 4; delete from hm.t")
    node.wait_for("select a from hm.s", lambda rows: rows == [("4",)])
    assert len(node.sql(history.format("hm_one", "t"))) == 1
    node.sql("select wal2lake.resume_table('hm.t'::regclass)")
    mirror.caught_up()
    mirror.synced()
    assert node.sql(history.format("hm_one", "t")) == [
        ("update", "1", "2"),
        ("update", "2", "4"),
        ("delete", "4", None),
    ]
    node.sql("alter subscription hm set (history = 'hm_two')")
    pg18.psql("insert into hm.t values (5, 5)")
    mirror.caught_up()
    assert node.sql(history.format("hm_two", "t")) == [("insert", None, "5")]
    assert len(node.sql(history.format("hm_one", "t"))) == 3
    node.sql("alter subscription hm set (history = none)")
    pg18.psql("insert into hm.t values (6, 6)")
    mirror.assert_equal(["hm.t", "hm.s"])
    assert node.sql(history.format("hm_two", "t")) == [("insert", None, "5")]
    node.sql("drop schema hm_one, hm_two cascade")


@pytest.mark.slow
def test_filters_conflicts_and_what_stops_a_batch(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema hc; create table hc.t (id int primary key, a int);"
        " alter table hc.t replica identity full;"
        " create table hc.v (id int primary key, a varchar);"
        " insert into hc.t values (1, 1), (2, 20);"
        " create publication hc for table hc.t where (a < 10), hc.v"
    )
    node.sql("create schema hc")
    node.sql("create table hc.v (id int primary key, a varchar(3))")
    mirror = subscribe(
        pg18,
        "hc",
        "with (history = 'hc_history',"
        " conflict_resolution = 'hc.t.insert_exists = apply_remote')",
    )
    mirror.synced()
    # The filter makes an INSERT and a DELETE of UPDATEs.
    pg18.psql("update hc.t set a = 2 where id = 2; update hc.t set a = 30 where id = 1")
    mirror.caught_up()
    # A row of our own is in the way, another one is not there.
    node.sql("insert into hc.t values (3, 300)")
    node.sql("delete from hc.t where id = 2")
    pg18.psql(
        "insert into hc.t values (3, 3); update hc.t set a = 5 where id = 2;"
        " update hc.t set a = 6 where id = 3"
    )
    mirror.caught_up()
    rows = "select op, new_id, old_a, new_a from hc_history.{} order by commit_lsn, ordinal"
    assert node.sql(rows.format("t")) == [
        ("snapshot", "1", None, "1"),
        ("insert", "2", None, "2"),
        ("delete", None, "1", None),
        ("update", "3", "300", "3"),
        ("update", "3", "3", "6"),
    ]
    # A batch is cut below what cannot be applied.
    pg18.psql(
        "insert into hc.v values (1, 'abc'); insert into hc.t values (4, 4);"
        " insert into hc.v values (2, 'abcd'); insert into hc.t values (5, 5)"
    )
    node.wait_for(
        "select worker from wal2lake.subscription_errors where subname = 'hc'",
        lambda rows: rows == [("apply",)],
    )
    assert node.sql(rows.format("v")) == [("insert", "1", None, "abc")]
    assert node.sql(rows.format("t"))[5:] == [("insert", "4", None, "4")]
    node.sql("alter table hc.v alter a type text")
    mirror.assert_equal(["hc.v"])
    assert node.sql(rows.format("v")) == [
        ("insert", "1", None, "abc"),
        ("insert", "2", None, "abcd"),
    ]
    node.sql("drop subscription hc")
    node.sql("drop schema hc_history cascade")
