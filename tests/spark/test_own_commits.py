"""Versions that are ours to write, beside those that Delta writes of the same changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake import CommitConflict, Cursor, FieldSpec, TableState
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.delta.log.commit import write_next
from wal2lake.lake.spark.delta import deltatables as tables
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import relation
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced

FIELDS = (FieldSpec("id", "bigint"), FieldSpec("name", "string"))
APP = "wal2lake:1:2:3"


def _actions(location: str, version: int) -> list[dict[str, Any]]:
    log = Path(location) / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _is_ours(location: str, version: int) -> bool:
    info = _actions(location, version)[0]["commitInfo"]
    return bool(info["engineInfo"] == "wal2lake")


def _checksum(location: str, version: int) -> dict[str, Any]:
    file = Path(location) / "_delta_log" / f"{version:020}.crc"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _comparable(value: Any) -> Any:
    """Without what is another one in each table, or at each time."""
    if isinstance(value, list):
        shown = [_comparable(one) for one in value]
        return sorted(shown, key=json.dumps)
    if not isinstance(value, dict):
        return value
    free = {"path", "id", "txnId", "engineInfo", "pathOrInlineDv", "tags"}
    free |= {key for key in value if key.endswith(("Time", "stamp", "Updated"))}
    return {
        # The order of an object's fields means nothing.
        key: _comparable(json.loads(one) if key == "schemaString" else one)
        for key, one in value.items()
        if key not in free
    }


def _write(state: TableState, ids: range) -> AddedFile:
    rows = pa.table({"id": list(ids), "name": [f"n{i}" for i in ids]})
    return write_data_file(rows, state.location, state.fields, state.physical_fields)


def _history(
    lake: DeltaTables, location: str, clustering: tuple[str, ...] = ()
) -> Iterator[int]:
    """One commit of each kind; gives each version."""
    state = lake.create(location, FIELDS, clustering=clustering)
    added = [_write(state, range(20)), _write(state, range(20, 40))]
    yield lake.commit_files(location, added, Cursor(APP, 1), read_version=0).version
    yield lake.commit_files(location, [], Cursor("other", 9)).version

    def file(name: AddedFile) -> DataFile:
        listed = lake.files(lake.state(location))
        assert listed is not None
        return next(one for one in listed if one.path == name.path)

    for gone in ([3], [3, *range(5, 18)]):
        vector = write_vectors(location, [np.array(gone, np.uint64)])[0]
        yield lake.commit_files(
            location,
            [_write(state, range(100 + len(gone), 103 + len(gone)))],
            Cursor(APP, 1 + len(gone)),
            read_version=lake.state(location).version,
            replaced=[Replaced(file(added[0]), vector), Replaced(file(added[1]), None)]
            if gone == [3]
            else [Replaced(file(added[0]), vector)],
            operation="upsert",
        ).version
    yield lake.commit_files(
        location, [_write(state, range(7))], Cursor(APP, 50), replace=True
    ).version


@pytest.mark.parametrize(
    "clustering", [(), pytest.param(("name", "id"), marks=pytest.mark.slow)]
)
def test_each_version_says_what_deltas_own_says(
    lake: DeltaTables,
    spark_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clustering: tuple[str, ...],
) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    tracker = spark_session.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup(None)
    versions = list(_history(lake, ours, clustering))
    assert tracker.getJobIdsForGroup(None) == before
    with monkeypatch.context() as patch:
        patch.setattr(
            DeltaTables,
            "_commit_in",
            lambda self, store, request: self._elsewhere.commit(request),
        )
        theirs_too = list(_history(lake, theirs, clustering))
        assert theirs_too == versions == [1, 2, 3, 4, 5]
    for version in versions:
        assert _is_ours(ours, version) and not _is_ours(theirs, version)
        mine, other = _actions(ours, version), _actions(theirs, version)
        assert [list(a) for a in mine] == [list(a) for a in other]
        assert _comparable(mine) == _comparable(other)
        mine_summed, other_summed = _checksum(ours, version), _checksum(theirs, version)
        assert set(mine_summed) == set(other_summed)
        assert _comparable(mine_summed) == _comparable(other_summed)
    # What was read from the checksum file alone is what Delta makes of the log.
    alone = DeltaTables(spark_session)
    assert alone.state(ours) == lake.state(ours)
    assert lake.state(ours) == lake._delta.state_of(ours, lake._delta.existing(ours))
    listed = alone.files(alone.state(ours))
    assert listed is not None and [f.rows for f in listed] == [7]
    # Delta goes on from our checksum, other readers from our log.
    spark_session.sql(f"delete from {relation(ours)} where id = 3")
    assert _checksum(ours, 6)["numFiles"] == 1
    assert lake.state(ours).version == 6
    for version, count in ((4, 12), (5, 7), (6, 6)):
        sql = f"select count(*) from {relation(ours, version)}"
        assert spark_session.sql(sql).collect()[0][0] == count, version
    read = QueryBuilder().register("t", DeltaTable(ours))
    found = pa.table(read.execute("select id from t order by id").read_all())
    assert found.column("id").to_pylist() == [0, 1, 2, 4, 5, 6]


def test_a_version_that_somebody_else_takes_first_is_a_conflict(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = lake.create(location, FIELDS)
    other = DeltaTables(spark_session)
    real = write_next
    positions = iter((1, 2))

    def late(*args: Any) -> Any:
        monkeypatch.setattr(tables, "write_next", real)
        added = [_write(state, range(5))]
        # In a thread of its own, as another process would: this one holds the table's lock.
        with ThreadPoolExecutor(1) as process:
            cursor = Cursor("other", next(positions))
            process.submit(other.commit_files, location, added, cursor).result()
        return real(*args)

    monkeypatch.setattr(tables, "write_next", late)
    mine = _write(state, range(5, 9))
    with pytest.raises(CommitConflict):
        lake.commit_files(location, [mine], Cursor(APP, 1), read_version=0)
    assert lake.state(location).cursor(APP) is None
    monkeypatch.setattr(tables, "write_next", late)
    # Without a version to hold on to it comes after the other one, as with Delta's commits.
    done = lake.commit_files(location, [mine], Cursor(APP, 1))
    assert done.version == 3
    assert lake.state(location).cursors == {"other": 2, APP: 1}


@pytest.mark.parametrize("left", ["torn", "absent"])
def test_a_version_without_a_checksum_is_read_from_the_log(
    lake: DeltaTables, spark_session: SparkSession, location: str, left: str
) -> None:
    state = lake.create(location, FIELDS)
    lake.commit_files(location, [_write(state, range(3))], Cursor(APP, 1))
    checksum = Path(location) / "_delta_log" / f"{1:020}.crc"
    if left == "torn":
        os.truncate(checksum, 100)
    else:
        checksum.unlink()
    fresh = DeltaTables(spark_session)
    assert fresh.state(location).cursor(APP) == 1
    fresh.commit_files(location, [_write(state, range(3, 5))], Cursor(APP, 2))
    assert _is_ours(location, 2)
    assert _checksum(location, 2)["numFiles"] == 2
    sql = f"select count(*) from {relation(location)}"
    assert spark_session.sql(sql).collect()[0][0] == 5


def test_a_version_made_again_under_its_number_has_its_own_files(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    """A commit that was undone, and another in its place: what was known of the first is void."""
    state = lake.create(location, FIELDS)
    first = _write(state, range(3))
    lake.commit_files(location, [first], Cursor(APP, 1))
    listed = lake.files(lake.state(location))
    assert listed is not None and [f.path for f in listed] == [first.path]
    log = Path(location) / "_delta_log"
    for path in log.glob(f"*{1:020}*"):
        path.unlink()
    other = DeltaTables(spark_session)
    second = _write(state, range(10, 15))
    other.commit_files(location, [second], Cursor(APP, 1))
    listed = lake.files(lake.state(location))
    assert listed is not None and [f.path for f in listed] == [second.path]
    # Nor is it what the next version is made of.
    third = _write(state, range(20, 21))
    lake.commit_files(location, [third], Cursor(APP, 2), replace=True)
    sql = f"select count(*) from {relation(location)}"
    assert spark_session.sql(sql).collect()[0][0] == 1


def test_a_manifest_follows_each_commit(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    properties = {
        "delta.enableDeletionVectors": "false",
        "delta.compatibility.symlinkFormatManifest.enabled": "true",
    }
    state = lake.create(location, FIELDS, properties)
    added = _write(state, range(3))
    lake.commit_files(location, [added], Cursor(APP, 1))
    lake._manifests.wait()
    manifest = Path(location) / "_symlink_format_manifest" / "manifest"
    assert added.path in manifest.read_text()


def test_a_table_with_an_unknown_feature_is_read_and_not_written(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    spark_session.sql(
        f"create table delta.`{location}` (id bigint, name string) using delta"
        " tblproperties ('delta.feature.materializePartitionColumns' = 'supported')"
    )
    spark_session.sql(f"insert into {relation(location)} values (1, 'a')")
    state = lake.state(location)
    assert state.version == 1
    with pytest.raises(FeatureNotSupportedError) as refused:
        lake.commit_files(location, [], Cursor(APP, 1))
    assert '"materializePartitionColumns"' in str(refused.value.detail)
    sql = f"select count(*) from {relation(location)}"
    assert spark_session.sql(sql).collect()[0][0] == 1
