"""Tables of which Delta demands more than files: batches leave what Spark's own writes would."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from tests.fakes.lake_log import RELATION, write_log
from tests.spark.test_batches import batches_of, operations, request

from wal2lake.lake.partitions import EMPTY_TEXT
from wal2lake.lake.port import Cursor
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.staging.layout import RowFailure
from wal2lake.model import ReplicaIdentity
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Key,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)


def create(
    spark: SparkSession, location: str, *, partitioned: bool = False
) -> DeltaTable:
    """A table of Spark's: two constraints, two generated columns, numbers of rows."""
    builder = (
        DeltaTable.create(spark)
        .location(location)
        .addColumn("grp", "int")
        .addColumn("number", "int")
        .addColumn("a", "string")
        .addColumn("b", "string")
        .addColumn("twice", "bigint", generatedAlwaysAs="cast(number * 2 as bigint)")
        .addColumn("size", "int", generatedAlwaysAs="length(b)")
        .property("delta.enableRowTracking", "true")
        .property("delta.enableDeletionVectors", "true")
    )
    if partitioned:
        builder = builder.partitionedBy("a", "twice")
    table = builder.execute()
    spark.sql(f"alter table delta.`{location}` add constraint c check (grp < 1000000)")
    spark.sql(
        f"alter table delta.`{location}` add constraint d check"
        " (b is null or b <> 'bad' and 10 / (length(b) - 20) < 1000)"
    )
    return table


