"""What is fsynced, in which order, and what a power loss may leave."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import InternalError, StorageError
from wal2lake.lake import AddedFile, Cursor, FieldSpec
from wal2lake.lake.delta.durability import (
    discard_torn_commits,
    settle_commit,
    settle_files,
)
from wal2lake.lake.delta.stats import added_file
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import relation
from wal2lake.lake.store import LocalStore, local_path, store_at
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.testing.waits import wait_until

APP = "wal2lake:n1:1:1"


class Recorder:
    """The paths that were fsynced, in order; a directory ends with a slash."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def names(self) -> list[str]:
        """Of a file of the log that has its name later, that name."""
        return [
            re.sub(r"^\.(.*)\.[0-9a-f]{32}\.tmp$", r"\1", Path(path).name)
            + "/" * path.endswith("/")
            for path in self.synced
        ]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    original = os.fsync

    def fsync(handle: int) -> None:
        path = str(Path(f"/proc/self/fd/{handle}").readlink())
        directory = stat.S_ISDIR(os.fstat(handle).st_mode)
        recorder.synced.append(path + "/" * directory)
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    yield recorder


def data_file(location: str, name: str, ids: range) -> AddedFile:
    path = Path(location) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)
    return added_file(name, path.stat().st_size, 0, pq.read_metadata(path))


def commit_name(version: int) -> str:
    return f"{version:020}.json"


@pytest.fixture
def table(lake: DeltaTables, location: str) -> str:
    lake.create(location, [FieldSpec("id", "bigint")])
    return location


def test_a_commit_of_files_is_synced_from_the_files_to_the_log(
    lake: DeltaTables, table: str, recorder: Recorder
) -> None:
    added = data_file(table, "sub/f.parquet", range(3))
    lake.commit_files(table, [added], Cursor(APP, 1))
    names = recorder.names()
    for name in ("f.parquet", "sub/", commit_name(1), "_delta_log/", "t/"):
        assert name in names, name
    assert names.index("f.parquet") < names.index("sub/") < names.index(commit_name(1))
    assert names.index(commit_name(1)) < len(names) - 1 - names[::-1].index(
        "_delta_log/"
    )
    checksum = f"{1:020}.crc"
    assert (Path(table) / "_delta_log" / checksum).exists() == (checksum in names)


def test_a_new_table_is_durable_with_its_parents(
    lake: DeltaTables, location: str, recorder: Recorder
) -> None:
    lake.create(location, [FieldSpec("id", "bigint")])
    names = recorder.names()
    assert commit_name(0) in names
    for name in ("_delta_log/", "t/", "public/", "warehouse/"):
        assert name in names, name


def test_a_merge_is_synced_with_its_deletion_vectors(
    lake: DeltaTables, table: str, spark_session: SparkSession, recorder: Recorder
) -> None:
    added = data_file(table, "f.parquet", range(1000))
    lake.commit_files(table, [added], Cursor(APP, 1))
    spark_session.sql(
        f"merge into {relation(table)} t using (select explode(array(5, 2000)) id) s"
        " on t.id = s.id when matched then delete when not matched then insert *"
    ).collect()
    recorder.synced.clear()
    lake.sync(table, 2)
    on_disk = {
        path.name
        for path in Path(table).rglob("*")
        if path.is_file() and path.name.startswith(("deletion_vector_", "part-"))
    }
    assert any(name.startswith("deletion_vector_") for name in on_disk)
    assert on_disk <= set(recorder.names())
    assert commit_name(2) in recorder.names()
    recorder.synced.clear()
    lake.sync(table, 2)
    assert recorder.synced == []


def test_a_checkpoint_and_its_pointer_are_synced_too(
    lake: DeltaTables, location: str, recorder: Recorder
) -> None:
    lake.create(
        location, [FieldSpec("id", "bigint")], {"delta.checkpointInterval": "2"}
    )
    for version in (1, 2):
        lake.commit_files(location, [], Cursor(APP, version))
    wait_until(
        lambda: "_last_checkpoint" in recorder.names(), describe="the checkpoint"
    )
    assert f"{2:020}.checkpoint.parquet" in recorder.names()
    commit = Path(location, "_delta_log", commit_name(2)).read_text()
    assert '"engineInfo":"wal2lake"' in commit, "it did not wait for the checkpoint"


