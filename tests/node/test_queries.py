"""What a SELECT computes, against PostgreSQL: the same statement there and at a node.

The answer is the same text, or it is a refusal (0A000, 22003) that says what is not
supported; never another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.pg.publisher import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

TABLE = r"""
create schema qs;
create table qs.t (id int primary key, i2 int2, i8 int8, b bool, n numeric,
 nn numeric(20,5), f4 real, f8 double precision, t text, vc varchar(20), ch char(5),
 by bytea, tz timestamptz, ts timestamp, d date, u uuid, jb jsonb, iv interval,
 tm time, ia int[], ta text[], na numeric(8,2)[]);
insert into qs.t values
(1, -32768, 9223372036854775807, true, 1.50000, 12345.67890, 1.5, 1e-300, 'abcab', 'var',
 'ab', '\x00ff', '2024-07-01 12:34:56.789+02', '1999-12-31 23:59:59.999999', '2024-02-29',
 '6f1c2b1e-0000-4000-8000-000000000001', '{"b": 2, "a": [1, null]}',
 '1 year 2 days 03:04:05.5', '23:59:59.5', '{1,NULL,3}', '{"a,b",NULL}', '{1.50,-2.25}'),
(3, 7, -1, false, 'NaN', 0, 'NaN', 'NaN', '', '', '', '', '0001-01-02 00:00+00',
 '2024-03-31 02:30', '0001-01-01', '00000000-0000-0000-0000-000000000000', '[]',
 '-1 mons', '00:00', '{}', '{}', '{}'),
(4, -7, 1234567890123, true, -0.05, -1.00001, '-0', '-0', 'ü', 'ü', 'ü', '\xdeadbeef',
 'epoch', 'epoch', '1582-10-04', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"x"', '0',
 '12:00:00.000001', '{-7}', '{ü}', '{0}'),
(5, 3, 100, true, 123456789012345678901234567890.5, 99999.5, 2.5, 2.5, 'x_y%', 'x', 'x',
 'x', '1900-01-01', '1900-01-01', '1900-01-01', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
 '1', '1 day -00:00:01', '00:00:01', '{1}', '{x}', '{1}'),
(6, 2, 10, false, 10, 10, 10, 10, 'B', 'b', 'b', 'b', '2024-01-01', '2024-01-01',
 '2024-01-01', '00000000-0000-0000-0000-00000000000a', '{}', '-1 years -2 mons +3 days',
 '10:00', '{9}', '{}', '{9}'),
(7, 1, 9, null, 9.75, 9.5, 9, 9, 'a', 'a', 'ab', 'a', '2024-12-31 23:59+00',
 '2024-12-31 23:59', '2024-12-31', '00000000-0000-0000-0000-000000000001', '{"a": 1}',
 '23:59:59.999999', '09:00', '{9,8}', '{}', '{9}');
insert into qs.t (id) values (2);
create publication qs for table qs.t;
"""


QUERIES = r"""
select 7/2, -7/2, 7 % -2, id/2, i8/3, i2/2::int2 from qs.t;
select id / nn, nn / 3, nn / nn, 1.0/3, 10/3.0, 1e10/7, 0.001/7 from qs.t;
select avg(id), avg(i2), avg(i8), avg(nn), avg(f8), avg(f4) from qs.t where id <> 3;
select sum(id), sum(i2), sum(i8), sum(nn) from qs.t;
select sum(n) from qs.t where id in (1, 4);
select id, n from qs.t order by n, id;
select id from qs.t where n > 5;
select id from qs.t where n = 1.5;
select min(n), max(n) from qs.t;
select count(distinct n), count(distinct nn) from qs.t;
select n + 1, n - nn, -n, abs(n) from qs.t where id in (1, 4) order by id;
select id from qs.t where by = '\x00ff';
select id from qs.t where ch = 'ab';
select ch || '|', length(ch), upper(ch) from qs.t where id = 1;
select id from qs.t where f8 = 0 or f4 = 0;
select id from qs.t where f8 in (0, 1) order by 1;
select tz at time zone 'America/New_York', ts at time zone 'Europe/Berlin' from qs.t
    where id = 1;
select date_trunc('month', ts), date_trunc('hour', tz), date_trunc('week', d) from qs.t
    where id in (1,4) order by id;
select d - date '2024-01-01', d + 1, d - 1, ts - ts from qs.t where id = 1;
select ts + interval '1 month 2 days 03:00', d + interval '1 day', tz - interval '90
    minutes' from qs.t where id = 1;
select id from qs.t where tz = '2024-07-01 10:00+00' or ts > '9999-01-01 00:00';
select '{"b":1,"a":[1, 2.50]}'::jsonb, jb::jsonb from qs.t where id = 1;
select extract(year from ts), extract(second from ts), extract(epoch from tz),
    extract(dow from d) from qs.t where id = 1;
