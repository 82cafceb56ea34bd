"""The apply worker on real tables: cut at a poisoned transaction, then going on.

What the worker decides is tested on a lake made of dicts (pure/test_apply_worker.py); this is
that the real one keeps the port's promises to it.
"""

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

# The publisher's columns are text; the second one is a number here.
FIELDS = (
    FieldSpec("a0", "string", pg_type_oid=Oid(25)),
    FieldSpec("a1", "int", pg_type_oid=Oid(23)),
)


@pytest.fixture
def world(tmp_path: Path, lake: DeltaTables) -> Iterator[World]:
    root = tmp_path / "warehouse"
    for relid in (1, 2, 3):
        lake.create(str(root / f"t{relid}"), FIELDS)
    with World(tmp_path, root=str(root)) as made:
        yield made


def insert(relid: int, key: str, value: str) -> Change:
    return Change(relid, "I", (key.encode(), value.encode()))


def update(relid: int, key: str, value: str) -> Change:
    return Change(relid, "U", (key.encode(), value.encode()))


def test_a_poisoned_transaction_cuts_a_batch_of_several_tables(
    world: World, lake: DeltaTables, spark_session: SparkSession, tmp_path: Path
) -> None:
    side = world.side

    def visible() -> list[dict[str, int]]:
        """What a SELECT sees of the three tables."""
        vector = world.catalog.newest_vector(side.subid)
        assert vector is not None
        found = []
        for relid in (1, 2, 3):
            rows = (
                spark_session.read.format("delta")
                .option("versionAsOf", vector.versions[100 + relid])
                .load(side.location(relid))
                .collect()
            )
            found.append({row["a0"]: row["a1"] for row in rows})
        return found

    side.send(
        Transaction(100, (insert(1, "a", "1"), insert(2, "a", "1"))),
        Transaction(200, (update(1, "a", "2"), insert(2, "b", "2"))),
        Transaction(
            300, (insert(1, "c", "3"), insert(2, "c", "three"), insert(3, "c", "3"))
        ),
        Transaction(400, (insert(3, "d", "4"), Change(2, "D", key=b"a"))),
    )
    batches = DeltaBatches(
        spark_session, lake, tmp_path / "staging", cores=2, upsert_bytes=1 << 20
    )
    side.start(lake, batches)
    error = side.stops("finished at 0/12C")
    assert error.startswith("invalid input syntax for type integer")
    assert (
        'CONTEXT:  processing remote data for replication origin "pg_1" during message'
        ' type "INSERT" for replication target relation "public.t2" column "a1" in'
        " transaction 7, finished at 0/12C"
    ) in error
    side.reaches(300)
    assert visible() == [{"a": 2}, {"a": 1, "b": 2}, {}]
    assert side.progress.word("applied") == 300
    assert lake.state(side.location(3)).version == 0
    side.stop()
    # The cause is corrected: the column takes text now.
    location = side.location(2)
    lake.drop(location)
    lake.create(location, (FIELDS[0], FieldSpec("a1", "string", pg_type_oid=Oid(25))))
    side.start(lake, batches)
    side.reaches(408)
    assert visible() == [{"a": 2, "c": 3}, {"c": "three"}, {"c": 3, "d": 4}]
    assert side.error == ""
