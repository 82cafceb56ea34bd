"""What a SELECT computes, against PostgreSQL: the same statement there and at a node.

The answer is the same text, or it is a refusal (0A000, 22003) that says what is not
supported; never another value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
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
select id, vc = ch, t = ch, vc in (ch, 'q'), nullif(vc, ch), ch ~ 'b$', ch ~ '  $',
    octet_length(coalesce(ch, vc)), coalesce(ch, vc) || '|', coalesce(vc, ch), array[ch, vc],
    array[vc, ch], ch = any(array['b ', 'x']), (vc || ' ')::varchar = ch,
    octet_length(case when id > 5 then ch else vc end), quote_literal(t || E'\\') from qs.t
    order by id;
select id, count(*) filter (where id > 3) over (), sum(i2) filter (where i2 > 0) over (order by
    id), avg(id) filter (where b) over (), min(t) filter (where id < 4) over () from qs.t order by
    id;
select (-2147483648)::int / 3.0, (-32768)::int2 / nn from qs.t where id = 6;
select id, tz at time zone 'CET', ts at time zone '+05:30', tz at time zone 'PST', ts at time
    zone interval '05:30' from qs.t where id in (1, 4, 5, 6, 7) order by id;
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

FAMILIES = {
    "rows": r"""
select t from qs.t order by id;
select x, x::text from qs.t x where id in (1,4) order by id;
select md5(string_agg(t::text, ',' order by id)), count(t) from qs.t x(id2);
select md5(string_agg(x::text, ',' order by id)), count(x) from qs.t x;
select row(id, b, ch, f8, null, t, 'a b', '', tz, by), row(t), (id, nn) from qs.t order by
    id;
select id from qs.t where (id, t) in ((1,'abcab'),(4,'ü'),(5,'q')) order by id;
select id, (id, nn) < (4, 5), (nn, id) >= (0, 3), (id, b) = (1, true), (id, b) <> (2, true),
    (b, n) is distinct from (true, 1.5), row(1, i2) > row(1, 3) from qs.t order by id;
select s.r from (select x as r from qs.t x where id = 1) s;
select f8::text, f4::text, f8 || '', concat(f8, f4), b::text, iv::text, ia::text, ta::text,
    na::text, tz::text from qs.t order by id;
select ts - tz, d - ts, (ts - ts)::text, (tz - ts)::text || 'x' from qs.t order by id;
select array[f8, f4], array[b, true], array[t, ch], array[iv] from qs.t order by id;
select (id) = (1), (1,2) = (1,2,3) from qs.t;
select x.id, y from qs.t x left join qs.t y on y.id = x.id + 1 order by 1
""",
    "floats": r"""
select x, x::text from (values (1e300::float8), (1e-5), (0.0001), (123456789012345680),
    (1e15), (1e14), (123456789012345), (1234567890123456), (0.1), (0.3333333333333333),
    (5e-324), (1.5e-323), (2.2250738585072014e-308), (1.7976931348623157e308), (100),
    ('-0'), ('-Infinity'), (1e22), (1.5e22), (4503599627370497.5), (36028797018963968),
    (123456789012345678901), (9007199254740993), (2e-3), (-123.456)) v(x);
select x, x::text from (values (1e30::real), (1e-5), (0.0001), (1234567), (123456), (1e6),
    (999999), (0.1), (1e-45), (3e-45), (1.17549435e-38), (3.4028235e38), (16777216),
    (33554432), (123456789), (1.5e22), ('-0'), ('NaN'), (2e-3), (-123.456)) v(x);
select md5(string_agg((i::float8 / 7919::float8)::text, ',' order by i)) from
    generate_series(1, 20000) i;
select md5(string_agg((i::float8 / 7919::float8 * 1.234567e23::float8)::text, ',' order by
    i)) from generate_series(1, 20000) i;
select md5(string_agg((i::float8 / 7919::float8 * 1.234567e-7::float8)::text, ',' order by
    i)) from generate_series(1, 20000) i;
