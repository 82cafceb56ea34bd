"""The main job on a shared node: copy, stream, read back from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


@pytest.fixture
def subscribe(node: Node) -> Iterator[Callable[..., Mirror]]:
    """Subscribe the shared node; subscriptions and tables go after the test."""
    made: list[str] = []
    schemas: set[str] = set()

    def go(source: Database, name: str, schema: str, options: str = "") -> Mirror:
        made.append(name)
        schemas.add(schema)
        node.sql(
            f"create subscription {name} connection {quote_literal(source.conninfo())}"
            f" publication {name} {options}"
        )
        return Mirror(node, source.conninfo(), name)

    yield go
    for name in made:
        node.sql(f"drop subscription if exists {name}")
    for schema in schemas:
        node.sql(f"drop schema if exists {schema} cascade")


def test_every_kind_of_change_arrives(
    pg18: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m1; create table m1.t (id int primary key, v text, n numeric(8,2));"
        " alter table m1.t alter v set storage external;"
        " insert into m1.t select i, repeat('x', 3000) || i, i from generate_series(1, 500) i;"
        " create publication m1 for table m1.t"
    )
    mirror = subscribe(pg18, "m1", "m1")
    mirror.synced()
    mirror.assert_equal(["m1.t"])
    pg18.psql(
        "insert into m1.t values (1000, 'a', 1), (1001, null, null), (1002, '', 0);"
        " update m1.t set n = n + 1 where id < 100;"
        " update m1.t set id = -id where id between 50 and 60;"
        " update m1.t set v = 'short' where id = 5;"
        " delete from m1.t where id between 200 and 300"
    )
    mirror.assert_equal(["m1.t"])
    pg18.psql(
        "begin; insert into m1.t values (2000, 'before', 1); truncate m1.t;"
        " insert into m1.t values (1, 'after', 2); update m1.t set v = 'after2'; commit"
    )
    mirror.assert_equal(["m1.t"])


def test_keys_swap_through_a_third_value_in_one_transaction(
    pg18: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m2; create table m2.t (id int primary key, v text);"
        " insert into m2.t values (1, 'one'), (2, 'two');"
        " create publication m2 for table m2.t"
    )
    mirror = subscribe(pg18, "m2", "m2")
    mirror.synced()
    pg18.psql(
        "begin; update m2.t set id = 0 where id = 1; update m2.t set id = 1 where id = 2;"
        " update m2.t set id = 2 where id = 0; commit"
    )
    mirror.assert_equal(["m2.t"])


def test_identity_by_index_and_tables_without_a_key(
    pg18: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m3; create table m3.u (a int not null, b text not null, c text);"
        " create unique index u_key on m3.u (b, a);"
        " alter table m3.u replica identity using index u_key;"
        " create table m3.log (at timestamptz, line text);"
        " insert into m3.u values (1, 'x', 'p'), (2, 'y', 'q');"
        " create publication m3 for tables in schema m3"
    )
    mirror = subscribe(pg18, "m3", "m3")
    mirror.synced()
    pg18.psql(
        "update m3.u set c = 'changed' where a = 1; delete from m3.u where a = 2;"
        " insert into m3.log select now(), 'line ' || i from generate_series(1, 20) i;"
        " insert into m3.log values (null, null), (null, null)"
    )
    mirror.assert_equal(["m3.u", "m3.log"])


def test_types_come_back_as_the_source_shows_them(
    pg18: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m4; create type m4.mood as enum ('sad', 'ok');"
        " create table m4.t (id int primary key, b bool, i2 int2, i8 int8, f4 real,"
        " f8 double precision, n numeric(20,5), n0 numeric, d date, ts timestamp,"
        " tz timestamptz, tm time, iv interval, j json, jb jsonb, u uuid, by bytea,"
        " vc varchar(20), ch char(5), ar int[], ta text[], m m4.mood, ip inet,"
        " r int4range, bt bit(3));"
        " insert into m4.t values (1, true, -32768, 9223372036854775807, 1.1, 1e-300,"
        " 12345.67890, 1.50000000000000000001, '2024-02-29', '1999-12-31 23:59:59.999999',"
        " '2024-07-01 12:00+02', '23:59:59.5', '1 year 2 days 03:04:05', '{\"a\": 1}',"
        " '{\"b\":2}', '6f1c2b1e-0000-4000-8000-000000000001', '\\x00ff', 'var', 'ab',"
        " '{1,NULL,3}', '{\"a,b\",\"q\\\"\",NULL}', 'ok', '10.0.0.1/8', '[1,5)', B'101');"
        " insert into m4.t (id) values (2);"
        " insert into m4.t (id, f4, f8) values (3, 'NaN', '-Infinity'), (4, '-0', 0.1);"
        " create publication m4 for table m4.t"
    )
    mirror = subscribe(pg18, "m4", "m4")
    mirror.synced()
    mirror.assert_equal(["m4.t"])
    # The same values through the stream.
    pg18.psql(
        "insert into m4.t select id + 10, b, i2, i8, f4, f8, n, n0, d, ts, tz, tm,"
        " iv, j, jb, u, by, vc, ch, ar, ta, m, ip, r, bt from m4.t"
    )
    mirror.assert_equal(["m4.t"])


def test_an_outside_reader_sees_the_same_without_spark(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m5; create table m5.t (id int primary key, v text);"
        " insert into m5.t select i, 'v' || i from generate_series(1, 1000) i;"
        " create publication m5 for table m5.t"
    )
    mirror = subscribe(pg18, "m5", "m5")
    mirror.synced()
    pg18.psql(
        "update m5.t set v = 'new' where id % 3 = 0; delete from m5.t where id > 900"
    )
    mirror.caught_up()
    table = DeltaTable(str(node.directory / "warehouse" / "m5" / "t"))
    answer = (
        QueryBuilder()
        .register("t", table)
        .execute("select count(*) as n, sum(id) as s from t where v = 'new'")
    )
    row = pa.table(answer.read_all()).to_pylist()

    with mirror.source() as session:
        expected = session.query("select count(*), sum(id) from m5.t where v = 'new'")
    assert [(str(r["n"]), str(r["s"])) for r in row] == expected


def test_publisher_16_is_mirrored_too(
    pg16: Database, subscribe: Callable[..., Mirror]
) -> None:
    pg16.psql(
        "create schema m6; create table m6.t (id int primary key, v text);"
        " insert into m6.t select i, 'v' || i from generate_series(1, 100) i;"
        " create publication m6 for table m6.t"
    )
    mirror = subscribe(pg16, "m6", "m6")
    mirror.synced()
    pg16.psql("update m6.t set v = v || 'x'; insert into m6.t values (101, 'new')")
    mirror.assert_equal(["m6.t"])


def test_refresh_adds_and_removes_tables(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m7; create table m7.a (id int primary key);"
        " create table m7.b (id int primary key, v text);"
        " insert into m7.a values (1); insert into m7.b values (1, 'b');"
        " create publication m7 for table m7.a"
    )
    mirror = subscribe(pg18, "m7", "m7")
    mirror.synced()
    # Not refreshed: no table takes the row, and it must not be lost.
    pg18.psql("alter publication m7 add table m7.b; insert into m7.b values (2, 'c')")
    [(error,)] = node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'm7'"
    )
    assert error is not None
    assert (
        error.splitlines()[0]
        == 'logical replication target relation "m7.b" does not exist'
    )
    node.sql("alter subscription m7 refresh publication")
    mirror.synced()
    pg18.psql("insert into m7.b values (3, 'd'); update m7.b set v = 'e' where id = 1")
    mirror.assert_equal(["m7.a", "m7.b"])
    pg18.psql("alter publication m7 drop table m7.a")
    node.sql("alter subscription m7 refresh publication")
    rows = node.sql(
        "select count(*) from pg_subscription_rel r join pg_subscription s"
        " on s.oid = r.srsubid where s.subname = 'm7'"
    )
    assert rows == [("1",)]


def test_drop_leaves_nothing_at_the_publisher_and_the_tables_here(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema m8; create table m8.t (id int primary key); insert into m8.t values (1);"
        " create publication m8 for table m8.t"
    )
    mirror = subscribe(pg18, "m8", "m8")
    mirror.synced()
    node.sql("drop subscription m8")
    assert (
        pg18.psql(
            "select count(*) from pg_replication_slots where database = current_database()"
        ).strip()
        == "0"
    )
    assert node.sql("select id from m8.t") == [("1",)]
