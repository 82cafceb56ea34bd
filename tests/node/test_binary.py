"""binary = true on a whole node: the same tables as with text, by both of its ways."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.publisher import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

SCHEMA = """
    create schema {s};
    create type {s}.mood as enum ('sad', 'so so');
    create type {s}.pair as (a integer, b text);
    create domain {s}.price as numeric(6,2);
    create table {s}.t (
        id int primary key, b bool, i2 int2, i8 int8, f4 real, f8 double precision,
        n numeric(20,5), w numeric(38,10), n0 numeric, d date, ts timestamp,
        tz timestamptz, tm time, tt timetz, iv interval, j json, jb jsonb, u uuid,
        by bytea, vc varchar(20), ch char(5), ar int[], ta text[], m {s}.mood,
        ma {s}.mood[], p {s}.pair, pr {s}.price, ip inet, r int4range, mr datemultirange,
        bt bit(3), pt point, tv tsvector, acl aclitem, big text);
    alter table {s}.t alter big set storage external;
    insert into {s}.t values (
        1, true, -32768, 9223372036854775807, 1.1, 1e-300, 12345.67890,
        -9999999999999999999999999999.0000000001, 1.50000000000000000001, '2024-02-29',
        '1999-12-31 23:59:59.999999', '2024-07-01 12:00+02', '23:59:59.5',
        '01:02:03.04-05:30', '1 year -2 days 03:04:05', '{{"a": 1}}', '{{"b":2}}',
        '6f1c2b1e-0000-4000-8000-000000000001', '\\x00ff', 'var', 'ab', '{{1,NULL,3}}',
        '{{"a,b","q\\"",NULL}}', 'so so', '{{sad,"so so"}}', '(1,"x y")', 12.5,
        '10.0.0.1/8', '[1,5)', '{{[2020-01-01,2020-02-01)}}', B'101', '(1,-0)',
        'a:1A ''it''''s''', 'postgres=r/postgres', repeat('x', 3000));
    insert into {s}.t (id) values (2);
    insert into {s}.t (id, f4, f8, n0) values (3, 'NaN', '-Infinity', 'NaN'), (4, '-0', 0.1, 0);
    create table {s}.k (n numeric, m {s}.mood, v text, primary key (n, m));
    insert into {s}.k values (1.50, 'sad', 'a'), (2, 'sad', 'b'), (3.0, 'so so', 'c');
    create table {s}.full_row (x int, big text);
    alter table {s}.full_row replica identity full;
    create table {s}.plain (x int8, y jsonb);
    insert into {s}.plain select i, '{{}}' from generate_series(1, 500) i;
    create publication {s} for tables in schema {s};
"""
CHANGES = """
    insert into {s}.t select id + 10, b, i2, i8, f4, f8, n, w, n0, d, ts, tz, tm, tt, iv, j,
        jb, u, by, vc, ch, ar, ta, m, ma, p, pr, ip, r, mr, bt, pt, tv, acl, big from {s}.t;
    update {s}.t set n0 = 2 where id = 1;
    update {s}.t set id = -id, iv = null where id = 11;
    update {s}.t set big = 'short' where id = 1;
    delete from {s}.t where id = 2;
    update {s}.k set v = 'same key' where n = 1.5;
    update {s}.k set n = 1.500 where n = 1.5;
    update {s}.k set m = 'so so', v = 'moved' where n = 2;
    delete from {s}.k where n = 3;
    insert into {s}.full_row values (1, repeat('y', 3000));
    insert into {s}.plain select i, to_jsonb(i) from generate_series(501, 1000) i;
"""
TABLES = ("t", "k", "full_row", "plain")
STREAMS_IN_BINARY = (
    "select bool_or(query like '%binary ''true''%') from pg_stat_activity"
    " where backend_type = 'walsender' and application_name = '{}'"
)


def stored(node: Node, schema: str) -> dict[str, list[str]]:
    """The tables' rows as they are in the files, to the last bit."""
    found = {}
    for name in TABLES:
        table = DeltaTable(str(node.directory / "warehouse" / schema / name))
        answer = QueryBuilder().register("t", table).execute("select * from t")
        rows = pa.table(answer.read_all()).to_pylist()
        found[name] = sorted(repr(row) for row in rows)
    return found


