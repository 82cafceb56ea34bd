"""Batches of one table, whatever way each takes: at once, in runs, by plain append."""

from __future__ import annotations

import json
import random
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, by_key, fill, rows_of, write_log

from wal2lake.errors import StorageError
from wal2lake.lake.batch.batchport import StageRequest
from wal2lake.lake.batch.methods import Method
from wal2lake.lake.capture.commitfacts import operation_and_remarks
from wal2lake.lake.compaction.compactor import LOOK_EVERY
from wal2lake.lake.port import CommitConflict, Cursor
from wal2lake.lake.spark.batches import DeltaBatches, _Staged
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.lake.upsert import UpsertMemory
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)


def batches_of(
    spark: SparkSession, lake: DeltaTables, tmp_path: Path, upsert_bytes: int
) -> DeltaBatches:
    """Batches with so many bytes of memory."""
    staging = tmp_path / f"staging{upsert_bytes}"
    port = DeltaBatches(spark, lake, staging, cores=2, upsert_bytes=upsert_bytes)
    port._memory = UpsertMemory(upsert_bytes)
    return port


def request(
    lake: DeltaTables,
    location: str,
    source: LogSource,
    *,
    append: bool = False,
    key: tuple[str, ...] = ("grp", "number"),
) -> StageRequest:
    return StageRequest(
        namespace="public",
        name="t",
        state=lake.state(location),
        key=key,
        constraint="t_pkey",
        sources=[source],
        span=LsnRange(0),
        append=append,
        trusted=True,
    )


def operations(location: str) -> list[str]:
    """What each commit from the newest one says it was."""
    return [
        operation_and_remarks(str(commit.get("userMetadata") or commit["operation"]))[0]
        for commit in deltalake.DeltaTable(location).history()
    ]


def read_outside(location: str) -> list[Row]:
    """By a reader that has nothing of Spark or of ours."""
    table = deltalake.DeltaTable(location)
    found = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    rows = pa.table(found.read_all()).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_every_way_of_applying_leaves_the_same_table_to_the_next(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    shape = HistoryShape(40, 10, missing=True, truncates=1)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, list(start.values()))
    ways = {
        "upsert": batches_of(spark_session, lake, tmp_path, 1 << 20),
        "runs": batches_of(spark_session, lake, tmp_path, 3000),
    }
    model = TableModel(KEY, dict(start))
    turns = ["upsert", "runs", "runs", "upsert"]
    seen, used = [], []
    for number, (way, batch) in enumerate(
        zip(turns, batches(events, rng, len(turns)), strict=True)
    ):
        if not batch:
            continue
        source = write_log(tmp_path / f"{number}.parquet", batch)
        port = ways[way]
        staged = port.stage(request(lake, location, source))
        assert not staged.failures
        if way == "runs":
            assert isinstance(staged, _Staged)
            assert staged.upsert is not None
            assert staged.upsert.runs > 2
        port.commit(staged, Cursor("app", number + 1))
        assert lake.state(location).cursor("app") == number + 1
        model.apply_all(batch)
        assert by_key(rows_of(spark_session, location)) == model.rows
        assert by_key(read_outside(location)) == model.rows
        seen.append(operations(location)[0])
        used.append(way)
    assert "upsert" in seen
    written = ways["upsert"].methods("app", location)
    assert sum(total.batches for total in written.values()) == used.count("upsert")
    in_runs = ways["runs"].methods("app", location)
    assert Method.UPSERT in {*written, *in_runs}
    assert all(total.seconds > 0 for total in in_runs.values())


@pytest.mark.slow
@pytest.mark.parametrize("upsert_bytes", [1 << 20, 300])
@pytest.mark.parametrize("constraint", [False, True])
def test_a_table_without_a_key_keeps_every_row_that_follows_a_truncate(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    upsert_bytes: int,
    constraint: bool,
) -> None:
    """At once, in runs, and in a table that has a constraint of Delta's own."""
    port = batches_of(spark_session, lake, tmp_path, upsert_bytes)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, [(1, 1, "old", None)])
    if constraint:
        spark_session.sql(
            f"alter table delta.`{location}` add constraint c check (grp > 0)"
        )
    same = (5, 5, "same", None)
    steps: list[list[RowEvent]] = [
        [RowEvent(1, n, "I", same) for n in range(3)],
        [
            RowEvent(2, 0, "I", (8, 8, "gone", None)),
            RowEvent(2, 1, "T"),
            *(RowEvent(2, n, "I", same) for n in range(2, 5)),
            RowEvent(2, 5, "I", (6, 6, "other", None)),
        ],
        [RowEvent(3, 0, "I", (7, 7, "more", "x"))],
        [RowEvent(4, 0, "T")],
    ]
    wanted: list[Row] = [(1, 1, "old", None)]
    for number, events in enumerate(steps, start=1):
        for event in events:
            if event.kind == "T":
                wanted = []
            elif event.new is not None:
                wanted.append(event.new)
        source = write_log(tmp_path / f"{number}.parquet", events)
        append = all(event.kind == "I" for event in events)
        staged = port.stage(request(lake, location, source, append=append, key=()))
        assert not staged.failures
        port.commit(staged, Cursor("app", number))
        assert lake.state(location).cursor("app") == number
        assert sorted(rows_of(spark_session, location), key=str) == sorted(
            wanted, key=str
        )


