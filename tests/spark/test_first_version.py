"""Version 0, which is ours to write, beside the one that Delta writes for the same table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from wal2lake.errors import DuplicateObjectError
from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.delta.log.firstversion import write_first
from wal2lake.lake.spark.delta.creation import DEFAULT_PROPERTIES
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.store import LocalStore

SHAPES = {
    "plain": ("`id` bigint, `name` string", {}),
    "zoneless times": ("`id` bigint, `at` timestamp_ntz", {}),
    "mapped names": (
        "`an id` bigint, `v` decimal(12,2)",
        {"delta.columnMapping.mode": "name"},
    ),
    "nested names": (
        "`an id` bigint, `v` array<map<string,int>>",
        {"delta.columnMapping.mode": "name"},
    ),
    "numbered rows": ("`id` bigint", {"delta.enableRowTracking": "true"}),
    "own times": ("`id` bigint", {"delta.enableInCommitTimestamps": "true"}),
    "changes": ("`id` bigint", {"delta.enableChangeDataFeed": "true"}),
    "v2 checkpoints": ("`id` bigint", {"delta.checkpointPolicy": "v2"}),
    "no vectors": ("`id` bigint", {"delta.enableDeletionVectors": "false"}),
    "wider types": ("`id` bigint", {"delta.enableTypeWidening": "true"}),
    "only grows": ("`id` bigint", {"delta.appendOnly": "true"}),
    "a request": ("`id` bigint", {"delta.feature.allowColumnDefaults": "supported"}),
}


def _fields(columns: str) -> list[FieldSpec]:
    found = []
    for column in columns.split(", `"):
        name, ddl = column.lstrip("`").split("` ")
        found.append(FieldSpec(name, ddl))
    return found


def _actions(location: str, version: int = 0) -> dict[str, Any]:
    log = Path(location) / "_delta_log" / f"{version:020}.json"
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {name: value for line in lines for name, value in line.items()}


def _checksum(location: str, version: int = 0) -> dict[str, Any]:
    file = Path(location) / "_delta_log" / f"{version:020}.crc"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _comparable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without what is another one in each table."""
    schema = json.loads(metadata["schemaString"])
    for field in schema["fields"]:
        if "delta.columnMapping.physicalName" in field["metadata"]:
            field["metadata"]["delta.columnMapping.physicalName"] = "col"
    return {
        "schema": schema,
        # Names of columns that are made up.
        "configuration": {
            name: "col" if "materialized" in name else value
            for name, value in metadata["configuration"].items()
        },
        "partitionColumns": metadata["partitionColumns"],
        "format": metadata["format"],
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_our_first_version_says_what_deltas_own_says(
    lake: DeltaTables, spark_session: SparkSession, tmp_path: Path, shape: str
) -> None:
    columns, more = SHAPES[shape]
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    lake.create(ours, _fields(columns), more)
    properties = ", ".join(
        f"'{name}' = '{value}'"
        for name, value in {**DEFAULT_PROPERTIES, **more}.items()
    )
    spark_session.sql(
        f"create table delta.`{theirs}` ({columns}) using delta"
        f" tblproperties ({properties})"
    )

    mine, other = _actions(ours), _actions(theirs)
    assert set(mine) == set(other) == {"commitInfo", "metaData", "protocol"}
    assert _comparable(mine["metaData"]) == _comparable(other["metaData"])
    for name, value in other["protocol"].items():
        same = mine["protocol"][name]
        assert sorted(same) == sorted(value) if "Features" in name else same == value
    properties_said = json.loads(
        mine["commitInfo"]["operationParameters"]["properties"]
    )
    assert properties_said == mine["metaData"]["configuration"]

    summed, expected = _checksum(ours), _checksum(theirs)
    assert set(summed) == set(expected)
    for name in set(expected) - {
        "txnId",
        "metadata",
        "protocol",
        "inCommitTimestampOpt",
    }:
        assert summed[name] == expected[name], name
    assert summed["metadata"] == mine["metaData"]
    assert summed["protocol"] == mine["protocol"]
    assert summed["txnId"] == mine["commitInfo"]["txnId"]


def test_delta_derives_the_next_versions_from_our_first_checksum(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    state = lake.create(location, _fields("`id` bigint, `name` string"))
    rows = pa.table({"id": [1, 2], "name": ["a", None]})
    added = write_data_file(rows, state.location, state.fields, state.physical_fields)
    tracker = spark_session.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    lake.commit_files(location, [added], Cursor("one", 7), read_version=0)
    assert tracker.getJobIdsForGroup(None) == before

    summed = _checksum(location, 1)
    assert set(summed) == set(_checksum(location))
    assert summed["numFiles"] == 1
    assert sum(summed["fileSizeHistogram"]["fileCounts"]) == 1
    assert summed["deletedRecordCountsHistogramOpt"]["deletedRecordCounts"][0] == 1
    assert [one["appId"] for one in summed["setTransactions"]] == ["one"]
    read = QueryBuilder().register("t", DeltaTable(location))
    found = pa.table(read.execute("select id, name from t order by id").read_all())
    assert found.to_pylist() == rows.to_pylist()


def test_a_setting_of_sparks_is_a_property_of_each_new_table(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    name = "spark.databricks.delta.properties.defaults.enableInCommitTimestamps"
    spark_session.conf.set(name, "true")
    try:
        state = lake.create(location, _fields("`id` bigint, `name` string"))
    finally:
        spark_session.conf.unset(name)
    assert "inCommitTimestamp" in _actions(location)["commitInfo"]
    assert state.properties["delta.enableInCommitTimestamps"] == "true"
    rows = pa.table({"id": [1], "name": ["a"]})
    added = write_data_file(rows, state.location, state.fields, state.physical_fields)
    assert lake.commit_files(location, [added], Cursor("one", 7)).version == 1


def test_what_a_crash_left_of_a_creation_is_not_in_the_way(
    lake: DeltaTables, location: str
) -> None:
    log = Path(location) / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.crc").write_text("{}")
    (log / ".half.tmp").write_text("{")
    lake.create(location, _fields("`id` bigint, `name` string"))
    assert lake.state(location).version == 0
    assert _checksum(location)["numFiles"] == 0


def test_whoever_comes_second_finds_the_table_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "t")
    write_first(store, ["first"], "sum of the first")
    with pytest.raises(DuplicateObjectError) as raised:
        write_first(store, ["second"], "sum of the second")
    assert raised.value.sqlstate == "42P07"
    log = tmp_path / "t" / "_delta_log"
    assert (log / f"{0:020}.json").read_text() == "first\n"
    assert (log / f"{0:020}.crc").read_text() == "sum of the first\n"
    assert not list(log.glob(".*"))
