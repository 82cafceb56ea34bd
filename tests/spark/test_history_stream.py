"""A history table read as a stream: each micro-batch has whole transactions, in their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fakes.lake_log import FIELDS, write_log
from tests.spark.test_batches import batches_of, operations, read_outside, request

from wal2lake.apply.local.altering import field_spec
from wal2lake.apply.local.histories import history_columns
from wal2lake.catalog import ColumnDef
from wal2lake.lake.port import Cursor
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging import NO_COMMITS, HistoryCommits, HistoryTarget
from wal2lake.model import Oid
from wal2lake.testing.rowmodel import RowEvent

COMMITS = 20


def history_table(lake: DeltaTables, location: str) -> str:
    """A history table of a table with ``FIELDS``."""
    columns = tuple(ColumnDef(f.name, Oid(int(f.pg_type_oid))) for f in FIELDS)
    lake.create(location, [field_spec(c) for c in history_columns(columns)])
    return location


def test_whatever_its_size_a_batch_is_recorded(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = history_table(lake, f"{location}-history")
    lake.create(location, FIELDS)
    target = HistoryTarget(lake.state(history), NO_COMMITS)
    updates = [RowEvent(1 + n % 2, n, "U", (0, n, "x" * 99, "y")) for n in range(200)]
    small = batches_of(spark_session, lake, tmp_path, 30_000)
    # Inserts that meet no row are recorded, whatever their size; here by tasks of Spark's.
    monkeypatch.setattr("wal2lake.lake.spark.batches._IN_PROCESS_ROWS", 10)
    inserts = [replace(event, kind="I") for event in updates]
    source = write_log(tmp_path / "inserts.parquet", inserts)
    asked = replace(request(lake, location, source, append=True), history=target)
    staged = small.stage(asked)
    assert not staged.failures
    small.commit(staged, Cursor("app", 1))
    small.record(staged, Cursor("app", 1))
    assert len(read_outside(location)) == len(read_outside(history)) == 200
    monkeypatch.undo()
    # So are other changes, in runs, and what a TRUNCATE overtakes.
    anew = [RowEvent(4, 1 + n, "I", (1, n, "x" * 99, "y")) for n in range(100)]
    for number, events in enumerate(
        (updates, [*updates, RowEvent(4, 0, "T"), *anew]), start=2
    ):
        source = write_log(tmp_path / f"{number}.parquet", events)
        target = HistoryTarget(lake.state(history), NO_COMMITS)
        asked = replace(request(lake, location, source), history=target)
        staged = small.stage(asked)
        assert not staged.failures
        assert len(staged.history) > 1
        small.commit(staged, Cursor("app", number))
        small.record(staged, Cursor("app", number))
    assert len(read_outside(location)) == 100
    assert len(read_outside(history)) == 400 + 200 + 1 + 100
    # So are changes of a table with a constraint of Delta's own.
    checked = f"{location}-checked"
    lake.create(checked, FIELDS)
    spark_session.sql(
        f"alter table delta.`{checked}` add constraint positive check (number >= 0)"
    )
    source = write_log(tmp_path / "checked.parquet", inserts[:1])
    target = HistoryTarget(lake.state(history), NO_COMMITS)
    asked = replace(request(lake, checked, source), history=target)
    staged = small.stage(asked)
    assert not staged.failures
    assert len(staged.history) == 1
    small.discard(staged)


@pytest.mark.slow
def test_a_stream_has_whole_transactions_in_order(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    history = history_table(lake, f"{location}-history")
    lake.create(location, FIELDS)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    lsns = np.arange(1, 3 * COMMITS + 1, dtype=np.int64)
    facts = HistoryCommits(lsns, lsns + 1000, lsns * 1_000_000, (None,) * len(lsns))
    sent = []
    for number in range(COMMITS):
        events = [
            RowEvent(number * 3 + n, ordinal, "I", (number, ordinal * 9 + n, "x", "y"))
            for n in (1, 2, 3)
            for ordinal in range(4)
        ]
        events.append(RowEvent(number * 3 + 3, 7, "D", None, (number, 1)))
        source = write_log(tmp_path / f"{number}.parquet", events)
        target = HistoryTarget(lake.state(history), facts)
        staged = port.stage(replace(request(lake, location, source), history=target))
        assert not staged.failures
        cursor = Cursor("app", number + 1)
        port.commit(staged, cursor)
        port.record(staged, cursor)
        sent += [(e.lsn, e.ordinal) for e in events]
        # Compactions are written meanwhile, and committed behind a later batch.
        port.wait()
    assert "compaction" in operations(history)
    seen: list[list[tuple[int, int]]] = []

    def take(batch: DataFrame, number: int) -> None:
        rows = batch.select("commit_lsn", "ordinal").collect()
        seen.append([(row[0], row[1]) for row in rows])

    stream = (
        spark_session.readStream.format("delta")
        .option("startingVersion", 0)
        .option("maxFilesPerTrigger", 1)
        .load(history)
    )
    query = (
        stream.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert [row for rows in seen for row in rows] == sent
    assert len(seen) == COMMITS
    for rows, others in pairwise(seen):
        assert not {lsn for lsn, _ in rows} & {lsn for lsn, _ in others}
