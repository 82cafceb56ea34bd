"""Simple queries on small tables have the same answer from the tables' files as from Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.examples import examples

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.engine.rows import plainanswers
from wal2lake.engine.rows.answers import ValueFormats, answered
from wal2lake.engine.rows.plainanswers import plain_answer
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries
from wal2lake.model import Oid
from wal2lake.sql.query.results import Rendering, fields_of, plain_fields
from wal2lake.sql.query.translate import SparkQuery, TableRef, translate_query

COLUMNS = (
    ColumnDef("id", Oid(23)),
    ColumnDef("s", Oid(21)),
    ColumnDef("big", Oid(20)),
    ColumnDef("t", Oid(25)),
    ColumnDef("v", Oid(1043), 24),
    ColumnDef("b", Oid(16)),
    ColumnDef("d", Oid(1082)),
    ColumnDef("f", Oid(701)),
    ColumnDef("n", Oid(1700), ((12 << 16) | 2) + 4),
)

ROWS = (
    "(1, 1, 10, 'a', 'x', true, date'2026-01-02', 1.5, 12.50)",
    "(2, null, -9223372036854775808, 'B', 'y', false, date'0001-01-01', double('NaN'), null)",
    "(3, -5, 9223372036854775807, 'ä', null, null, null, null, -0.01)",
    "(4, 7, null, null, 'x', true, date'2026-01-02', -0.0D, 9999999999.99)",
    "(5, 7, 10, '', 'Z', false, date'2025-12-31', 0.0D, 0.00)",
    "(6, 0, 11, 'a', 'x', true, date'2026-01-03', double('Infinity'), 7.00)",
)

Ask = Callable[[str], tuple[SparkQuery, list[tuple[bytes | None, ...]] | None]]


@pytest.fixture(scope="module")
def table(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Several files, one of them with a deletion vector."""
    place = str(tmp_path_factory.mktemp("plain") / "t")
    there = f"delta.`{place}`"
    spark_session.sql(
        f"create table {there} (id int, s smallint, big bigint, t string, v string,"
        " b boolean, d date, f double, n decimal(12, 2)) using delta"
        " tblproperties ('delta.enableDeletionVectors' = true)"
    )
    for rows in (ROWS[:2], ROWS[2:5], ROWS[5:]):
        spark_session.sql(f"insert into {there} values {', '.join(rows)}")
    spark_session.sql(
        f"insert into {there} select id + 100, s, big, t, v, b, d, f, n from {there}"
    )
    spark_session.sql(f"delete from {there} where id in (101, 104)")
    return place


@pytest.fixture
def both(table: str, lake: DeltaTables, queries: Queries) -> Ask:
    """The rows from the files, and from Spark; None: the files were not asked."""
    numbers = itertools.count()

    def rows(query: SparkQuery, node: Any) -> list[tuple[bytes | None, ...]]:
        rendering = Rendering("UTC", "ISO, MDY", 1, "hex")
        with ExitStack() as held:
            group = f"plain-{next(numbers)}"
            found = answered(
                node, query, ValueFormats(), rendering, group, held, lambda: None
            )
        got = [row for one in found.batches for row in zip(*one.columns, strict=True)]
        found.close()
        return got

    def ask(sql: str) -> tuple[SparkQuery, list[tuple[bytes | None, ...]] | None]:
        definition = TableDef(
            Oid(30000), "public", "t", Oid(10), COLUMNS, ("id",), table
        )
        query = translate_query(sql, lambda schema, name: TableRef(definition, None))
        never = SimpleNamespace(plainly_read=lambda location, version: None)
        theirs = rows(query, SimpleNamespace(tables=never, queries=queries))
        if query.plain is None or (
            plain_answer(lake, query, query.plain, lambda: None) is None
        ):
            return query, None
        mine = rows(query, SimpleNamespace(tables=lake, queries=None))
        described = fields_of(queries.describe(query.sql), query)
        assert plain_fields(query) == described, sql
        if "order by" in sql:
            assert mine == theirs, sql
        else:
            assert sorted(map(str, mine)) == sorted(map(str, theirs)), sql
        return query, mine

    return ask


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select * from t", 10),
        ("select * from t where id = 3", 1),
        ("select t, id as x from t where id = 106 and v = 'x'", 1),
        ("select id from t where 5 = id or t is null or b is null", 4),
        ("select id from t where t is not null and b is not null", 7),
        ("select id from t where id in (1, 2, 77) and not v = 'y'", 1),
        ("select id from t where not (s in (7, 1))", 4),
        ("select id from t where big >= 11 and big <> 12", 4),
        ("select id from t where s < -2 or s > '6'", 5),
        ("select id from t where v <> 'x' order by id", 4),
        ("select id, t from t order by t, id", 10),
        ("select id, s as k from t order by k desc, id desc", 10),
        ("select id, d from t order by 2 nulls first, 1", 10),
        ("select id, b from t order by b desc nulls last, id limit 3 offset 2", 3),
        ("select id from t order by id limit 0", 0),
        ("select id from t where id > 1000", 0),
        ("select count(*) from t", 1),
        ("select count(*) as n from t where t = 'a'", 1),
        ("select count(*) from t limit 1 offset 1", 0),
        (
            "select count(*), sum(id) as ids, sum(s), sum(big), sum(n) from t where id > 1",
            1,
        ),
        ("select min(id), max(big), min(t), max(v), min(d), max(d), max(s) from t", 1),
        ("select count(t), count(f), count(*), max(id) from t where s = 7", 1),
        (
            "select sum(s), sum(big), sum(n), count(n), min(t), max(d) from t where id = 0",
            1,
        ),
        ("select sum(id), sum(n), min(v), count(*) from t where id > 9 and id < 0", 1),
    ],
)
def test_it_is_read_and_says_the_same(both: Ask, sql: str, count: int) -> None:
    query, rows = both(sql)
    assert rows is not None
    assert len(rows) == count
    assert query.columns is not None


