"""A keyed batch applied in memory means what its events mean one by one.

The table is a few Parquet files with deletion vectors, in a directory without Delta: rows are
read back through the same vectors that readers would use.
"""

from __future__ import annotations

import json
import math
import random
import threading
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import FIELDS, TRUSTED, UNTRUSTED, moved, shape_of
from tests.fakes.stored_table import StoredTable

from wal2lake.errors import StorageError
from wal2lake.lake.delta.datafile import (
    ROW_GROUP_BYTES,
    DataFileWriter,
    row_groups,
)
from wal2lake.lake.delta.deletionvectors import read_vector, write_vectors
from wal2lake.lake.delta.z85 import decode_z85, encode_z85
from wal2lake.lake.staging.layout import ChangeShape, RowFailure, Seq, Uniqueness
from wal2lake.lake.tablefiles import DataFile, Replaced
from wal2lake.lake.upsert import TooLarge, Upsert, UpsertMemory
from wal2lake.lake.upsert.keys import _bits, _FewKeys, _JoinedKeys, open_keys
from wal2lake.lake.upsert.stored import only_spark
from wal2lake.model import ConflictType
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    KeyTaken,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

ARROW = pa.schema(
    [
        ("grp", pa.int32()),
        ("number", pa.int32()),
        ("a", pa.string()),
        ("b", pa.string()),
    ]
)
RUNS = (1, 1, 2, 7)
"""Runs in which a batch is applied, at least: 1 if it fits into memory."""

thorough = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Table(StoredTable):
    """Rows by the key of two columns."""

    def __init__(self, location: Path, rows: Sequence[Row], files: int) -> None:
        super().__init__(location, FIELDS, ARROW, rows, files)

    def plan_events(
        self,
        events: Sequence[RowEvent],
        uniqueness: Uniqueness,
        pieces: int = 2,
        memory: int = 1 << 20,
        runs: int = 1,
    ) -> Upsert | RowFailure:
        shape = shape_of(events)
        staged = staged_tables(events, shape, pieces)
        return self.plan(shape, staged, uniqueness, memory=memory, runs=runs)

    def rows(self) -> dict[tuple[object, ...], Row]:
        found: dict[tuple[object, ...], Row] = {}
        for values in self.read():
            assert values[:2] not in found, f"key {values[:2]} twice"
            found[values[:2]] = values
        return found


def staged_tables(
    events: Sequence[RowEvent], shape: ChangeShape, pieces: int
) -> list[pa.Table]:
    """As tasks would write them: each a share of the events, only columns it needs."""
    tables = []
    for piece in range(pieces):
        rows = []
        share = events[piece::pieces]
        for e in share:
            new = e.new if e.new is not None else (*(e.old or (None, None)), None, None)
            row: dict[str, object] = {
                "lsn": e.lsn,
                "ord": e.ordinal,
                "op": ord(e.kind),
                "moved": moved(e),
            }
            row |= {f"n{i}": None if v is UNCHANGED else v for i, v in enumerate(new)}
            row |= {f"u{i}": v is UNCHANGED for i, v in enumerate(new)}
            old = e.old if moved(e) else (None, None)
            row |= {f"o{i}": v for i, v in enumerate(old or ())}
            rows.append(row)
        schema = [("lsn", pa.int64()), ("ord", pa.int64()), ("op", pa.int8())]
        schema += [("moved", pa.bool_())]
        schema += [(f"n{i}", field.type) for i, field in enumerate(ARROW)]
        unknown = [i for i in shape.unchanged if any(row[f"u{i}"] for row in rows)]
        schema += [(f"u{i}", pa.bool_()) for i in sorted(unknown)]
        if any(row["moved"] for row in rows):
            schema += [("o0", pa.int32()), ("o1", pa.int32())]
        if rows:
            tables.append(pa.Table.from_pylist(rows, pa.schema(schema)))
    return tables