select 2.5::int, 3.5::int, (-2.5)::int, f8::numeric(10,2), nn::int, nn::numeric(10,2),
    '12'::int from qs.t where id = 1;
select case when id = 1 then 1 else 2.50 end, coalesce(n, 0), nullif(id, 1) from qs.t
    order by id;
select round(nn, 2), round(nn), trunc(nn, 1), ceil(nn), floor(-nn), round(1.5),
    round(2.5), round(id) from qs.t where id = 1;
select nn * nn, nn * 2, i8 * 1.5 from qs.t where id = 4;
select b, count(*), avg(nn) from qs.t group by b order by b;
select sum(id) over (order by id), avg(id) over (partition by b order by id), rank()
    over (order by n) from qs.t order by id;
select sum(id) filter (where id > 2), string_agg(t, ',' order by id), array_agg(id)
    filter (where id = 1), bool_and(b) from qs.t;
select array_agg(n) from qs.t where id = 2;
select id from qs.t where id = any('{1,4}') order by id;
select id from qs.t where id <> all(array[1,2]) order by 1;
select x.id, y.id from qs.t x join qs.t y on x.n = y.n and x.id < y.id order by 1, 2;
with a as (select id, n from qs.t) select max(n), sum(id) / 2 from a where n < 100;
select id from qs.t where nn = (select max(nn) from qs.t);
select id, t from qs.t where exists (select 1 from qs.t y where y.id = t.id + 1) order
    by id;
select substring(t from 2 for 3), left(vc, 2), lpad(vc, 5, '*'), position('a' in t),
    replace(vc, 'a', 'b') from qs.t where id = 1;
select id from qs.t where u = '6F1C2B1E000040008000000000000001';
select id from qs.t where tm = '12:00:00.000001' or tm > '23:00';
select true and b, not b, b is null, b is true, id is distinct from 1 from qs.t order by
    id;
select ia[1] / 2, na[1] + 1 from qs.t where id = 1;
select a.*, 1 from qs.t a where id = 1;
select nope from qs.t;
select t.nope from qs.t;
select x.id from qs.t;
select id from qs.t where t = 1;
select distinct b, nn from qs.t order by b, nn;
select concat(t, 1, null, nn), t || nn from qs.t where id = 1;
select 'a' || 1, 1e3, .5, 12345678901234567890, 1.10 from qs.t where id = 1;
select now() > tz, current_date > d from qs.t where id = 1;
select f4 + 1, f8 * 2, f4 * f4, f8 / 3, f4 = 1.1, f4 = '1.1' from qs.t where id = 1;
select count(*), count(n), max(t), min(d), max(by) from qs.t where id < 3;
select id from qs.t where id between 2 and 3.5 order by -id;
select -id as id from qs.t order by id;
select -id as id from qs.t order by id + 0;
select 1 from qs.t limit 1;
select greatest(id, 2), least(d, '2000-01-01'), greatest(nn, 1.50000) from qs.t order by
    id;
select 1 union select 2 order by 1;
select id, 1 from qs.t union all select 2, 2.5 order by 1, 2;
select * from (select b, avg(id) as a, sum(nn) / 2 from qs.t group by b having sum(i8) >
    2) s where a > 2 order by a desc;
select id from qs.t where id in (1, 4, 6, 7) order by n + 1 desc;
select b as x, count(*) from qs.t group by x order by count(*), x;
select s.count, s.max from (select count(*), max(id) from qs.t) s;
select 7 / 0 from qs.t;
select (-32768)::int2 / (-1)::int2 from qs.t where id = 1;
select nn / 0 from qs.t where id = 1;
select nn / id, nn / (id * 1000000), id / nn, i8 / nn, nn / (i8 / 1000) from qs.t where
    id in (1, 4, 5, 7) order by id;
select 1 / 3.0, 2 / 7.00, 123456789 / 0.07, 0.000123 / 12345, 99999 / 1.0, 10000 / 1.0,
    1 / 9999.0, 0 / 3.0 from qs.t where id = 1;
select avg(i8), sum(i8) / 3, avg(nn) filter (where id > 4), avg(distinct i2) from qs.t;
select i8 + 0.5, i8 - 1, nn - 0.1234567, nn % 7, i8 % 1.5 from qs.t where id in (1, 5)
    order by id;
