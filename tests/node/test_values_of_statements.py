"""What statements compute and store, against PostgreSQL 18: overflow, times, char, zones.

Each script runs at both, statement by statement. The answers are the same text, the failures have
the same SQLSTATE and message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.testing.node import Node

TABLE: Final = r"""
create schema vs
create table vs.t (id int primary key, f8 double precision, f4 real, tm time, tm0 time(0),
 iv interval, ivd interval day, ivs interval second(1), d date, ts timestamp, tz timestamptz,
 by bytea, ch char(5), vc varchar(10), t text, n numeric(10,2), i int, i8 bigint)
insert into vs.t values
 (1, 1e300, 3e38, '10:20:30.567891', '10:20:30.5', '1 year 2 mons 3 days 04:05:06.789',
  '3 days 5 hours', '1.26 seconds', '2024-02-29', '2024-07-01 12:34:56.789',
  '9999-12-31 23:59:59.999999+00', '\x00ff', 'a', 'a ', 'a', 1.5, 2, 3),
 (2, -1e-300, 1e-30, '23:59:59.9', '23:59:59.9', '-1 mons -5 days -30:59:59.95', '-1 day', '0',
  '0001-01-01', '0044-03-15 01:00 BC', '0044-03-15 01:00+00 BC', '', 'b', 'b', 'b ', -2.25, -7,
  -3),
 (3, 'Infinity', 'NaN', '24:00', '00:00', '0', '0', '-2.75 s', '9999-12-31',
  '9999-12-31 23:59:59.999999', '0001-01-01 00:00:00+00', 'x', 'c', 'c  ', 'c', 0, 0, 0),
 (4, 2, 2.5, '00:00:00.000001', '12:00', '90 minutes', '1 day', '1 s', '2000-01-01',
  '2000-01-01', '2000-01-01 00:00+00', '\xdeadbeef', 'ab', 'ab', 'ab', 9.99, 5, 5)
insert into vs.t (id) values (5)
"""

SCRIPTS: Final = {
    "floats that overflow": r"""
select f8 * f8 from vs.t where id = 1
select f8 * f8 from vs.t where id = 2
select id, f8 * f8, f8 + f8, f8 - f8, f8 / 2, f8 * 2, f4 + 1, f4 * 2.0 from vs.t where id >= 3
 order by id
select f4 * f4 from vs.t where id = 1
select f4 * f4 from vs.t where id = 2
select f4 + f4 from vs.t where id = 1
select f8 / 0 from vs.t where id = 4
select f4 / 0 from vs.t where id = 3
select f4 / (f8 - 2) from vs.t where id = 4
select id from vs.t where f8 * f8 > 0
select id from vs.t where f8 * 2 > 0 order by id
select degrees(f8) from vs.t where id = 1
select 1e300::float8 * 1e300::float8
select 1e-300::float8 * 1e-300::float8
update vs.t set f8 = f8 * f8 where id = 1
delete from vs.t where f8 * f8 > 1
select id, f8 from vs.t order by id
""",
    "aggregates that overflow": r"""
select sum(f8) from vs.t
select sum(f8) from (select 1e308::float8 as f8 from vs.t) s
select sum(f4) from (select 3e38::real as f4 from vs.t) s
select avg(f8) from (select 1e308::float8 as f8 from vs.t) s
select avg(f8) from vs.t where id <> 3
select avg(f8), stddev(f8), variance(f8), stddev_pop(f8), var_pop(f8) from vs.t where id >= 3
select stddev(f8) from vs.t where id <> 3
select stddev(f4), variance(f4), avg(f4), sum(f4) from vs.t where id <> 3
select id, sum(f8) over (order by id), avg(f4) over (order by id),
 sum(f4) filter (where id > 1) over () from vs.t order by id
select id > 3, sum(f8) from vs.t group by 1 having sum(f8) * 2 > 1 order by sum(f8) * 2
select sum(x) from (values (1e308::float8), (1e308)) v(x)
""",
    "magnitudes": r"""
select @ i, @ f8, @ n, @ -5, @ i + 1, 2 * @ i, @i8 from vs.t order by id
select @ t from vs.t
select @ '5' from vs.t
select id from vs.t where @ i = 7
select @ -5.5
select @ typlen from pg_type where oid = 25
select 1 operator(pg_catalog.!=) 2, 2 * 3 operator(pg_catalog.+) 4, 5 operator(-) 2 - 1
select id from vs.t where t operator(pg_catalog.~) '.' and i operator(pg_catalog.>=) 0 order by id
select id from vs.t where i operator(pg_catalog.=) any (array[1, 7]) order by id
select right(t, (-2147483648)::int), left(t, (-2147483648)::int), right(t, -1) from vs.t
 order by id
select md5(by), md5(t), md5(ch) from vs.t order by id
""",
    "times and intervals": r"""
select d + tm, tm + d, d + time '10:00' from vs.t order by id
select ts + tm, tm + ts, ts - tm, d - tm from vs.t order by id
select tm + iv, tm - iv, iv + tm, iv - tm, tm - tm0, tm0 - tm from vs.t order by id
select tm + tm from vs.t
select tm::interval, iv::time, tm::interval::time, tm::interval second(0), iv::time(1) from vs.t
 order by id
select iv::interval year, iv::interval month, iv::interval day, iv::interval hour,
 iv::interval minute, iv::interval second from vs.t order by id
