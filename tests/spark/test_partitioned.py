"""Tables that are partitioned: every way of applying, exact values, other readers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import FIELDS, by_key, rows_of, write_log
from tests.spark.test_batches import batches_of, operations, request

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.compaction.compactor import LOOK_EVERY
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.port import Cursor, FieldSpec, NextField
from wal2lake.lake.spark.batches import DeltaBatches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)


def outside(location: str, names: Sequence[str]) -> list[Row]:
    """By a reader that has nothing of Spark or of ours, for which partitions come last."""
    listed = ", ".join(f'"{name}"' for name in names)
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(location))
    rows = pa.table(query.execute(f"select {listed} from t").read_all()).to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


def partitions(lake: DeltaTables, location: str) -> list[dict[str, str | None]]:
    """Of each file."""
    files = lake.files(lake.state(location))
    assert files is not None
    return [dict(file.partition) for file in files]


@pytest.mark.slow
def test_every_way_of_applying_writes_partitions(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a column of the key, so that keys that change take rows to other partitions."""
    rng = random.Random(11)
    shape = HistoryShape(40, 10, missing=True, truncates=1)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    lake.create(location, FIELDS, partition_columns=["grp"])
    upserts = batches_of(spark_session, lake, tmp_path, 1 << 20)
    runs = batches_of(spark_session, lake, tmp_path, 3000)
    inserts = [RowEvent(1, n, "I", row) for n, row in enumerate(start.values())]
    source = write_log(tmp_path / "start.parquet", inserts)
    staged = upserts.stage(request(lake, location, source, append=True))
    upserts.commit(staged, Cursor("app", 1))
    groups = {str(row[0]) for row in start.values()}
    assert {p["grp"] for p in partitions(lake, location)} == groups
    assert len(partitions(lake, location)) == len(groups)
    model = TableModel(KEY, dict(start))
    turns = [upserts, runs, runs, upserts]
    seen = []
    for number, (port, batch) in enumerate(
        zip(turns, batches(events, rng, len(turns)), strict=True), start=2
    ):
        if not batch:
            continue
        source = write_log(tmp_path / f"{number}.parquet", batch)
        staged = port.stage(request(lake, location, source))
        assert not staged.failures
        port.commit(staged, Cursor("app", number))
        model.apply_all(batch)
        assert by_key(rows_of(spark_session, location)) == model.rows
        names = [field.name for field in FIELDS]
        assert by_key(outside(location, names)) == model.rows
        seen.append(operations(location)[0])
    assert "upsert" in seen

    # A compaction takes each partition's files together.
    upserts._compactor._commits[location] = LOOK_EVERY - 1
    monkeypatch.setattr("wal2lake.lake.compaction.rewrite.MANY", 2)
    monkeypatch.setattr("wal2lake.lake.compaction.rewrite.MANY_IN_PARTITION", 2)
    last = [RowEvent(9000, 0, "I", (1, 9000, "last", None))]
    source = write_log(tmp_path / "last.parquet", last)
    upserts.commit(upserts.stage(request(lake, location, source)), Cursor("app", 9000))
    upserts.wait()
    last.append(RowEvent(9001, 0, "I", (1, 9001, "behind it", None)))
    source = write_log(tmp_path / "behind.parquet", last[1:])
    upserts.commit(upserts.stage(request(lake, location, source)), Cursor("app", 9001))
    model.apply_all(last)
    assert operations(location)[0] == "compaction"
    assert by_key(rows_of(spark_session, location)) == model.rows
    after = [p["grp"] for p in partitions(lake, location)]
    # But for the row that came while it was written.
    assert len(after) <= len(set(after)) + 1

    # A partition whose rows are all replaced, or deleted, loses its files: none of them gets a
    # deletion vector of all its rows.
    for number, (port, again) in enumerate(
        ((upserts, True), (runs, True), (upserts, False), (runs, False)), start=9002
    ):
        group = min(key[0] for key in model.rows)
        keys = [key for key in model.rows if key[0] == group]
        batch = [RowEvent(number, n, "D", None, key) for n, key in enumerate(keys)]
        new = [(group, n, "anew", None) for n in range(8000, 8003)] if again else []
        batch += [RowEvent(number, 1000 + n, "I", row) for n, row in enumerate(new)]
        source = write_log(tmp_path / f"{number}.parquet", batch)
        port.commit(port.stage(request(lake, location, source)), Cursor("app", number))
        model.apply_all(batch)
        assert by_key(rows_of(spark_session, location)) == model.rows
        newest = lake.state(location).version
        (commit,) = lake.actions(location, newest, newest)
        adds = [action["add"] for action in commit if "add" in action]
        assert any("remove" in action for action in commit)
        assert [add for add in adds if add.get("deletionVector")] == []
        assert {add["partitionValues"]["grp"] for add in adds} <= {str(group)}
        assert bool(adds) == again


