"""Tables and logs that other writers have made in their own ways, as the node's writer goes on."""

from __future__ import annotations

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.fakes.log_table import LogTable

from wal2lake.lake.delta.log.checksum import Totals
from wal2lake.lake.delta.protocol.features import writer_features
from wal2lake.lake.delta.versions import checkpointfiles, known
from wal2lake.lake.delta.versions.checkpointfiles import (
    complete_checkpoints,
    read_checkpoint,
)
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.cleanup import clean_up
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.store import LocalStore

STRUCTS = {
    "delta.checkpoint.writeStatsAsJson": "false",
    "delta.checkpoint.writeStatsAsStruct": "true",
}


def _stats(table: LogTable, number: int) -> list[dict[str, object]]:
    """The statistics of a checkpoint's files."""
    names = [path.name for path in (table.root / "_delta_log").iterdir()]
    (checkpoint,) = (c for c in complete_checkpoints(names) if c.version == number)
    return [
        json.loads(action["add"].get("stats") or "{}")
        for action in read_checkpoint(LocalStore(table.root), checkpoint)
        if "add" in action
    ]


def test_commits_without_checksums_are_read_on_from_the_version_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LogTable(tmp_path / "t", {"delta.enableDeletionVectors": "false"})
    table.append(range(3))
    monkeypatch.setattr(known, "replay", None)
    for step in range(1, 4):
        rows = pa.table(
            {"id": [10 * step], "part": pa.array([1], pa.int32()), "name": ["a"]}
        )
        deltalake.write_deltalake(table.location, rows, mode="append")
        assert table.version.state.version == 3 * step - 1
        assert table.version.totals == Totals.of(table.files.values())
        DeltaTable(table.location).delete(f"id = {10 * step}")
        table.append([100 + step])
    monkeypatch.undo()
    number = table.version.state.version
    replayed = replay(table.location, table.store, number)
    assert set(replayed.files) == set(table.files)
    fresh = KnownVersions().newest(table.location)
    assert fresh is not None and fresh.totals == table.version.totals
    # A version that was undone is no beginning.
    log = table.root / "_delta_log"
    text = (log / f"{number:020}.json").read_text()
    (log / f"{number:020}.json").unlink()
    (log / f"{number:020}.crc").unlink()
    (log / f"{number:020}.json").write_text(text)
    (log / f"{number + 1:020}.json").write_text('{"commitInfo":{}}\n')
    with monkeypatch.context() as patch:
        patch.setattr(known, "continued", lambda *_: None)
        other = KnownVersions()
        expected = other.newest(table.location)
    assert table.version == expected


def test_our_commit_removes_a_file_under_another_spelling_of_its_path(
    tmp_path: Path,
) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1])
    table.append([2])
    first, second = table.files.values()
    spelled = first.key.replace("-", "%2D")
    remove = {"path": spelled, "dataChange": True, "size": first.size}
    table.commit([{"remove": remove}], reads=True)
    assert list(table.files) == [second.key]
    assert table.version.totals == Totals.of([second])
    assert list(replay(table.location, table.store, 3).files) == [second.key]


def test_a_table_whose_numbering_is_suspended_gets_no_numbers(tmp_path: Path) -> None:
    table = LogTable(
        tmp_path / "t",
        {"delta.enableRowTracking": "true", "delta.rowTrackingSuspended": "true"},
    )
    assert "rowTracking" in writer_features(table.version.protocol)
    table.append([1, 2])
    (file,) = table.files.values()
    assert "baseRowId" not in file.action
    assert table.version.domains == ()


