"""Versions that the node's writer makes, without Spark: what the log says of them however it is
read, and what deltalake reads."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.fakes.log_table import APP, LogTable

from wal2lake.errors import FeatureNotSupportedError, StorageError
from wal2lake.lake.delta.log.checksum import Totals
from wal2lake.lake.delta.log.version import Version, read_version
from wal2lake.lake.delta.protocol.features import KNOWN, refuse_unknown
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.cleanup import clean_up
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.tablefiles import add_action

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "v2": {"delta.checkpointPolicy": "v2"},
    "structs": {
        "delta.checkpoint.writeStatsAsJson": "false",
        "delta.checkpoint.writeStatsAsStruct": "true",
    },
    "numbered rows": {"delta.enableRowTracking": "true"},
    "own times": {"delta.enableInCommitTimestamps": "true"},
    "mapped": {"delta.columnMapping.mode": "name"},
    "changes": {"delta.enableChangeDataFeed": "true"},
    "cursors that end": {"delta.setTransactionRetentionDuration": "interval 9 weeks"},
}


def _shape(version: Version) -> Any:
    """What does not depend on the way in which a version was read."""
    by_app = sorted(version.transactions, key=lambda one: str(one["appId"]))
    return (
        version.state,
        dict(version.metadata),
        {
            name: sorted(value) if isinstance(value, list) else value
            for name, value in version.protocol.items()
        },
        [dict(one) for one in by_app],
        [dict(one) for one in version.domains],
        version.totals,
        version.stamp,
        version.committed_ms,
    )


def _plain(action: Any) -> Any:
    """An add action without what a checkpoint does not keep."""
    plain = {k: v for k, v in action.items() if k != "dataChange" and v is not None}
    if "stats" in plain:
        plain["stats"] = json.loads(plain["stats"])
    return plain


def _rows(location: str) -> dict[int, tuple[int, str]]:
    read = QueryBuilder().register("t", DeltaTable(location))
    found = pa.table(read.execute("select id, part, name from t").read_all())
    return {row["id"]: (row["part"], row["name"]) for row in found.to_pylist()}


def _check(table: LogTable) -> None:
    """The version as it was written, from its checksum, and from the log are one."""
    version, files = table.version, table.files
    number = version.state.version
    assert version.totals == Totals.of(files.values())
    replayed = replay(table.location, table.store, number)
    assert _shape(replayed.version(table.location, table.store, number)) == _shape(
        version
    )
    assert {key: _plain(file.action) for key, file in replayed.files.items()} == {
        key: _plain(file.action) for key, file in files.items()
    }
    summed = read_version(table.location, table.store, number)
    if "delta.setTransactionRetentionDuration" in version.state.properties:
        # As Delta's own checksums of such a table.
        assert summed is None
        return
    assert summed is not None
    assert _shape(summed.version) == _shape(version)
    assert summed.files is not None
    assert {key: _plain(file.action) for key, file in summed.files.items()} == {
        key: _plain(file.action) for key, file in files.items()
    }


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_version_is_the_same_however_it_is_read(
    tmp_path: Path, kind: str, partitioned: bool
) -> None:
    table = LogTable(tmp_path / "t", KINDS[kind], partitioned=partitioned)
    chosen = random.Random(f"{kind} {partitioned}")
    deleted: dict[str, list[int]] = {}
    ids: dict[str, list[int]] = {}
    for step in range(1, 25):
        what = chosen.choice(
            ["append", "append", "delete", "remove", "replace", "none"]
        )
        path = chosen.choice(list(table.files)) if table.files else None
        if what == "append" or (path is None and what != "none"):
            new = list(range(step * 10, step * 10 + chosen.randint(1, 9)))
            before = set(table.files)
            table.append(new, part=step % 3)
            (key,) = set(table.files) - before
            ids[key], deleted[key] = new, []
        elif what == "delete" and path is not None:
            left = [i for i in range(len(ids[path])) if i not in deleted[path]]
            rows = chosen.sample(left, max(1, len(left) // 2))
            if len(rows) == len(left):
                table.delete(table.files[path], [])
            else:
                deleted[path] = sorted([*deleted[path], *rows])
                table.delete(table.files[path], deleted[path])
            for row in rows:
                del table.rows[ids[path][row]]
        elif what == "remove" and path is not None:
            table.delete(table.files[path], [])
            for row, i in enumerate(ids[path]):
                if row not in deleted[path]:
                    del table.rows[i]
        elif what == "replace":
            added = table.write([step], part=5)
            table.commit([{"add": add_action(added, data_change=True)}], replaces=True)
            table.rows = {step: (5, f"n{step}")}
            (key,) = table.files
            ids[key], deleted[key] = [step], []
        else:
            table.commit([])
        _check(table)
        if step % 7 == 0:
            written = write_checkpoint(table.location, table.store, step)
            assert _shape(written.version) == _shape(table.version)
            _check(table)
            # What is behind the newest checkpoint is not needed.
            for commit in (table.root / "_delta_log").glob("*.json"):
                if commit.stem.isdecimal() and int(commit.stem) < step:
                    commit.unlink()
            _check(table)
    assert _rows(table.location) == table.rows


def test_rows_are_numbered_once(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", KINDS["numbered rows"])
    first = table.append(range(5))
    (file,) = table.files.values()
    assert (file.action["baseRowId"], file.action["defaultRowCommitVersion"]) == (0, 1)
    (domain,) = first.domains
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": 4}
    table.append(range(10, 13))
    table.delete(file, [1])
    numbers = {f.action["baseRowId"]: f.rows for f in table.files.values()}
    assert numbers == {0: 5, 5: 3}
    versions = {f.action["defaultRowCommitVersion"] for f in table.files.values()}
    assert versions == {1, 2}
    (domain,) = table.version.domains
    assert json.loads(domain["configuration"]) == {"rowIdHighWaterMark": 7}
    actions = (table.root / "_delta_log" / f"{3:020}.json").read_text().splitlines()
    removes = [json.loads(line)["remove"] for line in actions if '"remove"' in line]
    assert [one["baseRowId"] for one in removes] == [0]


def test_the_rows_of_a_file_without_statistics_cannot_be_numbered(
    tmp_path: Path,
) -> None:
    table = LogTable(tmp_path / "t", KINDS["numbered rows"])
    action = add_action(table.write([1]), data_change=True)
    del action["stats"]
    with pytest.raises(StorageError, match="cannot be numbered") as refused:
        table.commit([{"add": action}])
    assert "spark.databricks.delta.stats.collect" in str(refused.value.hint)


def test_a_commits_own_time_grows(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", KINDS["own times"])
    times = [table.version.committed_ms]
    for step in range(5):
        times.append(table.append([step]).committed_ms)
    assert None not in times
    assert times == sorted(set(times), key=lambda one: one or 0)
    log = table.root / "_delta_log" / f"{5:020}.json"
    info = json.loads(log.read_text().splitlines()[0])["commitInfo"]
    assert next(iter(info)) == "inCommitTimestamp"
    assert info["inCommitTimestamp"] == times[-1]


def test_a_table_that_only_grows_keeps_its_rows(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", {"delta.appendOnly": "true"})
    table.append([1, 2])
    (file,) = table.files.values()
    with pytest.raises(FeatureNotSupportedError) as refused:
        table.delete(file, [0])
    assert refused.value.sqlstate == "0A000"
    assert refused.value.hint == (
        "Set the property to false with Spark: ALTER TABLE ... SET TBLPROPERTIES"
        " ('delta.appendOnly' = 'false')."
    )
    # The same rows in other files change nothing.
    moved = table.write([1, 2])
    remove = {"path": file.key, "dataChange": False, "size": file.size}
    table.commit([{"remove": remove}, {"add": add_action(moved, data_change=False)}])
    assert _rows(table.location) == table.rows


def test_an_unknown_feature_is_refused_by_its_name() -> None:
    known = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [],
        "writerFeatures": sorted(KNOWN),
    }
    refuse_unknown("/t", known)
    for version in range(2, 7):
        refuse_unknown("/t", {"minReaderVersion": 1, "minWriterVersion": version})
    with pytest.raises(FeatureNotSupportedError) as refused:
        refuse_unknown("/t", {**known, "writerFeatures": ["icebergCompatV2"]})
    assert refused.value.sqlstate == "0A000"
    assert str(refused.value) == 'cannot write the table at "/t"'
    assert '"icebergCompatV2"' in str(refused.value.detail)
    assert refused.value.hint == (
        "Write the table with Spark, or remove the feature there: ALTER TABLE ... DROP"
        " FEATURE."
    )
    with pytest.raises(FeatureNotSupportedError) as refused:
        refuse_unknown("/t", {**known, "minWriterVersion": 8})
    assert refused.value.hint == (
        "Write the table with the program that has made it, or use a newer version of"
        " wal2lake."
    )


@pytest.mark.parametrize("kind", ["plain", "v2"])
def test_a_checkpoint_keeps_what_vacuum_asks_for(tmp_path: Path, kind: str) -> None:
    keep = {"delta.deletedFileRetentionDuration": "interval 1 hour", **KINDS[kind]}
    table = LogTable(tmp_path / "t", keep)
    table.append([1, 2, 3])
    table.append([4])
    first, second = table.files.values()
    table.delete(first, [0])
    old = {
        "path": second.key,
        "deletionTimestamp": 1000,
        "dataChange": True,
        "size": second.size,
    }
    table.commit([{"remove": old}], reads=True)
    assert write_checkpoint(table.location, table.store, 4).version.state.version == 4
    log = table.root / "_delta_log"
    folder, pattern = (
        (log / "_sidecars", "*.parquet") if kind == "v2" else (log, "*.parquet")
    )
    (path,) = folder.glob(pattern)
    removed = pq.read_table(path)["remove"].combine_chunks().drop_null().to_pylist()
    assert [one["path"] for one in removed] == [first.key]
    assert not any(p.name.endswith(".tmp") for p in log.iterdir())
    pointer = json.loads((log / "_last_checkpoint").read_text())
    assert pointer["version"] == 4
    assert ("v2Checkpoint" in pointer) == (kind == "v2")


@pytest.mark.parametrize("kind", ["plain", "v2"])
def test_the_log_is_cleaned_below_an_old_checkpoint(tmp_path: Path, kind: str) -> None:
    table = LogTable(tmp_path / "t", KINDS[kind])
    log, old = table.root / "_delta_log", 1_700_000_000
    for step in range(1, 9):
        table.append([step])
        if step in (3, 6):
            write_checkpoint(table.location, table.store, step)
    for path in [*log.iterdir(), *(log / "_sidecars").glob("*")]:
        if path.name[:20] < f"{8:020}":
            os.utime(path, (old, old))
    assert clean_up(table.store, table.version, now=old + 86_400.0) == 0
    kept_back = LogTable(
        tmp_path / "u", {"delta.enableExpiredLogCleanup": "false", **KINDS[kind]}
    )
    assert clean_up(kept_back.store, kept_back.version) == 0
    assert clean_up(table.store, table.version) > 0
    left = sorted(p.name for p in log.glob("*.json") if p.stem.isdecimal())
    assert left == [f"{n:020}.json" for n in (6, 7, 8)]
    if kind == "v2":
        assert len(list((log / "_sidecars").iterdir())) == 1
        # Readers that do not know v2 find the protocol.
        assert (log / f"{8:020}.checkpoint.parquet").exists()
    fresh = KnownVersions().newest(table.location)
    assert fresh is not None and fresh.state.version == 8
    assert _rows(table.location) == table.rows


@pytest.mark.parametrize("left", ["none", "torn", "incomplete"])
def test_a_version_without_a_whole_checksum_is_replayed(
    tmp_path: Path, left: str
) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1, 2])
    table.append([3])
    checksum = table.root / "_delta_log" / f"{2:020}.crc"
    before = _shape(table.version)
    if left == "none":
        checksum.unlink()
    elif left == "torn":
        checksum.write_text(checksum.read_text()[:50])
    else:
        line = json.loads(checksum.read_text())
        del line["fileSizeHistogram"]
        checksum.write_text(json.dumps(line))
    table.known = KnownVersions()
    assert _shape(table.version) == before
    table.append([4])
    assert read_version(table.location, table.store, 3) is not None
    assert _rows(table.location) == table.rows


def test_a_file_is_removed_under_another_spelling_of_its_path(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1])
    table.append([2])
    first, second = table.files.values()
    spelled = [
        f"file://{table.location}/{first.key}",
        second.key.replace("-", "%2D"),
    ]
    log = table.root / "_delta_log" / f"{3:020}.json"
    lines = [{"remove": {"path": path, "dataChange": True}} for path in spelled]
    log.write_text("\n".join(map(json.dumps, [{"commitInfo": {}}, *lines])))
    table.known = KnownVersions()
    assert len(table.files) == 1, "an absolute path is another file than a relative one"
    assert next(iter(table.files)) == first.key


def test_a_checksum_states_that_a_file_has_no_tags(tmp_path: Path) -> None:
    """Delta would make an empty map of what is absent, which is not what it reads in the log."""
    table = LogTable(tmp_path / "t")
    table.append([1, 2])
    (file,) = table.files.values()
    table.delete(file, [1])
    log = table.root / "_delta_log"
    (listed,) = json.loads((log / f"{2:020}.crc").read_text())["allFiles"]
    assert listed["tags"] is None
    table.known = KnownVersions()
    (file,) = table.files.values()
    assert "tags" not in file.action
    assert '"tags"' not in (log / f"{2:020}.json").read_text()


def test_a_log_with_a_gap_is_refused(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t")
    for step in range(4):
        table.append([step])
    log = table.root / "_delta_log"
    (log / f"{4:020}.crc").unlink()
    (log / f"{2:020}.json").unlink()
    with pytest.raises(StorageError, match="version 4") as refused:
        KnownVersions().newest(table.location)
    assert refused.value.sqlstate == "58P01"
    assert refused.value.detail == "Its log does not have version 2."


def test_other_writers_commits_are_gone_on_from(tmp_path: Path) -> None:
    """delta-rs writes no checksum, and encodes paths in its own way."""
    table = LogTable(
        tmp_path / "t", {"delta.enableDeletionVectors": "false"}, partitioned=True
    )
    table.append([1, 2], part=7)
    rows = pa.table(
        {"id": [5, 6], "part": pa.array([8, 9], pa.int32()), "name": ["n5", "n6"]}
    )
    deltalake.write_deltalake(table.location, rows, mode="append")
    table.rows |= {5: (8, "n5"), 6: (9, "n6")}
    assert table.version.state.version == 2
    assert table.version.state.cursors == {APP: 1}
    table.append([10], part=7)
    DeltaTable(table.location).delete("id = 1")
    del table.rows[1]
    assert table.version.totals == Totals.of(table.files.values())
    table.append([11], part=7)
    DeltaTable(table.location).create_checkpoint()
    table.known = KnownVersions()
    (table.root / "_delta_log" / f"{5:020}.crc").unlink()
    assert table.version.totals == Totals.of(table.files.values())
    assert len(table.files) == 5
    table.append([12], part=7)
    assert _rows(table.location) == table.rows
