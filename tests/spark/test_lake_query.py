"""Statements of the front door on real Spark."""

from __future__ import annotations

import json
import re
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg import errors as postgres
from pyspark.sql import SparkSession

from wal2lake.errors import (
    InternalError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.lake import FieldSpec
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.spark.session import SessionOptions
from wal2lake.lake.spark.texts import FAILED, LOG_HINT, from_condition
from wal2lake.model import Oid
from wal2lake.pgtypes.spark_ddl import identifier


def rows(
    queries: Queries, sql: str, group: str, limit: int | None = None
) -> list[dict[str, Any]]:
    result = queries.run(sql, job_group=group, row_limit=limit)
    found = pa.Table.from_batches(result.batches, result.schema)
    return list(found.to_pylist())


FOREIGN = re.compile(
    r"SQLSTATE|[Ss]park|\b(?:java|org|scala|py4j)\.|[A-Z]{3,}_[A-Z]|Traceback|Exception"
    r"|== SQL|BIGINT|STRING|\[[A-Z]"
)
"""What only Spark, Java or Python would say."""


def test_a_result_comes_in_order_and_in_pieces(queries: Queries) -> None:
    result = queries.run(
        "select id, cast(id as string) s from range(0, 50000, 1, 4) order by id desc",
        job_group="order",
    )
    batches = list(result.batches)
    assert len(batches) > 1
    ids = pa.Table.from_batches(batches, result.schema)["id"].to_pylist()
    assert ids == list(range(49_999, -1, -1))
    assert [(f.name, f.spark_ddl) for f in result.fields] == [
        ("id", "bigint"),
        ("s", "string"),
    ]


def test_an_empty_result_still_has_its_columns(queries: Queries) -> None:
    result = queries.run(
        "select cast(1.5 as decimal(5,1)) d, timestamp'2024-01-01' t where false",
        job_group="empty",
    )
    assert list(result.batches) == []
    assert result.schema.field("d").type == pa.decimal128(5, 1)
    assert result.schema.field("t").type == pa.timestamp("us", "UTC")


def test_a_row_limit_caps_the_result(queries: Queries) -> None:
    assert len(rows(queries, "select * from range(1000)", "limit", limit=7)) == 7


def test_duplicate_column_names_are_no_problem(queries: Queries) -> None:
    result = queries.run("select 1 a, 2 a", job_group="duplicates")
    (batch,) = result.batches
    assert [column.to_pylist() for column in batch.columns] == [[1], [2]]


def test_a_plain_column_keeps_its_postgresql_type(
    queries: Queries, lake: DeltaTables, location: str
) -> None:
    price = FieldSpec("p", "decimal(10,2)", pg_type_oid=Oid(1700), pg_typmod=655366)
    lake.create(location, [price])
    sql = f"select p as q, p + 1 as r from {relation(location)}"
    for fields in (
        queries.describe(sql),
        queries.run(sql, job_group="types").fields,
    ):
        assert fields[0].pg_type_oid == 1700
        assert fields[0].pg_typmod == 655366
        assert fields[1].pg_type_oid == 0


def test_describing_a_command_does_not_run_it(
    queries: Queries, lake: DeltaTables, location: str
) -> None:
    lake.create(location, [FieldSpec("id", "int")])
    queries.describe(f"insert into {relation(location)} values (1)")
    assert lake.state(location).version == 0
    list(
        queries.run(
            f"insert into {relation(location)} values (1)", job_group="i"
        ).batches
    )
    assert lake.state(location).version == 1


def test_a_text_is_not_a_template(
    queries: Queries, lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    text = "${env:HOME} ${system:user.dir} ${spark.app.name} ${hivevar:x}"
    assert rows(queries, f"select '{text}' as t", "template") == [{"t": text}]
    lake.create(location, [FieldSpec("t", "string")])
    sql = f"insert into {relation(location)} values ('{text}')"
    list(queries.run(sql, job_group="template").batches)
    found = rows(queries, f"select t from {relation(location)}", "template")
    assert found == [{"t": text}]
    other = spark_session.newSession()
    assert other.sql(f"select '{text}' as t").first() == (text,)


def test_a_version_can_be_read_as_of(
    queries: Queries, lake: DeltaTables, tmp_path: Path
) -> None:
    location = str(tmp_path / "odd `name`")
    assert identifier("a`b") == "`a``b`"
    assert relation("/x", 3) == "delta.`/x` version as of 3"
    location = str(tmp_path / "t")
    lake.create(location, [FieldSpec("id", "int")])
    for value in (1, 2):
        list(
            queries.run(
                f"insert into {relation(location)} values ({value})",
                job_group=f"v{value}",
            ).batches
        )
    sql = f"select t.id from {relation(location, 1)} as t"
    assert rows(queries, sql, "asof") == [{"id": 1}]


@pytest.mark.parametrize(
    ("sql", "sqlstate", "text"),
    [
        ("select 1/0", "22012", "division by zero"),
        ("select id / (id - id) from range(3)", "22012", "division by zero"),
        ("select 1 % 0", "22012", "division by zero"),
        ("select 1 limit cast(-1 as int)", "2201W", "LIMIT must not be negative"),
        ("select 1 offset cast(-1 as int)", "2201X", "OFFSET must not be negative"),
        ("select 1 limit 'x'", "42804",
         "argument of LIMIT must be type bigint, not type text"),
        ("select id from range(2) limit id", "42P10",
         "argument of LIMIT must not contain variables"),
        ("select NoFunc(1)", "42883", 'function "nofunc" does not exist'),
        ("select 2147483647 + 1", "22003", "integer out of range"),
        ("select cast(300 as smallint) * cast(300 as smallint)", "22003", "smallint out of range"),
        ("select cast(id + 3000000000 as int) from range(2)", "22003", "integer out of range"),
        ("select cast('x' as int)", "22P02", 'invalid input syntax for type integer: "x"'),
        ("select cast('x' as date)", "22P02", 'invalid input syntax for type date: "x"'),
        ("select * from nowhere", "42P01", 'relation "nowhere" does not exist'),
        ("select * from delta.`/no/where`", "42P01", None),
        ("select nothing from range(1)", "42703", 'column "nothing" does not exist'),
        ("select a.id from range(1) b", "42703", 'column "a.id" does not exist'),
        ("select nofunc(1)", "42883", 'function "nofunc" does not exist'),
        ("select id from range(1) a, range(1) b", "42702", 'column reference "id" is ambiguous'),
        ("selec 1", "42601", None),
        ("select (select id from range(2)) x", "21000", None),
        ("select sum(id), id from range(2)", "42803",
         "a column that is selected must appear in the GROUP BY clause or be used in an"
         " aggregate function"),
        ("select id, id % 2 as two, count(*) from range(2) group by two", "42803",
         'column "id" must appear in the GROUP BY clause or be used in an aggregate function'),
        ("select id from range(2) group by 5", "42P10",
         "GROUP BY position 5 is not in select list"),
        ("select id from range(2) order by 5", "42P10",
         "ORDER BY position 5 is not in select list"),
        ("select id from range(2) group by count(*)", "42803",
         "aggregate functions are not allowed in GROUP BY"),
        ("select max(count(id)) from range(2)", "42803",
         "aggregate function calls cannot be nested"),
        ("select id from range(2) where count(*) > 1", "42803",
         "aggregate functions are not allowed in WHERE"),
        ("select id from range(2) where id", "42804",
         "argument of WHERE must be type boolean, not type bigint"),
        ("select id from range(2) union select id, id from range(2)", "42601",
         "each UNION query must have the same number of columns"),
        ("select 1 union select array(1)", "42804",
         "UNION types integer and integer[] cannot be matched"),
        ("select (select id, id from range(1))", "42601", "subquery must return only one column"),
        ("select * from range(1) a join range(1) b using (z)", "42703",
         'column "z" specified in USING clause does not exist in left table'),
        ("select row_number() from range(2)", "42809",
         "window function row_number requires an OVER clause"),
        ("select lower('a', 'b')", "42883", "function lower does not exist with 2 arguments"),
        ("select array(1, 'x') + 1", "42883", None),
    ],
)  # fmt: skip
def test_errors_are_postgresqls(
    queries: Queries, sql: str, sqlstate: str, text: str | None
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        rows(queries, sql, f"error {sql}")
    error = caught.value
    assert error.sqlstate == sqlstate, error.describe()
    if text is not None:
        assert error.message == text
    assert not FOREIGN.search(error.describe())


@pytest.mark.parametrize(
    "sql",
    [
        "select parse_json('{')",
        "select from_json('{}', 'nonsense')",
        "select array(1)[5]",
        "select map(1, 2, 1, 3)",
        "select to_number('a', 'b')",
        "select regexp_extract('a', '(', 0)",
        "select java_method('java.lang.Integer', 'parseInt', 'x')",
        "select reflect('java.no.Such', 'method')",
        "select assert_true(false, 'no')",
        "select raise_error('mine')",
        "select from_csv('a', 'a int', map('mode', 'other'))",
        "select * from parquet.`/no/where`",
        "select 'a' + array(1)",
        "select sha2(array(1), 2)",
        "select rank() over (order by id rows 5 preceding) from range(1)",
        "select * from range(1) pivot (max(id) for id in (id))",
        "select explode(explode(array(array(1))))",
        "select current_date() - map(1, 2)",
        "set nonsense",
        "create function f as 'a.b.C' using jar 'x.jar'",
        "describe function extended nofunc",
        "select to_timestamp('x', 'QQQQQQQ')",
        "select * from range(1) t, lateral (select * from u)",
        "merge into nowhere using range(1) on true when matched then delete",
    ],
)
def test_no_error_is_said_in_the_engines_words(queries: Queries, sql: str) -> None:
    try:
        rows(queries, sql, f"words {sql}")
    except Wal2LakeError as error:
        postgres.lookup(error.sqlstate)  # KeyError: PostgreSQL does not have it
        assert not FOREIGN.search(error.describe()), error.describe()


def test_what_has_no_condition_is_for_the_log_alone(
    spark_session: SparkSession,
) -> None:
    with pytest.raises(InternalError) as caught, translated("here"):
        spark_session._jvm.java.lang.Integer.parseInt("no number")
    assert caught.value.describe() == f"{FAILED}\nHINT:  {LOG_HINT}\nCONTEXT:  here"
    assert "java.lang.NumberFormatException" in (caught.value.original or "")


def test_every_condition_of_delta_becomes_an_error_of_postgresqls(
    session_options: SessionOptions,
) -> None:
    name = "error/delta-error-classes.json"
    (jar,) = (jar for jar in session_options.jars if "delta-spark" in jar.name)
    with zipfile.ZipFile(jar) as opened:
        listed = json.loads(opened.read(name))
    assert len(listed) > 300
    for condition, told in listed.items():
        error, _ = from_condition(condition, told.get("sqlState"), {})
        postgres.lookup(error.sqlstate)  # KeyError: PostgreSQL does not have it
        assert not FOREIGN.search(error.describe()), condition


def test_error_classes_say_what_kind(queries: Queries) -> None:
    with pytest.raises(SqlSyntaxError):
        queries.describe("selec 1")
    with pytest.raises(UndefinedObjectError):
        queries.describe("select * from nowhere")


def test_an_error_in_a_late_partition_reaches_the_reader(queries: Queries) -> None:
    result = queries.run(
        "select 1 / (id - 9999) x from range(0, 10000, 1, 4)", job_group="late"
    )
    with pytest.raises(UsageError, match="division by zero"):
        list(result.batches)


SLOW = "select count(*) from range(0, 1000000000000, 1, 4) where id * 7 % 3 = 5"


def test_a_running_statement_is_cancelled_from_another_thread(
    queries: Queries, spark_session: SparkSession
) -> None:
    caught: list[Wal2LakeError] = []

    def work() -> None:
        try:
            rows(queries, SLOW, "slow")
        except Wal2LakeError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    tracker = spark_session.sparkContext.statusTracker()
    deadline = time.monotonic() + 30
    while not tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.02)
    queries.cancel("slow")
    thread.join(30)
    assert not thread.is_alive()
    assert [e.sqlstate for e in caught] == ["57014"]
    assert caught[0].message == "canceling statement due to user request"
    assert rows(queries, "select 1 one", "slow") == [{"one": 1}]


def test_a_cancel_during_planning_is_not_lost(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = threading.Event()
    cancelling = threading.Event()
    original = queries._spark.sql

    def slow_planning(sql: str) -> object:
        frame = original(sql)
        planned.set()
        assert cancelling.wait(30)
        return frame

    monkeypatch.setattr(queries._spark, "sql", slow_planning)
    ended: list[bool] = []

    def stop() -> None:
        assert planned.wait(30)
        ended.append(queries.cancel("early"))

    thread = threading.Thread(target=stop)
    thread.start()
    threading.Timer(0.2, cancelling.set).start()
    with pytest.raises(UsageError) as caught:
        rows(queries, SLOW, "early")
    assert caught.value.sqlstate == "57014"
    thread.join(30)
    assert ended == [True]


def test_a_cancel_that_finds_nothing_has_no_effect(queries: Queries) -> None:
    assert not queries.cancel("idle")
    assert rows(queries, "select 1 one", "idle") == [{"one": 1}]
    assert not queries.cancel("idle")


def test_an_abandoned_result_leaves_nothing_running(
    queries: Queries, spark_session: SparkSession
) -> None:
    result = queries.run("select id from range(0, 400000, 1, 8)", job_group="abandoned")
    next(result.batches)
    result.batches.close()
    tracker = spark_session.sparkContext.statusTracker()
    deadline = time.monotonic() + 30
    while tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(tracker.getActiveJobsIds()) == []
    assert spark_session.range(3).count() == 3