def test_a_table_that_only_grows_may_be_filled_by_a_replacement(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", {"delta.appendOnly": "true"})
    assert table.commit([], replaces=True).state.version == 1


def test_statistics_stay_in_one_form_at_least(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", {"delta.checkpoint.writeStatsAsJson": "false"})
    table.append([4, 9])
    write_checkpoint(table.location, table.store, 1)
    (stats,) = _stats(table, 1)
    assert stats["numRecords"] == 2
    assert stats["minValues"] == {"id": 4, "part": 1, "name": "n4"}


def test_a_column_of_an_unknown_type_has_no_bounds(tmp_path: Path) -> None:
    table = LogTable(
        tmp_path / "t", STRUCTS, columns=(("id", "bigint"), ("v", "variant"))
    )
    table.commit(
        [
            {
                "add": {
                    "path": "f.parquet",
                    "partitionValues": {},
                    "size": 1,
                    "modificationTime": 1,
                    "dataChange": True,
                    "stats": '{"numRecords":2,"minValues":{"id":1},"maxValues":'
                    '{"id":99999999999999999999},"nullCount":{"id":0,"v":1}}',
                }
            }
        ]
    )
    write_checkpoint(table.location, table.store, 1)
    (stats,) = _stats(table, 1)
    assert stats["nullCount"] == {"id": 0, "v": 1}
    assert (stats["minValues"], stats["maxValues"]) == ({"id": 1}, {})


def _write_structs(table: LogTable, bounds: pa.Array, *, int96: bool) -> None:
    """Write a checkpoint of version 1 as stock Spark does, with statistics as structs alone."""
    (file,) = table.files.values()
    add = {"path": file.key, "partitionValues": [], "size": file.size}
    rows: list[dict[str, object]] = [
        {"protocol": dict(table.version.protocol)},
        {"metaData": {"id": table.version.metadata["id"]}},
        {"add": add},
    ]
    written = pa.Table.from_pylist(
        [{"protocol": None, "metaData": None, "add": None, **row} for row in rows]
    )
    adds = written["add"].combine_chunks()
    each = bounds.take(pa.array([None, None, 0]))
    stats = pa.StructArray.from_arrays([each, each], ["minValues", "maxValues"])
    children = [*adds.flatten(), stats]
    names = [*(field.name for field in adds.type), "stats_parsed"]
    adds = pa.StructArray.from_arrays(children, names, mask=adds.is_null())
    pq.write_table(
        written.set_column(2, "add", adds),
        table.root / "_delta_log" / f"{1:020}.checkpoint.parquet",
        use_deprecated_int96_timestamps=int96,
        store_schema=False,
    )


@pytest.mark.parametrize("int96", [False, True])
def test_bounds_of_other_writers_do_not_shrink(tmp_path: Path, int96: bool) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1])
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    bounds = {"at": moment, "x": math.inf, "y": math.nan}
    _write_structs(table, pa.array([bounds]), int96=int96)
    (stats,) = _stats(table, 1)
    assert stats["minValues"] == {
        "at": "2026-01-02T03:04:05.678Z",
        "x": "Infinity",
        "y": "NaN",
    }
    assert stats["maxValues"] == {
        "at": "2026-01-02T03:04:05.679Z",
        "x": "Infinity",
        "y": "NaN",
    }


@pytest.mark.parametrize("int96", [False, True])
def test_a_bound_that_python_cannot_represent_is_left_out(
    tmp_path: Path, int96: bool
) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1])
    moment = pa.timestamp("us", "UTC")
    far = 253_402_300_800_000_000  # The year 10000.
    columns = {
        "n": pa.array([7]),
        "day": pa.array([2_932_897], pa.int32()).cast(pa.date32()),
        "before": pa.array([-719_163], pa.int32()).cast(pa.date32()),
        "last": pa.array([2_932_896], pa.int32()).cast(pa.date32()),
        "far": pa.array([far]).cast(moment),
        "near": pa.array([far - 1_001]).cast(moment),
    }
    bounds = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    _write_structs(table, bounds, int96=int96)
    for path in (table.root / "_delta_log").glob("*.crc"):
        path.unlink()
    table.known = KnownVersions()
    assert len(table.files) == 1
    (stats,) = _stats(table, 1)
    assert stats["maxValues"] == {
        "n": 7,
        "last": "9999-12-31",
        "near": "9999-12-31T23:59:59.999Z",
    }


def test_a_checkpoint_that_python_cannot_represent_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LogTable(tmp_path / "t")
    table.append([1])
    write_checkpoint(table.location, table.store, 1)

    def overflows(row: object) -> dict[str, object]:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(checkpointfiles, "_object", overflows)
    assert len(replay(table.location, table.store, 1).files) == 1


@pytest.mark.parametrize("kind", ["plain", "v2"])
@pytest.mark.parametrize("lost", ["checkpoint", "order"])
def test_a_log_is_not_cleaned_below_what_cannot_be_read(
    tmp_path: Path, kind: str, lost: str
) -> None:
    more = {"delta.checkpointPolicy": "v2"} if kind == "v2" else {}
    table = LogTable(tmp_path / "t", more)
    for step in range(1, 8):
        table.append([step])
        if step in (3, 5):
            write_checkpoint(table.location, table.store, step)
    log, old = table.root / "_delta_log", 1_700_000_000
    (log / f"{1:020}.{2:020}.compacted.json").write_text("")
    for path in [*log.iterdir(), *(log / "_sidecars").glob("*")]:
        if path.name[:20] <= f"{6:020}":
            os.utime(path, (old, old))
    if lost == "checkpoint":
        pattern = "_sidecars/*5.checkpoint*" if kind == "v2" else "*5.checkpoint*"
        (path,) = log.glob(pattern)
        os.truncate(path, path.stat().st_size // 2)
    else:
        # A copy of the directory has made a commit young; those behind it are no older.
        now = time.time()
        os.utime(log / f"{4:020}.json", (now, now))
    assert clean_up(table.store, table.version) > 0
    left = sorted(p.name for p in log.glob("*.json") if len(p.name) == 25)
    assert left == [f"{n:020}.json" for n in range(3, 8)]
    assert not list(log.glob("*.compacted.json"))
    for path in log.glob("*.crc"):
        path.unlink()
    table.known = KnownVersions()
    assert len(table.files) == 7