def rows_of(spark: SparkSession, location: str) -> dict[Key, Row]:
    """By Spark, which checks what is generated."""
    frame = spark.read.format("delta").load(location)
    rows = frame.select(
        "grp", "number", "a", "b", "twice", "size", "_metadata.row_id"
    ).collect()
    assert all(row.twice == row.number * 2 for row in rows)
    assert [row["size"] for row in rows] == [
        None if row.b is None else len(row.b) for row in rows
    ]
    numbers = [row.row_id for row in rows]
    assert len(set(numbers)) == len(numbers)
    assert None not in numbers
    found = {(row.grp, row.number): tuple(row)[:4] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_history_ends_as_the_model_with_spark_writing_in_turn(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    partitioned: bool,
) -> None:
    create(spark_session, location, partitioned=partitioned)
    rng = random.Random(5)
    shape = HistoryShape(12, 8, missing=True, truncates=1)
    start = initial_rows(shape, rng)
    model = TableModel(KEY, dict(start))
    # Enough for a batch; and for a few events.
    ports = [
        batches_of(spark_session, lake, tmp_path, size) for size in (1 << 20, 4000)
    ]
    inserts = [RowEvent(1, n, "I", row) for n, row in enumerate(start.values())]
    parts = [inserts, *batches(history(shape, start, rng), rng, 3)]
    model.rows.clear()
    for number, batch in enumerate(filter(None, parts), start=1):
        port = ports[number % 2]
        source = write_log(tmp_path / f"{number}.parquet", batch)
        asked = request(lake, location, source, append=number == 1)
        staged = port.stage(asked)
        assert not staged.failures
        port.commit(staged, Cursor("app", number))
        model.apply_all(batch)
        assert rows_of(spark_session, location) == model.rows
        # Delta's own writer goes on from there.
        key = max(model.rows)
        spark_session.sql(
            f"update delta.`{location}` set b = 'spark'"
            f" where grp = {key[0]} and number = {key[1]}"
        )
        model.rows[key] = (*model.rows[key][:3], "spark")
    assert rows_of(spark_session, location) == model.rows
    assert "upsert" in operations(location)


def failure_of(
    port: DeltaBatches, lake: DeltaTables, location: str, path: Path, *events: RowEvent
) -> RowFailure:
    source = write_log(path, events)
    staged = port.stage(request(lake, location, source))
    (failure,) = staged.failures
    port.discard(staged)
    return failure


def test_what_delta_refuses_is_refused_at_its_event(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    create(spark_session, location)
    spark_session.sql(
        f"insert into delta.`{location}` (grp, number, a, b) values (1, 1, 'a', 'b')"
    )
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    path = tmp_path / "log.parquet"
    good = RowEvent(5, 0, "I", (2, 2, "a", "b"))
    refused = 'new row for relation "t" violates check constraint "{}"'
    for event, sqlstate, message in (
        (RowEvent(6, 3, "I", (1, 7, "a", "bad")), "23514", refused.format("d")),
        # A condition that is NULL is violated.
        (RowEvent(6, 3, "U", (1, 1, "new", "bad")), "23514", refused.format("d")),
        (
            RowEvent(6, 3, "U", (2000000, 1, "new", UNCHANGED), (1, 1)),
            "23514",
            refused.format("c"),
        ),
        (RowEvent(6, 3, "I", (1, 7, "a", "x" * 20)), "22012", "division by zero"),
        (RowEvent(6, 3, "I", (1, 2000000000, "a", "b")), "22003", None),
    ):
        failure = failure_of(port, lake, location, path, good, event)
        assert (failure.seq.commit_lsn, failure.seq.ordinal) == (6, 3)
        assert failure.sqlstate == sqlstate
        assert message is None or failure.message == message
        if sqlstate == "22003":
            assert failure.hint == (
                "Delta Lake's table computes this column by an expression of Spark's."
                " Create the table anew without it, or skip the transaction: ALTER"
                " SUBSCRIPTION ... SKIP (lsn = ...)."
            )
    # An UPDATE that finds no row makes none.
    source = write_log(path, [good, RowEvent(6, 3, "U", (9, 9, "new", "bad"))])
    staged = port.stage(request(lake, location, source))
    assert not staged.failures
    port.commit(staged, Cursor("app", 7))
    assert rows_of(spark_session, location) == {
        (1, 1): (1, 1, "a", "b"),
        (2, 2): (2, 2, "a", "b"),
    }
    # Delta says the same of NULL.
    spark_session.sql(f"alter table delta.`{location}` add constraint n check (a > '')")
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT"):
        spark_session.sql(
            f"insert into delta.`{location}` (grp, number, a, b)"
            " values (3, 3, null, 'b')"
        )
    failure = failure_of(
        port, lake, location, path, RowEvent(6, 3, "I", (3, 3, None, "b"))
    )
    assert failure.message == refused.format("n")


def test_a_table_without_a_key_is_checked_too(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    create(spark_session, location)
    columns = tuple(replace(c, is_key=True) for c in RELATION.columns)
    full = replace(RELATION, identity=ReplicaIdentity.FULL, columns=columns)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    number = 0

    def stage(*events: RowEvent) -> tuple[RowFailure, ...]:
        nonlocal number
        number += 1
        source = write_log(tmp_path / f"{number}.parquet", events, full)
        staged = port.stage(request(lake, location, source, key=()))
        if not staged.failures:
            port.commit(staged, Cursor("app", number))
        return tuple(staged.failures)

    row = (1, 1, "a", "b")
    assert not stage(RowEvent(1, 0, "I", row))
    (failure,) = stage(
        RowEvent(2, 0, "I", (1, 2, "a", "b")), RowEvent(2, 1, "I", (1, 3, "a", "bad"))
    )
    assert (failure.seq.ordinal, failure.sqlstate) == (1, "23514")
    (failure,) = stage(RowEvent(3, 0, "U", (1, 3, "a", "bad"), row))
    assert (failure.seq.ordinal, failure.sqlstate) == (0, "23514")
    assert not stage(RowEvent(4, 0, "U", (1, 4, "a", "bb"), row))
    assert rows_of(spark_session, location) == {(1, 4): (1, 4, "a", "bb")}


def test_tables_that_cannot_be_written_are_refused(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    path = tmp_path / "log.parquet"
    event = RowEvent(6, 3, "I", (1, 7, "a", "b"))
    for number, (rest, why) in enumerate(
        (
            (
                "s struct<x: int>) using delta",
                'Its column "s" is of Spark\'s type struct<x:int>.',
            ),
            (
                "d double) using delta partitioned by (d)",
                'It is partitioned by column "d" of type double.',
            ),
        )
    ):
        place = f"{location}{number}"
        spark_session.sql(
            f"create table delta.`{place}`"
            f" (grp int, number int, a string, b string, {rest}"
        )
        for append in (False, True):
            source = write_log(path, [event])
            (failure,) = port.stage(
                request(lake, place, source, append=append)
            ).failures
            assert (failure.seq.ordinal, failure.sqlstate) == (3, "0A000")
            assert failure.message == 'cannot write relation "public.t"'
            assert failure.detail == why
            assert failure.hint == (
                "Drop the table here, and let ALTER SUBSCRIPTION ... REFRESH PUBLICATION"
                " create and copy it anew. Or leave it out of the publication."
            )


def test_an_empty_text_is_no_partition(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    create(spark_session, location, partitioned=True)
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    path = tmp_path / "log.parquet"
    good = RowEvent(5, 0, "I", (2, 2, "a b/c=%20é", "b"))
    for bad in (
        RowEvent(6, 3, "I", (1, 1, "", "b")),
        RowEvent(6, 3, "U", (2, 2, "", UNCHANGED)),
    ):
        failure = failure_of(port, lake, location, path, good, bad)
        assert (failure.seq.ordinal, failure.sqlstate) == (3, "0A000")
        assert (failure.message, failure.column) == (EMPTY_TEXT, "a")
        assert failure.hint == (
            "Create the table anew without partitions by this column, or skip the"
            " transaction: ALTER SUBSCRIPTION ... SKIP (lsn = ...)."
        )
    staged = port.stage(request(lake, location, write_log(path, [good])))
    port.commit(staged, Cursor("app", 1))
    assert rows_of(spark_session, location) == {(2, 2): (2, 2, "a b/c=%20é", "b")}


def test_a_computed_empty_text_is_no_partition(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    (
        DeltaTable.create(spark_session)
        .location(location)
        .addColumn("grp", "int")
        .addColumn("number", "int")
        .addColumn("a", "string")
        .addColumn("b", "string")
        .addColumn("first", "string", generatedAlwaysAs="substring(b, 1, 1)")
        .property("delta.enableDeletionVectors", "true")
        .partitionedBy("first")
        .execute()
    )
    port = batches_of(spark_session, lake, tmp_path, 1 << 20)
    path = tmp_path / "log.parquet"
    good = RowEvent(5, 0, "I", (2, 2, "a", "b"))
    for bad in (
        RowEvent(6, 3, "I", (1, 1, "a", "")),
        RowEvent(6, 3, "U", (2, 2, "a", "")),
    ):
        failure = failure_of(port, lake, location, path, good, bad)
        assert (failure.seq.commit_lsn, failure.seq.ordinal) == (6, 3)
        assert (failure.sqlstate, failure.message) == ("0A000", EMPTY_TEXT)
        assert failure.column == "first"
