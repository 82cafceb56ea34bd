"""delete_mode = soft: rows that the publisher deletes stay, with the time of their deletion."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime

import psycopg
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database
from tests.fakes.audited import (
    AUDIT,
    KEYED,
    KEYLESS,
    TABLES,
    audit,
    noted,
    recorded,
    transaction,
)
from tests.fakes.softened import expected_keyed, expected_keyless, found
from tests.node.conftest import Subscribe

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node


@pytest.mark.slow
def test_random_work_leaves_the_publishers_rows_and_marked_ones(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        f"create schema sr; set search_path = sr; {TABLES} {AUDIT}"
        f" {audit('sr.k', 'sr.u')} create publication sr for table sr.k, sr.u"
    )
    mirror = subscribe(pg18, "sr", "with (delete_mode = soft, history = 'sr_history')")
    mirror.synced()
    k = [tuple(row) for row in node.sql("select id, a, big from sr.k")]
    u = [tuple(row) for row in node.sql("select a, b from sr.u")]
    rng = random.Random(5)
    with psycopg.connect(
        pg18.conninfo(options="-c search_path=sr"), autocommit=True
    ) as source:
        for round_ in range(2):
            for _ in range(50):
                source.execute(transaction(rng))
            mirror.caught_up()
            there = noted(pg18, "k"), noted(pg18, "u")
            keyed = found(node, "sr.k", "sr_history.k", KEYED)
            assert keyed == expected_keyed(k, there[0]), round_
            keyless = found(node, "sr.u", "sr_history.u", KEYLESS)
            assert keyless == expected_keyless(u, there[1]), round_
            # The history says what the publisher did.
            assert recorded(node, "sr_history.k", KEYED) == there[0]
            assert recorded(node, "sr_history.u", KEYLESS) == there[1]
    assert sum(n for (_, xid), n in keyed.items() if xid is not None) > 3
    assert sum(n for (_, xid), n in keyless.items() if xid is not None) > 5
    _assert_equal_outside(node, "sr", "k", KEYED)
    node.sql("drop subscription sr; drop schema sr_history cascade")


def _assert_equal_outside(
    node: Node, schema: str, table: str, columns: tuple[str, ...]
) -> None:
    """deltalake reads the same rows and marks from the files."""
    location = node.directory / "warehouse" / schema / table
    names = ", ".join(columns)
    sql = f"select {names}, _deleted_at is not null as gone from"
    answer = (
        QueryBuilder()
        .register("t", DeltaTable(str(location)))
        .execute(f"{sql} t")
        .read_all()
    )
    columns_read = [answer.column(i).to_pylist() for i in range(len(columns) + 1)]
    outside = Counter(
        (*tuple(None if v is None else str(v) for v in row[:-1]), row[-1])
        for row in zip(*columns_read, strict=True)
    )
    here = Counter(
        (*row[:-1], row[-1] == "t") for row in node.sql(f"{sql} {schema}.{table}")
    )
    assert outside == here


def _error(node: Node, sql: str) -> tuple[str | None, str | None, str | None]:
    with (
        psycopg.connect(node.conninfo(), autocommit=True) as session,
        pytest.raises(psycopg.Error) as raised,
    ):
        session.execute(sql)
    diag = raised.value.diag
    return diag.sqlstate, diag.message_primary, diag.message_hint


def test_a_row_is_marked_and_lives_again(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sl; create table sl.t (id int primary key, v text, big text);"
        " alter table sl.t alter big set storage external;"
        " insert into sl.t select n, 'v', repeat('x', 3000) from generate_series(1, 3) n;"
        " create publication sl for table sl.t"
    )
    mirror = subscribe(pg18, "sl", "with (delete_mode = soft)")
    mirror.synced()
    assert node.sql(
        "select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute"
        " where attrelid = 'sl.t'::regclass and attname = '_deleted_at'"
    ) == [("_deleted_at", "timestamp with time zone", "f")]
    assert node.sql(
        "select delete_mode from wal2lake.subscription_options where subname = 'sl'"
    ) == [("soft",)]
    # Subscribers of the node get a mark as an UPDATE, and so the row that lives again.
    node.sql("create publication sl_on for table sl.t")
    node.sql("select pg_create_logical_replication_slot('sl_on', 'test_decoding')")
    begin = datetime.now(UTC)
    pg18.psql("delete from sl.t where id = 1; update sl.t set id = 5 where id = 2")
    mirror.caught_up()
    rows = "select id, v, length(big), _deleted_at is not null from sl.t order by id"
    assert node.sql(rows) == [
        ("1", "v", "3000", "t"),
        ("2", "v", "3000", "t"),
        ("3", "v", "3000", "f"),
        ("5", "v", "3000", "f"),
    ]
    with psycopg.connect(node.conninfo(), autocommit=True) as session:
        times = session.execute("select _deleted_at from sl.t where id < 3").fetchall()
    assert all(begin <= time <= datetime.now(UTC) for (time,) in times)
    # A marked row is not there: its DELETE and its UPDATE find none, its INSERT no conflict.
    node.sql("insert into sl.t values (9, 'mine')")
    node.sql("update sl.t set _deleted_at = now() where id = 3")
    pg18.psql(
        "update sl.t set v = 'w' where id = 3; insert into sl.t values (1, 'again');"
        " insert into sl.t values (8, 'short'); delete from sl.t where id = 8"
    )
    mirror.caught_up()
    assert node.sql(rows) == [
        ("1", "again", None, "f"),
        ("2", "v", "3000", "t"),
        ("3", "v", "3000", "t"),
        ("5", "v", "3000", "f"),
        ("8", "short", None, "t"),
        ("9", "mine", None, "f"),
    ]
    assert node.sql(
        "select conflict_type, key from wal2lake.conflicts where subname = 'sl'"
    ) == [("update_missing", "(id)=(3)")]
    # Who needs the marked rows no more removes them.
    node.sql("delete from sl.t where _deleted_at is not null")
    pg18.psql("truncate sl.t; insert into sl.t values (3, 'new')")
    mirror.caught_up()
    assert node.sql("select id, v, _deleted_at is not null from sl.t order by id") == [
        ("1", "again", "t"),
        ("3", "new", "f"),
        ("5", "v", "t"),
        ("9", "mine", "t"),
    ]
    decoded = node.sql(
        "select data from pg_logical_slot_get_changes('sl_on', null, null,"
        " 'include-xids', 'off')"
    )
    words = [str(row[0]) for row in decoded if "sl.t: " in str(row[0])]
    first = next(word for word in words if "id[integer]:1 " in word)
    assert first.startswith("table sl.t: UPDATE: id[integer]:1 v[text]:'v'")
    assert "_deleted_at[timestamp with time zone]:'" in first
    again = next(word for word in words if "'again'" in word)
    assert again.startswith("table sl.t: UPDATE: id[integer]:1")
    assert again.endswith("_deleted_at[timestamp with time zone]:null")
    node.sql("select pg_drop_replication_slot('sl_on')")
    node.sql("drop publication sl_on")


def test_what_cannot_be_is_refused_with_its_remedy(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sw; create table sw.t (id int primary key, v text);"
        " create table sw.own (id int primary key, _deleted_at timestamptz);"
        " create table sw.late (id int primary key deferrable, v text);"
        " create publication sw for table sw.t; create publication sw_own for table sw.own;"
        " create publication sw_late for table sw.late"
    )
    conninfo = quote_literal(pg18.conninfo())
    create = f"create subscription sw connection {conninfo} publication"
    assert _error(node, f"{create} sw with (delete_mode = maybe)") == (
        "22023",
        'unrecognized delete_mode value: "maybe"',
        "Available values: hard, soft.",
    )
    assert _error(node, f"{create} sw_own with (delete_mode = soft)")[:2] == (
        "55000",
        'column "_deleted_at" of table "sw.own" is published, and delete_mode = soft has a'
        " column of this name here",
    )
    assert _error(node, f"{create} sw_late with (delete_mode = soft)") == (
        "0A000",
        "delete_mode = soft is not supported for a table with a deferrable primary key,"
        ' as "sw.late" has',
        "Publish the table to another subscription.",
    )
    # A table that is there needs the column.
    node.sql("create schema sw; create table sw.t (id int primary key, v text)")
    assert _error(node, f"{create} sw with (delete_mode = soft)") == (
        "55000",
        'delete_mode = soft is not possible: table "sw.t" has no column "_deleted_at"',
        "ALTER TABLE sw.t ADD COLUMN _deleted_at timestamptz.",
    )
    for column, why in (
        ("_deleted_at timestamp", "is not of type timestamp with time zone"),
        ("_deleted_at timestamptz(3)", "has no microseconds"),
        ("_deleted_at timestamptz not null", "may not be null"),
        ("_deleted_at timestamptz default now()", "has values of its own"),
    ):
        node.sql(f"alter table sw.t add column {column}")
        sqlstate, message, hint = _error(node, f"{create} sw with (delete_mode = soft)")
        assert (sqlstate, message) == (
            "55000",
            'delete_mode = soft is not possible: column "_deleted_at" of table "sw.t"'
            f" {why}",
        )
        assert hint is not None and hint.startswith("The column must be timestamptz,")
        node.sql("alter table sw.t drop column _deleted_at")
    node.sql("alter table sw.t add column _deleted_at timestamptz")
    mirror = subscribe(pg18, "sw", "with (delete_mode = soft)")
    mirror.synced()
    for sql in (
        "alter table sw.t drop column _deleted_at",
        "alter table sw.t rename column _deleted_at to gone",
        "alter table sw.t alter column _deleted_at set not null",
        "alter table sw.t alter column _deleted_at set default now()",
        "alter table sw.t alter column _deleted_at type timestamp",
    ):
        assert _error(node, sql) == (
            "55000",
            'cannot alter table "t" because subscription "sw" marks deleted rows in it',
            "DROP SUBSCRIPTION, or a publication without the table, ends that.",
        ), sql
    node.sql("alter table sw.t add column mine int")
    assert _error(node, "alter subscription sw set (delete_mode = hard)") == (
        "0A000",
        "delete_mode = soft cannot be changed to hard",
        "Drop the subscription and its tables, and create it again.",
    )
    node.sql("alter subscription sw set (delete_mode = soft)")
    other = f"create subscription sw_two connection {conninfo} publication sw"
    assert _error(node, f"{other} with (copy_data = false)") == (
        "55000",
        'table "sw.t" is filled by subscription "sw", whose delete_mode is soft',
        "All subscriptions that fill a table need the same delete_mode.",
    )
    node.sql(f"{other} with (copy_data = false, delete_mode = soft)")
    node.sql("drop subscription sw_two; drop subscription sw; drop table sw.t")
    mirror = subscribe(pg18, "sw", "with (delete_mode = hard)")
    mirror.synced()


@pytest.mark.slow
def test_a_subscription_begins_to_keep_deleted_rows(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sb; create table sb.t (id int primary key, v text);"
        " insert into sb.t select n, 'v' from generate_series(1, 4) n;"
        " create publication sb for table sb.t"
    )
    mirror = subscribe(pg18, "sb")
    mirror.synced()
    pg18.psql("delete from sb.t where id = 1")
    mirror.caught_up()
    assert _error(node, "alter subscription sb set (delete_mode = soft)") == (
        "55000",
        'delete_mode = soft is not possible: table "sb.t" has no column "_deleted_at"',
        "ALTER TABLE sb.t ADD COLUMN _deleted_at timestamptz.",
    )
    node.sql("alter table sb.t add column _deleted_at timestamptz")
    node.sql("alter subscription sb set (delete_mode = soft)")
    pg18.psql("delete from sb.t where id = 2; insert into sb.t values (1, 'new')")
    mirror.caught_up()
    rows = "select id, _deleted_at is not null from sb.t order by id"
    assert node.sql(rows) == [("1", "f"), ("2", "t"), ("3", "f"), ("4", "f")]
    # A copy keeps what was deleted before it, and marks what was deleted unseen.
    node.sql("select wal2lake.pause_table('sb.t'::regclass)")
    pg18.psql("delete from sb.t where id = 3; update sb.t set v = 'w'")
    node.sql("select wal2lake.recopy_table('sb.t'::regclass)")
    mirror.synced()
    mirror.caught_up()
    assert node.sql(rows) == [("1", "f"), ("2", "t"), ("3", "t"), ("4", "f")]
    assert node.sql("select distinct v from sb.t where _deleted_at is null") == [("w",)]
    # A table that joins gets the column.
    pg18.psql(
        "create table sb.s (id int primary key); insert into sb.s values (1);"
        " alter publication sb add table sb.s"
    )
    node.sql("alter subscription sb refresh publication")
    mirror.synced()
    pg18.psql("truncate sb.s, sb.t")
    mirror.caught_up()
    assert node.sql("select id, _deleted_at is not null from sb.s") == [("1", "t")]
    assert {row[1] for row in node.sql(rows)} == {"t"}


@pytest.mark.slow
def test_a_column_of_the_name_stops_the_subscription_until_it_is_gone(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sd; create table sd.t (id int primary key, v text);"
        " create table sd.m (id int primary key, v text);"
        " create publication sd for table sd.t; create publication sd_m for table sd.m"
    )
    follows = subscribe(
        pg18, "sd", "with (delete_mode = soft, schema_changes = follow)"
    )
    node.sql(
        f"create subscription sd_m connection {quote_literal(pg18.conninfo())}"
        " publication sd_m with (delete_mode = soft)"
    )
    follows.synced()
    pg18.psql(
        "insert into sd.t values (1, 'a'); insert into sd.m values (1, 'a');"
        " alter table sd.t add column w int; insert into sd.t values (2, 'b', 2);"
        " delete from sd.t where id = 1"
    )
    follows.caught_up()
    assert node.sql("select id, w, _deleted_at is not null from sd.t order by id") == [
        ("1", None, "t"),
        ("2", "2", "f"),
    ]
    for table in ("t", "m"):
        name = "sd" if table == "t" else "sd_m"
        pg18.psql(
            f"alter table sd.{table} rename column v to _deleted_at;"
            f" insert into sd.{table} (id, _deleted_at) values (3, 'c')"
        )
        (problem,) = node.wait_for(
            "select sqlstate, message from wal2lake.problems"
            f" where subname = '{name}' and message like '%is published%'",
            lambda rows: len(rows) == 1,
        )
        assert problem[0] == "55000"
        assert str(problem[1]).endswith(
            f'column "_deleted_at" of table "sd.{table}" is published, and delete_mode ='
            " soft has a column of this name here"
        )
        assert (
            "Rename the column at the source, or leave it out with a column list of the"
            " publication. If changes with it have been received: drop the table here and"
        ) in node.log_text()
        pg18.psql(f"alter table sd.{table} rename column _deleted_at to v")
        node.sql(f"drop table sd.{table}")
        node.sql(f"alter subscription {name} refresh publication")
        node.wait_for(
            f"select id, v, _deleted_at from sd.{table} where id = 3",
            lambda rows: rows == [("3", "c", None)],
        )
    node.sql("drop subscription sd_m")
