"""INSERT, UPDATE and DELETE at the front door: what PostgreSQL does with the same statements.

Every statement runs on a PostgreSQL and on the node; tags, rows, types and errors are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.testing.node import Node

Session = psycopg.Connection[Any]

TABLE = """
create table w (id int primary key, i2 smallint, i8 bigint, n numeric, n2 numeric(6,2),
 big numeric(50,3), r real, d double precision, v varchar(3), c char(4), t text, b bool,
 u uuid, j json, jb jsonb, da date, ts timestamp, ts0 timestamp(0), tz timestamptz, ti time,
 iv interval, by bytea, ip inet, ci cidr, m macaddr, bi bit(3), vb bit varying(4), o oid,
 ai int[], at text[], an numeric(5,1)[], va varchar(2)[], sa timestamp(0)[])
"""

STORED = r"""
insert into w values
 (1, 2.5, 3.5, 1.50, 1.005, 12345678901234567890123456789012345678901.12345, 1.1, 1.1,
  'abc  ', 'ab', 'it''s \ a "q"', 't', '6F1C2B1E-0000-4000-8000-000000000001', '{"a" :  1}',
  '{"b":2, "a" :  1, "b":3}', '2024-02-29', '2024-02-29 10:11:12.123456',
  '2024-02-29 10:11:12.5', '2024-02-29 10:11:12+02', '7:08', '1 day 2 hours', '\x00ff',
  '10.0.0.1', '10.0.0.0/8', '08-00-2B-01-02-03', '101', '10', 5, '{1,2,NULL}',
  '{a,"b c",NULL}', '{1.25,2}'),
 ('2', '7', 1e3, '2.50', '1.995', 1, '1e10', 1e300, 123, 'abcd   ', 12, 'off',
  '{6f1c2b1e00004000800000000000000A}', '[1, 2]', '"x"', timestamp '2024-02-29 23:00',
  date '2024-01-01', timestamp '1999-12-31 23:59:59.5', date '2024-06-01', '24:00',
  '90 minutes', 'a\000b\\', '10.0.0.1/24', '192.168.1.1/32', '08002b:010203', B'111', '1111',
  '4294967295', array[1,2], array['x','y'], array[1.25, 3]),
 (3, null, null, -0.0, 7, 7, 'NaN', '-Infinity', true, '', E'a\nb\\c', null, null, null, null,
  null, null, null, null, null, interval '3 mons', '', '::FFFF:1.2.3.4', '2001:DB8::/32',
  null, null, null, null, array[1.5, 2.5], '{}', array[1, 2]);
insert into w(id, n, t) values (4, 'NaN', 1.50), (5, 'Infinity', date '2024-01-02'),
 (6, 1e-5, now() is not null), (7, 1e20, (select max(t) from w where id = 2));
insert into w select 8, 1, 2, 3, 4, 5, 6, 7, 'ab', 'cd', 'e', true;
insert into w(id, i2, n2, v) select id + 100, 2.5, n, v from w where id in (1, 2);
insert into w(id, d) select 201, 5 union all select 202, 2.5;
insert into w(id, t) select i, 'row ' || i from generate_series(301, 303) i;
update w set i2 = 2.5, i8 = 3.5, n = 1.10, n2 = 1.005, r = 1.1, v = 'xy', c = 'q',
 u = '6F1C2B1E-0000-4000-8000-0000000000AB', jb = '{"z":1,"a":2}', iv = '1 hour',
 ip = '::1', bi = '001', ai = '{5}', at = array['q'], b = 'yes', da = '2024-01-01',
 tz = '2024-01-01 00:00:00+05' where id = 8;
