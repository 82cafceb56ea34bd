"""A table that keeps deleted rows has what its events mean one by one, each deletion as a mark."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import FIELDS, TRUSTED, UNTRUSTED, shape_of
from tests.fakes.stored_table import StoredTable
from tests.pure import test_upsert as keyed
from tests.pure import test_upsert_repeats as keyless
from tests.pure.test_history_rows import (
    commits_of,
    expected_changes,
    history_of,
    recorded,
)

from wal2lake.errors import InternalError
from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.historyrows import NO_COMMITS, HistoryCommits, HistoryTarget
from wal2lake.lake.staging.layout import ChangeShape, RowFailure, Seq, Uniqueness
from wal2lake.lake.tablefiles import AddedFile, DataFile, add_action
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.lives.marks import DeletionMarks
from wal2lake.lake.upsert.soft import recopied
from wal2lake.lake.upsert.soft.recopied import keep_deleted
from wal2lake.model import DELETED_AT, ConflictType, Modified, Oid, Resolution
from wal2lake.pgtypes import DEFAULT_RESOLUTIONS, Resolutions
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Key,
    KeyTaken,
    MarkedTableModel,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)

MARK = FieldSpec(DELETED_AT, "timestamp", pg_type_oid=Oid(1184))
MARK_TYPE = pa.timestamp("us", "UTC")
BEFORE = 7
"""Time of deletions before the test's batches, seconds since 1970."""

thorough = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def seconds(mark: object) -> int | None:
    """A mark as seconds since 1970, which is the LSN of its transaction here."""
    assert mark is None or isinstance(mark, datetime)
    return None if mark is None else int(mark.timestamp())


class MarkedTable(StoredTable):
    """Rows by the key of two columns; the last column is the mark."""

    def __init__(
        self,
        location: Path,
        live: Sequence[Row],
        marked: Sequence[tuple[Row, int]],
        files: int,
    ) -> None:
        schema = keyed.ARROW.append(pa.field(DELETED_AT, MARK_TYPE))
        rows: list[tuple[object, ...]] = [(*row, None) for row in live]
        rows += [(*row, at * 1_000_000) for row, at in marked]
        random.Random(len(rows)).shuffle(rows)
        super().__init__(location, (*FIELDS, MARK), schema, rows, files)

    def plan_events(
        self,
        events: Sequence[RowEvent],
        uniqueness: Uniqueness,
        *,
        pieces: int = 2,
        tracked: bool = False,
        target: HistoryTarget | None = None,
        commits: HistoryCommits | None = None,
        resolutions: Resolutions = DEFAULT_RESOLUTIONS,
    ) -> Upsert | RowFailure:
        shape = shape_of(events)
        staged = []
        for table in keyed.staged_tables(events, shape, pieces):
            table = table.append_column("n4", pa.nulls(table.num_rows, MARK_TYPE))
            updates = pa.array([op == ord("U") for op in table["op"].to_pylist()])
            staged.append(table.append_column("u4", updates))
        facts = commits_of([e.lsn for e in events]) if commits is None else commits
        rules = ConflictRules(
            resolutions,
            commits=BatchCommits(9, facts.lsn, facts.xid, facts.time_us)
            if tracked
            else None,
            unsent=frozenset({4}),
            soft=DeletionMarks(4, facts),
        )
        return self.plan(
            replace(shape, fields=(*FIELDS, MARK), unchanged=shape.unchanged | {4}),
            staged,
            uniqueness,
            memory=1 << 22,
            runs=(1, 2, 5)[len(events) % 3],
            rules=rules,
            history=target,
        )

    def state_of_rows(self) -> tuple[dict[Key, Row], dict[Key, tuple[Row, int]]]:
        """The publisher's rows, and the marked ones."""
        live: dict[Key, Row] = {}
        marked: dict[Key, tuple[Row, int]] = {}
        for *values, mark in self.read():
            row: Row = tuple(values)
            key = row[:2]
            assert key not in live and key not in marked, f"key {key} twice"
            at = seconds(mark)
            if at is None:
                live[key] = row
            else:
                marked[key] = (row, at)
        return live, marked


