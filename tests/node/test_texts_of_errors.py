"""No client of a node reads the text of an engine inside it, whatever it asks of a lake table."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from psycopg import errors as postgres
from tests.fakes.random_expressions import Vocabulary

from wal2lake.pg.client import Client, Failure
from wal2lake.testing.node import Node

ENGINE = re.compile(
    r"[Ss]park|Delta|DuckDB|duckdb|sqlglot|\b(?:java|org|scala|py4j|pyarrow)\.|[A-Z]{3,}_[A-Z]"
    r"|Traceback|\w(?:Error|Exception)\b|== SQL|BIGINT|STRING|VARCHAR|TIMESTAMP_NTZ|\[[A-Z]"
    r"|SQLSTATE|internal error"
)
"""What only an engine, or its parser, would say."""

TABLE = """
create schema te;
create table te.t (id int primary key, i2 int2, i8 int8, b bool, n numeric(20, 5), f8 float8,
  t text, vc varchar(3), by bytea, tz timestamptz, ts timestamp, d date, u uuid, jb jsonb,
  iv interval, tm time, ia int[], ta text[]);
insert into te.t values (1, 32767, 9223372036854775807, true, 1.5, 1e300, 'x', 'abc', '\\x00',
  '2024-01-01', 'infinity', '0001-01-01', '6f1c2b1e-0000-4000-8000-000000000001', '{"a": 1}',
  '1 day', '23:59', '{1,null}', '{a}'), (0, null, null, null, null, null, '', '', '', null,
  null, null, null, null, null, null, '{}', '{}')
"""
COLUMNS = (
    "id", "i2", "i8", "b", "n", "f8", "t", "vc", "by", "tz", "ts", "d", "u", "jb", "iv", "tm",
    "ia", "ta",
)  # fmt: skip
VALUES = (
    *COLUMNS, "0", "1", "-1", "1.5", "1e400", "'x'", "''", "null", "true", "'{}'", "array[1]",
    "now()", "interval '1 month'", "9223372036854775807", "count(*)", "(select 1)", "t.*", "*",
    "(select id from te.t)", "row(1, 2)", "nothing", "x.id", "'infinity'::date", "'('", "te.t",
)  # fmt: skip
TYPES = (
    "int", "bigint", "smallint", "text", "varchar(1)", "char(2)", "bool", "numeric(3,1)",
    "numeric", "float8", "real", "date", "time", "timestamp", "timestamptz", "interval", "uuid",
    "jsonb", "json", "bytea", "int[]", "text[]", "oid", "regclass", "inet", "nothing",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "%", "||", "=", "<>", "<", ">=", "~", "like", "ilike", "and", "or",
    "&&", "@>", "->", "->>", "#>", "^", "&", "<<", "is distinct from", "similar to",
    "at time zone", "in",
)  # fmt: skip
FUNCTIONS = (
    "abs", "ceil", "round", "sqrt", "ln", "power", "mod", "length", "lower", "left", "lpad",
    "substring", "replace", "split_part", "strpos", "md5", "encode", "decode", "translate",
    "repeat", "chr", "ascii", "coalesce", "nullif", "greatest", "sum", "avg", "min", "count",
    "bool_and", "string_agg", "array_agg", "array_length", "unnest", "cardinality", "to_char",
    "to_date", "to_timestamp", "date_trunc", "date_part", "extract", "age", "make_date",
    "jsonb_typeof", "jsonb_array_length", "regexp_replace", "regexp_match", "format", "concat",
    "generate_series", "row_number", "lag", "percentile_cont", "explode", "from_json", "nothing",
    "java_method", "raise_error", "element_at", "quote_literal", "to_hex", "width_bucket",
)  # fmt: skip
CLAUSES = (
    "", " where {0}", " where {0} {2} {1}", " group by {0}", " group by b having {0}",
    " order by {0}", " limit {0}", " offset {0}", " union select {0}", " union all select {0}, 1",
    " join te.t u using ({3})", " join te.t u on {0}", " order by 9", " group by 9",
)  # fmt: skip
STATEMENTS_ASKED = 120
"""Each takes Spark milliseconds to look at, and to compute a part of a second."""

STATEMENTS = (
    "insert into te.t (id, {3}) values (2, {0})", "update te.t set {3} = {0} where {1}",
    "delete from te.t where {0}", "insert into te.t select {0}, {1} from te.t",
    "select {0} over (partition by {1} order by {3}) from te.t", "select {0} {4} te.t",
    "with c as (select {0} from te.t) select {1} from c",
    "select case when {0} then {1} end from te.t",
    "select {0} from te.t t, lateral (select {1}) u", "select distinct on ({0}) {1} from te.t",
)  # fmt: skip


WORDS = Vocabulary(VALUES, TYPES, OPERATORS, FUNCTIONS, form="({0})[1]", depth=2)


def statement(rng: random.Random) -> str:
    given = (
        WORDS.expression(rng),
        WORDS.expression(rng),
        rng.choice(OPERATORS),
        rng.choice(COLUMNS),
        rng.choice(("from", "frm", ", from", "where from")),
    )
    if rng.random() < 0.3:
        return rng.choice(STATEMENTS).format(*given)
    return (
        f"select {WORDS.expression(rng)} from te.t{rng.choice(CLAUSES).format(*given)}"
    )


def failure_of(client: Client, sql: str) -> Failure | None:
    """What the statements are refused with, if they are."""
    refused = [got for got in client.run(sql) if isinstance(got, Failure)]
    return refused[0] if refused else None


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with node.connect() as client:
        assert failure_of(client, TABLE) is None
        yield client
        assert failure_of(client, "drop schema te cascade") is None


def said(failure: Failure) -> str:
    texts = (failure.message, failure.detail, failure.hint, failure.context)
    return "\n".join(filter(None, texts))


def test_no_random_statement_shows_an_engines_text(client: Client) -> None:
    rng = random.Random(29)
    states: Counter[str] = Counter()
    shown = []
    for _ in range(STATEMENTS_ASKED):
        sql = statement(rng)
        failure_of(client, "begin")
        failure = failure_of(client, sql)
        failure_of(client, "rollback")
        if failure is None:
            states["00000"] += 1
            continue
        states[failure.sqlstate] += 1
        postgres.lookup(failure.sqlstate)  # KeyError: PostgreSQL does not have it
        if ENGINE.search(said(failure).replace(sql, "")):
            shown.append((sql, failure))
    assert not shown
    assert states["00000"] > 5
    assert len(states) > 8
