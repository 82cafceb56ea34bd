"""Large batches that tasks on executors evaluate, each for some of the keys."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, by_key, fill, rows_of, write_log
from tests.spark.test_batches import read_outside, request

from wal2lake.lake.port import Cursor
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    TableModel,
    batches,
    history,
    initial_rows,
)


def test_tasks_leave_the_table_as_the_model_has_it(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wal2lake.lake.spark.batches._IN_PROCESS_ROWS", 10)
    rng = random.Random(3)
    shape = HistoryShape(40, 10, missing=True, truncates=1)
    start = initial_rows(shape, rng)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, list(start.values()))
    port = DeltaBatches(
        spark_session, lake, tmp_path / "staging", 2, 1 << 20, spreads=True
    )
    model = TableModel(KEY, dict(start))
    for number, batch in enumerate(batches(history(shape, start, rng), rng, 2)):
        source = write_log(tmp_path / f"{number}.parquet", batch)
        staged = port.stage(request(lake, location, source))
        assert not staged.failures
        missing = len(model.missing)
        port.commit(staged, Cursor("app", number + 1))
        model.apply_all(batch)
        if not any(event.kind == "T" for event in batch):
            assert (
                sum(c.count for c in staged.conflicts) == len(model.missing) - missing
            )
        assert by_key(rows_of(spark_session, location)) == model.rows
        assert by_key(read_outside(location)) == model.rows