def test_versions_of_others_below_ours_are_synced_with_it(
    lake: DeltaTables, table: str, spark_session: SparkSession, recorder: Recorder
) -> None:
    spark_session.sql(f"insert into {relation(table)} values (1)")
    lake.commit_files(table, [], Cursor(APP, 1))
    names = recorder.names()
    assert names.index(commit_name(1)) < names.index(commit_name(2))


def test_separators_of_lines_in_statistics_and_predicates_tear_nothing(
    lake: DeltaTables, tmp_path: Path, spark_session: SparkSession
) -> None:
    location = str(tmp_path / "warehouse" / "separators")
    lake.create(location, [FieldSpec("v", "string")])
    odd = "a\u2028b\u0085c\u2029d"
    spark_session.sql(f"insert into {relation(location)} values ('{odd}'), ('x')")
    spark_session.sql(f"delete from {relation(location)} where v = 'x{odd}' or v = 'x'")
    last = lake.state(location).version
    lake.sync(location, last)
    lake.commit_files(location, [], Cursor(APP, 1))
    assert lake.writers(location, last + 1, last + 1) == [frozenset({APP})]
    assert DeltaTables(spark_session).recover(location, 0) == ()
    assert [
        r.v for r in spark_session.read.format("delta").load(location).collect()
    ] == [odd]


def test_a_restarted_engine_syncs_what_its_predecessor_may_not_have(
    spark_session: SparkSession, lake: DeltaTables, table: str, recorder: Recorder
) -> None:
    added = data_file(table, "f.parquet", range(3))
    lake.commit_files(table, [added], Cursor(APP, 5))
    recorder.synced.clear()
    successor = DeltaTables(spark_session)
    assert successor.commit_files(table, [added], Cursor(APP, 5)).already_done
    assert commit_name(1) in recorder.names()
    assert "_delta_log/" in recorder.names()


@pytest.mark.parametrize(
    ("name", "committed"),
    [
        ("lake.files_synced", False),
        ("lake.committed", True),
        ("lake.commit_synced", True),
    ],
)
def test_each_step_of_a_commit_can_fail_and_be_repeated(
    lake: DeltaTables,
    table: str,
    spark_session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    committed: bool,
) -> None:
    points = tmp_path / "points"
    arm(points, name, "error")
    monkeypatch.setenv(VARIABLE, str(points))
    added = data_file(table, "f.parquet", range(3))
    with pytest.raises(InternalError, match=name):
        lake.commit_files(table, [added], Cursor(APP, 5))
    again = lake.commit_files(table, [added], Cursor(APP, 5))
    assert again.already_done == committed
    assert spark_session.sql(f"select * from {relation(table)}").count() == 3


def newest_version(table: str) -> int:
    """The highest version in the log."""
    return max(int(path.stem) for path in Path(table, "_delta_log").glob("*.json"))


def test_other_schemes_are_left_to_their_storage(
    lake: DeltaTables, recorder: Recorder
) -> None:
    assert local_path("s3a://bucket/t") is None
    assert local_path("file:///a%20b/t") == Path("/a b/t")
    assert local_path("file:/a/t") == Path("/a/t")
    assert local_path("/a%20b") == Path("/a%20b")
    for location in ("hdfs://host/t", "s3://bucket/t"):
        settle_commit(store_at(location), 3)
        assert lake.recover(location, 3) == ()
    assert recorder.synced == []


def test_an_fsync_error_is_reported_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.touch()

    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match=r"could not fsync file .*Input/output"):
        settle_files(LocalStore(tmp_path), ["f"])


