"""The table port over real Delta tables."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    InternalError,
    StorageError,
    UndefinedObjectError,
)
from wal2lake.lake import AddedFile, CommitConflict, Cursor, FieldSpec, TableSize
from wal2lake.lake.delta.log.commit import write_next
from wal2lake.lake.delta.stats import added_file
from wal2lake.lake.spark.delta import deltatables as tables
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import relation
from wal2lake.model import Oid

UTC = datetime.UTC
APP = "wal2lake:n1:16384:1"

ID_NAME = (
    FieldSpec("id", "bigint", pg_type_oid=Oid(20)),
    FieldSpec("v", "string", pg_type_oid=Oid(25)),
)


def write(location: str, name: str, table: pa.Table) -> AddedFile:
    """Write a Parquet file into a table's directory, as an executor does."""
    path = Path(location) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    status = path.stat()
    return added_file(
        name, status.st_size, int(status.st_mtime * 1000), pq.read_metadata(path)
    )


def rows(ids: Sequence[int], value: str = "a") -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array([value] * len(ids))}
    )


def ids(spark: SparkSession, location: str, version: int | None = None) -> list[int]:
    sql = f"select id from {relation(location, version)} order by id"
    return [row[0] for row in spark.sql(sql).collect()]


EVERY_TYPE: list[tuple[str, str, pa.DataType, list[object]]] = [
    ("c_bool", "boolean", pa.bool_(), [True, None]),
    ("c_int2", "smallint", pa.int16(), [-32768, 32767]),
    ("c_int4", "int", pa.int32(), [-(2**31), None]),
    ("c_int8", "bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    ("c_real", "float", pa.float32(), [1.5, float("inf")]),
    ("c_double", "double", pa.float64(), [-0.1, None]),
    (
        "c_decimal",
        "decimal(38,10)",
        pa.decimal128(38, 10),
        [Decimal("9999999999999999999999999999.0123456789"), Decimal("-1.0000000000")],
    ),
    ("c_small", "decimal(5,2)", pa.decimal128(5, 2), [Decimal("-999.99"), None]),
    (
        "c_date",
        "date",
        pa.date32(),
        [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)],
    ),
    (
        "c_ntz",
        "timestamp_ntz",
        pa.timestamp("us"),
        [datetime.datetime(1500, 2, 28, 1, 2, 3, 456789), None],
    ),
    (
        "c_tz",
        "timestamp",
        pa.timestamp("us", "UTC"),
        [datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), None],
    ),
    ("c_bytea", "binary", pa.binary(), [b"\x00\xff", b""]),
    ("c_text", "string", pa.string(), ["žluť \U0001f418" * 20, ""]),
    ("c_texts", "array<string>", pa.list_(pa.string()), [["a", None], []]),
    (
        "c_dates",
        "array<date>",
        pa.list_(pa.date32()),
        [None, [datetime.date(2000, 1, 1)]],
    ),
    (
        "c_hstore",
        "map<string,string>",
        pa.map_(pa.string(), pa.string()),
        [[("k", "v"), ("n", None)], None],
    ),
]


def test_every_mapped_type_reads_back_equal_in_spark_and_deltalake(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, [FieldSpec(n, ddl) for n, ddl, _, _ in EVERY_TYPE])
    table = pa.table({n: pa.array(values, kind) for n, _, kind, values in EVERY_TYPE})
    lake.commit_files(location, [write(location, "f.parquet", table)], Cursor(APP, 1))

    by_spark = spark_session.sql(f"select * from {relation(location)}").toArrow()
    assert by_spark.cast(table.schema).to_pylist() == table.to_pylist()

    import deltalake

    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(location))
    by_rust = pa.table(reader.execute("select * from t"))
    assert by_rust.num_rows == 2
    for name, _, kind, values in EVERY_TYPE:
        column = by_rust[name].cast(kind)
        assert column.to_pylist() == pa.array(values, kind).to_pylist(), name