def check(
    table: MarkedTable, model: MarkedTableModel, batch: Sequence[RowEvent], start: Any
) -> None:
    live, marked = table.state_of_rows()
    for key in {*live, *marked, *model.live.rows, *model.marked}:
        got = (live.get(key), marked.get(key))
        want = (model.live.rows.get(key), model.marked.get(key))
        if got != want:
            related = [
                e
                for e in batch
                if e.kind == "T" or (e.old or e.new or ())[:1] == key[:1]
            ]
            pytest.fail(
                f"key {key}: got {got}, want {want}, start {start[0].get(key)}"
                f" {start[1].get(key)}\n" + "\n".join(map(str, related))
            )


@pytest.mark.parametrize(
    ("shape", "uniqueness"),
    [
        (HistoryShape(20, 8), TRUSTED),
        (HistoryShape(20, 5, missing=True), UNTRUSTED),
        (HistoryShape(20, 6, moves=False, missing=True), UNTRUSTED),
        (HistoryShape(10, 6, missing=True, truncates=3), UNTRUSTED),
        (HistoryShape(10, 6, moves=False, unchanged=False, truncates=2), TRUSTED),
    ],
    ids=["moves", "missing", "plain", "truncates", "inserts after a truncate"],
)
@thorough
@given(seed=st.integers(0, 2**32))
def test_rows_end_as_marked_rows_and_live_again(
    tmp_path: Path, shape: HistoryShape, uniqueness: Uniqueness, seed: int
) -> None:
    rng = random.Random(seed)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    every = initial_rows(shape, rng)
    ended = {k: (row, BEFORE) for k, row in every.items() if k not in start}
    place = tmp_path / uuid.uuid4().hex
    table = MarkedTable(
        place / "t", list(start.values()), list(ended.values()), rng.randint(1, 4)
    )
    model = MarkedTableModel(TableModel(KEY, dict(start)), dict(ended))
    target = None
    if rng.random() < 0.3:
        fields = (*FIELDS, MARK)
        target = history_of(place / "h", fields, commits_of([e.lsn for e in events]))
    for batch in batches(events, rng, 3):
        if not batch:
            continue
        before = (dict(model.live.rows), dict(model.marked))
        changes = expected_changes(TableModel(KEY, dict(model.live.rows)), batch)
        model.live.missing.clear()
        model.apply_all(batch)
        upsert = table.plan_events(
            batch,
            uniqueness,
            pieces=rng.randint(1, 3),
            tracked=rng.random() < 0.3,
            target=target,
        )
        assert isinstance(upsert, Upsert), upsert
        assert [(c.commit_lsn, c.type, c.key) for c in upsert.conflicts] == [
            (
                lsn,
                f"{'delete' if op == 'D' else 'update'}_missing",
                f"(grp, number)={key}",
            )
            for lsn, op, key in model.live.missing
        ]
        assert not upsert.truncates
        if target is not None:
            got = recorded(upsert, target, 5)
            assert [
                (*c[:3], c[3] and c[3][:4], c[4] and c[4][:4]) for c in got
            ] == changes
        table.commit(upsert)
        check(table, model, batch, before)


