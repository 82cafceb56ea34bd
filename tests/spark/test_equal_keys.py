"""Keys that are equal by their type are one key, however they are written: where Spark looks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.lake import FieldSpec
from wal2lake.lake.branch import lookup
from wal2lake.lake.spark.branch.branches import Branches
from wal2lake.lake.spark.branch.keys import BranchKeys, Key
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.model import Oid
from wal2lake.pgtypes.equality import alike, alike_sql, loose_columns

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