def test_the_listing_of_files_follows_our_commits_and_notices_others(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)

    def apply(number: int, *events: RowEvent, append: bool = False) -> None:
        source = write_log(tmp_path / f"{number}.parquet", list(events))
        staged = port.stage(request(lake, location, source, append=append))
        port.commit(staged, Cursor("app", number))
        assert_listed()

    def assert_listed() -> None:
        state = lake.state(location)
        mine = lake.files(state)
        fresh = DeltaTables(spark_session).files(state)
        assert mine is not None
        assert fresh is not None
        assert {(f.key, f.deleted, f.rows) for f in mine} == {
            (f.key, f.deleted, f.rows) for f in fresh
        }

    apply(1, *(RowEvent(1, n, "I", (1, n, "a", "b")) for n in range(5)), append=True)
    apply(2, RowEvent(2, 0, "U", (1, 2, "c", UNCHANGED)))
    fill(lake, spark_session, location, [(2, 2, "foreign", None)])
    assert_listed()
    apply(3, RowEvent(3, 0, "D", None, (2, 2)), RowEvent(3, 1, "D", None, (1, 2)))
    apply(4, RowEvent(4, 0, "T"), RowEvent(4, 1, "I", (9, 9, "x", "y")))
    assert rows_of(spark_session, location) == [(9, 9, "x", "y")]


def test_a_batch_meant_for_another_version_conflicts_and_leaves_nothing(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, [(1, 1, "old", "x")])
    source = write_log(
        tmp_path / "log", [RowEvent(1, 1, "U", (1, 1, "new", UNCHANGED))]
    )
    before = set(Path(location).glob("part-*"))
    staged = port.stage(request(lake, location, source))
    (ours,) = set(Path(location).glob("part-*")) - before
    fill(lake, spark_session, location, [(2, 2, "two", None)])
    with pytest.raises(CommitConflict):
        port.commit(staged, Cursor("app", 2))
    port.discard(staged)
    assert by_key(rows_of(spark_session, location)) == {
        (1, 1): (1, 1, "old", "x"),
        (2, 2): (2, 2, "two", None),
    }
    assert not ours.exists()


def test_small_files_become_one_now_and_then(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)
    commits = LOOK_EVERY + 5
    for number in range(1, commits + 1):
        events = [
            RowEvent(number, 0, "I", (1, number, "a", "b")),
            RowEvent(number, 1, "U", (1, number - 1, f"c{number}", UNCHANGED)),
        ]
        source = write_log(tmp_path / f"{number}", events)
        staged = port.stage(request(lake, location, source))
        version = port.commit(staged, Cursor("app", number)).version
        assert version == lake.state(location).version
        if number == LOOK_EVERY:
            port.wait()
    assert lake.state(location).cursor("app") == commits
    assert by_key(read_outside(location)) == {
        (1, n): (1, n, f"c{n + 1}" if n < commits else "a", "b")
        for n in range(1, commits + 1)
    }
    done = operations(location)
    # Written behind one batch, and committed behind the next one, which has updated a row of it.
    assert done.count("compaction") == 1
    assert done[::-1].index("compaction") == LOOK_EVERY + 2
    files = lake.files(lake.state(location))
    assert files is not None
    assert len(files) < 12
    log = Path(location) / "_delta_log"
    compacted = log / f"{len(done) - 1 - done.index('compaction'):020}.json"
    actions = [json.loads(line) for line in compacted.read_text().splitlines()]
    changes = [a.get("add") or a.get("remove") for a in actions]
    assert {change["dataChange"] for change in changes if change} == {False}


def test_values_that_an_update_left_out_are_read_from_files_that_spark_wrote(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, [(1, n, f"a{n}", f"b{n}") for n in range(50)])
    events = [RowEvent(1, n, "U", (1, n, f"c{n}", UNCHANGED)) for n in range(0, 50, 7)]
    staged = port.stage(request(lake, location, write_log(tmp_path / "log", events)))
    port.commit(staged, Cursor("app", 2))
    assert by_key(rows_of(spark_session, location)) == {
        (1, n): (1, n, f"c{n}" if n % 7 == 0 else f"a{n}", f"b{n}") for n in range(50)
    }


def test_a_missing_data_file_is_an_error_that_names_it(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, [(1, 1, "old", "x")])
    files = lake.files(lake.state(location))
    assert files is not None
    (Path(location) / files[0].path).unlink()
    source = write_log(tmp_path / "log", [RowEvent(1, 1, "D", None, (1, 1))])
    with pytest.raises(StorageError, match=files[0].path):
        port.stage(request(lake, location, source))
    assert list((tmp_path / f"staging{1 << 20}").iterdir()) == []


def test_a_compaction_that_fails_is_none_of_the_batchs_business(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no space left on device", sqlstate="53100")

    monkeypatch.setattr("wal2lake.lake.compaction.compactor.LOOK_EVERY", 1)
    compactor = "wal2lake.lake.compaction.compactor"
    monkeypatch.setattr(f"{compactor}.worth_compacting", lambda files: files)
    monkeypatch.setattr(f"{compactor}.compact", fail)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lake.create(location, FIELDS)
    source = write_log(tmp_path / "log", [RowEvent(1, 1, "I", (1, 1, "a", "b"))])
    staged = port.stage(request(lake, location, source))
    assert port.commit(staged, Cursor("app", 2)).version == 1
    port.wait()
    assert rows_of(spark_session, location) == [(1, 1, "a", "b")]
    source = write_log(tmp_path / "next", [RowEvent(2, 0, "D", None, (1, 1))])
    staged = port.stage(request(lake, location, source))
    assert port.commit(staged, Cursor("app", 3)).version == 2
    assert rows_of(spark_session, location) == []
