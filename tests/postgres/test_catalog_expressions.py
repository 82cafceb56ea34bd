"""Small expressions in queries over system catalogs: answers and errors of PostgreSQL 18."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.fakes.catalog_source import FakeSource, session

from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.sql.query.values.moments import parse_moment
from wal2lake.sql.sysviews import SystemCatalog, is_system_query
from wal2lake.testing.postgres import PostgresServer

QUERIES = (
    "select '2024-07-01 12:00 CET'::timestamptz from pg_class limit 1",
    "select '2024-07-01 12:00 WET'::timestamptz from pg_class limit 1",
    "select '2024-07-01 12:00 Japan'::timestamptz from pg_class limit 1",
    "select '2024-07-01 12:00 CET'::timestamp from pg_class limit 1",
    "select '2024-07-01 12:00 MSK'::timestamp from pg_class limit 1",
    "select '2024-07-01 12:00 Mars'::timestamptz from pg_class limit 1",
    "select '2024-07-01 12:00 Mars'::timestamp from pg_class limit 1",
    "select '2024-07-01 12:00 Mars/North'::timestamptz from pg_class limit 1",
    "select floor(1.5), ceil(1.2), ceiling(1.7) from pg_class limit 1",
    "select floor(-1.5), ceil(-1.5), floor(2), ceil(2)",
    "select floor('a'::text) from pg_class limit 1",
    "select relname from pg_class offset -1",
    "select relname from pg_class limit -1",
    "select relname from pg_class limit 1 offset -1",
    "select relname from pg_class limit -1 offset -1",
    "select relname from pg_class where relname = 'pg_class' offset 1 - 1",
    "select relname from pg_class where relname = 'pg_class' offset null",
    "select relname from pg_class offset 1 - 2",
    "select relname from pg_class where relname = 'pg_class' offset -0.4",
    "select relname from pg_class where relname = 'pg_class' offset -0.6",
    "select relname from pg_class order by 7",
    "select relname from pg_class order by 1, 3",
    "select relname, oid from pg_class order by 0",
    "select relname from pg_class order by -1",
    # Columns without a name count, too.
    "select relname || '.' || relname from pg_class where relname = 'pg_class' order by 1",
    "select 1 + 1, relname from pg_class where relname = 'pg_class' order by 2, 1",
    "select 1 + 1, 'x' || relname from pg_class where relname = 'pg_class' group by 2",
    "select 1 + 1, 'x' || relname from pg_class order by 3",
    "select relname from pg_class group by 5",
    "select relname from pg_class union select nspname from pg_namespace order by 2",
    "select 1 from (select relname from pg_class order by 4) s",
    "select lower('A') filter (where true) from pg_class",
    "select lower(relname) filter (where oid > 1) from pg_class",
    "select lower(relname) over () from pg_class",
    "select count(distinct relname) over () from pg_class",
    "select avg(1, 1) over () from pg_class",
    "select count(*) filter (where relname = 'pg_class') from pg_class",
    "select count(*) over () from pg_class where relname = 'pg_class'",
    "select 'other.public.t'::regclass",
    "select 'other.public.t'::regclass from pg_class",
    "select 'a.b.c.d'::regclass",
    "select 'other.public.f'::regtype",
    "select 'pg_catalog.int4'::regtype",
    "select to_regclass('other.public.t')",
    "select substring(relname from 'p(.)_') from pg_class where relname = 'pg_class'",
    "select substring(relname::text from '^pg_') from pg_class"
    " where relname = 'pg_class'",
    "select substring('foobar' from 'o.b') from pg_class limit 1",
    "select substring('foobar', 'o(.)b') from pg_class limit 1",
    "select substring('foobar' from 'x') from pg_class limit 1",
    "select substring('foobar' from 2 for 3) from pg_class limit 1",
    "select substring('a(b)[(]' from '[(]b\\)') from pg_class limit 1",
    "select substring('foobar', null) from pg_class limit 1",
    "select '2020-01-01 01:02:03.456'::timestamp(2) from pg_class limit 1",
    "select '2020-01-01 01:02:59.9995'::timestamp(3) from pg_class limit 1",
    "select '1969-12-31 23:59:59.5'::timestamp(0) from pg_class limit 1",
    "select '2020-01-01 01:02:03.456789'::timestamp(6) from pg_class limit 1",
    "select 'infinity'::timestamp(2) from pg_class limit 1",
    "select null::timestamp(2) from pg_class limit 1",
    "select '1999-12-31 23:59:59.5'::timestamp(0) from pg_class limit 1",
    "select '1985-06-01 12:00:00.125'::timestamp(2) from pg_class limit 1",
    "select '1985-06-01 12:00:00.25'::timestamp(1) from pg_class limit 1",
    "select '2000-01-01 00:00:00.5'::timestamp(0) from pg_class limit 1",
    "select '9999-12-31 23:59:59.123455'::timestamp(5) from pg_class limit 1",
    "select '290000-01-01 00:00:00.5'::timestamp(0) from pg_class limit 1",
    "select '00:00:00.5'::time(0) from pg_class limit 1",
    r"select substring(E'a\nb' from 'a.b') from pg_class limit 1",
    "select '01:02:03.456'::time(2) from pg_class limit 1",
    "select '01:02:59.9995'::time(3) from pg_class limit 1",
    "select null::time(2) from pg_class limit 1",
    "select '23:59:59.999'::time(2) from pg_class limit 1",
    # Types with modifiers, and values that the engine spells in another way.
    "select '2020-01-01 01:02:03.456'::timestamptz(2) from pg_class limit 1",
    "select '2020-01-01 01:02:03.456+03'::timestamptz(0) from pg_class limit 1",
    "select '01:02:03.456+02'::timetz(2) from pg_class limit 1",
    "select '01:02:03.456'::timetz(1) from pg_class limit 1",
    "select '23:59:59.9996+05:30'::timetz(3) from pg_class limit 1",
    "select '{\"2020-01-01 01:02:03.456\"}'::timestamp(2)[] from pg_class limit 1",
    "select '{01:02:03.456,NULL}'::time(1)[] from pg_class limit 1",
    "select '{1.255,2}'::numeric(5,2)[] from pg_class limit 1",
    "select '1.255'::numeric(5,2) from pg_class limit 1",
    "select 1.255::numeric(5,2) from pg_class limit 1",
    "select -1.255::numeric(5,2) from pg_class limit 1",
    "select '1'::numeric(5,2) from pg_class limit 1",
    "select 1::numeric(5,2) from pg_class limit 1",
    "select 123456::numeric(5,2) from pg_class limit 1",
    "select 1.5::numeric(5) from pg_class limit 1",
    "select 155::numeric(3,-1) from pg_class limit 1",
    "select 0.00155::numeric(3,4) from pg_class limit 1",
    "select 'NaN'::numeric(5,2) from pg_class limit 1",
    "select 1.5::numeric from pg_class limit 1",
    "select '1.50'::numeric from pg_class limit 1",
    "select 'NaN'::numeric from pg_class limit 1",
    "select oid::numeric(12,2) from pg_class where relname='pg_class'",
    "select (oid::numeric(12,2) / 3)::numeric(12,3) from pg_class where relname='pg_class'",
    "select '1 day 01:02:03.456'::interval(2) from pg_class limit 1",
    "select '1 day 01:02:03.456'::interval(0) from pg_class limit 1",
    "select interval '1 day 01:02:03.456' from pg_class limit 1",
    "select interval '0', interval '1 day 5', interval '-1.5' from pg_class limit 1",
    "select interval(1) '1 day 01:02:03.456' from pg_class limit 1",
    "select '1 day 01:02:03.456'::interval day from pg_class limit 1",
    "select '1 day 01:02:03.456'::interval day to second(2) from pg_class limit 1",
    "select '1 year 2 months 1 day 01:02:03.456'::interval year to month from pg_class limit 1",
    "select cast('1 day 01:02:03.456' as interval(2)) from pg_class limit 1",
    "select '0044-03-15 12:00:00 BC'::timestamp from pg_class limit 1",
    "select '0044-03-15 12:00:00.456 BC'::timestamp(2) from pg_class limit 1",
    "select '0044-03-15 BC'::date from pg_class limit 1",
    "select '0044-03-15 12:00:00+00 BC'::timestamptz from pg_class limit 1",
    "select '{\"0044-03-15 12:00:00 BC\"}'::timestamp[] from pg_class limit 1",
    "select timestamp '2020-01-01 01:02:03.456' from pg_class limit 1",
    "select timestamp(2) '2020-01-01 01:02:03.456' from pg_class limit 1",
    "select timestamptz(2) '2020-01-01 01:02:03.456' from pg_class limit 1",
    "select time(1) '01:02:03.456' from pg_class limit 1",
    "select timestamp(1) with time zone '2020-01-01 01:02:03.456' from pg_class limit 1",
    "select time(1) with time zone '01:02:03.456' from pg_class limit 1",
    "select '2020-01-01 01:02:03.456'::timestamp(2)::text from pg_class limit 1",
    "select '2020-01-01 01:02:03.456'::timestamp(2)::timestamptz(1) from pg_class limit 1",
    "select '2020-01-01 01:02:03.456'::timestamp::timestamptz(1) from pg_class limit 1",
    "select '2020-01-01 01:02:03.456'::timestamp::time(1) from pg_class limit 1",
    "select '0044-03-15 12:00:00 BC'::timestamp::text from pg_class limit 1",
    "select '0044-03-15 BC'::date::text from pg_class limit 1",
    "select 'infinity'::timestamp::text from pg_class limit 1",
    "select '1.255'::numeric(5,2)::text from pg_class limit 1",
    "select 'abc'::varchar(2) from pg_class limit 1",
    "select 'abc'::char(2) from pg_class limit 1",
    "select 'abc'::bpchar from pg_class limit 1",
    "select '101'::bit(2) from pg_class limit 1",
    "select '101'::varbit(2) from pg_class limit 1",
    "select '{abc,d}'::varchar(2)[] from pg_class limit 1",
    "select relname::varchar(4) from pg_class where relname='pg_class'",
    "select relname::char(4) from pg_class where relname='pg_class'",
    "select '2020-01-01 01:02:03.456'::timestamp(7) from pg_class limit 1",
    "select '2020-01-01'::timestamp(2) from pg_class limit 1",
    "select '5.5'::float4 from pg_class limit 1",
    "select '1 day'::interval * 2 from pg_class limit 1",
    "select '01:02:03.456+02'::timetz from pg_class limit 1",
    "select '01:02:03.456+02'::timetz::time from pg_class limit 1",
    "select '01:02:03'::time::text from pg_class limit 1",
    "select '01:02:03.450'::time::text from pg_class limit 1",
    "select '1 day 01:02:03.4'::interval::text from pg_class limit 1",
    "select now()::timestamptz(0) = date_trunc('second', now()) or true from pg_class limit 1",
    "select '1e3'::numeric(5,1) from pg_class limit 1",
    "select '12345678901234567890.5'::numeric(30,2) from pg_class limit 1",
    "select sum(reltuples)::numeric(10,2) is not null from pg_class limit 1",
    "select round(1.255::numeric(5,3), 2) from pg_class limit 1",
    "select 'x'::numeric(5,2) from pg_class limit 1",
    "select 1.255::decimal(5,2), cast(2.5 as dec(3,0)) from pg_class limit 1",
    "select null::numeric(5,2), null::interval(2), null::timetz(2), null::timestamp(2)[]"
    " from pg_class limit 1",
    # OVER and FILTER behind functions of one row.
    "select abs(1) over () from pg_class limit 1",
    "select abs(1) filter (where true) from pg_class limit 1",
    "select replace(relname, 'a', 'b') over () from pg_class limit 1",
    "select replace(relname, 'a', 'b') filter (where true) from pg_class limit 1",
    "select position('a' in relname::text) over () from pg_class limit 1",
    "select position('a' in relname::text) filter (where true) from pg_class limit 1",
    "select pg_catalog.lower(relname) over () from pg_class limit 1",
    "select pg_catalog.lower(relname) filter (where true) from pg_class limit 1",
    "select pg_catalog.count(*) filter (where relname = 'pg_class') from pg_class",
    "select pg_catalog.count(*) over () from pg_class where relname = 'pg_class'",
    "select pg_catalog.sum(1) filter (where relname = 'pg_class') from pg_class",
    "select pg_catalog.row_number() over () from pg_class where relname = 'pg_class'",
    "select pg_catalog.array_agg(relname) filter (where relname = 'pg_class') from pg_class",
    "select pg_catalog.string_agg(relname::text, ',') filter (where relname = 'pg_class')"
    " from pg_class",
    "select pg_catalog.format_type(23, null) over () from pg_class limit 1",
    "select length('a') over () from pg_class limit 1",
    "select char_length('a') over () from pg_class limit 1",
    "select character_length('a') filter (where true) from pg_class limit 1",
    "select substring('abc', 1) over () from pg_class limit 1",
    "select substring('abc' from 2) over () from pg_class limit 1",
    "select substr('abc', 2) over () from pg_class limit 1",
    "select trim('abc') over () from pg_class limit 1",
    "select ltrim('abc') over () from pg_class limit 1",
    "select lpad('abc', 5) over () from pg_class limit 1",
    "select strpos('abc', 'b') over () from pg_class limit 1",
    "select coalesce(1, 2) over () from pg_class limit 1",
    "select now() over () from pg_class limit 1",
    "select concat('a', 'b') over () from pg_class limit 1",
    "select md5('a') over () from pg_class limit 1",
    "select split_part('a.b', '.', 1) over () from pg_class limit 1",
    "select to_char(now(), 'YYYY') over () from pg_class limit 1",
    "select extract(year from now()) over () from pg_class limit 1",
    "select date_trunc('day', now()) over () from pg_class limit 1",
    "select power(1, 2) over () from pg_class limit 1",
    "select sqrt(1) over () from pg_class limit 1",
    "select mod(5, 2) over () from pg_class limit 1",
    "select round(1.5) over () from pg_class limit 1",
    "select greatest(1, 2) over () from pg_class limit 1",
    "select row_number() from pg_class limit 1",
    "select rank() from pg_class limit 1",
    "select row_number() filter (where true) over () from pg_class limit 1",
    "select count(*) filter (where true) over () from pg_class where relname = 'pg_class'",
    "select nosuch(1) over () from pg_class limit 1",
    "select nosuch(1) filter (where true) from pg_class limit 1",
    "select lag(relname) over (order by oid) from pg_class limit 1",
    "select ntile(2) over (order by oid) from pg_class limit 1",
    "select bool_and(relname = 'pg_class') filter (where relname = 'pg_class') from pg_class",
    "select every(relname = 'pg_class') filter (where relname = 'pg_class') from pg_class",
    "select max(oid) filter (where relname = 'pg_class') from pg_class",
    "select stddev(1) over () from pg_class limit 1",
    "select sum(reltuples) over () is not null from pg_class limit 1",
    "select unnest(array[1,2]) over () from pg_class limit 1",
    "select generate_series(1,2) over () from pg_class limit 1",
    "select upper(relname) over (partition by oid) from pg_class limit 1",
    "select dense_rank() over (order by oid), percent_rank() over (order by oid),"
    " cume_dist() over (order by 1) from pg_class limit 1",
    "select percentile_cont(0.5) within group (order by oid::int)"
    " from pg_class where relname='pg_class'",
    "select mode() within group (order by relname) from pg_class where relname='pg_class'",
    "select array_to_string(array['a'], ',') over () from pg_class limit 1",
    "select array_length(array['a'], 1) over () from pg_class limit 1",
    "select pg_get_userbyid(10) filter (where true) from pg_class limit 1",
    "select reverse('ab') over () from pg_class limit 1",
    "select left('ab', 1) over () from pg_class limit 1",
    "select repeat('ab', 1) over () from pg_class limit 1",
    "select translate('ab', 'a', 'b') over () from pg_class limit 1",
    "select initcap('ab') over () from pg_class limit 1",
    "select ceil(1.5) over (), ceiling(1.5) over () from pg_class limit 1",
    "select ceiling(1.5) over () from pg_class limit 1",
    "select regexp_replace('a', 'b', 'c') over () from pg_class limit 1",
    "select overlay('abc' placing 'x' from 1) over () from pg_class limit 1",
    "select age(now()) over () from pg_class limit 1",
    "select random() over () from pg_class limit 1",
    # Errors name the function that the client wrote.
    "select char_length(5) from pg_class limit 1",
    "select character_length(oid) from pg_class limit 1",
    "select length(5) from pg_class limit 1",
    "select lpad(5, 2) from pg_class limit 1",
    "select lpad(5, 2, 'x') from pg_class limit 1",
    "select rpad(5, 2) from pg_class limit 1",
    "select position('a' in 5) from pg_class limit 1",
    "select position(5 in 'a') from pg_class limit 1",
    "select strpos(5, 'a') from pg_class limit 1",
    "select substring(5 from 1) from pg_class limit 1",
    "select substring(5, 1) from pg_class limit 1",
    "select substr(5, 1) from pg_class limit 1",
    "select trim(5) from pg_class limit 1",
    "select trim(both 'x' from 5) from pg_class limit 1",
    "select ltrim(5) from pg_class limit 1",
    "select btrim(5) from pg_class limit 1",
    "select lower(5) from pg_class limit 1",
    "select upper(5) from pg_class limit 1",
    "select pg_catalog.lower(5) from pg_class limit 1",
    "select replace(5, 'a', 'b') from pg_class limit 1",
    "select abs('a'::text) from pg_class limit 1",
    "select ceiling('a'::text) from pg_class limit 1",
    "select ceil('a'::text) from pg_class limit 1",
    "select reverse(5) from pg_class limit 1",
    "select left(5, 1) from pg_class limit 1",
    "select right(5, 1) from pg_class limit 1",
    "select repeat(5, 1) from pg_class limit 1",
    "select strpos('a') from pg_class limit 1",
    "select char_length() from pg_class limit 1",
    "select lpad('a') from pg_class limit 1",
    "select sqrt('a'::text) from pg_class limit 1",
    "select power('a'::text, 2) from pg_class limit 1",
    "select pow('a'::text, 2) from pg_class limit 1",
    "select sum('a'::text) from pg_class limit 1",
    "select avg(relname) from pg_class limit 1",
    "select md5(5) from pg_class limit 1",
    "select translate(5, 'a', 'b') from pg_class limit 1",
    "select ascii(5) from pg_class limit 1",
    "select chr('a'::text) from pg_class limit 1",
    "select octet_length(5) from pg_class limit 1",
    "select bit_length(5) from pg_class limit 1",
    "select length(relname), char_length(oid) from pg_class limit 1",
    "select round('a'::text) from pg_class limit 1",
    "select mod('a'::text, 1) from pg_class limit 1",
    "select starts_with(5, 'a') from pg_class limit 1",
    "select array_length(5, 1) from pg_class limit 1",
    "select cardinality(5) from pg_class limit 1",
    "select date_part('year', 5) from pg_class limit 1",
    "select extract(year from 5) from pg_class limit 1",
    "select nosuch(relname, 1, null) from pg_class limit 1",
    "select pg_catalog.nosuch(relname) from pg_class limit 1",
    "select overlay(5 placing 'x' from 1) from pg_class limit 1",
    # Positions of columns in ORDER BY, GROUP BY and DISTINCT ON.
    "select relname from pg_class where relname = 'pg_class' order by (1)",
    "select relname from pg_class order by (7)",
    "select relname from pg_class order by ((7))",
    "select relname from pg_class group by (7)",
    "select relname from pg_class group by (1) order by 1 limit 0",
    "select relname from pg_class group by ((2))",
    "values (1, 'a'), (2, 'b') order by 3",
    "values (1, 'a'), (2, 'b') order by 2 desc",
    "values (1, 'a'), (2, 'b') order by column1 desc",
    "values (1), (3), (2) order by (1)",
    "values (1), (3), (2) order by 0",
    "select relkind, count(*) from pg_class where relname = 'pg_class'"
    " group by rollup (1) order by 1",
    "select relkind, count(*) from pg_class where relname = 'pg_class' group by rollup (3)",
    "select relkind, count(*) from pg_class group by cube (4)",
    "select relkind, count(*) from pg_class group by grouping sets ((1), (5))",
    "select relkind, count(*) from pg_class group by grouping sets ((1), ())  limit 0",
    "select relkind, count(*) from pg_class group by rollup (1, (4, 1))",
    "select c.* from pg_namespace c order by 9",
    "select c.* from pg_namespace c order by 5",
    "select c.*, 1 from pg_namespace c order by 6",
    "select * from pg_namespace order by 9",
    "select * from pg_namespace, pg_am order by 9",
    "select * from pg_namespace, pg_am order by 8 limit 0",
    "select n.nspname, a.* from pg_namespace n, pg_am a order by 6",
    "select distinct on (relname) relname from pg_class where relname = 'pg_class'",
    "select distinct on (1) relname from pg_class where relname = 'pg_class'",
    "select distinct on (2) relname from pg_class",
    "select distinct on (0) relname from pg_class",
    "select distinct on ((3)) relname from pg_class",
    "select distinct on () relname from pg_class",
    "select distinct on (1, 2) relname, relkind from pg_class where relname = 'pg_class'"
    " order by 1, 2",
    "select distinct on (1) relname, relkind from pg_class order by 2",
    "select (pg_get_keywords()).* order by 3, 1 limit 3",
    "select (pg_get_keywords()).* order by 6",
    "select (pg_get_keywords()).* order by 1 limit 2",
    "select (pg_get_keywords()).word order by 1 limit 2",
    "select (pg_get_keywords()).word order by 2 limit 2",
    "select * from pg_get_keywords() order by 3, 1 limit 2",
    "select * from pg_get_keywords() order by 6",
    "select relname from pg_class order by 'a'",
    "select relname from pg_class order by 1.5",
    "select relname from pg_class order by null limit 0",
    "select relname from pg_class order by -1 limit 0",
    "select relname from pg_class order by +1 limit 0",
    "select relname from pg_class order by 1::int limit 0",
    "select relname from pg_class order by 1 + 1 limit 0",
    "select relname from pg_class order by true limit 0",
    "select relname from pg_class group by 'a'",
    "select relname from pg_class group by null",
    "select relname from pg_class group by 1.5",
    "select 1 from pg_class group by -1",
    "select relname from pg_class order by 99999999999",
    "select relname from pg_class union select nspname from pg_namespace order by (2)",
    "select relname from pg_class where relname='pg_class' union"
    " select nspname from pg_namespace where nspname = 'public' order by (1)",
    "select relname from pg_class union all values ('x') order by 2",
    "(select relname from pg_class order by 2)",
    "select relname from (values ('a', 1)) v (relname, n) order by 2",
    "select * from (values ('a', 1)) v (relname, n) order by 2",
    "select * from (values ('a', 1)) v (relname, n) order by 3",
    "select array(select relname from pg_class order by 2)",
    "select count(*) over (order by 7) from pg_class limit 0",
    "select string_agg(relname::text, ',' order by 7) from pg_class where relname = 'pg_class'",
    "with x as (select relname from pg_class order by 2) select * from x",
    "select 1 as a, 2 as b from pg_class where relname = 'pg_class' group by 1, 2 order by b, 2",
    "select * from (select 1) x order by 2",
    "select * from pg_namespace n left join pg_am a using (oid) order by 8",
    "select * from pg_namespace n left join pg_am a using (oid) order by 7 limit 0",
    # Names of objects, with the database's name before them, too.
    "select 'lake.pg_catalog.int4'::regtype",
    "select 'lake.pg_catalog.int4'::regtype",
    "select 'LAKE.pg_catalog.int4'::regtype",
    "select '\"lake\".pg_catalog.int4'::regtype",
    "select '\"LAKE\".pg_catalog.int4'::regtype",
    "select 'lake.pg_catalog.int4[]'::regtype",
    "select 'pg_catalog.\"int4\"'::regtype",
    "select 'pg_catalog.\"int4\"[]'::regtype",
    'select \'"pg_catalog"."int4"\'::regtype',
    "select '\"int4\"'::regtype",
    "select '\"int4\"[]'::regtype",
    "select 'int4[]'::regtype",
    "select 'integer[]'::regtype",
    "select '\"integer\"'::regtype",
    "select 'pg_catalog.integer'::regtype",
    "select 'a.b.c.d'::regtype",
    "select 'other.pg_catalog.int4'::regtype",
    "select 'OTHER.pg_catalog.int4'::regtype",
    "select '\"Other\".pg_catalog.int4'::regtype",
    "select 'nosuch.int4'::regtype",
    "select 'nosuch'::regtype",
    "select '\"no such\"'::regtype",
    "select '\"x'::regtype",
    "select ''::regtype",
    "select 'numeric(5,2)'::regtype",
    "select 'timestamp(3) with time zone'::regtype",
    "select 'interval day to second'::regtype",
    "select 'double precision'::regtype",
    "select '{int4,text}'::regtype[]",
    r"""select '{"\"int4\"","timestamp with time zone"}'::regtype[]""",
    "select '{pg_catalog.int4}'::regtype[]",
    "select '{int4,text}'::regtype[]::text[]",
    "select coalesce(proallargtypes::regtype[], proargtypes::regtype[])::text[] from pg_proc"
    " where proname = 'pg_export_snapshot'",
    "select array['int4'::regtype, 'text'::regtype]",
    "select '{pg_class}'::regclass[]",
    "select to_regtype('other.public.f')",
    "select to_regtype('lake.pg_catalog.int4')",
    "select to_regtype('a.b.c.d')",
    "select to_regtype('\"x')",
    "select to_regtype('nosuch')",
    "select to_regtype('int4[]')",
    "select 'other.public.f'::regproc",
    "select 'a.b.c.d'::regproc",
    "select '\"x'::regproc",
    "select 'public.nosuch'::regproc",
    "select 'now'::regproc",
    "select 'pg_catalog.now'::regproc",
    "select 'lake.pg_catalog.now'::regproc",
    "select 'other.public.f()'::regprocedure",
    "select 'now()'::regprocedure",
    "select 'other.public.f'::regproc from pg_class limit 1",
    "select to_regclass('\"x')",
    "select to_regclass('x\"')",
    "select to_regclass('')",
    "select to_regclass('a.b.c.d')",
    "select to_regclass('lake.pg_catalog.pg_class')",
    "select to_regclass('LAKE.pg_catalog.pg_class')",
    "select to_regclass('\"pg_class\"')",
    "select to_regclass('\"x\"y')",
    "select to_regclass('\"x\".')",
    "select to_regclass('.x')",
    "select '\"x'::regclass",
    "select ''::regclass",
    "select 'lake.pg_catalog.pg_class'::regclass",
    "select to_regnamespace('\"x')",
    "select to_regnamespace('a.b')",
    "select 'a.b'::regnamespace",
    "select 'nosuch'::regnamespace",
    "select '\"x'::regnamespace",
    "select to_regrole('\"x')",
    "select to_regrole('a.b')",
    "select 'a.b'::regrole",
    "select 'nosuch'::regrole",
    "select 'int4'::regtype::oid",
    "select 23::regtype",
    "select '23'::regtype",
    "select '-'::regtype",
    "select 0::regtype",
    "select 99999::regtype",
    "select '-'::regproc",
    "select '-'::regclass",
    "select 'pg_class'::regclass::text",
    "select relname from pg_class where oid = 'other.public.t'::regclass",
    "select 'pg_class'::regclass = 1259",
    "select 'other.public.c'::regcollation",
    "select 'int4'::regtype::regclass",
    "select 'pg_catalog.pg_class'::regclass::regtype",
    # Row counts of LIMIT and OFFSET.
    "select relname from pg_class where false offset -1",
    "select relname from pg_class limit 0 offset -1",
    "select relname from pg_class where false limit -1",
    "select relname from pg_class where false offset 0 - 1",
    "select relname from pg_class offset '-1'",
    "select relname from pg_class where relname = 'pg_class' offset '0'",
    "select relname from pg_class where relname = 'pg_class' offset '1'",
    "select relname from pg_class offset 'x'",
    "select relname from pg_class offset (select -1)",
    "select relname from pg_class where false offset (select -1)",
    "select relname from pg_class where relname = 'pg_class' offset (select 0)",
    "select relname from pg_class where relname = 'pg_class' offset (select null)",
    "select relname from pg_class where relname = 'pg_class' offset (select 1 where false)",
    "select relname from pg_class offset true",
    "select relname from pg_class limit true",
    "select relname from pg_class offset null::boolean",
    "select relname from pg_class offset now()",
    "select relname from pg_class limit 'x'",
    "select relname from pg_class limit '-1'",
    "select relname from pg_class where relname = 'pg_class' limit '1'",
    "select relname from pg_class limit (select -1)",
    "select relname from pg_class where relname = 'pg_class' limit (select 1)",
    "select relname from pg_class where relname = 'pg_class' limit null",
    "select relname from pg_class where relname = 'pg_class' limit all",
    "select relname from pg_class where relname = 'pg_class' limit 1.5",
    "select relname from pg_class where relname = 'pg_class' limit 0.4",
    "select relname from pg_class offset relname",
    "select relname from pg_class limit relname",
    "select relname from pg_class limit oid",
    "select relname from pg_class offset count(*)",
    "select relname from pg_class limit 1 offset 99999999999999999999",
    "select relname from pg_class offset 1e30",
    "select relname from pg_class where relname='pg_class' offset 1e0",
    "select relname from pg_class where relname='pg_class' offset '1'::text",
    "select relname from pg_class where relname='pg_class' offset 1::numeric",
    "select relname from pg_class where relname='pg_class' offset 1::smallint",
    "select relname from pg_class where relname='pg_class' offset -1::int",
    "select relname from pg_class where relname='pg_class' offset -(1)",
    "select relname from pg_class where relname='pg_class' limit -(1)",
    "select relname from pg_class where relname='pg_class' limit 1 - 2",
    "select relname from pg_class where relname='pg_class' limit 1 + 1",
    "select count(*) from pg_class where relname='pg_class' offset -1",
    "select count(*) from (select 1 from pg_class offset -1) s",
    "select count(*) from (select 1 from pg_class where false offset -1) s",
    "select relname from pg_class where relname='pg_class' fetch first 1 row only",
    "select relname from pg_class where relname='pg_class' offset -1 rows",
    "select relname from pg_class where relname='pg_class' offset 1 row fetch next row only",
    "select exists (select 1 from pg_class offset -1)",
    "select relname from pg_class union all select nspname from pg_namespace offset -1",
    "values (1) offset -1",
    "values (1), (2) offset 1",
    "values (1), (2) limit 1",
    "values (1), (2) limit -1",
    "select relname from pg_class where false order by 1 offset -1",
)


@pytest.fixture(scope="module")
def catalog() -> Iterator[SystemCatalog]:
    made = SystemCatalog(FakeSource())
    yield made
    made.close()


@pytest.fixture(scope="module")
def conninfo(postgres_server: Callable[[int], PostgresServer]) -> str:
    """A database with the name that a node's has."""
    server = postgres_server(18)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("create database lake")
    return server.conninfo("lake")


