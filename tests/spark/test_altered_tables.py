"""Tables whose columns change, and what was written before is read as it should be."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from wal2lake.lake import Cursor, FieldSpec, NextField
from wal2lake.lake.compaction import carried, compact
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.delta.protocol.newtables import DEFAULTS
from wal2lake.lake.spark.branch.branches import Branches
from wal2lake.lake.spark.branch.keys import BranchKeys, Key
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries, relation
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Oid

APP = "wal2lake:1:local"

ID = FieldSpec("id", "int", pg_type_oid=Oid(23))
TEXT = FieldSpec("v", "string", pg_type_oid=Oid(25))


def kept(field: FieldSpec, source: str | None = None) -> NextField:
    return NextField(field, source or field.name)


def alter(lake: DeltaTables, location: str, fields: list[NextField]) -> int:
    """As ALTER TABLE does it where no row is written."""
    state = lake.prepare_columns(location, fields)
    done = lake.commit_metadata(
        location,
        lake.metadata(location, fields),
        Cursor(APP, (state.cursor(APP) or 0) + 1),
        read_version=state.version,
        rows=None,
        operation="alter table",
    )
    return done.version


def append(
    lake: DeltaTables, location: str, number: int, **columns: list[object]
) -> None:
    """A file of ours, as apply adds one."""
    state = lake.state(location)
    types = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string()}
    table = pa.table(
        {
            field.name: pa.array(columns[field.name], types[field.spark_ddl])
            for field in state.fields
        }
    )
    added = write_data_file(table, location, state.fields, state.physical_fields)
    lake.commit_files(location, [added], Cursor("wal2lake:1:2:3", number))


def by_spark(queries: Queries, location: str, at: int | None = None) -> list[object]:
    found = queries.run(f"SELECT * FROM {relation(location, at)}", job_group="rows")
    return sorted(
        (tuple(row.values()) for batch in found.batches for row in batch.to_pylist()),
        key=repr,
    )


def by_us(lake: DeltaTables, location: str) -> list[object]:
    state = lake.state(location)
    stored = StoredRows(state, list(lake.files(state) or ()))
    rows = [
        tuple(row.values())
        for table in stored.live(range(len(state.fields)))
        for row in table.to_pylist()
    ]
    return sorted(rows, key=repr)


def by_delta_rs(location: str) -> list[object]:
    builder = deltalake.QueryBuilder()
    builder.register("t", deltalake.DeltaTable(location))
    rows = pa.table(builder.execute("select * from t")).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.mark.slow
def test_columns_come_go_and_are_renamed(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    location: str,
) -> None:
    lake.create(location, [ID, TEXT])
    append(lake, location, 1, id=[1, 2], v=["a", "b"])
    old = lake.state(location).version
    w = FieldSpec("w", "bigint", pg_type_oid=Oid(20))
    alter(lake, location, [kept(ID), kept(TEXT), NextField(w, None)])
    state = lake.state(location)
    assert not state.column_mapping
    assert state.fields[2] == w
    assert state.cursor("wal2lake:1:2:3") == 1
    append(lake, location, 2, id=[3], v=["c"], w=[30])
    rows: list[object] = [(1, "a", None), (2, "b", None), (3, "c", 30)]
    assert by_spark(queries, location) == by_us(lake, location) == rows
    assert by_delta_rs(location) == rows

    # Dropped and added again: what it held does not come back.
    alter(lake, location, [kept(ID), kept(w)])
    state = lake.state(location)
    assert state.column_mapping
    assert [f.physical_name for f in state.physical_fields] == ["id", "w"]
    append(lake, location, 3, id=[4], w=[40])
    alter(lake, location, [kept(ID), kept(w), NextField(TEXT, None)])
    append(lake, location, 4, id=[5], w=[50], v=["new"])
    rows = [
        (1, None, None),
        (2, None, None),
        (3, 30, None),
        (4, 40, None),
        (5, 50, "new"),
    ]
    assert by_spark(queries, location) == by_us(lake, location) == rows

    assert by_delta_rs(location) == rows

    # Renamed: the values stay, also those of old files.
    number = FieldSpec("number of it", "bigint", pg_type_oid=Oid(20))
    alter(lake, location, [kept(ID), kept(number, "w"), kept(TEXT)])
    assert by_spark(queries, location) == by_us(lake, location) == rows
    assert lake.state(location).fields[1] == number
    assert by_spark(queries, location, old) == [(1, "a"), (2, "b")]

    # Spark's statements, keys and a compaction go on from there.
    table = relation(location)
    for sql in (
        f"UPDATE {table} SET v = 'upd' WHERE id = 1",
        f"DELETE FROM {table} WHERE id = 2",
        f"INSERT INTO {table} VALUES (6, 60, 'spark')",
    ):
        queries.run(sql, job_group="x").batches.close()
    rows = [(1, None, "upd"), *rows[2:], (6, 60, "spark")]
    state = lake.state(location)
    assert by_spark(queries, location) == by_us(lake, location) == rows
    files = list(lake.files(state) or ())
    assert len(files) > 3
    done = carried(compact(state, files), state, {file.key: file for file in files})
    assert done is not None
    lake.commit_files(
        location,
        done.adds,
        Cursor("wal2lake:1:2:3", 4),
        read_version=state.version,
        replaced=done.replaced,
        rearranges=True,
    )
    assert by_spark(queries, location) == by_us(lake, location) == rows

    branches = Branches(spark_session, lake, queries)
    keys = BranchKeys(spark_session, lake, queries)
    branch = branches.open(location, None, f"{location}-branch", "open")
    queries.run(
        f"INSERT INTO {relation(branch.location)} VALUES (3, 0, 'twice')",
        job_group="x",
    ).batches.close()
    added = [a["add"] for a in lake.actions(branch.location, 1, 1)[0] if "add" in a]
    found = keys.repeated(branch, added, Key(("id",)), "keys")
    assert found is not None
    assert found.to_pylist() == [{"k0": 3}]
    branches.drop(branch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mapped", "default"), [(False, "none"), (True, "none"), (False, "name")]
)
def test_rows_written_anew_come_with_their_columns(
    spark_session: SparkSession,
    lake: DeltaTables,
    queries: Queries,
    location: str,
    tmp_path: Path,
    mapped: bool,
    default: str,
) -> None:
    lake.create(location, [ID, TEXT])
    append(lake, location, 1, id=[1, 2], v=["10", None])
    before = lake.state(location).version
    if mapped:
        before = lake.prepare_columns(location, [kept(ID)]).version
    state = lake.state(location)
    number = FieldSpec("v", "bigint", pg_type_oid=Oid(20))
    note = FieldSpec("note", "string", pg_type_oid=Oid(25))
    fields = [kept(ID), NextField(number, "v", anew=True), NextField(note, None)]
    metadata = lake.metadata(location, fields)
    branches = Branches(spark_session, lake, queries)
    # A default for new tables, which the table with the rows is not.
    setting = f"{DEFAULTS}columnMapping.mode"
    spark_session.conf.set(setting, default)
    try:
        branch = branches.begin_anew(state, metadata, str(tmp_path / "anew"))
    finally:
        spark_session.conf.unset(setting)
    queries.run(
        f"INSERT INTO {relation(branch.location)} SELECT id, CAST(v AS bigint), 'n'"
        f" FROM {relation(location, state.version)}",
        job_group="x",
    ).batches.close()
    change = branches.net_change(branch)
    branches.carry_over(branch, change.files)
    done = lake.commit_metadata(
        location,
        metadata,
        Cursor(APP, 1),
        read_version=state.version,
        rows=change.actions,
        operation="alter table",
    )
    branches.drop(branch)
    assert done.version == state.version + 1
    rows: list[object] = [(1, 10, "n"), (2, None, "n")]
    assert by_spark(queries, location) == by_us(lake, location) == rows
    assert by_spark(queries, location, before) == [(1, "10"), (2, None)]
    assert lake.state(location).cursors == {"wal2lake:1:2:3": 1, APP: 1}
    append(lake, location, 2, id=[3], v=[30], note=["later"])
    rows.append((3, 30, "later"))
    assert by_spark(queries, location) == by_us(lake, location) == rows
    if not mapped:
        assert by_delta_rs(location) == rows