def three_versions(lake: DeltaTables, table: str) -> Path:
    for version in (1, 2, 3):
        added = data_file(table, f"{version}.parquet", range(version))
        lake.commit_files(table, [added], Cursor(APP, version))
    return Path(table) / "_delta_log"


def test_whole_commits_are_never_discarded(lake: DeltaTables, table: str) -> None:
    three_versions(lake, table)
    assert discard_torn_commits(Path(table), 0) == ()
    assert newest_version(table) == 3


@pytest.mark.parametrize("damage", ["empty json", "half json", "short file", "no file"])
def test_a_torn_commit_goes_with_all_above_it(
    lake: DeltaTables, spark_session: SparkSession, table: str, damage: str
) -> None:
    log = three_versions(lake, table)
    commit, file = log / commit_name(2), Path(table) / "2.parquet"
    if damage == "empty json":
        commit.write_text("")
    elif damage == "half json":
        commit.write_text(commit.read_text()[:-20])
    elif damage == "short file":
        os.truncate(file, 10)
    else:
        file.unlink()
    assert lake.recover(table, 2) == ()
    assert lake.recover(table, 1) == (2, 3)
    assert newest_version(table) == 1
    assert lake.state(table).cursor(APP) == 1
    again = data_file(table, "again.parquet", range(5))
    lake.commit_files(table, [again], Cursor(APP, 2))
    assert spark_session.sql(f"select * from {relation(table)}").count() == 6


@pytest.mark.slow
def test_versions_whose_files_were_vacuumed_stay(
    lake: DeltaTables, spark_session: SparkSession, table: str
) -> None:
    """Outside OPTIMIZE and VACUUM above the published version, then a start."""
    log = three_versions(lake, table)
    spark_session.sql(f"delete from {relation(table)} where id = 1")
    spark_session.sql(f"optimize {relation(table)}").collect()
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark_session.conf.set(check, "false")
    try:
        spark_session.sql(f"vacuum {relation(table)} retain 0 hours").collect()
    finally:
        spark_session.conf.unset(check)
    assert not (Path(table) / "2.parquet").exists()
    assert not list(Path(table).glob("deletion_vector_*.bin"))
    newest = newest_version(table)
    assert lake.recover(table, 0) == ()
    assert newest_version(table) == newest
    assert spark_session.sql(f"select * from {relation(table)}").count() == 4
    # What was torn in spite of the removal goes, and all above it.
    (log / commit_name(2)).write_text("")
    assert lake.recover(table, 1) == tuple(range(2, newest + 1))


def test_a_deletion_vector_that_was_lost_tears_its_commit(
    lake: DeltaTables, spark_session: SparkSession, table: str
) -> None:
    added = data_file(table, "f.parquet", range(1000))
    lake.commit_files(table, [added], Cursor(APP, 1))
    spark_session.sql(f"delete from {relation(table)} where id = 7")
    actions = (Path(table) / "_delta_log" / commit_name(2)).read_text().splitlines()
    assert any("deletionVector" in json.loads(line).get("add", {}) for line in actions)
    assert discard_torn_commits(Path(table), 1) == ()
    (vector,) = Path(table).glob("deletion_vector_*.bin")
    os.truncate(vector, 3)
    assert discard_torn_commits(Path(table), 1) == (2,)


def test_a_torn_checkpoint_of_a_whole_commit_goes_alone(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    recorder: Recorder,
) -> None:
    lake.create(
        location, [FieldSpec("id", "bigint")], {"delta.checkpointInterval": "2"}
    )
    log = three_versions(lake, location)
    lake._checkpoints.wait()
    assert "_last_checkpoint" in recorder.names()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    os.truncate(checkpoint, 100)
    # It may be younger than what was published above its version.
    assert lake.recover(location, 3) == ()
    assert not checkpoint.exists()
    assert not (log / "_last_checkpoint").exists()
    lake._delta.forget(location)
    assert lake.state(location).cursor(APP) == 3
    assert spark_session.sql(f"select * from {relation(location)}").count() == 6