def run(
    tmp_path: Path,
    shape: HistoryShape,
    seed: int,
    parts: int,
    uniqueness: Uniqueness,
    properties: dict[str, str] | None = None,
) -> Table:
    rng = random.Random(seed)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    table = Table(tmp_path / uuid.uuid4().hex, list(start.values()), rng.randint(1, 4))
    if properties is not None:
        table.state = replace(table.state, properties=properties)
    model = TableModel(KEY, dict(start))
    for batch in batches(events, rng, parts):
        if not batch:
            continue
        before = dict(model.rows)
        model.missing.clear()
        model.apply_all(batch)
        runs = rng.choice(RUNS)
        upsert = table.plan_events(batch, uniqueness, rng.randint(1, 3), runs=runs)
        assert isinstance(upsert, Upsert), upsert
        assert upsert.runs >= min(runs, 2) or len(batch) < 9 or upsert.passed_over
        assert [(c.commit_lsn, c.type, c.key) for c in upsert.conflicts] == [
            (
                lsn,
                f"{'delete' if op == 'D' else 'update'}_missing",
                f"(grp, number)={key}",
            )
            for lsn, op, key in model.missing
        ]
        table.commit(upsert)
        got = table.rows()
        for key in {*got, *model.rows}:
            if got.get(key) != model.rows.get(key):
                related = [
                    e
                    for e in batch
                    if e.kind == "T" or (e.old or e.new or ())[:1] == key[:1]
                ]
                pytest.fail(
                    f"key {key}: got {got.get(key)}, want {model.rows.get(key)}, "
                    f"start {[r for k, r in before.items() if k[0] == key[0]]}\n"
                    + "\n".join(map(str, related))
                )
    return table


@thorough
@given(seed=st.integers(0, 2**32))
def test_key_changes_and_unchanged_values_over_several_batches(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, HistoryShape(40, 8), seed, 4, TRUSTED)


@thorough
@given(seed=st.integers(0, 2**32))
def test_events_on_missing_rows_are_skipped(tmp_path: Path, seed: int) -> None:
    run(tmp_path, HistoryShape(40, 5, missing=True), seed, 2, UNTRUSTED)


@thorough
@given(seed=st.integers(0, 2**32), unchanged=st.booleans())
def test_keys_that_do_not_move_are_reduced_at_once(
    tmp_path: Path, seed: int, unchanged: bool
) -> None:
    shape = HistoryShape(40, 6, moves=False, unchanged=unchanged, missing=True)
    run(tmp_path, shape, seed, 3, UNTRUSTED)


@thorough
@given(seed=st.integers(0, 2**32), moves=st.booleans())
def test_only_what_follows_the_last_truncate_counts(
    tmp_path: Path, seed: int, moves: bool
) -> None:
    shape = HistoryShape(30, 5, moves=moves, missing=True, truncates=2)
    run(tmp_path, shape, seed, 2, UNTRUSTED)


@thorough
@given(seed=st.integers(0, 2**32), moves=st.booleans())
def test_the_first_taken_key_is_located(tmp_path: Path, seed: int, moves: bool) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(30, 5, moves=moves, missing=True, conflicts=True)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    model = TableModel(KEY, dict(start))
    expected = None
    for event in events:
        try:
            model.apply(event)
        except KeyTaken:
            expected = event
            break
    table = Table(tmp_path / uuid.uuid4().hex, list(start.values()), 3)
    before = sorted((tmp_path).rglob("*.parquet"))
    found = table.plan_events(events, UNTRUSTED, runs=rng.choice(RUNS))
    if expected is None:
        assert isinstance(found, Upsert)
        return
    assert expected.new is not None
    # What earlier runs have written is gone.
    assert sorted((tmp_path).rglob("*.parquet")) == before
    assert found == RowFailure(
        Seq(expected.lsn, expected.ordinal),
        None,
        "23505",
        'conflict detected on relation "public.t": conflict='
        + ("insert_exists" if expected.kind == "I" else "update_exists"),
        ConflictType.INSERT_EXISTS
        if expected.kind == "I"
        else ConflictType.UPDATE_EXISTS,
        'Key already exists in unique index "t_pkey".',
        f"(grp, number)={expected.new[:2]}",
    )