INT4, INT8, BOOL, DATE = Oid(23), Oid(20), Oid(16), Oid(1082)
TIMESTAMP, TIMESTAMPTZ, NUMERIC, TEXT = Oid(1114), Oid(1184), Oid(1700), Oid(25)
WIDE = (
    FieldSpec("id", "int", pg_type_oid=INT4),
    FieldSpec("day", "date", pg_type_oid=DATE),
    FieldSpec("at", "timestamp", pg_type_oid=TIMESTAMPTZ),
    FieldSpec("local time", "timestamp_ntz", pg_type_oid=TIMESTAMP),
    FieldSpec("n", "decimal(10,2)", pg_type_oid=NUMERIC, pg_typmod=(10 << 16 | 2) + 4),
    FieldSpec("größe", "bigint", pg_type_oid=INT8),
    FieldSpec("ok", "boolean", pg_type_oid=BOOL),
    FieldSpec("v", "string", pg_type_oid=TEXT),
)
WIDE_RELATION = Relation(
    Oid(2),
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    tuple(Column(f.name, f.pg_type_oid, f.pg_typmod, f.name == "id") for f in WIDE),
)
OF_WIDE: tuple[tuple[str | None, ...], ...] = (
    ("2024-02-29", "2024-02-29 23:59:59.000001+00", "2024-02-29 00:00:00", "-1.50", "-7", "t"),
    ("1969-12-31", "1969-12-31 23:59:59.999999+00", "1582-10-10 12:00:00", "0.00", "0", "f"),
    ("9999-12-31", "0001-01-01 00:00:00+00", "2024-03-31 02:30:00.5", "12.34", str(2**63 - 1), "t"),
    (None, None, None, None, None, None),
)  # fmt: skip


def test_values_of_partitions_are_exact(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    """The same rows in a table without partitions; written here and by Spark, and changed by
    whoever has not written them."""
    names = [field.name for field in WIDE]
    by = names[1:-1]
    listed = [f"cast(`{n}` as string) as `{n}`" for n in names]

    def read(place: str) -> list[Row]:
        frame = spark_session.read.format("delta").load(place)
        return sorted(tuple(r) for r in frame.selectExpr(*listed).collect())

    rows = [
        (n, *values, "" if n % 2 else "x") for n, values in enumerate(OF_WIDE, start=1)
    ]
    found: dict[str, list[list[Row]]] = {}
    for name, columns in {"none": [], "all": by}.items():
        place = f"{location}/{name}"
        lake.create(place, WIDE, partition_columns=columns)
        upserts = batches_of(spark_session, lake, tmp_path, 1 << 20)
        merges = batches_of(spark_session, lake, tmp_path, 0)

        def run(
            number: int,
            events: list[RowEvent],
            port: DeltaBatches = upserts,
            place: str = place,
        ) -> None:
            path = tmp_path / f"{number}.parquet"
            source = write_log(path, events, WIDE_RELATION)
            staged = port.stage(request(lake, place, source, key=("id",)))
            assert not staged.failures
            port.commit(staged, Cursor("app", number))

        run(1, [RowEvent(1, n, "I", row) for n, row in enumerate(rows)])
        seen = [read(place)]
        # Each row to another partition, by Spark; then back, here.
        turned = [(row[0], *rows[n - 1][1:]) for n, row in enumerate(rows)]
        run(2, [RowEvent(2, n, "U", row) for n, row in enumerate(turned)], merges)
        seen.append(read(place))
        run(3, [RowEvent(3, n, "U", row) for n, row in enumerate(rows[:-1])])
        seen.append(read(place))
        run(4, [RowEvent(4, n, "D", None, (n,)) for n in (1,)])
        seen.append(read(place))
        assert len(seen[0]) == len(rows)
        outer = outside(place, names)
        assert sorted(row[0] for row in outer) == [2, 3, 4]
        found[name] = [*seen, sorted(outer)]
    assert found["all"] == found["none"]


def test_a_key_is_looked_up_in_partitions_and_columns_change_but_for_theirs(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, WIDE, partition_columns=["größe", "day"])
    state = lake.state(location)

    def written(*keys: tuple[int, int | None]) -> list[AddedFile]:
        kinds = [pa.int32(), pa.date32(), pa.timestamp("us", "UTC")]
        kinds += [pa.timestamp("us"), pa.decimal128(10, 2), pa.int64()]
        kinds += [pa.bool_(), pa.string()]
        arrays = [pa.nulls(len(keys), kind) for kind in kinds]
        arrays[0] = pa.array([key[0] for key in keys], pa.int32())
        arrays[5] = pa.array([key[1] for key in keys], pa.int64())
        with TableWriter(location, state.physical_fields) as writer:
            writer.write_all(pa.table(arrays, names=[f.name for f in WIDE]))
            return list(writer.finish())

    first = written((1, 1), (1, 2), (2, 2))
    lake.commit_files(location, first, Cursor("app", 1))
    state = lake.state(location)
    key = ["id", "größe"]
    for coming, taken in (((1, 3), False), ((2, 1), False), ((2, 2), True)):
        files = written(coming)
        assert lake.any_key_taken(state, files, key) is taken

    fields = [NextField(field, field.name) for field in WIDE]
    fewer = [one for one in fields if one.source not in ("größe", "v")]
    renamed = [
        NextField(FieldSpec("tag", "date", pg_type_oid=DATE), "day")
        if one.source == "day"
        else one
        for one in fields
    ]
    of_partitions = [one for one in fields if one.source in ("größe", "day")]
    for columns in (fewer, renamed, of_partitions):
        with pytest.raises(FeatureNotSupportedError):
            lake.prepare_columns(location, columns)
    others = [one for one in fields if one.source != "v"]
    lake.prepare_columns(location, others)
    state = lake.state(location)
    lake.commit_metadata(
        location,
        lake.metadata(location, others),
        Cursor("app", 2),
        read_version=state.version,
        rows=None,
        operation="ALTER TABLE",
    )
    found = spark_session.read.format("delta").load(location)
    assert found.columns == [f.name for f in WIDE[:-1]]
    assert found.where("`größe` = 2").count() == 2
