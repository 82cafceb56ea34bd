"""A stream over a history whose first files have gone: it ends with an error, or begins with the
table as it is. Never is there a gap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from wal2lake.apply.local.altering import field_spec
from wal2lake.apply.local.histories import history_columns
from wal2lake.lake.retention import (
    Removed,
    choose,
    choose_log,
    list_files,
    read_history,
    read_log,
    remove,
)
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.store import LocalStore

COMMITS = 12


@dataclass
class Reader:
    """A stream over the history, with its checkpoint."""

    spark: SparkSession
    history: str
    checkpoint: Path
    seen: list[int] = field(default_factory=list)

    def run(self, above: int = 0, **options: Any) -> None:
        """Read what there is."""
        changes = (
            self.spark.readStream.format("delta").options(**options).load(self.history)
        )
        query = (
            changes.where(f"commit_lsn > {above}")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    def _take(self, batch: DataFrame, number: int) -> None:
        # A micro-batch has whole transactions, and its rows in any order.
        self.seen += sorted(row[0] for row in batch.select("commit_lsn").collect())


@dataclass
class History:
    """A history with one transaction in each commit."""

    spark: SparkSession
    lake: DeltaTables
    location: str
    last: int = 0

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self.last += 1
            row = f"select 'insert' as op, {self.last}L as commit_lsn, 1L as ordinal"
            frame = self.spark.sql(row)
            frame.write.format("delta").mode("append").save(self.location)

    def vacuum(self, *, log: bool) -> None:
        """Compact the files, and remove those that the newest version does not need."""
        self.spark.sql(f"optimize delta.`{self.location}`").collect()
        root = Path(self.location)
        found = read_log(LocalStore(root))
        history = read_history(found, found.newest)
        removal = choose(history, list_files(LocalStore(root), frozenset()), (), 0.0)
        removed = Removed()
        remove(LocalStore(root), removal, removed, lambda: None)
        assert sum(removed.files.values()) > 0
        if log:
            of_log = choose_log(found, found.newest, 1e12, None, lambda version: True)
            remove(LocalStore(root), of_log, removed, lambda: None)
            assert read_log(LocalStore(root)).first > 0


@pytest.fixture
def history(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> Iterator[History]:
    fields = [field_spec(column) for column in history_columns(())]
    lake.create(location, fields, {"delta.checkpointInterval": "4"})
    yield History(spark_session, lake, location)
    for query in spark_session.streams.active:
        with contextlib.suppress(Exception):
            query.stop()


@pytest.mark.slow
def test_a_stream_after_retention_ends_with_an_error_and_begins_anew_without_a_gap(
    history: History, tmp_path: Path
) -> None:
    spark = history.spark
    history.commit(COMMITS)
    sleeping = Reader(spark, history.location, tmp_path / "sleeping")
    sleeping.run(startingVersion=0)
    assert sleeping.seen == list(range(1, COMMITS + 1))
    reached = max(sleeping.seen)

    # The files of single commits have gone, the log has not.
    history.commit(3)
    history.vacuum(log=False)
    for reader in (sleeping, Reader(spark, history.location, tmp_path / "files")):
        before = list(reader.seen)
        with pytest.raises(StreamingQueryException):
            reader.run(startingVersion=0)
        assert reader.seen == before, "nothing is passed over in silence"

    # So has the log.
    history.commit(COMMITS)
    history.vacuum(log=True)
    for reader in (sleeping, Reader(spark, history.location, tmp_path / "log")):
        before = list(reader.seen)
        with pytest.raises(StreamingQueryException):
            reader.run(startingVersion=0)
        assert reader.seen == before

    # A stream that begins with the table as it is has every change, and goes on.
    anew = Reader(spark, history.location, tmp_path / "anew")
    anew.run()
    assert sorted(anew.seen) == list(range(1, history.last + 1))
    # The stream that slept goes on behind what it has had already.
    behind = Reader(spark, history.location, tmp_path / "behind", sleeping.seen)
    behind.run(above=reached)
    assert sorted(behind.seen) == list(range(1, history.last + 1))
    history.commit(2)
    for reader in (anew, behind):
        reader.run(above=reached)
        assert sorted(reader.seen) == list(range(1, history.last + 1))
        assert reader.seen[-2:] == [history.last - 1, history.last]