update w set (v, c) = ('a', default), t = v where id = 4;
select id, i2, i8, n, n2, big, r, d from w order by id;
select id, v, c, t, b, u, j, jb from w order by id;
select id, da, ts, ts0, tz, ti, iv, by from w order by id;
select id, ip, ci, m, bi, vb, o, ai, at, an from w order by id;
insert into w(id, va, sa) values (700, '{ab,"c   ",NULL}', '{2024-01-01 10:00:00.5}');
update w set va = va || '{q}', jb = '{"a": [1, {"b": "x"}]}' where id = 700;
update w set t = to_char(sa[1], 'YYYY') || (jb->'a'->1->>'b'), j = jb->'a' where id = 700;
select id, t, j, va, sa from w where id = 700;
set timezone = 'America/New_York';
insert into w(id, tz, ts) values (600, '2024-07-01 12:00', '2024-07-01 12:00'),
 (601, timestamp '2024-07-01 12:00', timestamptz '2024-07-01 12:00');
update w set tz = '2024-12-01 12:00' where id = 601;
set timezone = 'UTC';
select id, tz, ts from w where id in (600, 601) order by id
"""

REFUSED = r"""
insert into w(id, i2) values (3, 99999);
insert into w(id, i2) values (3, '99999');
insert into w(id, i2) values (3, 'x');
insert into w(id, i8) values (3, 9223372036854775808);
insert into w(id, n2) values (6, 12345.678);
insert into w(id, n2) values (6, '9999.995');
insert into w(id, r) values (9, 1e300);
insert into w(id, r) values (9, 1e300::float8);
insert into w(id, v) values (11, 'abcd');
insert into w(id, c) values (11, 'abcde');
insert into w(id, v) values (11, 'abc' || 'd');
insert into w(id, b) values (13, 1);
insert into w(id, va) values (13, '{abc}');
insert into w(id, va) values (13, array['ab', 'abc']);
insert into w(id, u) values (18, 'nope');
insert into w(id, u) values (18, 'abc'::text);
insert into w(id, jb) values (20, '{bad}');
insert into w(id, da) values (22, '2024-02-30');
insert into w(id, da) values (22, 5);
insert into w(id, by) values (29, '\x0');
insert into w(id, ci) values (32, '10.0.0.1/8');
insert into w(id, ip) values (32, '10.0.0.999');
insert into w(id, bi) values (34, '10');
insert into w(id, vb) values (34, '10101');
insert into w(id, ai) values (39, array['a']);
insert into w(id, ai) values (39, '{a}');
insert into w(id, ai) values (39, 5);
insert into w(id, v) select 200, 'abcd';
insert into w(id, u) select 200, 'a'::text;
insert into w(id, i2) select 200, 40000;
insert into w(id, v, v) values (1, 'a', 'b');
insert into w(id, zz) values (1, 'a');
insert into w(id, v) values (1);
insert into w(id) values (1, 2);
insert into w values (1,2),(3);
insert into w(id, v) select 1;
insert into w(id) select 1, 2;
insert into w(v) values ('a');
update w set v = 'abcd' where id = 1;
update w set v = t || 'abcd' where id = 1;
update w set u = upper('6f1c2b1e-0000-4000-8000-000000000001') where id = 1;
update w set (v, c) = ('a') where id = 1;
update w set v = 'a', v = 'b' where id = 1;
update w set nope = 1;
update w set id = null where id = 1;
update w set b = 1 where id = 1
"""

OTHER_TABLES = """
create table k (a int, b text, x int, primary key (a, b));
insert into k values (1, 'p', 10), (2, 'q', 20), (3, 'r', 30), (4, 's', 40);
delete from k where a in (select 4);
update k set x = (select max(x) from k) + 0.5 where a in (select a from k where x < 25);
update k set x = o.x from k o where o.a = k.a + 1;
delete from k using generate_series(2, 2) g where g = k.a;
with q as (select 1 as one) update k set b = 'new' where a = (select one from q);
select * from k order by a, b;
create table nk (a int, b varchar(2) not null default 'dd', c timestamp default '2024-01-01');
insert into nk default values;
insert into nk values (2, default), (3, default, default);
insert into nk(a, b) values (4, null);
update nk set b = default, c = default where a = 2;
select * from nk order by a;
delete from only nk where a = any('{2,3}') or a = any(array[7,8]);
select count(*) from nk
"""


EDGES = r"""
insert into w(id, r, d, n) values (901, -0.0, -0.0, -0.00), (902, '-0', '-0', '-0');
insert into w(id, ai, at) values (903, '[1:2]={1,2}', array[]::text[]);
update w set ai = array[]::int[], at = '[1:1]={"[2:3]={}"}' where id = 902;
select id, r, d, n, ai, at from w where id > 900 order by id;
insert into w(id, ai) values (904, '[1:3]={1,2}');
insert into w(id, at) values (904, array[]);
insert into w(id) values (901);
insert into w(v) values ('x');
update w set id = 901 where id = 902;
update w set id = null where id = 902;
update w set by = '\x01' || by || '\x00' where id = 1;
update w set by = by || 'a' where by is null;
create table nk (a int generated always as identity, b int generated by default as identity,
 t text);