@thorough
@given(seed=st.integers(0, 2**32))
def test_the_first_taken_key_is_one_of_a_row_that_is_not_marked(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(20, 5, missing=True, conflicts=True)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    every = initial_rows(shape, rng)
    ended = {k: (row, BEFORE) for k, row in every.items() if k not in start}
    model = MarkedTableModel(TableModel(KEY, dict(start)), dict(ended))
    expected = None
    for event in events:
        try:
            model.apply(event)
        except KeyTaken:
            expected = event
            break
    place = tmp_path / uuid.uuid4().hex
    table = MarkedTable(place, list(start.values()), list(ended.values()), 3)
    found = table.plan_events(events, UNTRUSTED)
    if expected is None:
        assert isinstance(found, Upsert)
    else:
        assert isinstance(found, RowFailure)
        assert found.seq == Seq(expected.lsn, expected.ordinal)
        assert found.sqlstate == "23505"


def test_values_that_were_not_sent_come_from_the_row_that_ended(tmp_path: Path) -> None:
    table = MarkedTable(tmp_path / "t", [(1, 1, "a", "large"), (1, 2, "b", "c")], [], 1)
    events = [
        RowEvent(3, 0, "U", (1, 1, "new", UNCHANGED)),
        RowEvent(4, 0, "D", old=(1, 1)),
        RowEvent(5, 0, "U", (1, 3, UNCHANGED, UNCHANGED), (1, 2)),
    ]
    upsert = table.plan_events(events, TRUSTED)
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert table.state_of_rows() == (
        {(1, 3): (1, 3, "b", "c")},
        {(1, 1): ((1, 1, "new", "large"), 4), (1, 2): ((1, 2, "b", "c"), 5)},
    )


def test_a_row_that_comes_and_goes_in_one_batch_leaves_a_marked_row(
    tmp_path: Path,
) -> None:
    table = MarkedTable(tmp_path / "t", [], [((1, 1, "old", "old"), BEFORE)], 1)
    events = [
        RowEvent(20, 0, "I", (1, 1, "a", "b")),
        RowEvent(21, 0, "D", old=(1, 1)),
        RowEvent(22, 0, "I", (1, 1, "c", "d")),
        RowEvent(23, 0, "D", old=(1, 1)),
        RowEvent(24, 0, "D", old=(1, 1)),
    ]
    upsert = table.plan_events(events, UNTRUSTED)
    assert isinstance(upsert, Upsert)
    assert [c.type for c in upsert.conflicts] == ["delete_missing"]
    table.commit(upsert)
    assert table.state_of_rows() == ({}, {(1, 1): ((1, 1, "c", "d"), 23)})


def test_a_marked_row_is_written_by_the_transaction_that_ended_it(
    tmp_path: Path,
) -> None:
    table = MarkedTable(tmp_path / "t", [], [], 1)
    table.add([(1, 1, "a", "b", None)], Modified(5, 1, 1))
    table.add([(1, 2, "a", "b", None)], Modified(5, 1, 1))
    deleted = RowEvent(20, 0, "D", old=(1, 1))
    for batch in ([deleted], [RowEvent(30, 0, "T")]):
        upsert = table.plan_events(batch, TRUSTED, tracked=True)
        assert isinstance(upsert, Upsert)
        table.commit(upsert)
    assert {row[1]: origin for row, origin in table.marks().items()} == {1: 9, 2: 9}


def test_resolutions_do_not_see_marked_rows(tmp_path: Path) -> None:
    table = MarkedTable(
        tmp_path / "t",
        [(1, 1, "a", "b"), (1, 5, "a", "b")],
        [((1, n, "a", "b"), BEFORE) for n in (2, 3, 4)],
        2,
    )
    # Other writers have made rows, too.
    table.add([(2, 1, "x", "y", None)], Modified(5, 1, 1))
    table.add([(2, 2, "x", "y", BEFORE * 1_000_000)], Modified(5, 1, 1))
    rules = Resolutions(
        {
            ConflictType.UPDATE_MISSING: Resolution.APPLY_REMOTE,
            ConflictType.INSERT_EXISTS: Resolution.APPLY_REMOTE,
            ConflictType.DELETE_ORIGIN_DIFFERS: Resolution.APPLY_REMOTE,
            ConflictType.UPDATE_EXISTS: Resolution.APPLY_REMOTE,
        }
    )
    events = [
        RowEvent(20, 0, "U", (1, 2, "c", "d")),
        RowEvent(20, 1, "I", (1, 3, "c", "d")),
        RowEvent(20, 2, "I", (1, 1, "c", "d")),
        RowEvent(20, 3, "D", old=(1, 4)),
        RowEvent(20, 4, "D", old=(2, 1)),
        RowEvent(20, 5, "D", old=(2, 2)),
        RowEvent(20, 6, "U", (1, 1, "e", "f"), (1, 5)),
    ]
    upsert = table.plan_events(events, UNTRUSTED, tracked=True, resolutions=rules)
    assert isinstance(upsert, Upsert)
    assert [(c.type, c.key) for c in upsert.conflicts] == [
        ("update_missing", "(grp, number)=(1, 2)"),
        ("insert_exists", "(grp, number)=(1, 1)"),
        ("delete_missing", "(grp, number)=(1, 4)"),
        ("delete_origin_differs", "(grp, number)=(2, 1)"),
        ("delete_missing", "(grp, number)=(2, 2)"),
        ("update_exists", "(grp, number)=(1, 1)"),
    ]
    table.commit(upsert)
    live, marked = table.state_of_rows()
    assert live == {
        (1, 1): (1, 1, "e", "f"),
        (1, 2): (1, 2, "c", "d"),
        (1, 3): (1, 3, "c", "d"),
    }
    assert marked == {
        (1, 4): ((1, 4, "a", "b"), BEFORE),
        (1, 5): ((1, 5, "a", "b"), 20),
        (2, 1): ((2, 1, "x", "y"), 20),
        (2, 2): ((2, 2, "x", "y"), BEFORE),
    }


def test_a_truncate_leaves_files_of_marked_rows_alone(tmp_path: Path) -> None:
    table = MarkedTable(tmp_path / "t", [], [], 1)
    table.add([(1, 1, "a", "b", BEFORE * 1_000_000)])
    table.add([(1, 2, "a", "b", None)])
    upsert = table.plan_events([RowEvent(30, 0, "T")], TRUSTED)
    assert isinstance(upsert, Upsert)
    assert [(one.file, one.vector) for one in upsert.replaced] == [
        (table.files[1], None)
    ]
    table.commit(upsert)
    again = table.plan_events([RowEvent(40, 0, "T")], TRUSTED)
    assert isinstance(again, Upsert)
    assert not again.changes_table
    assert table.state_of_rows()[1] == {
        (1, 1): ((1, 1, "a", "b"), BEFORE),
        (1, 2): ((1, 2, "a", "b"), 30),
    }


def test_a_deletion_without_a_time_is_no_deletion(tmp_path: Path) -> None:
    table = MarkedTable(tmp_path / "t", [(1, 1, "a", "b")], [], 1)
    with pytest.raises(InternalError, match="commit time"):
        table.plan_events(
            [RowEvent(3, 0, "D", old=(1, 1))], TRUSTED, commits=NO_COMMITS
        )


def test_without_deletion_vectors_a_truncate_rewrites_the_files(tmp_path: Path) -> None:
    ended = [((2, 2, "a", "b"), BEFORE)]
    table = MarkedTable(tmp_path / "t", [(1, 1, "a", "b")], ended, 1)
    table.state = replace(table.state, properties={})
    upsert = table.plan_events([RowEvent(3, 0, "T")], TRUSTED)
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert all(file.vector is None for file in table.files)
    live, marked = table.state_of_rows()
    assert live == {}
    assert marked == {
        (1, 1): ((1, 1, "a", "b"), 3),
        (2, 2): ((2, 2, "a", "b"), BEFORE),
    }


@pytest.mark.parametrize("at_once", [1, 4_000_000])
def test_a_copy_that_replaces_the_rows_keeps_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(recopied, "_ROWS_AT_ONCE", at_once)
    live = [(1, n, "a", "b") for n in range(4)]
    ended = [((2, n, "a", "b"), BEFORE) for n in range(4)]
    table = MarkedTable(tmp_path / "t", live, ended, 3)
    gone = table.plan_events([RowEvent(30, 0, "U", (1, 9, "a", "b"), (1, 3))], TRUSTED)
    assert isinstance(gone, Upsert)
    table.commit(gone)
    # The source has a row of each kind, and a new one.
    there = [(1, 1, "c", "c"), (2, 1, "c", "c"), (5, 5, "c", "c")]
    copy = MarkedTable(tmp_path / "copy", there, [], 2)
    copied = [AddedFile(f"../copy/{f.path}", f.size, 0, None) for f in copy.files]
    kept = keep_deleted(
        table.state, table.files, copied, ("grp", "number"), (), 50 * 10**6, "spill"
    )
    table.files = [DataFile(add_action(f, data_change=True)) for f in (*copied, *kept)]
    rows, marked = table.state_of_rows()
    assert rows == {row[:2]: row for row in there}
    assert marked == {
        **{(1, n): ((1, n, "a", "b"), 50) for n in (0, 2, 9)},
        (1, 3): ((1, 3, "a", "b"), 30),
        **{(2, n): ((2, n, "a", "b"), BEFORE) for n in (0, 2, 3)},
    }


def test_a_copy_of_a_table_without_a_key_keeps_marked_rows(tmp_path: Path) -> None:
    live = [(1, 1, "a", "b"), (1, 2, "a", "b")]
    table = MarkedTable(tmp_path / "t", live, [((1, 3, "a", "b"), BEFORE)], 2)
    kept = keep_deleted(table.state, table.files, [], (), (), 50 * 10**6, "spill")
    table.files = [DataFile(add_action(f, data_change=True)) for f in kept]
    assert table.state_of_rows() == ({}, {(1, 3): ((1, 3, "a", "b"), BEFORE)})


# ---- tables without a key ----------------------------------------------------------------

KEYLESS_FIELDS = (*keyless.FIELDS, MARK)

_event = st.one_of(
    keyless.event,
    keyless.event,
    keyless.event,
    keyless.event,
    st.just(keyless.Event("T")),
)


@thorough
@given(
    stored=keyless.start,
    ended=keyless.start,
    batches=st.lists(st.lists(_event, min_size=1, max_size=25), min_size=1, max_size=3),
    files=st.integers(1, 3),
)
def test_without_a_key_one_of_the_equal_rows_is_marked(
    tmp_path: Path,
    stored: list[tuple[keyless.Row, str | None]],
    ended: list[tuple[keyless.Row, str | None]],
    batches: list[list[keyless.Event]],
    files: int,
) -> None:
    rows: list[tuple[object, ...]] = [(*row, own, None) for row, own in stored]
    rows += [(*row, own, BEFORE * 10**6) for row, own in ended]
    schema = keyless.SCHEMA.append(pa.field(DELETED_AT, MARK_TYPE))
    place = tmp_path / uuid.uuid4().hex
    table = StoredTable(place, KEYLESS_FIELDS, schema, rows, files)
    live = list(stored)
    marked = Counter((keyless.equal(row), BEFORE) for row, _ in ended)
    rules = ConflictRules(soft=DeletionMarks(4, commits_of(range(20))))
    for batch in batches:
        for number, event in enumerate(batch):
            before = Counter(keyless.equal(row) for row, _ in live)
            keyless.apply(live, event)
            after = Counter(keyless.equal(row) for row, _ in live)
            if event.kind in "DT":
                for row in (before - after).elements():
                    marked[row, number // 3] += 1
        staged, shape = keyless.stage(batch)
        staged = staged.append_column("n4", pa.nulls(len(batch), MARK_TYPE))
        staged = staged.append_column("u4", pa.array([e.kind == "U" for e in batch]))
        upsert = table.plan(
            replace(shape, fields=KEYLESS_FIELDS, unchanged=shape.unchanged | {4}),
            [staged],
            keyless.UNTRUSTED,
            memory=1 << 22,
            runs=(1, 2, 5)[len(batch) % 3],
            rules=rules,
        )
        assert isinstance(upsert, Upsert), upsert
        table.commit(upsert)
        found = [(keyless.equal(row[:3]), seconds(row[4])) for row in table.read()]
        assert Counter(row for row, at in found if at is None) == Counter(
            keyless.equal(row) for row, _ in live
        )
        assert Counter((row, at) for row, at in found if at is not None) == marked


def test_without_a_key_an_update_marks_nothing(tmp_path: Path) -> None:
    schema = keyless.SCHEMA.append(pa.field(DELETED_AT, MARK_TYPE))
    a, b = keyless.VALUES[0], keyless.VALUES[3]
    rows = [(*a, "mine", None)]
    table = StoredTable(tmp_path / "t", KEYLESS_FIELDS, schema, rows, 1)
    staged, shape = keyless.stage([keyless.Event("U", a, b)])
    staged = staged.append_column("n4", pa.nulls(1, MARK_TYPE))
    staged = staged.append_column("u4", pa.array([True]))
    upsert = table.plan(
        replace(shape, fields=KEYLESS_FIELDS, unchanged=shape.unchanged | {4}),
        [staged],
        keyless.UNTRUSTED,
        memory=1 << 22,
        rules=ConflictRules(soft=DeletionMarks(4, commits_of(range(20)))),
    )
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert table.read() == [(*b, "mine", None)]


def test_rows_of_a_table_without_a_key_are_inserted_and_truncated(
    tmp_path: Path,
) -> None:
    fields = (FieldSpec("f", "double"), MARK)
    schema = pa.schema([("f", pa.float64()), (DELETED_AT, MARK_TYPE)])
    table = StoredTable(tmp_path / "t", fields, schema, [(math.pi, None)], 1)
    staged = pa.table(
        {
            "lsn": pa.array([3, 3, 4]),
            "ord": pa.array([0, 1, 0]),
            "op": pa.array(list(b"ITI"), pa.int8()),
            "moved": [False] * 3,
            "n0": pa.array([1.0, None, 2.0]),
            "n1": pa.nulls(3, MARK_TYPE),
        }
    )
    upsert = table.plan(
        ChangeShape(fields, (), truncate=Seq(3, 1)),
        [staged],
        keyless.UNTRUSTED,
        memory=1 << 22,
        rules=ConflictRules(soft=DeletionMarks(1, commits_of([3, 4]))),
    )
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert sorted((row[0], seconds(row[1])) for row in table.read()) == [
        (1.0, 3),
        (2.0, None),
        (math.pi, 3),
    ]