select id from qs.t where n <> 10 order by n desc;
select id from qs.t where n in (1.5, 10, 9.750) order by id;
select id from qs.t where n between -1 and 10 order by n;
select id from qs.t where f8 = n order by 1;
select id from qs.t where i8 = 9223372036854775807;
select id from qs.t where nn = n order by 1;
select max(n) over (order by id), min(ch) over () from qs.t order by id;
select id from qs.t where ch = 'ab   ' order by id;
select id from qs.t where ch = vc order by 1;
select id, ch from qs.t order by ch, id;
select id from qs.t where f8 >= 0 order by id;
select id from qs.t where f8 < 1 and f8 > -1 order by id;
select id from qs.t where f8 <> 0 order by id;
select f8, count(*) from qs.t where id <> 4 group by f8 order by f8;
select id from qs.t where d > '2024-01-01' and ts < '2025-01-01 10:00' order by id;
select id from qs.t where d = ts order by id;
select max(d) - min(d), max(ts) - min(ts) from qs.t where id > 1;
select lag(n) over (order by id), lead(id, 1, 0) over (order by id), first_value(nn)
    over (order by id) from qs.t order by id;
select ts::date, tz::date, d::timestamp, ts::text, d::text, b::text, nn::text, id::text,
    by::text, tz::text from qs.t where id in (1, 6) order by id;
select vc::char(2), t::varchar(2), ch::text || '|', 'abc'::varchar(2) from qs.t where id
    = 1;
select id from qs.t where t like 'x\_y\%' or t ilike 'A%' order by id;
select id from qs.t where ch like 'ab' order by id;
select id from qs.t where by in ('\x00ff', 'x') order by id;
select id from qs.t where b = 'yes' order by id;
select id from qs.t where id = '4';
select id from qs.t where id = 'x';
select id from qs.t where id = 1.0 order by 1;
select id + 2147483647 from qs.t where id = 1;
select i8::int from qs.t where id = 1;
select '2024-13-01'::date from qs.t where id = 1;
select 'x'::jsonb::text from qs.t where id < 0;
select id from qs.t where id in (select i2 from qs.t) order by 1;
select id from qs.t where ch in (select vc from qs.t) order by 1;
select count(*) from qs.t where n in (select nn from qs.t);
select (select max(n) from qs.t where id in (6, 7)), (select 'x');
select x.a / 2 from (select id as a from qs.t) x order by 1;
select * from qs.t join (select id, nn as m from qs.t) o using (id) order by id limit 1;
select case id when 1 then 'one' when 4 then 'four' else 'many' end, case when n > 1
    then n else 0 end from qs.t order by id;
select b, sum(n), max(n), count(n) from qs.t where id in (1, 4, 6, 7) group by b having
    count(n) > 0 order by b;
select ia[1], ia[2] % 2, ta[1], na[1] * 2 from qs.t order by id;
select array[1, 2], array['a', null] from qs.t where id = 1;
select jb, iv, tm, u from qs.t order by id;
select x from qs.t;
select t from qs.t where n;
select sum(t) from qs.t;
select id id2 from qs.t where id2 = 1;
select * from qs.t order by id;
select t.* from qs.t order by t.id desc;
select qs.t.id from qs.t order by 1;
select id, generate_series(1, i2) from qs.t where id = 7;
select i, i * 2 from generate_series(10, 1, -4) i;
select count(*), sum(g.x), avg(x) from generate_series(1, 100000) as g(x);
select * from generate_series(3, 1);
select id, i from qs.t, generate_series(2, 3) i where i = id;
values (1.5), (10);
select 7/2, 10::numeric / 3, 0.1 + 0.2, 1.5::numeric(5,3), 1e5;
select B'101', X'1f', '10.0.0.1'::inet, '90 minutes'::interval, 'abc'::varchar(2);
select id from qs.t where id = any('{1,2}'::int[]);
select '1e40'::real;
select 1e300::float8::real;
select 2147483647 + 1
""".strip().split(";\n")

REFUSED = r"""
select n * 2 from qs.t where id = 1;
select avg(n) from qs.t;
select sum(n) from qs.t where id = 5;
select distinct n from qs.t;
select b from qs.t group by b having avg(id) > 2;
select b, avg(id) from qs.t group by b order by 2;
select n, count(*) from qs.t group by n;
select array_agg(t order by id) from qs.t;
select initcap(t) from qs.t;
select jb->'a' from qs.t;
select jb = '{"a": 1.0}' from qs.t;
select id from qs.t where iv > '1 day';
select id from qs.t order by iv;
select id from qs.t order by jb;
select date_part('year', ts) from qs.t;
select f8::text from qs.t;
select f8::numeric from qs.t where id = 5;
select greatest(n, 1) from qs.t;
select nn * nn * nn * nn from qs.t where id = 5;
select left(t, -1) from qs.t;
select to_char(ts, 'YYYY') from qs.t;
select ts = 'Jan 1 2024' from qs.t;
select id from qs.t where ia = '{1}';
select t ~ 'a' from qs.t;
select unnest(ia) from qs.t;
select (id, t) = (1, 'a') from qs.t;
select ceil(f8) from qs.t where id > 4;
select n / 3 from qs.t where id = 1;
select sqrt(nn) from qs.t where id = 6;
select stddev(id) from qs.t;
select count(distinct iv) from qs.t;
select t::date from qs.t where id < 0;
select random() < 2, chr(1000) from qs.t;
select sum(iv) from qs.t;
""".strip().split(";\n")
"""Of which PostgreSQL has an answer that the node cannot give: it gives none."""


@pytest.fixture(scope="module")
def both(
    node: Node, postgres_server: Callable[[int], PostgresServer]
) -> Iterator[tuple[str, str]]:
    """Connection strings of the source and of the node that mirrors it."""
    server = postgres_server(18)
    server.psql("create database queries")
    source = Database(server, "queries")
    source.psql(TABLE)
    node.sql(
        f"create subscription qs connection {quote_literal(source.conninfo())}"
        " publication qs"
    )
    Mirror(node, source.conninfo(), "qs").synced()
    yield source.conninfo(), node.conninfo()
    node.sql("drop subscription qs")
    node.sql("drop schema qs cascade")
    server.psql("drop database queries with (force)")


def _told(done: Any) -> list[str]:
    """The answer, or the error's code."""
    if done.returncode == 0:
        return list(done.stdout.splitlines())
    return [done.stderr[: len("ERROR:  22003:")]]


