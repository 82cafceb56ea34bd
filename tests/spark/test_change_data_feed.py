"""A table whose change data feed somebody has switched on: what Delta tells of our commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.model import Oid

FIELDS = (
    FieldSpec("a0", "string", pg_type_oid=Oid(25)),
    FieldSpec("a1", "int", pg_type_oid=Oid(23)),
)


@pytest.fixture
def world(tmp_path: Path, lake: DeltaTables) -> Iterator[World]:
    root = tmp_path / "warehouse"
    lake.create(str(root / "t1"), FIELDS)
    with World(tmp_path, tables=(1,), root=str(root)) as made:
        yield made


def insert(key: str, value: str) -> Change:
    return Change(1, "I", (key.encode(), value.encode()))


def update(key: str, value: str) -> Change:
    return Change(1, "U", (key.encode(), value.encode()))


@pytest.mark.slow
def test_the_feed_tells_our_commits_as_rows_that_go_and_come(
    world: World,
    lake: DeltaTables,
    spark_session: SparkSession,
    tmp_path: Path,
) -> None:
    """Our commits have no files of changes: Delta derives them from deletion vectors."""
    side = world.side
    table = f"delta.`{side.location(1)}`"
    batches = DeltaBatches(
        spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=1 << 20
    )
    side.send(Transaction(100, tuple(insert(k, "1") for k in "abc")))
    side.start(lake, batches)
    side.reaches(108)
    spark_session.sql(
        f"alter table {table} set tblproperties ('delta.enableChangeDataFeed' = 'true')"
    )
    start = lake.state(side.location(1)).version
    for at, changes in (
        (200, (update("a", "2"), Change(1, "D", key=b"b"), insert("d", "2"))),
        # The file of the first row that came has lost one already.
        (300, (update("a", "3"), update("c", "3"))),
        (400, (Change(1, "T"), insert("e", "4"))),
    ):
        side.send(Transaction(at, changes))
        side.reaches(at + 8)
    feed = (
        spark_session.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", start)
        .load(side.location(1))
        .collect()
    )
    found = [(r._commit_version - start, r._change_type, r.a0, r.a1) for r in feed]
    assert sorted(found) == [
        (1, "delete", "a", 1),
        (1, "delete", "b", 1),
        (1, "insert", "a", 2),
        (1, "insert", "d", 2),
        (2, "delete", "a", 2),
        (2, "delete", "c", 1),
        (2, "insert", "a", 3),
        (2, "insert", "c", 3),
        (3, "delete", "a", 3),
        (3, "delete", "c", 3),
        (3, "delete", "d", 2),
        (3, "insert", "e", 4),
    ]