def test_a_file_that_loses_its_last_row_goes(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", [(1, n, "a", "b") for n in range(4)], 2)
    upsert = table.plan_events(
        [RowEvent(1, n, "D", None, (1, n)) for n in range(2)], TRUSTED
    )
    assert isinstance(upsert, Upsert)
    assert [(one.file, one.vector) for one in upsert.replaced] == [
        (table.files[0], None)
    ]
    assert upsert.adds == ()


def test_files_without_the_keys_are_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", [(n, 0, "a", "b") for n in range(100)], 10)
    for file in table.files[1:]:
        (tmp_path / "t" / file.path).unlink()
    upsert = table.plan_events([RowEvent(1, 0, "U", (3, 0, "x", UNCHANGED))], TRUSTED)
    assert isinstance(upsert, Upsert)
    assert [one.file for one in upsert.replaced] == [table.files[0]]


def test_an_update_that_finds_no_row_commits_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", [(1, 1, "a", "b")], 1)
    upsert = table.plan_events([RowEvent(1, 0, "U", (2, 2, "x", "y"))], TRUSTED)
    assert isinstance(upsert, Upsert)
    assert not upsert.changes_table


@settings(thorough, max_examples=examples(8))
@given(seed=st.integers(0, 2**32))
def test_a_table_without_deletion_vectors_gets_none(tmp_path: Path, seed: int) -> None:
    shape = HistoryShape(20, 6, missing=True)
    table = run(tmp_path, shape, seed, 3, TRUSTED, properties={})
    assert all(file.vector is None for file in table.files)
    location = Path(table.state.location)
    assert not list(location.glob("*.bin"))


@pytest.mark.parametrize("runs", [1, 2])
def test_a_file_that_does_not_count_its_rows_is_rewritten(
    tmp_path: Path, runs: int
) -> None:
    table = Table(tmp_path / "t", [(1, n, "a", "b") for n in range(8)], 2)
    one, two = table.files
    table.files = [DataFile({**one.action, "stats": None}), two]
    events = [RowEvent(1, n, "D", None, (1, n)) for n in (0, 2, 5, 6)]
    upsert = table.plan_events(events, TRUSTED, runs=runs)
    assert isinstance(upsert, Upsert)
    assert [(r.file.key, r.vector is None) for r in upsert.replaced] == [
        (one.key, True),
        (two.key, False),
    ]
    table.commit(upsert)
    assert list(table.rows()) == [(1, 4), (1, 7), (1, 1), (1, 3)]


@pytest.mark.parametrize("memory", [1 << 20, 100_000, 1000, 0])
def test_unchanged_values_that_do_not_fit_into_memory_are_read_in_parts(
    tmp_path: Path, memory: int
) -> None:
    rows = [(1, n, "a", f"{n}" + "x" * 1000) for n in range(20)]
    table = Table(tmp_path / "t", rows, 10)
    events = [RowEvent(1, n, "U", (1, n, "b", UNCHANGED)) for n in range(20)]
    upsert = table.plan_events(events, TRUSTED, memory=memory)
    assert isinstance(upsert, Upsert)
    assert (upsert.runs == 1) == (memory >= 100_000)
    # Files of rows that later runs have changed again are gone, and none is left over.
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 10 + len(upsert.adds)
    table.commit(upsert)
    assert table.rows() == {row[:2]: (*row[:2], "b", row[3]) for row in rows}


def test_a_row_that_every_run_changes_is_written_once_more_each_time(
    tmp_path: Path,
) -> None:
    """Nothing is left of the rows between: neither files, nor rows that a vector forgets."""
    table = Table(tmp_path / "t", [(1, 0, "a", "b"), (1, 1, "a", "b")], 1)
    events = [RowEvent(lsn, 0, "U", (1, 0, f"{lsn}", UNCHANGED)) for lsn in range(40)]
    upsert = table.plan_events(events, TRUSTED, runs=7)
    assert isinstance(upsert, Upsert)
    assert upsert.runs >= 7
    assert len(upsert.adds) == 1
    assert [one.file for one in upsert.replaced] == table.files
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 2
    assert len(list((tmp_path / "t").glob("*.bin"))) == 1
    table.commit(upsert)
    assert table.rows() == {(1, 0): (1, 0, "39", "b"), (1, 1): (1, 1, "a", "b")}


def test_conflicts_of_all_runs_are_named_up_to_a_limit(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", [(1, 0, "a", "b")], 1)
    events = [RowEvent(1, n, "D", None, (2, n)) for n in range(1500)]
    for runs in (1, 3):
        upsert = table.plan_events(events, TRUSTED, runs=runs)
        assert isinstance(upsert, Upsert)
        assert (upsert.runs > 1) == (runs > 1)
        assert [c.key for c in upsert.conflicts[:1000]] == [
            f"(grp, number)=(2, {n})" for n in range(1000)
        ]
        assert [(c.key, c.count) for c in upsert.conflicts[1000:]] == [(None, 500)]


def test_memory_is_shared_and_given_back() -> None:
    memory = UpsertMemory(100)
    with memory.share(60) as first:
        first.grow(30)
        with pytest.raises(TooLarge):
            first.grow(11)
        entered = threading.Event()

        def wait_for_room() -> None:
            with memory.share(50):
                entered.set()

        waiting = threading.Thread(target=wait_for_room)
        waiting.start()
        assert not entered.wait(0.05)
    waiting.join(10)
    assert entered.is_set()
    with memory.share(100), pytest.raises(TooLarge), memory.share(101):
        pass


def test_wide_rows_make_small_row_groups(tmp_path: Path) -> None:
    rows = pa.table({"t": ["x" * 1_000_000] * 100})
    groups = list(row_groups(rows))
    assert sum(group.num_rows for group in groups) == 100
    assert max(group.nbytes for group in groups) <= ROW_GROUP_BYTES


def test_rows_that_are_written_a_few_at_a_time_share_row_groups(tmp_path: Path) -> None:
    """A version that was rewritten had a row group for each file of the one before, and each
    reader of it paid for them all."""
    with DataFileWriter(str(tmp_path)) as writer:
        for first in range(0, 600, 3):
            writer.write(pa.table({"i": [first, first + 1, first + 2]}))
        writer.write(pa.table({"i": list(range(600, 40_000))}))
        writer.write(pa.table({"i": [40_000]}))
        added = writer.finish()
    assert added is not None
    read = pq.ParquetFile(writer.path)
    assert read.read().column("i").to_pylist() == list(range(40_001))
    assert read.metadata.num_row_groups == 2


def test_rows_that_wait_for_others_hold_no_batch_in_memory(tmp_path: Path) -> None:
    """Of a partition that is rare a batch has a row or two, and most of it has been written."""
    before = pa.total_allocated_bytes()
    with DataFileWriter(str(tmp_path)) as writer:
        for first in range(20):
            batch = pa.table({"i": pa.array(range(first, first + 100_000), pa.int64())})
            writer.write(batch.slice(7, 1))
        del batch
        assert pa.total_allocated_bytes() - before < 1 << 20
        writer.finish()
    assert pq.ParquetFile(writer.path).read().column("i").to_pylist() == list(
        range(7, 27)
    )


def test_bounds_of_a_file_that_lost_rows_are_not_tight(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", [(1, 1, "a", "b"), (1, 2, "a", "b")], 1)
    (file,) = table.files
    for stats in ('{"numRecords":2}', '{"numRecords":2, "tightBounds": true }'):
        other = DataFile({**file.action, "stats": stats})
        kept = Replaced(other, {"cardinality": 1}).add(data_change=True)
        assert kept is not None
        assert json.loads(str(kept["stats"])) == {"numRecords": 2, "tightBounds": False}


# ---- deletion vectors -----------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.integers(0, 2**34), min_size=1, unique=True), min_size=1, max_size=4
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_vectors_are_read_as_written(tmp_path: Path, vectors: list[list[int]]) -> None:
    rows = [np.array(sorted(one), np.uint64) for one in vectors]
    described = write_vectors(str(tmp_path), rows)
    for descriptor, one in zip(described, rows, strict=True):
        assert descriptor["cardinality"] == len(one)
        assert read_vector(str(tmp_path), descriptor).tolist() == one.tolist()


def test_the_vector_of_the_protocols_example_is_read(tmp_path: Path) -> None:
    # Delta transaction log protocol, "Deletion Vectors", JSON example 2 (inline).
    descriptor = {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    assert read_vector(str(tmp_path), descriptor).tolist() == [3, 4, 7, 11, 18, 29]


def test_a_damaged_vector_is_an_error(tmp_path: Path) -> None:
    (descriptor,) = write_vectors(str(tmp_path), [np.array([1, 2], np.uint64)])
    (path,) = tmp_path.glob("*.bin")
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    assert zlib.crc32(content[5:-4]) != int.from_bytes(content[-4:], "big")
    with pytest.raises(StorageError, match="is damaged"):
        read_vector(str(tmp_path), descriptor)


@given(st.binary().filter(lambda data: len(data) % 4 == 0))
def test_z85_text_gives_the_bytes_again(data: bytes) -> None:
    assert decode_z85(encode_z85(data)) == data


def test_z85_is_that_of_the_specification() -> None:
    assert encode_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
    for wrong in ("Hello", "Hell", "%%%%%", "He lo"):
        if wrong == "Hello":
            continue
        with pytest.raises(ValueError, match="Z85"):
            decode_z85(wrong)


@pytest.mark.parametrize(
    "kind", [pa.int32(), pa.string(), pa.decimal128(22, 2), pa.timestamp("us", "UTC")]
)
def test_few_keys_are_found_where_the_database_finds_them(
    tmp_path: Path, kind: pa.DataType
) -> None:
    def column(values: list[int]) -> pa.ChunkedArray:
        plain: list[object] = list(values)
        if pa.types.is_string(kind):
            plain = [f"é{value}" for value in values]
        elif pa.types.is_timestamp(kind):
            return pa.chunked_array([pa.array(values, pa.int64()).cast(kind)])
        return pa.chunked_array([pa.array(plain).cast(kind)])

    given = column([5, -3, 5, 40, 7, -3])
    scans = [
        pa.table({"k0": column(values), "file": [at] * 4, "row": [0, 1, 2, 3]})
        for at, values in enumerate(([7, 8, 5, 5], [-3, 41, 9, 1000]))
    ]
    answers = []
    joined = _JoinedKeys([given], str(tmp_path))
    for keys in (_FewKeys([given]), joined):
        found = keys.locate(scans)
        rows = zip(found.file.tolist(), found.row.tolist(), strict=True)
        places = sorted(zip(rows, found.key.tolist(), strict=True))
        answers.append((keys.numbers.tolist(), keys.count, places))
    assert answers[0] == answers[1]
    assert answers[0][1] == 4
    assert _FewKeys([given]).locate([]).key.size == 0


_KEY_PART = st.one_of(st.none(), st.integers(0, 2))
_KEY_ROWS = st.lists(st.tuples(*[_KEY_PART] * 4), min_size=1, max_size=12)


@given(_KEY_ROWS, st.lists(_KEY_ROWS, max_size=3))
def test_few_keys_of_several_columns_are_found_where_the_database_finds_them(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int | None, ...]],
    stored: list[list[tuple[int | None, ...]]],
) -> None:
    """With null, -0.0 and NaN, which are values like others, and columns that are not to be
    numbered together with those before."""

    def columns(rows: list[tuple[int | None, ...]]) -> list[pa.ChunkedArray]:
        doubles = {None: None, 0: 0.0, 1: -0.0, 2: math.nan}
        first, second, third, fourth = zip(*rows, strict=True)
        return [
            pa.chunked_array([pa.array(first, pa.int32())]),
            pa.chunked_array([pa.array(map(_text, second), pa.string())]),
            pa.chunked_array([pa.array([doubles[one] for one in third], pa.float64())]),
            pa.chunked_array(
                [
                    pa.array(
                        [one if one is None else one > 0 for one in fourth], pa.bool_()
                    )
                ]
            ),
        ]

    def _text(value: int | None) -> str | None:
        return None if value is None else f"é{value}"

    given = columns(rows)
    directory = str(tmp_path_factory.getbasetemp())
    scans = [
        pa.table(columns(one), names=["k0", "k1", "k2", "k3"])
        .append_column("file", pa.array([at] * len(one)))
        .append_column("row", pa.array(range(len(one))))
        for at, one in enumerate(stored)
    ]
    answers = []
    with (
        open_keys(given, directory, bitwise=True) as few,
        _JoinedKeys(list(map(_bits, given)), directory, bitwise=True) as joined,
    ):
        assert isinstance(few, _FewKeys)
        for keys in (few, joined):
            found = keys.locate(scans)
            at = zip(found.file.tolist(), found.row.tolist(), strict=True)
            places = sorted(zip(at, found.key.tolist(), strict=True))
            answers.append((keys.numbers.tolist(), keys.count, places))
    assert answers[0] == answers[1]


def test_a_table_that_only_spark_can_write_is_told_why(tmp_path: Path) -> None:
    rows = [(1, 1, "a", "b")]
    stored = StoredTable(tmp_path / "t", FIELDS, ARROW, rows, 1)
    state = stored.state
    assert only_spark(state) is None
    assert only_spark(replace(state, properties={})) is None
    first, *rest = state.fields
    parts = state.physical_fields
    for other, told in (
        (
            {"fields": (replace(first, spark_ddl="tinyint"), *rest)},
            'Its column "grp" is of Spark\'s type tinyint.',
        ),
        (
            {
                "physical_fields": (
                    replace(parts[0], is_partition=True, spark_ddl="double"),
                    *parts[1:],
                )
            },
            'It is partitioned by column "grp" of type double.',
        ),
    ):
        odd = replace(state, **other)
        assert only_spark(odd) == told
    # What Delta demands of rows is checked here.
    demanding = replace(state, properties={"delta.constraints.c": "grp > 0"})
    assert only_spark(demanding) is None
    assert not demanding.is_plain
    assert (
        only_spark(replace(state, properties={"delta.enableRowTracking": "true"}))
        is None
    )
    text = (*parts[:3], replace(parts[3], is_partition=True))
    assert only_spark(replace(state, physical_fields=text)) is None
    # One that the node can partition by.
    parted = (replace(parts[0], is_partition=True), *parts[1:])
    assert only_spark(replace(state, physical_fields=parted)) is None