def test_what_a_select_computes_is_what_postgresql_computes(
    both: tuple[str, str], psql: Any
) -> None:
    different = []
    for query in QUERIES:
        theirs, ours = (
            _told(psql(conninfo, "-A", "-v", "VERBOSITY=verbose", "-c", query))
            for conninfo in both
        )
        if theirs != ours:
            different.append((query, theirs, ours))
    assert not different, "\n".join(map(repr, different))


def test_what_cannot_be_answered_exactly_is_refused_by_code(
    both: tuple[str, str],
) -> None:
    source, node = both
    with (
        psycopg.connect(source, autocommit=True) as theirs,
        psycopg.connect(node, autocommit=True) as ours,
    ):
        wrong = []
        for query in REFUSED:
            sql: Any = query
            theirs.execute(sql)
            try:
                wrong.append((query, ours.execute(sql).fetchall()))
            except psycopg.Error as error:
                if error.sqlstate not in ("0A000", "22003"):
                    wrong.append((query, [(error.sqlstate, str(error))]))
        assert not wrong, "\n".join(map(repr, wrong))


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_times_are_computed_in_the_sessions_zone(
    both: tuple[str, str], psql: Any, zone: str
) -> None:
    queries = (
        "select tz, date_trunc('day', tz), extract(hour from tz), tz::date,"
        " tz::timestamp, ts::timestamptz, d::timestamptz from qs.t where id > 4"
        " order by id",
        "select id from qs.t where tz >= '2024-07-01 06:34' order by id",
        "select id from qs.t where tz < d order by id",
    )
    for query in queries:
        theirs, ours = (
            _told(psql(conninfo, "-A", "-c", f"set timezone = '{zone}'", "-c", query))
            for conninfo in both
        )
        assert ours == theirs


def test_every_column_comes_in_binary_as_from_the_source(
    both: tuple[str, str],
) -> None:
    answers = []
    for conninfo in both:
        with psycopg.connect(conninfo, autocommit=True) as opened:
            cursor = opened.cursor(binary=True)
            cursor.execute("select * from qs.t order by id")
            assert cursor.pgresult is not None
            result = cursor.pgresult
            answers.append(
                [
                    [result.get_value(row, column) for column in range(result.nfields)]
                    for row in range(result.ntuples)
                ]
            )
    assert answers[1] == answers[0]


def test_columns_are_described_with_postgresqls_types(both: tuple[str, str]) -> None:
    sql: Any = (
        "select id, nn, n, vc, ch, id / 2, avg(id) over (), sum(i8) over (),"
        " sum(i2) over (), count(*) over (), nn + 1, n + 1, 'x', null, d - d, ts - ts,"
        " ts at time zone 'UTC', date_trunc('day', ts), case when b then vc end,"
        " coalesce(i2, id), extract(year from d), nn::numeric(7,1), ia[1], f4 * 2"
        " from qs.t where id = 1"
    )
    answers = []
    for conninfo in both:
        with psycopg.connect(conninfo, autocommit=True) as opened:
            cursor = opened.execute(sql)
            assert cursor.pgresult is not None
            result = cursor.pgresult
            answers.append(
                [
                    (result.fname(i), result.ftype(i), result.fmod(i), result.fsize(i))
                    for i in range(result.nfields)
                ]
            )
    assert answers[1] == answers[0]
