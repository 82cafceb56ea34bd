"""Tables that are clustered: our commits, compactions that cluster, other writers and readers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, by_key, rows_of, write_log
from tests.spark.test_batches import (
    batches_of,
    operations,
    read_outside,
    request,
)
from tests.spark.test_branches import execute
from tests.spark.test_first_version import _actions, _checksum, _comparable

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.compaction import clustered
from wal2lake.lake.port import Cursor, FieldSpec, NextField
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.branch.branches import Branches
from wal2lake.lake.spark.delta.creation import DEFAULT_PROPERTIES
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.tablefiles import DataFile
from wal2lake.testing.rowmodel import KEY, UNCHANGED, RowEvent, TableModel

APP = "app"


def detail(spark: SparkSession, location: str) -> Any:
    return spark.sql(f"describe detail {relation(location)}").collect()[0]


def newest_files(lake: DeltaTables, location: str) -> Sequence[DataFile]:
    files = lake.files(lake.state(location))
    assert files is not None
    return files


def is_ours(location: str, version: int) -> bool:
    return bool(_actions(location, version)["commitInfo"]["engineInfo"] == "wal2lake")


def opened(files: Sequence[DataFile], column: str, value: Any) -> int:
    """Files that may have the value, as their bounds say."""
    bounds = [file.bounds(column) for file in files]
    return sum(one is None or one[0] <= value <= one[1] for one in bounds)


def apply(port: DeltaBatches, lake: DeltaTables, location: str, log: Path) -> Any:
    def commit(position: int, events: list[RowEvent]) -> int:
        source = write_log(log / str(position), events)
        staged = port.stage(request(lake, location, source))
        assert not staged.failures
        return port.commit(staged, Cursor(APP, position)).version

    log.mkdir()
    return commit


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped names"])
def test_version_0_says_what_deltas_own_says(
    lake: DeltaTables, spark_session: SparkSession, tmp_path: Path, mapped: bool
) -> None:
    name = "an id" if mapped else "id"
    more = {"delta.columnMapping.mode": "name"} if mapped else {}
    theirs = str(tmp_path / "theirs")
    properties = ", ".join(
        f"'{key}' = '{value}'" for key, value in {**DEFAULT_PROPERTIES, **more}.items()
    )
    spark_session.sql(
        f"create table delta.`{theirs}` (v string, `{name}` bigint) using delta"
        f" cluster by (`{name}`, v) tblproperties ({properties})"
    )
    other, other_summed = _actions(theirs), _checksum(theirs)
    fields = [FieldSpec("v", "string"), FieldSpec(name, "bigint")]
    # The second one is of a kind that is known.
    for ours in (str(tmp_path / "first"), str(tmp_path / "second")):
        state = lake.create(ours, fields, clustering=[name, "v"])
        assert state.clustering == (name, "v")
        mine, summed = _actions(ours), _checksum(ours)
        assert list(mine) == list(other)
        assert _comparable(mine["metaData"]) == _comparable(other["metaData"])
        for key in ("readerFeatures", "writerFeatures"):
            assert set(mine["protocol"][key]) == set(other["protocol"][key])
        parameters = "operationParameters"
        found = mine["commitInfo"][parameters]["clusterBy"]
        assert found == other["commitInfo"][parameters]["clusterBy"]
        said = json.loads(mine["domainMetadata"]["configuration"])
        physical = [one.physical_name for one in reversed(state.physical_fields)]
        assert said["clusteringColumns"] == [[one] for one in physical]
        assert (physical == [name, "v"]) == (not mapped)
        if not mapped:
            assert mine["domainMetadata"] == other["domainMetadata"]
            assert summed["domainMetadata"] == other_summed["domainMetadata"]
        columns = detail(spark_session, ours)["clusteringColumns"]
        assert columns == detail(spark_session, theirs)["clusteringColumns"]
    # Read by Delta, and from the checksum file alone.
    assert lake.state(ours) == lake._delta.state_of(ours, lake._delta.existing(ours))


@pytest.mark.slow
def test_batches_into_a_clustered_table_are_ours_and_compactions_cluster(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wal2lake.lake.compaction.compactor.LOOK_EVERY", 8)
    monkeypatch.setattr(clustered, "FILE_BYTES", 2000)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    runs = batches_of(spark_session, lake, tmp_path, 3000)
    lake.create(location, FIELDS, clustering=["number"])
    model = TableModel(KEY, {})
    rng = random.Random(3)
    numbers = rng.sample(range(100_000), 4000)
    commit = apply(port, lake, location, tmp_path / "log")
    before: list[int] = []
    for position in range(1, 17):
        new = numbers[(position - 1) * 250 : position * 250]
        events = [
            RowEvent(position, n, "I", (1, k, f"v{k}", "x")) for n, k in enumerate(new)
        ]
        if position > 1:
            # Of rows that a compaction may be taking along now.
            old = numbers[(position - 2) * 250 :][:5]
            events += [
                RowEvent(position, 1000 + n, "U", (1, k, "upd", UNCHANGED))
                for n, k in enumerate(old[:3])
            ]
            events += [
                RowEvent(position, 2000 + n, "D", None, (1, k))
                for n, k in enumerate(old[3:])
            ]
        model.apply_all(events)
        version = commit(position, events)
        if position == 8:
            files = newest_files(lake, location)
            before = [opened(files, "number", k) for k in numbers[:50]]
        if position in (8, 16):
            port.wait()
        assert version == lake.state(location).version
    model.apply_all([last := RowEvent(17, 0, "I", (1, -1, "last", None))])
    commit(17, [last])
    history = operations(location)
    assert history.count("compaction") == 2
    state = lake.state(location)
    assert all(is_ours(location, number) for number in range(1, state.version + 1))
    files = newest_files(lake, location)
    cubes = {file.cube.id for file in files if file.cube is not None}
    assert cubes
    assert all(file.cube is None or file.cube.columns == ("number",) for file in files)
    # But for the rows of the last batch, and of one that came while files were written.
    assert sum(file.cube is None for file in files) <= 3
    after = [opened(files, "number", k) for k in numbers[:50]]
    assert sum(before) >= 7 * len(before)
    assert max(after) <= len(cubes) + 4
    assert sum(after) < 4 * len(after)
    assert len(files) > 20

    # Every reader finds the same, and Delta's own commits go on from there.
    assert lake.plainly_read(location, None) is not None
    assert lake.plainly_read(location, state.version - 3) is not None
    assert by_key(rows_of(spark_session, location)) == model.rows
    assert by_key(read_outside(location)) == model.rows
    assert detail(spark_session, location)["clusteringColumns"] == ["number"]
    compacted = [
        action["add"]
        for number in range(state.version + 1)
        for action in lake.actions(location, number, number)[0]
        if "add" in action and action["add"].get("clusteringProvider")
    ]
    assert {one["clusteringProvider"] for one in compacted} == {"liquid"}
    assert all(
        json.loads(one["stats"])["minValues"]["number"] >= -1 for one in compacted
    )

    # A batch in runs.
    events = [
        RowEvent(18, n, "U", (1, k, "merged", UNCHANGED))
        for n, k in enumerate(sorted(key[1] for key in model.rows)[:500])
    ]
    model.apply_all(events)
    apply(runs, lake, location, tmp_path / "runs")(18, events)
    assert operations(location)[0] == "upsert"
    assert is_ours(location, lake.state(location).version)
    assert by_key(rows_of(spark_session, location)) == model.rows

    # Foreign jobs.
    spark_session.sql(
        f"merge into {relation(location)} t using (select 1 grp, -1 number) s"
        " on t.grp = s.grp and t.number = s.number when matched then update set t.a = 'f'"
    )
    model.rows[(1, -1)] = (1, -1, "f", None)
    spark_session.sql(f"optimize {relation(location)}")
    assert by_key(rows_of(spark_session, location)) == model.rows
    files = newest_files(lake, location)
    assert [file.cube.columns for file in files if file.cube is not None] == [
        ("number",)
    ] * len(files)
    for position in range(19, 23):
        model.apply_all(
            [event := RowEvent(position, 0, "D", None, (1, numbers[-position]))]
        )
        commit(position, [event])
        assert is_ours(location, lake.state(location).version)
    # A checkpoint carries the clustering on.
    spark_session._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        spark_session._jsparkSession, location
    ).checkpoint()
    for commit_file in (Path(location) / "_delta_log").glob("*.crc"):
        commit_file.unlink()
    fresh = DeltaTables(spark_session)
    assert fresh.state(location).clustering == ("number",)
    assert DeltaTable(location).version() == lake.state(location).version
    assert by_key(read_outside(location)) == model.rows
    truncate = [RowEvent(30, 0, "T", None), RowEvent(30, 1, "I", (1, 5, "alone", "x"))]
    fresh.commit_files(location, [], Cursor(APP, 24), replace=True)
    fresh.commit_files(location, [], Cursor(APP, 25), replace=True)
    assert is_ours(location, fresh.state(location).version)
    commit(30, truncate[1:])
    assert lake.state(location).clustering == ("number",)
    assert by_key(rows_of(spark_session, location)) == {(1, 5): (1, 5, "alone", "x")}


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["ours", "delta's clone"])
def test_statements_on_a_branch_of_a_clustered_table(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    tmp_path: Path,
    own: bool,
) -> None:
    table = str(tmp_path / "t")
    lake.create(
        table, [FieldSpec("id", "int"), FieldSpec("v", "string")], clustering=["id"]
    )
    execute(queries, f"INSERT INTO {relation(table)} SELECT id, 'x' FROM range(20)")
    execute(queries, f"OPTIMIZE {relation(table)}")
    version = lake.state(table).version
    if not own:
        execute(queries, f"INSERT INTO {relation(table)} VALUES (100, 'later')")
    branches = Branches(spark_session, lake, queries)
    branch = branches.open(table, version, str(tmp_path / "branch"), "open")
    assert branches.state(branch).clustering == ("id",)
    execute(queries, f"DELETE FROM {relation(branch.location)} WHERE id = 3")
    execute(queries, f"INSERT INTO {relation(branch.location)} VALUES (50, 'new')")
    change = branches.net_change(branch)
    branches.carry_over(branch, change.files)
    lake.commit_changes(
        table,
        change.actions,
        Cursor(APP, 1),
        read_version=lake.state(table).version,
        operation="test",
    )
    newest = lake.state(table).version
    assert is_ours(table, newest)
    added = [a["add"] for a in lake.actions(table, newest, newest)[0] if "add" in a]
    # A clustered file that has lost a row is clustered still, a new one is not.
    assert sorted("clusteringProvider" in add for add in added) == [False, True]
    found = spark_session.sql(f"select count(*), max(id) from {relation(table)}")
    assert tuple(found.collect()[0]) == ((20, 50) if own else (21, 100))
    branches.drop(branch)


def test_columns_of_a_clustered_table(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    """One that it is clustered by does not go; it may have another name, and before that another
    type that has bounds."""

    def alter(position: int, *fields: NextField) -> None:
        state = lake.prepare_columns(location, fields)
        lake.commit_metadata(
            location,
            lake.metadata(location, fields),
            Cursor(APP, position),
            read_version=state.version,
            rows=() if any(one.anew for one in fields) else None,
            operation="alter table",
        )
        name = fields[0].field.name
        assert lake.state(location).clustering == (name,)
        assert detail(spark_session, location)["clusteringColumns"] == [name]
        lake.commit_files(location, [], Cursor(APP, position + 1))
        assert is_ours(location, lake.state(location).version)
        assert detail(spark_session, location)["clusteringColumns"] == [name]

    v = NextField(FieldSpec("v", "string"), "v")
    lake.create(
        location, [FieldSpec("id", "int"), FieldSpec("v", "string")], clustering=["id"]
    )

    def refuses(*fields: NextField) -> None:
        with pytest.raises(FeatureNotSupportedError, match=r'"(id|key)"'):
            lake.prepare_columns(location, fields)

    refuses(v)
    refuses(NextField(FieldSpec("id", "double"), "id", anew=True), v)
    refuses(NextField(FieldSpec("key", "bigint"), "id", anew=True), v)
    alter(1, NextField(FieldSpec("id", "bigint"), "id", anew=True), v)
    alter(3, NextField(FieldSpec("key", "bigint"), "id"), v)
    refuses(NextField(FieldSpec("key", "string"), "key", anew=True), v)
    spark_session.sql(f"alter table {relation(location)} cluster by none")
    assert lake.state(location).clustering == ()
    lake.prepare_columns(location, [v])