select md5(string_agg((i::float8 * 1.234567e-311::float8)::text, ',' order by i)) from
    generate_series(1, 3000) i;
select md5(string_agg((i::real / 7919::real)::text, ',' order by i)) from generate_series(1,
    20000) i;
select md5(string_agg((i::real / 7919::real * 1.2345e20::real)::text, ',' order by i)) from
    generate_series(1, 20000) i
""",
    "names of columns": r"""
select (case when true then 1 end)::text, (case when true then 1 else id end)::text,
    id::text::varchar, (id + 1)::text, array[1]::text, case when true then 1 else
    id::text::int end, row(1,2)::text, 2::float8::text from qs.t where id = 2
""",
    "texts, patterns, arrays": r"""
select id, t ~ 'a', t ~* 'A', t ~ '^[a-c]+$', t !~ '^a', regexp_replace(t, 'b', 'X'),
    regexp_replace(t, '(b)(.)', '\2\1[\&]', 'g'), regexp_match(t, '(.)b(.)'), substring(t
    from 'b.*'), regexp_replace(t, '[^a-z]', '', 'g'), regexp_split_to_array(t, '[bc]'), t ~
    'x_y%|ab{1,2}' from qs.t order by id;
select id, array_length(ia, 1), cardinality(ia), array_position(ia, 3), array_position(na,
    1.5), 3 = any(ia), 3 <> all(ia), 2 < any(ia), array_to_string(ia, ','),
    array_to_string(ta, '-', '*'), ia || ia, ia || 4, 4 || ia, ia[1:2], ia[2:], ia @>
    array[1], ia && array[3,9], ia = '{1}', ia <> '{1}', ta[1] from qs.t order by id;
select string_to_array('a,b,,c', ','), string_to_array('', ','), string_to_array('a.b',
    '.'), string_to_array('a--b', '--'), string_to_array('a,b,x', ',', 'x'), t =
    any(string_to_array('x,abcab', ',')) from qs.t order by id;