def test_the_postgresql_type_of_each_column_survives_in_the_table(
    lake: DeltaTables, location: str
) -> None:
    fields = (
        FieldSpec("id", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("price", "decimal(10,2)", pg_type_oid=Oid(1700), pg_typmod=655366),
        FieldSpec("mood", "string", pg_type_oid=Oid(25), pg_type_name="public.mood"),
    )
    state = lake.create(location, fields, {"delta.checkpointInterval": "50"})
    assert state.fields == fields == lake.state(location).fields
    assert state.version == 0
    assert state.cursors == {}
    assert state.properties["delta.enableDeletionVectors"] == "true"
    assert state.properties["delta.checkpointInterval"] == "50"
    assert [f.physical_name for f in state.physical_fields] == ["id", "price", "mood"]


def test_creating_over_a_table_is_refused(lake: DeltaTables, location: str) -> None:
    lake.create(location, ID_NAME)
    with pytest.raises(DuplicateObjectError) as caught:
        lake.create(location, ID_NAME)
    assert caught.value.sqlstate == "42P07"


def test_names_that_delta_cannot_tell_apart_are_refused(
    lake: DeltaTables, location: str
) -> None:
    with pytest.raises(FeatureNotSupportedError, match="differ in case only"):
        lake.create(location, [FieldSpec("Id", "int"), FieldSpec("id", "int")])
    with pytest.raises(FeatureNotSupportedError, match="has no columns"):
        lake.create(location, [])
    assert not lake.exists(location)


def test_a_dropped_table_is_gone_and_can_be_created_again(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    first = lake.create(location, ID_NAME)
    lake.commit_files(
        location, [write(location, "f.parquet", rows([1]))], Cursor(APP, 5)
    )
    lake.drop(location)
    lake.drop(location)
    assert not Path(location).exists()
    assert not lake.exists(location)
    with pytest.raises(UndefinedObjectError) as caught:
        lake.state(location)
    assert caught.value.sqlstate == "42P01"
    second = lake.create(location, ID_NAME)
    assert second.table_id != first.table_id
    assert second.cursors == {}
    assert ids(spark_session, location) == []


def test_a_directory_that_is_no_table_is_never_dropped(
    lake: DeltaTables, location: str
) -> None:
    precious = Path(location) / "precious"
    precious.mkdir(parents=True)
    with pytest.raises(StorageError, match="is not a Delta table"):
        lake.drop(location)
    assert precious.exists()


def test_a_commit_carries_its_cursor_and_happens_once(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = write(location, "part one.parquet", rows([1, 2]))
    done = lake.commit_files(location, [added], Cursor(APP, 100), read_version=0)
    assert (done.version, done.already_done, done.interlopers) == (1, False, ())
    assert lake.state(location).cursor(APP) == 100
    for version in (100, 99):
        again = lake.commit_files(location, [added], Cursor(APP, version))
        assert again.already_done
        assert again.version == 1
    assert ids(spark_session, location) == [1, 2]
    other = lake.commit_files(location, [], Cursor("wal2lake:n1:16384:2", 7))
    assert other.version == 2
    assert lake.state(location).cursors == {APP: 100, "wal2lake:n1:16384:2": 7}


def test_history_says_who_committed_what(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    lake.commit_files(
        location,
        [write(location, "f.parquet", rows([1]))],
        Cursor(APP, 7),
        operation="initial copy",
    )
    newest = spark_session.sql(f"describe history {relation(location)}").first()
    assert newest is not None
    assert newest["operation"] == "STREAMING UPDATE"
    assert newest["userMetadata"] == "initial copy"
    assert newest["operationParameters"]["queryId"] == APP
    assert newest["operationParameters"]["epochId"] == "7"


def test_an_append_on_changed_data_is_refused(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = write(location, "f.parquet", rows([2]))
    spark_session.sql(f"insert into {relation(location)} values (1, 'x')")
    spark_session.sql(f"insert into {relation(location)} values (1, 'y')")
    with pytest.raises(CommitConflict) as caught:
        lake.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    assert caught.value.detail == f'Table at "{location}" is at version 2, expected 0.'
    assert caught.value.sqlstate == "40001"
    assert lake.state(location).version == 2
    assert lake.commit_files(location, [added], Cursor(APP, 1)).version == 3
    assert ids(spark_session, location) == [1, 1, 2]


class _Between:
    """Runs something between the check and the commit of this process's next commit."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        real = write_next

        def late(*args: Any) -> Any:
            self.patch.undo()
            # In a thread of its own, as another process would: this one holds the lock.
            with ThreadPoolExecutor(1) as process:
                process.submit(self.action).result()
            return real(*args)

        self.patch.setattr(tables, "write_next", late)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def test_a_write_between_check_and_append_is_a_conflict(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = write(location, "f.parquet", rows([2]))

    def insert() -> None:
        spark_session.sql(f"insert into {relation(location)} values (1, 'x')")

    with _Between(insert), pytest.raises(CommitConflict):
        lake.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    assert ids(spark_session, location) == [1]
    assert lake.state(location).cursor(APP) is None


def test_files_that_bring_a_key_that_is_there_are_found(
    lake: DeltaTables, spark_session: SparkSession, tmp_path: Path
) -> None:
    # Hadoop would read these as a pattern, and the column is mapped to another name.
    location = str(tmp_path / "ware[1]{a}" / "t")
    fields = (FieldSpec("the id", "bigint"), FieldSpec("name", "string"))
    state = lake.create(location, fields)

    def added(name: str, *ids: int) -> AddedFile:
        columns = [field.physical_name for field in state.physical_fields]
        table = pa.table({columns[0]: pa.array(ids), columns[1]: ["x"] * len(ids)})
        return write(location, name, table)

    one, two = added("1.parquet", 1, 2), added("2.parquet", 3)
    key = ("the id",)
    assert not lake.any_key_taken(state, [one, two], key), "it is empty"
    lake.commit_files(location, [one], Cursor(APP, 1))
    state = lake.state(location)
    assert not lake.any_key_taken(state, [], key)
    assert not lake.any_key_taken(state, [two], key)
    three = added("3.parquet", 5, 2)
    assert lake.any_key_taken(state, [two, three], key)
    assert not lake.any_key_twice(state, [], key)
    assert not lake.any_key_twice(state, [one, two], key)
    assert lake.any_key_twice(state, [one, two, three], key)
    # Rows that are gone do not count.
    spark_session.sql(f"delete from {relation(location)} where `the id` = 2")
    assert not lake.any_key_taken(lake.state(location), [two, three], key)


def test_a_cursor_of_another_application_in_between_does_no_harm(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = write(location, "f.parquet", rows([2]))
    other = DeltaTables(spark_session)
    with _Between(lambda: other.commit_files(location, [], Cursor("other", 1))):
        done = lake.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    assert (done.version, done.interlopers) == (2, (1,))


def test_two_commits_of_one_application_do_not_both_happen(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    one = write(location, "1.parquet", rows([1]))
    two = write(location, "2.parquet", rows([2]))
    other = DeltaTables(spark_session)
    with _Between(lambda: other.commit_files(location, [one], Cursor(APP, 10))):
        assert lake.commit_files(location, [two], Cursor(APP, 10)).already_done
    assert ids(spark_session, location) == [1]
    three = write(location, "3.parquet", rows([3]))
    with (
        _Between(lambda: other.commit_files(location, [], Cursor(APP, 11))),
        pytest.raises(CommitConflict),
    ):
        lake.commit_files(location, [three], Cursor(APP, 12), read_version=1)
    assert ids(spark_session, location) == [1]


def test_replace_swaps_the_whole_content_in_one_commit(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    for number in range(3):
        added = write(location, f"{number}.parquet", rows([number]))
        lake.commit_files(location, [added], Cursor(APP, number + 1))
    new = write(location, "new.parquet", rows([7]))
    done = lake.commit_files(location, [new], Cursor(APP, 9), replace=True)
    assert done.version == 4
    assert ids(spark_session, location) == [7]
    assert ids(spark_session, location, 3) == [0, 1, 2]
    lake.commit_files(location, [], Cursor(APP, 10), replace=True)
    assert ids(spark_session, location) == []


def test_a_replacement_conflicts_with_a_concurrent_insert(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)

    def insert() -> None:
        spark_session.sql(f"insert into {relation(location)} values (1, 'x')")

    with _Between(insert), pytest.raises(CommitConflict):
        lake.commit_files(location, [], Cursor(APP, 1), replace=True)
    assert ids(spark_session, location) == [1]


@pytest.mark.slow
def test_merge_with_deletion_vectors_works_on_such_files_and_time_travel_sees_both(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    lake.commit_files(
        location,
        [write(location, "f.parquet", rows(range(10_000)))],
        Cursor(APP, 1),
    )
    spark_session.sql(
        f"merge into {relation(location)} t using (select explode(sequence(0, 9999,"
        " 1000)) id) s on t.id = s.id when matched then delete"
    ).collect()
    assert len(ids(spark_session, location)) == 9_990
    assert len(ids(spark_session, location, 1)) == 10_000
    assert list(Path(location).glob("deletion_vector_*.bin"))
    lake.sync(location, 2)

    import deltalake

    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(location))
    counted = pa.table(reader.execute("select count(*) n from t"))
    assert counted["n"].to_pylist() == [9_990]


def test_statistics_let_delta_skip_files(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    adds = [
        write(location, f"{n}.parquet", rows(range(n * 100, n * 100 + 100)))
        for n in range(4)
    ]
    lake.commit_files(location, adds, Cursor(APP, 1))
    # The files that the bounds rule out are not even opened.
    for number in (0, 1, 3):
        (Path(location) / f"{number}.parquet").unlink()
    query = f"select * from {relation(location)} where id between 210 and 220"
    assert len(spark_session.sql(query).collect()) == 11
    action = json.loads(
        (Path(location) / "_delta_log" / f"{1:020}.json").read_text().splitlines()[-1]
    )
    assert json.loads(action["add"]["stats"])["maxValues"] == {"id": 399, "v": "a"}


def test_awkward_column_names_are_mapped_and_plain_ones_are_not(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    names = ["a b", "x=1;", "(p),{q}", "tab\there", "dot.ted", 'quo"ted', "tick`ed"]
    state = lake.create(location, [FieldSpec(n, "int") for n in names])
    assert state.column_mapping
    assert [f.name for f in state.fields] == names
    assert all(f.field_id for f in state.physical_fields)
    schema = pa.schema(
        [
            pa.field(
                f.physical_name,
                pa.int32(),
                metadata={"PARQUET:field_id": str(f.field_id)},
            )
            for f in state.physical_fields
        ]
    )
    table = pa.table([pa.array([n]) for n in range(len(names))], schema=schema)
    table = table.cast(schema)
    lake.commit_files(location, [write(location, "f.parquet", table)], Cursor(APP, 1))
    row = spark_session.sql(f"select * from {relation(location)}").first()
    assert row is not None
    assert row.asDict() == {name: n for n, name in enumerate(names)}


def test_a_file_that_does_not_fit_the_table_is_refused(
    lake: DeltaTables, location: str
) -> None:
    lake.create(location, ID_NAME)
    wrong_type = pa.table({"id": pa.array([1], pa.int32())})
    extra = pa.table({"id": pa.array([1], pa.int64()), "w": ["x"]})
    for number, table in enumerate((wrong_type, extra)):
        added = write(location, f"{number}.parquet", table)
        with pytest.raises(InternalError, match="does not fit"):
            lake.commit_files(location, [added], Cursor(APP, 1))
    assert lake.state(location).version == 0


def test_a_file_that_is_lost_or_torn_is_never_added(
    lake: DeltaTables, location: str
) -> None:
    lake.create(location, ID_NAME)
    torn = write(location, "torn.parquet", rows([1]))
    lost = write(location, "lost.parquet", rows([1]))
    (Path(location) / "lost.parquet").unlink()
    (Path(location) / "torn.parquet").write_bytes(b"x" * torn.size)
    with pytest.raises(StorageError, match="does not exist"):
        lake.commit_files(location, [lost], Cursor(APP, 1))
    with pytest.raises(StorageError, match="not a Parquet file"):
        lake.commit_files(location, [torn], Cursor(APP, 1))
    assert lake.state(location).version == 0


def test_locations_may_hold_spaces_and_percent_signs(
    lake: DeltaTables, spark_session: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "my wa%2Frehouse" / "s" / "t x")
    lake.create(location, ID_NAME)
    added = write(location, "a b%20c.parquet", rows([1]))
    lake.commit_files(location, [added], Cursor(APP, 1))
    assert ids(spark_session, location) == [1]
    lake.drop(location)
    assert not Path(location).exists()


def test_many_threads_commit_to_many_tables_at_once(
    lake: DeltaTables, spark_session: SparkSession, tmp_path: Path
) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            location = str(tmp_path / f"t{number}")
            lake.create(location, ID_NAME)
            for cursor in range(1, 4):
                added = write(location, f"{cursor}.parquet", rows([cursor]))
                lake.commit_files(location, [added], Cursor(APP, cursor))
            assert lake.state(location).version == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_cursors_are_found_without_a_checksum_file_too(
    lake: DeltaTables, location: str
) -> None:
    lake.create(location, ID_NAME)
    lake.commit_files(location, [], Cursor(APP, 5))
    for checksum in (Path(location) / "_delta_log").glob("*.crc"):
        checksum.unlink()
    lake.forget(location)
    assert lake.state(location).cursors == {APP: 5}
    assert lake.commit_files(location, [], Cursor(APP, 5)).already_done


def test_a_commit_runs_no_spark_job(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = write(location, "f.parquet", rows([1]))
    lake.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    context = spark_session.sparkContext
    context.setJobGroup("commit", "commit")
    added = write(location, "g.parquet", rows([2]))
    lake.commit_files(location, [added], Cursor(APP, 2), read_version=1)
    lake.state(location)
    context._jsc.clearJobGroup()
    assert list(context.statusTracker().getJobIdsForGroup("commit")) == []


def test_a_commit_after_a_foreign_one_still_finds_the_cursor(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    import deltalake

    lake.create(location, ID_NAME, {"delta.enableDeletionVectors": "false"})
    lake.commit_files(location, [], Cursor(APP, 5))
    deltalake.write_deltalake(location, rows([9]), mode="append")
    state = lake.state(location)
    assert (state.version, state.cursor(APP)) == (2, 5)
    assert lake.commit_files(location, [], Cursor(APP, 5)).already_done
    assert ids(spark_session, location) == [9]


def test_sizes_are_those_of_versions_that_were_met(
    lake: DeltaTables, spark_session: SparkSession, location: str
) -> None:
    lake.create(location, ID_NAME)
    added = [
        write(location, f"{name}.parquet", rows(range(1000 * i, 1000 * i + 1000)))
        for i, name in enumerate("abc")
    ]
    lake.commit_files(location, added, Cursor(APP, 1), read_version=0)
    total = sum(file.size for file in added)
    assert lake.size(location, None) == TableSize(1, 3, total, 0)
    assert lake.size(location, 1) is None
    spark_session.sql(f"delete from {relation(location)} where id = 5").collect()
    # Another writer's version is met when somebody reads the table.
    assert lake.size(location, 1) is None
    lake.state(location)
    found = lake.size(location, 1)
    assert found == TableSize(2, 3, found.size if found else 0, 1)
    other = DeltaTables(spark_session)
    assert other.size(location, None) is None
    other.state(location)
    assert other.size(location, None) == found