def test_text_and_binary_subscriptions_store_the_same(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    schemas = ("bin_text", "bin_binary")
    for schema in schemas:
        pg18.psql(SCHEMA.format(s=schema))
    mirrors = [
        subscribe(pg18, "bin_text"),
        subscribe(pg18, "bin_binary", "with (binary = true)"),
    ]
    for mirror, schema in zip(mirrors, schemas, strict=True):
        mirror.synced()
        mirror.assert_equal([f"{schema}.{t}" for t in TABLES])
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_binary")) == "t"
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_text")) == "f"
    assert node.sql("select subname, subbinary from pg_subscription order by 1") == [
        ("bin_binary", "t"),
        ("bin_text", "f"),
    ]
    copied = [stored(node, schema) for schema in schemas]
    assert copied[0] == copied[1]
    for schema in schemas:
        pg18.psql(CHANGES.format(s=schema))
    for mirror, schema in zip(mirrors, schemas, strict=True):
        mirror.assert_equal([f"{schema}.{t}" for t in TABLES])
    changed = [stored(node, schema) for schema in schemas]
    assert changed[0] == changed[1]
    assert changed != copied


def test_the_format_can_be_changed_while_the_subscription_runs(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema bin_alter; create table bin_alter.t (id int primary key,"
        " n numeric, big text);"
        " alter table bin_alter.t alter big set storage external;"
        " insert into bin_alter.t values (0, 1.10, repeat('x', 3000));"
        " create publication bin_alter for tables in schema bin_alter"
    )
    mirror = subscribe(pg18, "bin_alter")
    mirror.synced()
    for step, setting in enumerate(("true", "false", "true"), start=1):
        pg18.psql(f"insert into bin_alter.t values ({step}, {step}.50, 'before')")
        node.sql(f"alter subscription bin_alter set (binary = {setting})")
        expected = "t" if setting == "true" else "f"
        wait_until(
            lambda expected=expected: (
                pg18.psql(STREAMS_IN_BINARY.format("bin_alter")) == expected
            ),
            describe=f"the stream has binary = {setting}",
        )
        pg18.psql(
            f"update bin_alter.t set n = n + 1 where id < {step};"
            f" update bin_alter.t set id = id + 100 where id = {step}"
        )
    mirror.assert_equal(["bin_alter.t"])


def test_a_type_that_is_made_later_is_learnt(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema bin_later; create table bin_later.a (id int primary key);"
        " create publication bin_later for tables in schema bin_later"
    )
    mirror = subscribe(pg18, "bin_later", "with (binary = true)")
    mirror.synced()
    pg18.psql(
        "create type bin_later.mood as enum ('sad', 'ok');"
        " create table bin_later.b (id int primary key, m bin_later.mood[]);"
        " insert into bin_later.b values (1, '{sad}')"
    )
    node.sql("alter subscription bin_later refresh publication")
    mirror.synced()
    pg18.psql("insert into bin_later.b values (2, '{ok,sad}')")
    mirror.assert_equal(["bin_later.a", "bin_later.b"])


def test_a_column_that_cannot_be_decoded_is_named_before_anything_is_streamed(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema bin_no; create table bin_no.t (id int primary key, price regtype);"
        " create publication bin_no for tables in schema bin_no"
    )
    create = (
        f"create subscription bin_no connection {quote_literal(pg18.conninfo())}"
        " publication bin_no with (binary = true)"
    )
    with pytest.raises(PublisherError) as caught:
        node.sql(create)
    assert caught.value.sqlstate == "0A000"
    assert (
        caught.value.message
        == 'column "price" of table "bin_no.t" cannot be received in binary format'
    )
    assert "a name in the publisher's catalog" in str(caught.value.detail)
    slots = "select count(*) from pg_replication_slots where slot_name = 'bin_no'"
    assert pg18.psql(slots) == "0"
    assert node.sql("select 1 from pg_subscription where subname = 'bin_no'") == []

    mirror = subscribe(pg18, "bin_no")
    mirror.synced()
    node.sql("alter subscription bin_no set (binary = true)")
    node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'bin_no'",
        lambda rows: any('column "price" of table "bin_no.t"' in str(r) for r in rows),
    )
    pg18.psql("insert into bin_no.t values (1, 'integer')")
    node.sql("alter subscription bin_no set (binary = false)")
    mirror.assert_equal(["bin_no.t"])
