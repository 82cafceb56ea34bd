"""Small expressions in queries over system catalogs: answers and errors of PostgreSQL 18."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.fakes.catalog_source import FakeSource, session

from wal2lake.errors import FeatureNotSupportedError, Wal2LakeError
from wal2lake.sql.sysviews import SystemCatalog, is_system_query
from wal2lake.testing.postgres import PostgresServer

QUERIES = (
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
)


@pytest.fixture(scope="module")
def catalog() -> Iterator[SystemCatalog]:
    made = SystemCatalog(FakeSource())
    yield made
    made.close()


@pytest.mark.parametrize("sql", QUERIES)
def test_an_expression_on_catalogs_is_as_in_postgresql(
    sql: str,
    catalog: SystemCatalog,
    postgres_server: Callable[[int], PostgresServer],
) -> None:
    with psycopg.connect(postgres_server(18).conninfo(), autocommit=True) as server:
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