@pytest.mark.parametrize("sql", QUERIES)
def test_an_expression_on_catalogs_is_as_in_postgresql(
    sql: str, catalog: SystemCatalog, conninfo: str
) -> None:
    with psycopg.connect(conninfo, autocommit=True) as server:
        expected: object
        try:
            result = server.execute(sql).pgresult
            assert result is not None
            values = [
                [result.get_value(row, column) for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
            expected = [
                tuple(None if v is None else v.decode() for v in row) for row in values
            ]
        except psycopg.Error as error:
            expected = error.sqlstate, error.diag.message_primary
    assert is_system_query(sql)
    answer: object
    try:
        answer = catalog.query(sql, (), session())[1]
    except Wal2LakeError as failure:
        answer = failure.sqlstate, str(failure)
    assert answer == expected


IN_A_ZONE = (
    "select '2020-07-01 01:02:03'::timestamptz from pg_class limit 1",
    "select '2020-07-01 01:02:03+00'::timestamptz::text from pg_class limit 1",
    "select '2020-07-01 01:02:03+00'::timestamptz::timestamp from pg_class limit 1",
    "select '2020-07-01 01:02:03'::timestamp::timestamptz from pg_class limit 1",
    "select '2020-07-01'::date::timestamptz(0) from pg_class limit 1",
    "select '2020-07-01 23:02:03+00'::timestamptz::date from pg_class limit 1",
    "select '2020-07-01 01:02:03+00'::timestamptz::time from pg_class limit 1",
)


@pytest.mark.parametrize("sql", IN_A_ZONE)
def test_a_time_zone_counts_in_constants_and_casts(
    sql: str, catalog: SystemCatalog, conninfo: str
) -> None:
    with psycopg.connect(conninfo) as server:
        server.execute("set timezone = 'Europe/Berlin'")
        result = server.execute(sql).pgresult
        assert result is not None
        expected = result.get_value(0, 0)
    assert expected is not None
    asking = session(TimeZone="Europe/Berlin")
    assert catalog.query(sql, (), asking)[1] == [(expected.decode(),)]


def test_an_abbreviation_in_a_constant_is_that_of_postgresql(
    catalog: SystemCatalog, conninfo: str
) -> None:
    """Also CET, EET, MET and WET, which as names of zones have a summer time."""
    sql = "select extract(epoch from '2024-{}-01 12:00 {}'::timestamptz)::bigint"
    asked = [(month, "Europe/Berlin") for month in ("07", "01")]
    with psycopg.connect(conninfo) as server:
        server.execute("set timezone = 'UTC'")
        names = server.execute("select abbrev from pg_timezone_abbrevs").fetchall()
        asked += [(month, name) for (name,) in names for month in ("07", "01")]
        wanted = {each: server.execute(sql.format(*each)).fetchone() for each in asked}
    refused = set()
    for (month, name), expected in wanted.items():
        try:
            number = parse_moment(f"2024-{month}-01 12:00 {name}", 1184, "UTC")
        except FeatureNotSupportedError:
            refused.add(name)
            continue
        assert (number // 1_000_000,) == expected, (month, name)
    # Their offset depends on the year.
    assert not refused & {"CET", "EET", "MET", "WET", "CEST", "EST", "PDT", "IST"}
    assert "MSK" in refused
    assert len(refused) < 60


@pytest.mark.parametrize("value", ["7", "relname", None])
def test_a_text_parameter_of_order_by_is_no_position(
    value: str | None, catalog: SystemCatalog, conninfo: str
) -> None:
    sql = "select relname from pg_class where relname = 'pg_class' order by {}"
    with psycopg.connect(conninfo) as server:
        expected = server.execute(sql.format("%s::text"), [value]).fetchall()
    parameters = [BoundParameter(value, 25)]
    assert catalog.query(sql.format("$1"), parameters, session())[1] == expected


@pytest.mark.parametrize(
    "pattern", ["a|ab", "ab|abc", "a(?:b|bb)c?", "Y*?([0-9]{1,3})", "(a|b)", "(a)?b"]
)
def test_a_pattern_that_the_engine_would_match_otherwise_is_refused(
    pattern: str, catalog: SystemCatalog
) -> None:
    with pytest.raises(FeatureNotSupportedError, match="on system catalogs"):
        catalog.query(
            f"select substring('xabbc' from '{pattern}') from pg_class", (), session()
        )
