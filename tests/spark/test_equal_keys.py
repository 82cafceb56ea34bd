"""Keys that are equal by their type are one key, however they are written: where Spark looks."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fakes.histories import TRUSTED, UNTRUSTED
from tests.fakes.lake_log import rows_of, write_log
from tests.fakes.spark_batches import SparkBatches
from tests.fakes.spelled import (
    FIELDS,
    SpelledModel,
    meant,
    shape_of,
    spelled,
    spelled_events,
    staged_rows,
)

from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.batch.batchport import StageRequest
from wal2lake.lake.batch.methods import Method
from wal2lake.lake.branch import lookup
from wal2lake.lake.spark.branch.branches import Branches
from wal2lake.lake.spark.branch.keys import BranchKeys, Key
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.merge.netchange import NetChange, net_change
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.staging.layout import DELETE, INSERT, RowFailure, spark_schema
from wal2lake.lake.staging.logrows import LsnRange
from wal2lake.model import Column, ConflictType, Oid, Relation, ReplicaIdentity
from wal2lake.pgtypes.equality import alike, alike_sql, loose_columns
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    Row,
    RowEvent,
    batches,
    history,
    initial_rows,
)

pytestmark = pytest.mark.spark

ROWS = "grp int, number string, a string, b string"

VALUES = {
    FieldSpec("n", "string", pg_type_oid=Oid(1700)): (
        "1",
        "1.0",
        "1.00",
        "100",
        "0.10",
        "0.05",
        "0.050",
        "-1.50",
        "NaN",
        None,
    ),
    FieldSpec("j", "string", pg_type_oid=Oid(3802)): (
        '{"a": 1.0, "b\\"1.0": [2.50, "3.0"]}',
        "1.00",
        '"1.00"',
        '["\\\\", 1.0]',
        f'"{"x" * 100_000}1.0"',
        '"' + r"\"" * 50_000 + '1.0"',
    ),
    FieldSpec("r", "string", pg_type_oid=Oid(3906)): ("[1.0,2.00)", "(,1)", "empty"),
    FieldSpec("i", "string", pg_type_oid=Oid(1186)): (
        "1 day",
        "24:00:00",
        "1 mon",
        "30 days",
        "-1 days +00:00:01",
        "-23:59:59",
        "1 year 2 mons 3 days 04:05:06.7",
        "-1 years -2 mons +3 days -04:05:06.789",
        "00:00:00",
        "00:00:00.000001",
        "-00:00:00.000001",
        "infinity",
        "-infinity",
        None,
        "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807",
        "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808",
    ),
    FieldSpec("d", "double", pg_type_oid=Oid(701)): (0.0, -0.0, 1.5, None),
    FieldSpec("f", "float", pg_type_oid=Oid(700)): (0.0, -0.0, 1.5),
    FieldSpec("c", "string", pg_type_oid=Oid(25), pg_type_name="citext"): ("aB", "Ab"),
    FieldSpec("b", "string", pg_type_oid=Oid(1042)): ("a ", "a", " a"),
    FieldSpec("an", "array<string>", pg_type_oid=Oid(1231)): (["1.0", None], [], None),
    FieldSpec("ai", "array<string>", pg_type_oid=Oid(1187)): (
        ["1 day", None],
        ["24:00:00"],
    ),
    FieldSpec("ad", "array<double>", pg_type_oid=Oid(1022)): ([-0.0, None], [0.0]),
}


def test_spark_makes_alike_what_arrow_makes_alike(spark_session: SparkSession) -> None:
    fields = tuple(VALUES)
    loose = loose_columns(fields, range(len(fields)))
    assert list(loose) == list(range(len(fields)))
    longest = max(map(len, VALUES.values()))
    values = [
        [*column, *[None] * (longest - len(column))] for column in VALUES.values()
    ]
    frame = spark_session.createDataFrame(
        list(zip(*values, strict=True)),
        ", ".join(f"{f.name} {f.spark_ddl}" for f in fields),
    )
    compared = (alike_sql(f.name, loose[i]) for i, f in enumerate(fields))
    found = frame.selectExpr(*compared).toArrow()
    wanted = alike(
        [pa.chunked_array(column.chunks) for column in frame.toArrow().columns], loose
    )
    for field, one, other in zip(fields, found.columns, wanted, strict=True):
        # Texts, for -0.0 equals 0.0.
        assert list(map(str, one.to_pylist())) == list(map(str, other.to_pylist())), (
            field
        )


@pytest.mark.parametrize("here", [True, False], ids=["here", "by Spark"])
def test_a_statements_keys_are_compared_by_their_types(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: bool,
) -> None:
    if not here:
        monkeypatch.setattr(lookup, "_FEW", 0)
    table = str(tmp_path / "t")
    kinds = {"i": 1186, "j": 3802, "n": 1700}
    fields = [FieldSpec(k, "string", pg_type_oid=Oid(oid)) for k, oid in kinds.items()]
    fields.append(FieldSpec("a", "array<string>", pg_type_oid=Oid(1231)))
    lake.create(table, fields)

    def execute(sql: str) -> None:
        queries.run(sql, job_group="x").batches.close()

    execute(
        f"INSERT INTO {relation(table)} VALUES"
        " ('1 day', '{\"a\": 1.0}', '1.50', array('1.0', '2'))"
    )
    branches = Branches(spark_session, lake, queries)
    keys = BranchKeys(spark_session, lake, queries)
    branch = branches.open(table, None, str(tmp_path / "branch"), "open")

    def found(column: str, *values: str) -> bool:
        """Whether the values bring a key that is there, or bring one twice."""
        rows = ", ".join(f"({value})" for value in values)
        execute(f"INSERT INTO {relation(branch.location)} ({column}) VALUES {rows}")
        version = branches.state(branch).version
        commit = lake.actions(branch.location, version, version)[0]
        added = [a["add"] for a in commit if "add" in a]
        batch = keys.repeated(branch, added, Key((column,)), "keys")
        branches.cut_back(branch, version - 1)
        return batch is not None

    assert found("i", "'24:00:00'")
    assert not found("i", "'24:00:01'")
    assert found("i", "'2 days'", "'48:00:00'")
    assert found("j", """'{"a": 1.00}'""")
    assert not found("j", """'{"a": "1.0"}'""", """'{"a": "1.00"}'""")
    assert found("n", "'1.5'")
    assert found("a", "array('1.00', '2.0')")
    assert not found("a", "array('2', '1')")
    branches.drop(branch)


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 3))]
)
def test_a_net_change_finds_the_rows_that_are_meant(
    spark_session: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(60, 12, moves=seed != 3, missing=True, truncates=seed == 2)
    start = {key: spelled(row, rng) for key, row in initial_rows(shape, rng).items()}
    numbers = {key: (*key, *row[2:]) for key, row in start.items()}
    events = spelled_events(history(shape, numbers, rng), rng)
    model = SpelledModel(KEY, dict(start))
    for batch in batches(events, rng, 2):
        before = {row[:2]: row for row in model.rows.values()}
        model.apply_all(batch)
        assert _merged(spark_session, batch, before) == {
            row[:2]: row for row in model.rows.values()
        }


def _merged(
    spark: SparkSession, batch: list[RowEvent], table: dict[Row, Row]
) -> dict[Row, Row]:
    """What MERGE does with the net change."""
    of = shape_of(batch)
    schema = spark_schema(of)
    names = [part.split()[0] for part in schema.split(", ")]
    staged = [tuple(row[name] for name in names) for row in staged_rows(batch, of)]
    net = net_change(
        spark.createDataFrame(staged, schema),
        of,
        spark.createDataFrame(list(table.values()), ROWS),
        UNTRUSTED,
    )
    assert isinstance(net, NetChange), net
    result = {} if net.replaces else dict(table)
    written = net.found_by.get(1, "n1")
    for row in net.rows.collect():
        assert len([n for n in row.asDict() if n.startswith("n")]) == len(FIELDS)
        key = (row["n0"], row[written])
        stored = result.pop(key, None)
        if row["op"] == DELETE or (row["op"] != INSERT and stored is None):
            continue
        new = tuple(
            stored[i]
            if stored is not None and row.asDict().get(f"u{i}")
            else row[f"n{i}"]
            for i in range(4)
        )
        assert meant(new[:2]) not in {meant(one) for one in result}
        result[new[:2]] = new
    return result


def test_an_insert_of_a_key_that_is_written_differently_is_a_conflict(
    spark_session: SparkSession,
) -> None:
    batch = [RowEvent(5, 0, "I", (1, "24:00:00", "new", None))]
    of = shape_of(batch)
    schema = spark_schema(of)
    names = [part.split()[0] for part in schema.split(", ")]
    staged = [tuple(row[name] for name in names) for row in staged_rows(batch, of)]
    base = spark_session.createDataFrame([(1, "1 day", "old", None)], ROWS)
    for uniqueness, taken in ((UNTRUSTED, True), (TRUSTED, False)):
        found = net_change(
            spark_session.createDataFrame(staged, schema), of, base, uniqueness
        )
        assert isinstance(found, RowFailure) == taken
        if isinstance(found, RowFailure):
            assert (found.conflict, found.seq.commit_lsn) == (
                ConflictType.INSERT_EXISTS,
                5,
            )


def test_merge_finds_the_rows_that_are_meant(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    columns = (
        Column(f.name, f.pg_type_oid, -1, i in KEY) for i, f in enumerate(FIELDS)
    )
    sent = Relation(Oid(1), "public", "t", ReplicaIdentity.DEFAULT, tuple(columns))
    lake.create(location, FIELDS)
    there = [(1, f"{n} days", f"old {n}", None) for n in (2, 3, 4)]
    rows = spark_session.createDataFrame(there, ROWS)
    rows.write.format("delta").mode("append").save(location)
    events = [
        RowEvent(5, 0, "U", (1, "48:00:00", "new 2", None)),
        RowEvent(5, 1, "D", None, (1, "72:00:00")),
        RowEvent(5, 2, "U", (1, "120:00:00", "new 5", None), (1, "96:00:00")),
        RowEvent(5, 3, "I", (1, "144:00:00", "new 6", None)),
    ]
    request = StageRequest(
        namespace="public",
        name="t",
        state=lake.state(location),
        key=("grp", "number"),
        constraint="t_pkey",
        sources=[write_log(tmp_path / "1.parquet", events, sent)],
        span=LsnRange(0),
        append=False,
        trusted=False,
    )
    port = SparkBatches(
        spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=0
    )
    staged = port.stage(request)
    assert not staged.failures
    port.commit(staged, Cursor("app", 6))
    assert sorted(rows_of(spark_session, location), key=str) == [
        (1, "120:00:00", "new 5", None),
        (1, "144:00:00", "new 6", None),
        (1, "48:00:00", "new 2", None),
    ]
    assert list(port.methods("app", location)) == [Method.MERGE]