insert into nk values (7, 8, 'x');
insert into nk overriding system value values (7, 8, 'x'), (default, default, 'y');
insert into nk (a, b, t) overriding user value values (70, 80, 'x');
insert into nk (t, b, a) overriding user value select 'z', 5, 6;
insert into nk (t, b, a) overriding system value select 'z', 5, 6;
update nk set t = 'q' overriding system value;
select * from nk order by a, b;
drop table nk;
create table LONG (LONGx int primary key, LONGy text);
insert into LONG values (1, 'a');
update LONG set LONGx = 2 where LONGx = 1;
select LONGx from LONG;
delete from LONG where LONGx = 2;
drop table LONG
""".replace("LONG", "é" * 40)


def outcome(session: Session, sql: str) -> tuple[object, ...]:
    """What a client sees of it."""
    try:
        cursor = session.execute(sql)
    except psycopg.Error as error:
        told = error.diag
        about = told.schema_name, told.table_name, told.column_name
        return "ERROR", told.sqlstate, told.message_primary, about, told.constraint_name
    if cursor.description is None:
        return (cursor.statusmessage,)
    columns = [(column.name, column.type_code) for column in cursor.description]
    # As texts: psycopg would make the same number of 1.5 and 1.50.
    found = cursor.pgresult
    assert found is not None
    rows = [
        [found.get_value(row, column) for column in range(found.nfields)]
        for row in range(found.ntuples)
    ]
    return cursor.statusmessage, columns, rows


Compare = Callable[[str], None]


@pytest.fixture(scope="module")
def pair(node: Node, postgres_server: Callable[..., Any]) -> Iterator[Compare]:
    """Runs statements at both, and compares."""
    server = postgres_server(18)
    server.psql("create database local_writes")
    source = Database(server, "local_writes")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):

        def compare(script: str) -> None:
            for sql in script.strip().split(";\n"):
                assert outcome(ours, sql) == outcome(theirs, sql), sql

        compare(TABLE)
        yield compare
        for table in ("w", "k", "nk"):
            ours.execute(f"drop table if exists {table}")
    server.psql("drop database local_writes with (force)")


@pytest.mark.slow
def test_constants_that_look_odd_and_what_errors_are_about(pair: Compare) -> None:
    pair(EDGES)


@pytest.mark.slow
def test_each_value_is_stored_as_its_column_would(pair: Compare) -> None:
    """Rounded, padded, in canonical form, in the session's time zone: for every type."""
    pair(STORED)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_postgresqls_words(pair: Compare) -> None:
    pair(REFUSED)


@pytest.mark.slow
def test_subqueries_and_other_tables_decide_which_rows_are_written(
    pair: Compare,
) -> None:
    """Delta's own UPDATE and DELETE take neither; defaults come along."""
    pair(OTHER_TABLES)


def test_a_subquery_needs_a_primary_key(node: Node) -> None:
    """And what it would have written is not."""
    with psycopg.connect(node.conninfo(), autocommit=True) as ours:
        ours.execute("create table nokey (a int)")
        ours.execute("insert into nokey values (1)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="primary key"):
            ours.execute("delete from nokey where a in (select 1)")
        assert ours.execute("select a from nokey").fetchall() == [(1,)]
        ours.execute("drop table nokey")
