"""Batches of a table that keeps deleted rows, on Delta, read by software of others."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, write_log
from tests.spark.test_batches import batches_of, operations, read_outside, request

from wal2lake.lake.port import Cursor, FieldSpec
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging import HistoryCommits
from wal2lake.model import DELETED_AT, Oid
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    MarkedTableModel,
    RowEvent,
    TableModel,
    batches,
    history,
)

COLUMNS = (*FIELDS, FieldSpec(DELETED_AT, "timestamp", pg_type_oid=Oid(1184)))


def facts_of(lsns: list[int]) -> HistoryCommits:
    """Each transaction commits as many seconds after 1970 as its LSN says."""
    lsn = np.array(sorted(set(lsns)), np.int64)
    return HistoryCommits(lsn, lsn + 1000, lsn * 1_000_000, (None,) * len(lsn))


def test_each_batch_leaves_the_publishers_rows_and_marked_ones(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    rng = random.Random(3)
    events = history(HistoryShape(30, 12, missing=True, truncates=2), {}, rng)
    lake.create(location, COLUMNS)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    model = MarkedTableModel(TableModel(KEY))
    for number, batch in enumerate(batches(events, rng, 5)):
        if not batch:
            continue
        source = write_log(tmp_path / f"{number}.parquet", batch)
        facts = facts_of([event.lsn for event in batch])
        asked = replace(request(lake, location, source), soft=facts)
        staged = port.stage(asked)
        assert not staged.failures
        port.commit(staged, Cursor("app", number + 1))
        model.apply_all(batch)
        rows = read_outside(location)
        assert {row[:2]: row[:4] for row in rows if row[4] is None} == model.live.rows
        assert {
            row[:2]: (row[:4], int(row[4].timestamp()))
            for row in rows
            if row[4] is not None
        } == model.marked
        assert len(rows) == len(model.live.rows) + len(model.marked)
    assert model.marked and model.live.rows


def test_inserts_look_for_marked_rows_as_soon_as_there_is_one(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    lake.create(location, COLUMNS)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)

    def apply(number: int, *events: RowEvent) -> str:
        source = write_log(tmp_path / f"{number}.parquet", list(events))
        adds = all(event.kind == "I" for event in events)
        asked = request(lake, location, source, append=adds)
        staged = port.stage(replace(asked, soft=facts_of([number])))
        assert not staged.failures
        port.commit(staged, Cursor("app", number))
        return operations(location)[0]

    assert apply(1, RowEvent(1, 1, "I", (0, 1, "a", "b"))) == "append"
    assert apply(2, RowEvent(2, 1, "D", old=(0, 1))) == "upsert"
    assert apply(3, RowEvent(3, 1, "I", (0, 1, "c", "d"))) == "upsert"
    assert read_outside(location) == [(0, 1, "c", "d", None)]
    assert apply(4, RowEvent(4, 1, "I", (0, 2, "e", "f"))) == "append"


@pytest.mark.parametrize("number_of_transactions", [1, 2])
def test_a_truncate_that_does_not_fit_into_memory_marks_all_rows(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    number_of_transactions: int,
) -> None:
    lake.create(location, COLUMNS)
    stored = [RowEvent(1, n, "I", (0, n, "stored", "y")) for n in range(200)]
    last = 1 + number_of_transactions
    changes = [
        *(RowEvent(2, n, "U", (0, n, "x" * 99, "y")) for n in range(150)),
        RowEvent(2, 500, "T"),
        *(RowEvent(last, 600 + n, "I", (0, n, "z" * 99, "y")) for n in range(100)),
    ]
    small = batches_of(spark_session, lake, tmp_path, 10_000)
    for number, events in enumerate((stored, changes), 1):
        source = write_log(tmp_path / f"{number}.parquet", events)
        asked = request(lake, location, source)
        staged = small.stage(replace(asked, soft=facts_of([1, 2, 3])))
        assert not staged.failures
        small.commit(staged, Cursor("app", number))
    rows = {row[1]: row[2:] for row in read_outside(location)}
    assert len(rows) == 200
    assert all(rows[n] == ("z" * 99, "y", None) for n in range(100))
    ended = [(*rows[n][:2], int(rows[n][2].timestamp())) for n in range(100, 200)]
    assert ended == [("x" * 99, "y", 2)] * 50 + [("stored", "y", 2)] * 50