select iv::interval year to month, iv::interval day to hour, iv::interval day to minute,
 iv::interval day to second, iv::interval hour to second, iv::interval minute to second,
 iv::interval(0), iv::interval(1), iv::interval day to second(2) from vs.t order by id
select (ts - d)::interval hour, (ts - d)::interval day, (ts - d)::interval(0) from vs.t
 where id <> 3 order by id
select interval '1 day 2 hours' day, interval '5' day, interval '0', interval '1.5' second(0)
select tm::time(0), tm::time(1), tm0::time(0), ts::time(0), tz::time(1), '10:00:00.6+02'::timetz(0),
 time '10:00:00.6'::time(0) from vs.t order by id
""",
    "times and intervals that are stored": r"""
update vs.t set tm = tm::time(0) where id <> 5
select id, tm from vs.t order by id
update vs.t set tm0 = tm, iv = iv::interval day, ivd = iv, ivs = iv
select id, tm0, iv, ivd, ivs from vs.t order by id
update vs.t set tm = iv + interval '1 hour', iv = tm, tm0 = ts
select id, tm, iv, tm0 from vs.t order by id
update vs.t set tm0 = '10:00:00.5', ivd = '1 day 10 hours', ivs = '1.25', tm = iv
select id, tm, tm0, ivd, ivs from vs.t order by id
""",
    "char among texts": r"""
select id from vs.t where ch = any(array['a ', 'b']) order by id
select id from vs.t where ch = any(array['a ', 'b']::text[]) order by id
select id from vs.t where ch = any(array['a ', 'b']::char(5)[]) order by id
select id from vs.t where ch = any('{"a ",b}') order by id
select id from vs.t where ch in ('a ', 'b') order by id
select id from vs.t where ch in ('a '::text, 'b') order by id
select id from vs.t where ch <> all(array['a ', 'b']) order by id
select nullif(ch, t) || '|', array[nullif(ch, t), ch], nullif(vc, ch) || '|', nullif(i, 2.5) / 2
 from vs.t order by id
update vs.t set i = i + 1 where ch = any(array['a ', 'b'])
update vs.t set i = i + 10 where ch in ('a ', 'b')
update vs.t set i = i + 100 where ch = 'b '
delete from vs.t where ch = any(array['a ', 'zz'])
delete from vs.t where ch = any('{"c ",zz}')
select id, i from vs.t order by id
""",
    "the ends of time in zones": r"""
set time zone 5.5
select tz, tz::text, tz::date, now() is not null from vs.t order by id
select timestamptz '9999-12-31 23:59:59.999999+00', '0001-01-01 00:00+00'::timestamptz::text
set time zone '+05:30'
show timezone
select tz, tz::text, tz::date, extract(hour from tz), date_trunc('day', tz), tz::timestamp,
 ts::timestamptz from vs.t order by id
set time zone 'America/New_York'
select tz, tz::text, tz::date, extract(hour from tz), date_trunc('day', tz), tz::timestamp,
 ts::timestamptz from vs.t order by id
set time zone 'Asia/Tokyo'
select tz, tz::text, tz::date, extract(hour from tz), date_trunc('day', tz), tz::timestamp,
 ts::timestamptz from vs.t order by id
""",
    "arrays of oids": r"""
select oid from pg_type where oid = any('{23}'::oid[])
select oid from pg_type where oid = any(array[23, 25]::oid[])
 and typname = any('{int4,text}'::name[]) order by oid
""",
}


def _statements(script: str) -> list[Any]:
    """The statements of a script: a line that begins with a blank continues one."""
    return script.strip().replace("\n ", " ").splitlines()


def _outcome(connection: psycopg.Connection[Any], statement: Any) -> object:
    try:
        result = connection.execute(statement).pgresult
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary
    assert result is not None
    return result.command_status, [
        [result.get_value(row, place) for place in range(result.nfields)]
        for row in range(result.ntuples)
    ]


@pytest.fixture
def both(pg18: Database, node: Node) -> Iterator[tuple[Any, Any]]:
    with (
        psycopg.connect(pg18.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        for statement in _statements(TABLE):
            for connection in (theirs, ours):
                connection.execute(statement)
        try:
            yield theirs, ours
        finally:
            ours.execute("drop schema vs cascade")


@pytest.mark.parametrize(
    "about",
    [
        "arrays of oids",
        "magnitudes",
        *(
            pytest.param(about, marks=pytest.mark.slow)
            for about in SCRIPTS
            if about not in ("arrays of oids", "magnitudes")
        ),
    ],
)
def test_a_script_has_the_outcomes_that_it_has_in_postgresql(
    both: tuple[Any, Any], about: str
) -> None:
    wrong = []
    for statement in _statements(SCRIPTS[about]):
        theirs, ours = (_outcome(connection, statement) for connection in both)
        if theirs != ours:
            wrong.append(f"{statement}\n  {theirs}\n  {ours}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_parameter_declared_as_text_is_compared_as_text(
    both: tuple[Any, Any],
) -> None:
    answers = []
    for connection in both:
        cursor = connection.pgconn
        found = []
        for oid in (0, 25, 1043, 1042):
            for value in (b"a", b"a "):
                result = cursor.exec_params(
                    b"select id from vs.t where ch = $1 order by id", [value], [oid]
                )
                rows = range(result.ntuples)
                found.append([result.get_value(row, 0) for row in rows])
        answers.append(found)
    assert answers[1] == answers[0]