@pytest.mark.parametrize(
    "sql",
    [
        "select id + 1 from t",
        "select id from t where id + 1 = 2",
        "select id from t where f = 1.5",
        "select id from t where id = 5000000000000000000000",
        "select id from t where s = 99999 + 1",
        "select id from t order by f, id",
        "select distinct t from t",
        "select t, count(*) from t group by t",
        "select max(id) + 1 from t",
        "select max(f), min(n) from t",
        "select count(distinct id), max(id) from t",
        "select sum(id) filter (where s = 7) from t",
        "select count(*), (select 1) from t",
        "select max(id) from t having count(*) > 1",
        "select a.id from t a join t b on a.id = b.id",
        "select id from t where exists (select 1 from t)",
        "select id, id from t",
    ],
)
def test_more_than_that_is_sparks(both: Ask, sql: str) -> None:
    assert both(sql)[1] is None


def test_much_is_sparks(both: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(plainanswers, "_MOST_BYTES", 100)
        assert both("select * from t")[1] is None
    monkeypatch.setattr(plainanswers, "_MOST_FILES", 1)
    assert both("select * from t")[1] is None
    assert both("select id from t where id = 6")[1] is not None, "of one file"
    assert both("select count(*) from t")[1] == [(b"10",)]


_COLUMN = st.sampled_from(["id", "s", "big"])
_NUMBER = st.integers(-6, 12) | st.sampled_from([101, 106, 1 << 40, -(1 << 58)])
_SIMPLE = (
    st.builds(
        "{} {} {}".format,
        _COLUMN,
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
        _NUMBER,
    )
    | st.builds("{} in ({}, {})".format, _COLUMN, _NUMBER, _NUMBER)
    | st.builds(
        "{} is {}null".format,
        st.sampled_from(["s", "big", "t", "b", "d"]),
        st.sampled_from(["", "not "]),
    )
    | st.builds(
        "{} {} '{}'".format,
        st.sampled_from(["t", "v"]),
        st.sampled_from(["=", "<>", "<", ">="]),
        st.sampled_from(["a", "x", "", "ä", "Z"]),
    )
)
_CONDITION = st.recursive(
    _SIMPLE,
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=4,
)
_KEY = st.builds(
    "{}{}{}".format,
    st.sampled_from(["id", "s", "big", "t", "v", "b", "d"]),
    st.sampled_from(["", " desc"]),
    st.sampled_from(["", " nulls first", " nulls last"]),
)


@pytest.mark.slow
@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(where=_CONDITION, keys=st.lists(_KEY, max_size=3), rows=st.integers(0, 12))
def test_any_of_them(both: Ask, where: str, keys: list[str], rows: int) -> None:
    order = ", ".join([*keys, "id"])
    sql = f"select id, t, s from t where {where} order by {order} limit {rows}"
    assert both(sql)[1] is not None, sql
    sql = f"select count(s), sum(id), sum(big), min(t), max(d) from t where {where}"
    assert both(sql)[1] is not None, sql