select id, unnest(ia) from qs.t order by 1, 2;
select initcap('hello wORLD-foo_bar 1st'), concat_ws(',', id, t, null, b, nn, ch),
    format('%s-%I-%L-%%-%1$s', t, 'A b', ta[1]), chr(65), chr(8364), ascii('a'), ascii('ü'),
    translate(t, 'ab', 'x'), left(t, -1), right(t, -2), left(t, id), octet_length(t),
    quote_literal(t || ''''), quote_ident(t), quote_ident('select'), to_hex(id), to_hex(-1),
    to_hex(-1::int8), encode(by, 'hex'), encode(by, 'base64'), decode('ff00', 'hex'),
    decode('/wA=', 'base64'), sha256(by), concat(ch, '|', b) from qs.t order by id;
select sqrt(2), sqrt(f4 * f4), degrees(f4), radians(180), pi(), sign(nn), sign(f8), sign(id
    - 4), div(nn, 2), div(7, -2), gen_random_uuid() is not null from qs.t order by id
""",
    "dates, intervals": r"""
select to_char(ts, 'YYYY-MM-DD HH24:MI:SS.MS US'), to_char(tz,
    'FMMonth DD, YYYY Mon MON mon Dy DAY day'), to_char(d,
    'YYYY"T"Q WW IW IYYY J DDD D ID W YY Y CC'), to_char(ts,
    'HH12:MI AM hh:mi pm SSSS FMDD FMHH24 yyyymmdd'), to_char(ts, 'Month|Day|FMDay|dy'),
    to_char(ts, '') from qs.t order by id;
select to_date('20240229', 'YYYYMMDD'), to_date('03/04/2024', 'DD/MM/YYYY'),
    to_timestamp('2024-01-02 03:04:05.678', 'YYYY-MM-DD HH24:MI:SS.MS'), to_timestamp(1.5),
    to_timestamp(1700000000), to_timestamp(f4), make_date(2024, 2, 29), date_part('year',
    ts), date_part('second', ts), date_part('epoch', tz) from qs.t where id in (1,4,6) order
    by id;
select age(ts, d), age(d, ts), age('2024-03-31', '2024-02-29'::timestamp), age(ts,
    '2001-02-28 13:14:15.25'), age(tz, ts) from qs.t order by id;
select id, iv from qs.t order by iv, id;
select max(iv), min(iv), sum(iv), sum(ts - d), count(iv) from qs.t;
select id, iv > '1 day', iv = '-30 days', iv + iv, iv * 3, -iv, iv - interval '1 mon', ts +
    iv, tz - iv, d + iv, ts - (ts - d), extract(epoch from iv), extract(epoch from ts - d),
    extract(hour from iv), extract(second from iv), date_part('day', ts - d), extract(month
    from iv), extract(year from iv), iv in ('1 day -00:00:01', '00:00:00') from qs.t order
    by id;
select extract(isoyear from d), extract(decade from ts), extract(century from d),
    extract(milliseconds from ts), extract(microseconds from ts), ts::time, tz::time,
    '2024-01-02'::text::date, (d::text)::date, (d::text || ' 10:00:00')::timestamp,
    (nn::text)::numeric, ('-0' || t)::text, '0012.50'::text::numeric from qs.t order by id;
select make_date(2023, 2, 29);
select sqrt(-1::float8) from qs.t;
select localtimestamp is not null, age(d) = age(d::timestamp) from qs.t where id = 1
""",
    "json": r"""
select jb, jb->'a', jb->>'a', jb->'b', jb->>'b', jb #> '{a,1}', jb #>> '{a,0}', jb->0,
    jb->'a'->0, jb->'a'->>1, jb->'a'->-2, jsonb_typeof(jb), jsonb_typeof(jb->'a'), jb ? 'a',
    jb->>'nope' from qs.t order by id;
select j->'k\n', j->>'q"x', j->'o', j->'o'->'p', j->>'o', j#>>'{o,p,1}', j->'n', j->>'n',
    j->'e', j->>'s', j->'s', j#>'{arr,2,z}', j->'arr'->-1->'z',
    jsonb_array_length(j->'arr'), j->'f', (j->>'f')::numeric, (j->>'n') is null, j ? 'n',
    j->'arr' ? 'x', j->'' from (select
    '{"q\"x": "v", "o": {"p": [1, 2.50, {"z": "}"}], "\"": "]"}, "n": null,
     "e": "", "s": "a\"b\\c\nd\u00e9\ud83d\ude00", "arr": [1, "x",
     {"z": [[], {}]}], "f": 1.50, "": 7, "k\n": true}'::jsonb
    as j) s;
select j->'a', j->>'a', j->'b', j->'b'->1, j->>'c', j#>>'{b,2,x}', json_typeof(j->'b'),
    json_array_length(j->'b') from (select
    ' {"a" : 1.0e2 , "a": "x\ty", "b":[1 , {"q": [ ]} , {"x": " z "} ] , "c":null}'::json as
    j) s;
select jsonb_array_elements('[1, "a", null, {"b": [2]}]'::jsonb);
select jsonb_array_elements_text('[1, "a", null, {"b": [2]}]'::jsonb) as x;
select jsonb_object_keys(jb) from qs.t where id = 1;
select id, (jb->>'b')::int + 1, jb->>'b' = '2' from qs.t where id in (1, 7) order by id;
select jsonb_array_length('{"a": 1}'::jsonb);
select id from qs.t where jb->>'a' = '1';
select jb->>'a' as k, count(*) from qs.t group by jb->>'a' order by 1;
select max(length(jb::text)), string_agg(jb->>'a', ',' order by id) from qs.t
""",
    "aggregates": r"""
select array_agg(id order by id desc), array_agg(t order by t desc nulls last, id),
    array_agg(nn order by n), array_agg(distinct b), array_agg(distinct i2),
    string_agg(distinct vc, ','), string_agg(distinct t, '|' order by t desc), string_agg(t,
    ',' order by id desc), every(b), every(id > 0) filter (where id > 3) from qs.t;
select stddev(f8), variance(f8), stddev_pop(f8), var_pop(f4), var_samp(f4), stddev_samp(f8)
    from qs.t where id in (5,6,7);
select stddev(f), variance(f), stddev_pop(f), var_pop(f), var_samp(f), avg(f), sum(f) from
    (select i::float8 / 7::float8 as f from generate_series(1,10) i) s;
select variance(f8), var_pop(f8), stddev(f4) from qs.t where id = 1;
select var_pop(f8), variance(f8), percentile_cont(0.5) within group (order by f8), mode()
    within group (order by id) from qs.t where id = 99;
select percentile_cont(0.5) within group (order by f8), percentile_cont(0.3) within group
    (order by id), percentile_disc(0.5) within group (order by t), percentile_disc(0.25)
    within group (order by n), percentile_cont(0.75) within group (order by nn desc), mode()
    within group (order by u), mode() within group (order by b), percentile_disc(1) within
    group (order by iv), percentile_disc(0) within group (order by ts desc) from qs.t where
    id <> 3;
select b, percentile_cont(0.9) within group (order by id) filter (where id > 1),
    array_agg(id order by d) from qs.t group by b order by b;
select count(distinct (b, i2)), count(distinct (id, t)), count(distinct iv) from qs.t;
select id, array_agg(id) over (order by id), variance(f4) over (order by id rows 2
    preceding) from qs.t where id in (1,4,5,6,7) order by id;
select percentile_cont(1.5) within group (order by f8) from qs.t;
select array_agg(x.d order by x.id), array_agg(ts order by ts), array_agg(u order by u),
    array_agg(f8 order by f8) from qs.t x;
select string_agg(t, ',' order by n desc, id), string_agg(distinct ch, ',') from qs.t
""",
    "forms of select": r"""
select distinct on (b) b, id, t from qs.t order by b, id desc;
select distinct on (b, i2) * from qs.t order by b desc, i2, id;
select distinct on (1) b, count(*) from qs.t group by b order by 1;
select s.* from (select distinct on (b) b as x, n from qs.t order by b, n desc nulls last) s
    order by 1 limit 2;
select id from qs.t order by id fetch first row only;
select id from qs.t order by id fetch next 2 rows only;
select id from qs.t order by id limit all;
select id, x.n from qs.t natural join (select id, 1 as one from qs.t) o join qs.t x using
    (id) order by id;
select x.id, y.id, z.id from qs.t x left join (qs.t y join qs.t z on y.id = z.id + 1) on
    x.id = y.id order by 1;
select x.id, s.m from qs.t x, lateral (select max(y.id) as m from qs.t y where y.id < x.id)
    s order by 1;
select x.id, s.d from qs.t x left join lateral (select y.d from qs.t y where y.id = x.id +
    1) s on true order by 1;
select b, i2, count(*), grouping(b), grouping(b, i2) from qs.t where id > 4 group by
    rollup(b, i2) order by b, i2, 4, 5;
select b, grouping(b), sum(id) from qs.t group by cube(b, (i2 is null)) order by 1, 2, 3;
select b, i2, count(*) from qs.t group by grouping sets ((b), (i2, b), ()) order by 1, 2, 3;
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select n, n * 2
    from r order by 1;
with recursive r as (select id, 1 as depth from qs.t where id = 1 union all select x.id,
    r.depth + 1 from r join qs.t x on x.id = r.id + 1) select * from r order by id;
select id, sum(id) over (order by id range between 1 preceding and current row), count(*)
    over (order by i2 range between 3 preceding and 3 following) from qs.t order by id;
table qs.t;
select id, id from qs.t order by 1;
select * from (select id, id from qs.t) s order by 1;
select x from unnest(array[3,1,2]) x order by x;
select t.id, u from qs.t t, unnest(t.ia) u order by 1, 2;
select t.id, u.e from qs.t t cross join lateral unnest(t.ta) as u(e) order by 1, 2;
select t.id, e.value from qs.t t, jsonb_array_elements(t.jb->'a') e where t.id = 1;
select t.id, i from qs.t t, generate_series(1, t.i2) i where t.i2 between 1 and 3 order by
    1, 2;
select id from qs.t for update;
select id from qs.t order by id offset 2 limit 2;
select t.* from qs.t natural left join (select 1 as zz) o order by id;
select id, i2 from qs.t where id in (4, 5, 6, 7) order by i2 > 0 fetch first 1 rows with
    ties
""",
    "together": r"""
select id, ta || '{q,NULL}', array_append(ta, 'zz'), array_cat(ia, '{7}'), ia || 4,
    array_append(ia, null), array_to_string(ta || ta, '+') from qs.t order by id;
select id from qs.t where ia || 1 = '{1}' order by id;
select t::numeric from qs.t where id < 0;
select max(t::date) from qs.t where t ~ '^[0-9]';
select count(*) from qs.t where array_length(ia, 1) > 1 and t like 'a%' and (b or n > 3);
select id, row_number() over (partition by b order by to_char(d, 'YYYY'), id), lag(t || 'x')
    over (order by id) from qs.t order by id;
select to_char(d, 'YYYY-MM') as m, count(*), sum(nn), max(iv) from qs.t group by to_char(d,
    'YYYY-MM') having count(*) > 0 order by m;
select to_char(d, 'YYYY-MM') as m, count(*) from qs.t group by 1 order by 1;
select to_char(d, 'YYYY-MM') as m, count(*) from qs.t group by m order by count(*) desc, m
    limit 3;
select case when t ~ '^a' then 'a' else 'other' end as k, array_agg(id order by id) from
    qs.t group by k order by k;
select f8::text as x, count(*) from qs.t group by f8::text order by x;
select distinct to_char(ts, 'HH24') from qs.t order by 1;
select jb->>'a', sum(id) from qs.t group by jb->>'a' having sum(id) > 3 order by 1;
select coalesce(jb->>'a', '-') || t, nullif(t, ''), greatest(t, 'b'), b::int from qs.t order
    by id;
select id from qs.t order by iv desc nulls last, id limit 2;
select b, string_agg(t::text || '=' || coalesce(f4::text, '?'), ';' order by id) from qs.t
    group by b order by b;
select (select array_agg(y.id order by y.id) from qs.t y where y.id < x.id) from qs.t x
    order by x.id;
select id from qs.t where age(ts, d) > interval '1 mon' order by id;
select id from qs.t where (select count(*) from unnest(ia) u where u > 1) > 0 order by id
""",
    "corners": r"""
select t ~ 'a.b', t ~ '^$', t ~ 'a{2}', t ~ '[]a]', t ~ '[^]a-c]', t ~ '[a\]]', t ~ '\.', t
    ~ 'x\_y%', t ~ '(a|b)+c', t ~ '[[:digit:]]', t ~ '[-a]', t ~ 'ü', t ~* 'AB', t !~* 'B',
    regexp_replace(t, '.', '$1\\', 'g'), regexp_replace('a.b.c', '\.', '', 'g'),
    regexp_replace(t, '^(.)(.*)$', '\2\1'), regexp_replace(E'a\nb', '.b', 'X'),
    regexp_replace(t, 'Z', 'y'), substring(t from '(.)$'), substring(t, 'a'),
    regexp_match(t, 'q') from qs.t order by id;
select row(1, 'a b', null, '', '"', '\', true, 1.50, '{1}'::int[])::text, array['a b', null,
    '', '"', '\', 'null', '{', 'a,b']::text, array[true]::text, array[1.5, 2]::text,
    array['1 day'::interval]::text;
select id from qs.t x where exists (select from qs.t);
select x.id, (x.id, x.t) = (y.id, y.t) from qs.t x, qs.t y where (x.id, y.id) in ((1, 1),
    (2, 2), (3, 4)) order by 1;
select count(x.*), count(x) from qs.t x;
select max(x.id) from qs.t x group by x.b order by max(x.t) nulls first;
select to_char(date '2024-12-30', 'IYYY-IW ID'), to_char(timestamp '2024-01-01 00:00',
    'HH12 HH24 AM'), to_char(ts, 'DD.MM.YYYY, "um" HH24 "Uhr"'), to_char(d, 'FMMM/FMDD/YY'),
    to_char(tz, 'Dy, DD Mon YYYY HH24:MI:SS') from qs.t where id in (1, 4, 6) order by id;
select coalesce(age(d, null)::text, '-'), age(d, d), age('2024-01-01',
    '2023-12-31 23:59:59.5'::timestamp), age('2024-03-01'::date, '2024-01-31'::date),
    age('2023-03-01', '2024-01-31'::date) from qs.t where id = 1;
select interval '1 year 2 mons' - interval '3 mons 5 days', interval '1 day' * 2, -interval
    '1 mon 1 day 01:00', interval '1 hour' = interval '60 minutes', interval '1 mon' >
    interval '29 days', (timestamp '2024-01-01' - timestamp '2023-01-01') < interval
    '1 year';
select (jb->'a')::text, (jb->>'b')::numeric + 0.5, jb::text ~ 'a', (jb->'a')->>0 from qs.t
    order by id;
select sum((jb->>'a')::numeric) from qs.t where id = 7;
select a.id from qs.t a where a.id = any(array(select 1));
select string_to_array('1,2', ',')::int[] from qs.t;
select generate_series('2024-01-01'::timestamp, '2024-01-03', '1 day') from qs.t where id =
    1;
select concat_ws(null, t, 'x'), concat_ws('', t), format('x'), format('%s', null) from qs.t
    where id = 1;
select t.id, lag(id) over w, first_value(t) over w from qs.t window w as (partition by b
    order by id) order by id;
select * from generate_series('2024-01-01'::date, '2024-01-03', '1 day') d;
select * from generate_series('2024-03-01 10:00'::timestamp, '2024-01-01', '-1 month') d;
select d::date, count(x.id) from generate_series('2023-12-31'::timestamp, '2024-01-02',
    '12 hours') d left join qs.t x on x.d = d::date group by 1 order by 1;
select array[1,2]::text[], '{1.5,2.5}'::numeric[]::int[], array['1','2']::int[]
""",
}
"""What has rules of its own, by family."""

REFUSED = r"""
select n * 2 from qs.t where id = 1;
select avg(n) from qs.t;
select sum(n) from qs.t where id = 5;
select distinct n from qs.t;
select b from qs.t group by b having avg(id) > 2;
select b, avg(id) from qs.t group by b order by 2;
select n, count(*) from qs.t group by n;
select jb = '{"a": 1.0}' from qs.t;
select id from qs.t order by jb;
select f8::numeric from qs.t where id = 5;
select greatest(n, 1) from qs.t;
select nn * nn * nn * nn from qs.t where id = 5;
select ts = 'Jan 1 2024' from qs.t;
select ceil(f8) from qs.t where id > 4;
select n / 3 from qs.t where id = 1;
select sqrt(nn) from qs.t where id = 6;
select stddev(id) from qs.t;
select exp(f4) from qs.t where id = 1;
select unnest(array[1,2]), unnest(array[3,4]) from qs.t;
select unnest(ia) + 1 from qs.t;
select generate_series(1,2), generate_series(1,3) from qs.t;
select array_agg(distinct t order by t) from qs.t;
select generate_series('2024-01-31'::timestamp, '2024-05-01', '1 month') from qs.t;
select id from qs.t where (id, t) in (select id, t from qs.t);
select power(2, 3) from qs.t;
select ln(2), sin(1) from qs.t;
select 1e23::float8::text from qs.t;
select chr(id) from qs.t;
select t ~ 'a*?' from qs.t;
select t ~ '\w' from qs.t;
select t ~ '(a)\1' from qs.t;
select regexp_replace(t, 'a|ab', 'x') from qs.t;
select regexp_replace(t, '(ab)*', 'x') from qs.t;
select regexp_replace(t, 'a*', 'x', 'g') from qs.t;
select id from qs.t group by id having (jb is null) = false or id in (select 1 order by jb);
select ia < array[1] from qs.t;
select jb @> '{"a": 1}' from qs.t;
select to_char(id, '999') from qs.t;
select to_char(ts, 'DDth') from qs.t;
select to_date('2024-1-2', 'YYYY-MM-DD') from qs.t;
select (t || '2024-1-2')::date from qs.t where t = '';
select percentile_cont(array[0.5, 0.9]) within group (order by id) from qs.t;
select x is null from qs.t x;
select sum(id) over (order by id groups 1 preceding) from qs.t;
select sum(id) over (order by id rows 1 preceding exclude current row) from qs.t;
select sum(id) over (order by f8 range 1 preceding) from qs.t;
select id from qs.t tablesample bernoulli (100);
select x.* from qs.t, generate_series(1, 3) with ordinality x;
select id from qs.t order by id offset 1 fetch first 1 rows with ties;
with recursive r(n) as (select id from qs.t union select n % 3 + 1 from r) select * from r;
select count(*) from qs.t group by ();
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


_AT_ONCE = 6
"""Queries of one psql: starting it costs more than most of them."""


def _answers(psql: Any, conninfo: str, queries: Sequence[str]) -> list[tuple[str, str]]:
    """psql's text of each answer, or the error's code; some at a time."""
    told: list[tuple[str, str]] = []
    for first in range(0, len(queries), _AT_ONCE):
        commands = [
            argument
            for query in queries[first : first + _AT_ONCE]
            for argument in ("-c", query, "-c", r"\echo @@ :SQLSTATE")
        ]
        parts = re.split(
            r"^@@ (\w+)\n", psql(conninfo, "-A", *commands).stdout, flags=re.MULTILINE
        )
        told += zip(parts[0::2], parts[1::2], strict=False)
    assert len(told) == len(queries)
    return told


def _differences(
    psql: Any, both: tuple[str, str], queries: Sequence[str]
) -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
    theirs, ours = (_answers(psql, conninfo, queries) for conninfo in both)
    return [
        (query, a, b)
        for query, a, b in zip(queries, theirs, ours, strict=True)
        if a != b
    ]


@pytest.mark.slow
def test_what_a_select_computes_is_what_postgresql_computes(
    both: tuple[str, str], psql: Any
) -> None:
    different = _differences(psql, both, QUERIES)
    assert not different, "\n".join(map(repr, different))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_has_rules_of_its_own_is_computed_as_postgresql_does(
    both: tuple[str, str], psql: Any, family: str
) -> None:
    different = _differences(psql, both, FAMILIES[family].strip().split(";\n"))
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


@pytest.mark.parametrize(
    "zone",
    [
        "Asia/Kolkata",
        *(
            pytest.param(zone, marks=pytest.mark.slow)
            for zone in ("America/New_York", "5.5", "-05:30")
        ),
    ],
)
def test_times_are_computed_in_the_sessions_zone(
    both: tuple[str, str], psql: Any, zone: str
) -> None:
    queries = (
        "select tz, date_trunc('day', tz), extract(hour from tz), tz::date,"
        " tz::timestamp, ts::timestamptz, d::timestamptz from qs.t where id > 4"
        " order by id",
        "select tz::text, to_char(tz, 'YYYY-MM-DD HH24:MI:SS'), row(tz), age(tz, ts),"
        " array[tz]::text, tz::time, to_timestamp(0), date_part('hour', tz), tz - iv,"
        " to_timestamp('2024-07-01 10', 'YYYY-MM-DD HH24') from qs.t where id > 3"
        " order by id",
        "select id from qs.t where tz >= '2024-07-01 06:34' order by id",
        "select id from qs.t where tz < d order by id",
    )
    settled = [f"set timezone = '{zone}'", *queries]
    assert len(settled) <= _AT_ONCE
    assert _differences(psql, both, settled) == []


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
