"""A client never reads the embedded catalog engine's own text, whatever it asks."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from psycopg import errors as postgres
from tests.fakes.catalog_source import FakeSource, session
from tests.fakes.random_expressions import Vocabulary

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.sysviews import SystemCatalog, is_system_query

ENGINE = re.compile(
    r"Error:|Binder|DuckDB|duckdb|sqlglot|LINE \d|VARCHAR|UINTEGER|BIGINT|INT(?:32|64|128)"
    r"|Candidate|[Cc]ast\(|TRY_CAST|[Ee]xplicit cast is|Unimplemented|not yet|yet supported"
    r"|wal2lake_|pgcat|\x1b|internal error"
)
"""What only the engine, or the parser before it, would say."""

VALUES = (
    "1", "-1", "1.5", "'x'", "''", "null", "true", "'1'", "'{}'", "'{a,b}'", "array[1,2]",
    "array['a']", "now()", "clock_timestamp()", "current_date", "interval '1 day'", "'\\x00'",
    "oid", "relname", "relkind", "relnamespace", "reloptions", "relacl", "row(1, 2)",
    "9223372036854775807", "1e400", "'pg_class'::regclass", "'0/1'::pg_lsn", "nothing",
    "(select 1)", "(select oid from pg_type)", "count(*)", "c", "c.*", "x.relname", "*",
    "$tag$x$tag$", "B'101'", "X'1F'", "U&'\\0041'", "E'\\n'", "date '2020-01-01'",
)  # fmt: skip
TYPES = (
    "int", "bigint", "smallint", "text", "oid", "regclass", "regtype", "name", '"char"',
    "time", "date", "timestamp", "timestamptz", "timetz", "interval", "numeric", "numeric(3,1)",
    "bool", "bytea", "uuid", "json", "jsonb", "int[]", "text[]", "regtype[]", "inet", "float8",
    "real", "xid", "pg_lsn", "bit(3)", "money", "nothing", "char(2)", "varchar(1)", "point",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "%", "||", "=", "<>", "<", ">=", "~", "~*", "!~", "like", "ilike", "and",
    "or", "&&", "@>", "<@", "->", "->>", "#>", "#>>", "^", "|/", "&", "|", "<<", ">>", "is",
    "is distinct from", "in", "similar to", "operator(pg_catalog.!=)", "at time zone", "@@",
)  # fmt: skip
FUNCTIONS = (
    "floor", "abs", "round", "length", "lower", "upper", "coalesce", "nullif", "greatest",
    "array_length", "unnest", "array_agg", "string_agg", "sum", "avg", "min", "max", "count",
    "to_char", "to_date", "date_trunc", "extract", "format", "substring", "position", "trim",
    "generate_series", "row_to_json", "to_jsonb", "jsonb_build_object", "random", "pi", "sqrt",
    "ln", "regexp_matches", "regexp_replace", "split_part", "string_to_array", "array_to_string",
    "array_position", "format_type", "pg_get_expr", "pg_typeof", "current_setting", "age",
    "make_date", "encode", "decode", "md5", "version", "range", "list_sum", "read_csv", "nothing",
    "struct_pack", "epoch_ms", "strftime", "hash", "sha256", "row_number", "lag", "txid_current",
)  # fmt: skip
CLAUSES = (
    "", " where {0}", " group by {0}", " order by {0}", " having {0}", " limit {0}",
    " group by relkind having {0}", " offset {0}", " where relname in ({0}, {1})",
    " cross join unnest({0}, {1}) as u (a, b)", " join pg_type t on {0}",
    " union select {0}", " union all select {0}, {1}", " as c (a, b)", " order by 7",
    " join pg_namespace using (nothing)", " natural join pg_type", " window w as (order by {0})",
)  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Iterator[SystemCatalog]:
    catalog = SystemCatalog(FakeSource())
    yield catalog
    catalog.close()


def refusal(catalog: SystemCatalog, sql: str) -> Wal2LakeError | None:
    """What the query is refused with; any other exception goes on."""
    try:
        catalog.describe(sql, (), session())
        catalog.query(sql, (), session())
    except Wal2LakeError as error:
        return error
    return None


WORDS = Vocabulary(
    VALUES, TYPES, OPERATORS, FUNCTIONS, form="case when {0} then {1} end", depth=3
)


def statement(rng: random.Random) -> str:
    source = rng.choice(("", " from pg_class c", " from pg_catalog.pg_class"))
    clause = rng.choice(CLAUSES).format(WORDS.expression(rng), WORDS.expression(rng))
    return f"select {WORDS.expression(rng)}{source}{clause}"


@pytest.mark.parametrize("seed", range(4))
def test_no_random_query_shows_the_engines_text(catalog, seed):
    rng = random.Random(seed)
    asked = refused = 0
    for _ in range(300):
        sql = statement(rng)
        if not is_system_query(sql):
            continue
        asked += 1
        error = refusal(catalog, sql)
        if error is not None:
            refused += 1
            said = " ".join(filter(None, (error.message, error.detail, error.hint)))
            assert not ENGINE.search(said.replace(sql, "")), (sql, said)
            postgres.lookup(error.sqlstate)  # KeyError: PostgreSQL does not have it
    assert asked > 100
    assert asked > refused


@pytest.mark.parametrize(
    "sql",
    [
        "select relnamespace from pg_class union select -1",
        r"select 9223372036854775807 from pg_class union select U&'\0041'",
    ],
)
def test_rows_that_their_columns_cannot_hold_are_an_error_of_the_query(catalog, sql):
    error = refusal(catalog, sql)
    assert error is not None
    assert error.sqlstate == "22P02"


# PostgreSQL 18's own answers.
@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("select nothing from pg_class", "42703", 'column "nothing" does not exist'),
        (
            "select x.relname from pg_class c",
            "42P01",
            'missing FROM-clause entry for table "x"',
        ),
        (
            "select oid from pg_class, pg_type",
            "42702",
            'column reference "oid" is ambiguous',
        ),
        (
            "select relname from pg_class where count(*) > 1",
            "42803",
            "aggregate functions are not allowed in WHERE",
        ),
        (
            "select 1 from pg_class union select 1, 2",
            "42601",
            "each UNION query must have the same number of columns",
        ),
        (
            "select (select oid from pg_type)",
            "21000",
            "more than one row returned by a subquery used as an expression",
        ),
        (
            "select decode('a!', 'base64') from pg_database",
            "22023",
            'invalid symbol "!" found while decoding base64 sequence',
        ),
        (
            "select make_interval(year => 1) from pg_database",
            "42883",
            "function make_interval(year => unknown) does not exist",
        ),
        ("select 'x'::date", "22007", 'invalid input syntax for type date: "x"'),
        ("select 'x'::int", "22P02", 'invalid input syntax for type integer: "x"'),
        ("select 1 / 0 from pg_class", "22012", "division by zero"),
        (
            "select 1.5 + array[1] from pg_class",
            "42883",
            "operator does not exist: numeric + integer[]",
        ),
        (
            "select lower(array['a']) from pg_class",
            "42883",
            "function lower(text[]) does not exist",
        ),
        (
            "select array[1] * null from pg_class group by count(*)",
            "42803",
            "aggregate functions are not allowed in GROUP BY",
        ),
        (
            "select 1 from pg_class order by 'a'",
            "42601",
            "non-integer constant in ORDER BY",
        ),
        ("select 1 from pg_class limit -1", "2201W", "LIMIT must not be negative"),
        ("select 1 + (*) from pg_class", "42601", 'syntax error at or near "*"'),
        (
            "select max(count(*)) from pg_class",
            "42803",
            "aggregate function calls cannot be nested",
        ),
        (
            "select unnest(relname::text) from pg_class",
            "42883",
            "function unnest(text) does not exist",
        ),
        (
            "select current_date::bool from pg_class",
            "42846",
            "cannot cast type date to boolean",
        ),
        (
            "select 1 from pg_class join pg_type using (nothing)",
            "42703",
            'column "nothing" specified in USING clause does not exist in left table',
        ),
    ],
)
def test_an_error_that_postgresql_has_is_said_in_its_words(
    catalog, sql, sqlstate, message
):
    error = refusal(catalog, sql)
    assert error is not None
    assert (error.sqlstate, error.message) == (sqlstate, message)
