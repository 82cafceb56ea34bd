"""From log files to tables: staging and net change against the model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fakes.lake_log import (
    EVERYTHING,
    FIELDS,
    NUMERIC,
    RELATION,
    TEXT,
    TRUSTED,
    UNTRUSTED,
    by_key,
    fill,
    rows_of,
    target_of,
    write_log,
)

from wal2lake.errors import CorruptLogError, InternalError
from wal2lake.lake.port import Committed, Cursor, FieldSpec, TableState
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.executors import SparkExecutors
from wal2lake.lake.staging.convert import ConversionRules
from wal2lake.lake.staging.defaults import Fill
from wal2lake.lake.staging.layout import (
    DELETE,
    INSERT,
    RowFailure,
    Seq,
    Uniqueness,
)
from wal2lake.lake.staging.logrows import LogSource, LsnRange, plan_parts
from wal2lake.lake.staging.stage import (
    StagedChanges,
    stage_changes,
    stage_inserts,
)
from wal2lake.lake.upsert import Upsert, UpsertMemory, plan_upsert
from wal2lake.model import (
    Coercion,
    Column,
    Lsn,
    Oid,
    Relation,
    ReplicaIdentity,
    merged,
)
from wal2lake.pgtypes import ValuePolicies
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)


def apply_staged(
    lake: DeltaTables,
    state: TableState,
    staged: StagedChanges,
    uniqueness: Uniqueness,
    directory: Path,
    cursor: Cursor,
) -> Committed:
    files = lake.files(state)
    assert files is not None
    planned = plan_upsert(
        staged, state, files, uniqueness, UpsertMemory(1 << 20), str(directory)
    )
    assert isinstance(planned, Upsert), planned
    return lake.commit_files(
        state.location,
        planned.adds,
        cursor,
        read_version=state.version,
        replace=planned.truncates,
        replaced=planned.replaced,
    )


@pytest.mark.parametrize(
    ("parallelism", "trusted", "shape"),
    [
        (2, True, HistoryShape(60, 6)),
        pytest.param(
            *(0, False, HistoryShape(60, 4, missing=True, moves=False)),
            marks=pytest.mark.slow,
        ),
        (0, False, HistoryShape(60, 4, missing=True, truncates=1)),
    ],
)
def test_a_history_in_batches_ends_as_the_model(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    parallelism: int,
    trusted: bool,
    shape: HistoryShape,
) -> None:
    rng = random.Random(f"{shape}")
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, list(start.values()))
    model = TableModel(KEY, dict(start))
    for number, batch in enumerate(batches(events, rng, 2)):
        if not batch:
            continue
        # The log's files hold more than the batch: before its lower bound, behind its cut.
        half = len(events) // 2
        sources = [
            write_log(tmp_path / f"{number}-0.parquet", events[:half]),
            write_log(tmp_path / f"{number}-1.parquet", events[half:]),
        ]
        span = LsnRange(batch[0].lsn, batch[-1].lsn + 1)
        state = lake.state(location)
        staged = stage_changes(
            SparkExecutors(spark_session),
            sources,
            target_of(state),
            span,
            str(tmp_path / f"staged{number}"),
            parallelism=parallelism,
        )
        assert not staged.failures
        assert staged.contents.rows == len(batch)
        done = apply_staged(
            lake,
            state,
            staged,
            TRUSTED if trusted else UNTRUSTED,
            tmp_path,
            Cursor("app", span.cut or 0),
        )
        assert done.version == state.version + 1
        assert lake.state(location).cursor("app") == span.cut
        model.apply_all(batch)
        assert by_key(rows_of(spark_session, location)) == model.rows


def test_a_truncate_alone_empties_the_table(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    lake.create(location, FIELDS)
    fill(lake, spark_session, location, [(1, 1, "old", "x")])
    state = lake.state(location)
    staged = stage_changes(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "log.parquet", [RowEvent(10, 1, "T")])],
        target_of(state),
        EVERYTHING,
        str(tmp_path / "staged"),
        parallelism=0,
    )
    assert (
        apply_staged(
            lake, state, staged, UNTRUSTED, tmp_path, Cursor("app", 11)
        ).version
        == 2
    )
    assert rows_of(spark_session, location) == []


@pytest.mark.parametrize("parallelism", [0, 2])
def test_inserts_become_files_of_the_table_with_statistics(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    parallelism: int,
) -> None:
    state = lake.create(location, FIELDS)
    events = [RowEvent(10 + i, 1, "I", (i, 1, f"a{i}", None)) for i in range(300)]
    staged = stage_inserts(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "log.parquet", events)],
        target_of(state),
        LsnRange(20, 300),
        parallelism=parallelism,
    )
    assert staged.failures == ()
    assert staged.contents.rows == 280
    assert rows_of(spark_session, location) == []
    lake.commit_files(location, staged.files, Cursor("app", 300))
    found = by_key(rows_of(spark_session, location))
    assert found == {(i, 1): (i, 1, f"a{i}", None) for i in range(10, 290)}
    assert all('"numRecords":' in (f.stats or "") for f in staged.files)


def test_rows_that_do_not_convert_are_located_and_leave_no_file(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    state = lake.create(location, FIELDS)
    events = [RowEvent(10 + i, 7, "I", (i, 1, "a", "b")) for i in range(200)]
    events[150] = RowEvent(160, 7, "I", (b"x", 1, "a", "b"))
    events[120] = RowEvent(130, 7, "I", (1, None, "a", "b"))
    events[121] = RowEvent(131, 7, "I", (b"12x", 1, b"\xff", "b"))
    source = write_log(tmp_path / "log.parquet", events)
    before = set(Path(location).iterdir())
    for staged in (
        stage_inserts(
            SparkExecutors(spark_session),
            [source],
            target_of(state),
            EVERYTHING,
            parallelism=2,
        ),
        stage_changes(
            SparkExecutors(spark_session),
            [source],
            target_of(state),
            EVERYTHING,
            str(tmp_path / "staged"),
            parallelism=2,
        ),
    ):
        first = staged.failures[0]
        assert first == RowFailure(
            Seq(130, 7),
            "number",
            "23502",
            'null value in column "number" of relation "t" violates not-null constraint',
            op=INSERT,
        )
        assert staged.failures[1].seq == Seq(131, 7)
        assert staged.failures[1].sqlstate == "22P02"
    assert set(Path(location).iterdir()) == before
    assert not list(tmp_path.glob("staged/*"))
    # Cut below it, the rest goes in.
    cut = stage_inserts(
        SparkExecutors(spark_session),
        [source],
        target_of(state),
        LsnRange(0, 130),
        parallelism=0,
    )
    assert (cut.contents.rows, cut.failures) == (120, ())


@pytest.mark.parametrize("parallelism", [0, 2])
def test_what_a_policy_changes_is_counted_by_reason_with_its_lsns(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    parallelism: int,
) -> None:
    state = lake.create(location, FIELDS)
    events = [RowEvent(10 + i, 7, "I", (i, 1, "a", "b")) for i in range(200)]
    for at, value in ((3, b"\xff"), (90, b"\xfe"), (150, b"a\0b")):
        events[at] = RowEvent(10 + at, 7, "I", (at, 1, value, "b"))
    sources = [
        write_log(tmp_path / "1.parquet", events[:100]),
        write_log(tmp_path / "2.parquet", events[100:]),
    ]
    rules = ConversionRules(
        ValuePolicies.parse("* = null"), frozenset(), frozenset(target_of(state).key)
    )
    target = replace(target_of(state), rules=rules)
    for found in (
        stage_inserts(
            SparkExecutors(spark_session),
            sources,
            target,
            EVERYTHING,
            parallelism=parallelism,
        ),
        stage_changes(
            SparkExecutors(spark_session),
            sources,
            target,
            EVERYTHING,
            str(tmp_path / "staged"),
            parallelism=parallelism,
        ),
    ):
        assert found.failures == ()
        reason = 'invalid byte sequence for encoding "UTF8"'
        column = FIELDS[2].name
        assert merged(found.contents.coercions) == (
            Coercion(column, "null", reason, 2, Lsn(13), Lsn(100), "\\xff"),
            Coercion(
                column, "null", f"{reason}: 0x00", 1, Lsn(160), Lsn(160), "a\\x00b"
            ),
        )


def test_a_flipped_bit_in_the_log_names_the_file(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    state = lake.create(location, FIELDS)
    path = tmp_path / "log.parquet"
    source = write_log(
        path, [RowEvent(1, i, "I", (i, 1, "a", "b")) for i in range(500)]
    )
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    for parallelism in (0, 2):
        with pytest.raises(CorruptLogError, match=r"log\.parquet"):
            stage_inserts(
                SparkExecutors(spark_session),
                [source],
                target_of(state),
                EVERYTHING,
                parallelism=parallelism,
            )


def test_columns_go_by_name_and_local_columns_keep_their_values(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    fields = (FIELDS[3], FieldSpec("mine", "string"), *FIELDS[:3])
    lake.create(location, fields)
    spark_session.createDataFrame(
        [("b1", "local", 1, 1, "a1"), ("b2", "local", 2, 2, "a2")],
        ", ".join(f"{f.name} {f.spark_ddl}" for f in fields),
    ).write.format("delta").mode("append").save(location)
    events = [
        RowEvent(1, 1, "U", (1, 1, "new", UNCHANGED)),
        RowEvent(1, 2, "U", (3, 3, UNCHANGED, "b3"), old=(2, 2)),
        RowEvent(1, 3, "I", (4, 4, "a4", "b4")),
    ]
    state = lake.state(location)
    staged = stage_changes(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "log.parquet", events)],
        target_of(state),
        EVERYTHING,
        str(tmp_path / "staged"),
        parallelism=0,
    )
    apply_staged(lake, state, staged, UNTRUSTED, tmp_path, Cursor("app", 2))
    assert sorted(rows_of(spark_session, location)) == [
        ("b1", "local", 1, 1, "new"),
        ("b3", "local", 3, 3, "a2"),
        ("b4", None, 4, 4, "a4"),
    ]


def test_a_full_old_row_is_matched_by_key_and_fills_unchanged_values(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    full = Relation(
        Oid(1),
        "public",
        "t",
        ReplicaIdentity.FULL,
        tuple(Column(f.name, f.pg_type_oid, -1, True) for f in FIELDS),
    )
    events = [
        RowEvent(1, 1, "U", (1, 1, "new", UNCHANGED), old=(1, 1, "old", "LONG")),
        RowEvent(1, 2, "U", (5, 5, "moved", UNCHANGED), old=(2, 2, "old", "LONG2")),
        RowEvent(1, 3, "D", old=(3, 3, "old", None)),
    ]
    lake.create(location, FIELDS)
    fill(
        lake,
        spark_session,
        location,
        [(1, 1, "old", "LONG"), (2, 2, "old", "LONG2"), (3, 3, "old", None)],
    )
    state = lake.state(location)
    staged = stage_changes(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "log.parquet", events, full)],
        target_of(state),
        EVERYTHING,
        str(tmp_path / "staged"),
        parallelism=0,
    )
    assert staged.shape.unchanged == frozenset()
    assert staged.shape.moved
    apply_staged(lake, state, staged, TRUSTED, tmp_path, Cursor("app", 2))
    assert by_key(rows_of(spark_session, location)) == {
        (1, 1): (1, 1, "new", "LONG"),
        (5, 5): (5, 5, "moved", "LONG2"),
    }


def test_a_relation_that_does_not_fit_is_located_at_its_first_row(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    state = lake.create(location, FIELDS)
    wider = Relation(
        Oid(1),
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (*RELATION.columns, Column("extra", TEXT, -1, False)),
    )
    source = write_log(
        tmp_path / "log.parquet", [RowEvent(5, 2, "I", (1, 1, "a", "b", "c"))], wider
    )
    other_key = Relation(
        Oid(1),
        "public",
        "t",
        ReplicaIdentity.INDEX,
        tuple(Column(f.name, f.pg_type_oid, -1, i == 2) for i, f in enumerate(FIELDS)),
    )
    unnamed = write_log(
        tmp_path / "log2.parquet",
        [RowEvent(6, 1, "I", (1, 1, "a", "b")), RowEvent(6, 2, "D", old=("a",))],
        other_key,
    )

    def failure(which: LogSource) -> RowFailure:
        return stage_changes(
            SparkExecutors(spark_session),
            [which],
            target_of(state),
            EVERYTHING,
            str(tmp_path / "staged"),
            parallelism=0,
        ).failures[0]

    assert failure(source) == RowFailure(
        Seq(5, 2),
        None,
        "55000",
        'logical replication target relation "public.t" is missing replicated column: '
        '"extra"',
        op=INSERT,
    )
    assert failure(unnamed) == RowFailure(
        Seq(6, 2),
        None,
        "55000",
        "publisher did not send replica identity column expected by the logical "
        'replication target relation "public.t"',
        op=DELETE,
    )


def test_numbers_that_are_equal_have_not_moved(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    typmod = (10 << 16 | 2) + 4
    fields = (
        FieldSpec("n", "decimal(10,2)", pg_type_oid=NUMERIC, pg_typmod=typmod),
        FieldSpec("a", "string", pg_type_oid=TEXT),
    )
    state = lake.create(location, fields)
    relation = Relation(
        Oid(1),
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (Column("n", NUMERIC, -1, True), Column("a", TEXT, -1, False)),
    )
    events = [
        RowEvent(1, 1, "U", (b"1.00", "x"), old=(b"1.0",)),
        RowEvent(1, 2, "U", (UNCHANGED, "x"), old=(b"7",)),
    ]
    staged = stage_changes(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "log.parquet", events, relation)],
        target_of(state, ("n",)),
        EVERYTHING,
        str(tmp_path / "staged"),
        parallelism=0,
    )
    assert staged.failures == ()
    assert not staged.shape.moved
    assert staged.shape.unchanged == frozenset()


def test_a_batch_of_inserts_refuses_other_events(
    lake: DeltaTables, spark_session: SparkSession, location: str, tmp_path: Path
) -> None:
    state = lake.create(location, FIELDS)
    source = write_log(tmp_path / "log.parquet", [RowEvent(1, 1, "D", old=(1, 1))])
    with pytest.raises(InternalError):
        stage_inserts(
            SparkExecutors(spark_session),
            [source],
            target_of(state),
            EVERYTHING,
            parallelism=2,
        )


def test_work_is_divided_by_rows_over_row_groups(tmp_path: Path) -> None:
    events = [RowEvent(1, i, "I", (i, 1, "a", "b")) for i in range(1000)]
    large = write_log(tmp_path / "large.parquet", events, row_group_rows=100)
    small = write_log(tmp_path / "small.parquet", events[:10])
    tasks = plan_parts([large, small], 2)
    assert len(tasks) == 2
    groups = [(p.source.path, p.first, p.last) for parts in tasks for p in parts]
    assert sorted(g for g in groups if g[0] == large.path) == [
        (large.path, i, i + 1) for i in range(10)
    ]
    assert [g for g in groups if g[0] == small.path] == [(small.path, 0, None)]
    assert plan_parts([large, small], 0) == plan_parts([large, small], 1)
    assert len(plan_parts([large, small], 1)) == 1
    assert plan_parts([], 2) == []


@pytest.mark.parametrize("parallelism", [0, 2])
def test_each_inserted_row_has_a_value_of_its_own_of_a_sequence(
    lake: DeltaTables,
    spark_session: SparkSession,
    location: str,
    tmp_path: Path,
    parallelism: int,
) -> None:
    own = FieldSpec("own", "bigint", pg_type_oid=Oid(20))
    state = lake.create(location, (*FIELDS, own))
    fills = {"own": Fill(sequence=Oid(9), first=100, step=10)}
    target = replace(target_of(state), fills=fills)
    inserts = [
        [RowEvent(k + 1, i, "I", (k, i, "a", "b")) for i in range(count)]
        for k, count in enumerate((120, 7, 60))
    ]
    sources = [
        replace(write_log(tmp_path / f"{k}.parquet", events), inserts_before=before)
        for k, (events, before) in enumerate(zip(inserts, (0, 120, 127), strict=True))
    ]
    staged = stage_inserts(
        SparkExecutors(spark_session),
        sources,
        target,
        EVERYTHING,
        parallelism=parallelism,
    )
    lake.commit_files(location, staged.files, Cursor("w", 1), read_version=0)
    rows = rows_of(spark_session, location)
    assert sorted(row[4] for row in rows) == [100 + 10 * n for n in range(187)]
    # In the order of the log, file by file.
    assert [row[4] for row in sorted(rows)] == [100 + 10 * n for n in range(187)]

    mixed = [
        RowEvent(9, 1, "I", (9, 1, "a", "b")),
        RowEvent(9, 2, "U", (9, 1, "a", "c")),
        RowEvent(9, 3, "I", (9, 2, "a", "b")),
        RowEvent(9, 4, "D", old=(9, 1)),
    ]
    changes = stage_changes(
        SparkExecutors(spark_session),
        [write_log(tmp_path / "mixed.parquet", mixed)],
        target,
        EVERYTHING,
        str(tmp_path / "staged"),
        parallelism=parallelism,
    )
    (rows,) = changes.tables()
    assert rows.column("n4").to_pylist() == [100, None, 110, None]
