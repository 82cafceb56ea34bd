"""A batch that tasks evaluate, each for some of its keys, means what one process makes of it."""

from __future__ import annotations

import pickle
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import TRUSTED, UNTRUSTED, shape_of
from tests.fakes.stored_table import HeldChanges
from tests.pure.test_upsert import Table, staged_tables

from wal2lake.errors import StorageError
from wal2lake.lake.executors import Pool
from wal2lake.lake.staging.layout import RowFailure, Seq, Uniqueness
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.plan import BatchRules
from wal2lake.lake.upsert.runs import spread
from wal2lake.lake.upsert.runs.spread import KeyTasks, plan_spread
from wal2lake.lake.upsert.runs.whole import plan_share
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    KeyTaken,
    RowEvent,
    TableModel,
    history,
    initial_rows,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

A = TypeVar("A")
R = TypeVar("R")

some = settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Tasks:
    """Executors that get and return what can be pickled, one task after the other."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, pool: Pool, function: Callable[[A], R], argument: A) -> R:
        raise NotImplementedError

    def map(
        self, function: Callable[[A], R], arguments: Sequence[A], context: str
    ) -> list[R]:
        self.count += len(arguments)
        results: list[R] = []
        for argument in arguments:
            sent = pickle.loads(pickle.dumps((function, argument)))
            results.append(pickle.loads(pickle.dumps(sent[0](sent[1]))))
        return results


def planned(
    table: Table,
    events: Sequence[RowEvent],
    uniqueness: Uniqueness,
    tasks: Tasks,
    *,
    count: int = 3,
    task_bytes: int = 1 << 20,
) -> Upsert | RowFailure | None:
    kind = shape_of(events)
    place = Path(table.state.location)
    paths = []
    for one in staged_tables(events, kind, 2):
        path = place / f"{uuid.uuid4()}.staged"
        pq.write_table(one, path, row_group_size=30)
        paths.append(str(path))
    size = sum(pq.read_table(path).nbytes for path in paths)
    batch = BatchRules(table.state, table.files, uniqueness, str(place / "spill"))
    return plan_spread(
        HeldChanges(kind, size, (), paths), batch, KeyTasks(tasks, count, task_bytes)
    )


@some
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 5),
    moves=st.booleans(),
    truncates=st.integers(0, 1),
    vectors=st.booleans(),
    task_bytes=st.sampled_from([1 << 20, 4000]),
)
def test_shares_of_the_keys_make_the_whole_batch(
    tmp_path: Path,
    seed: int,
    count: int,
    moves: bool,
    truncates: int,
    vectors: bool,
    task_bytes: int,
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(12, 6, missing=True, moves=moves, truncates=truncates)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    table = Table(tmp_path / uuid.uuid4().hex, list(start.values()), 3)
    if not vectors:
        table.state = replace(table.state, properties={})
    model = TableModel(KEY, dict(start))
    model.apply_all(events)
    tasks = Tasks()
    upsert = planned(table, events, TRUSTED, tasks, count=count, task_bytes=task_bytes)
    assert isinstance(upsert, Upsert)
    assert tasks.count >= count
    assert vectors or all(replaced.vector is None for replaced in upsert.replaced)
    assert len({one.file.key for one in upsert.replaced}) == len(upsert.replaced)
    found = [(conflict.commit_lsn, conflict.count) for conflict in upsert.conflicts]
    assert found == sorted(found, key=lambda one: one[0])
    assert sum(n for _, n in found) == len(model.missing)
    table.commit(upsert)
    assert table.rows() == model.rows


@some
@given(seed=st.integers(0, 2**32), moves=st.booleans())
def test_the_first_failure_of_all_tasks_counts(
    tmp_path: Path, seed: int, moves: bool
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(8, 5, moves=moves, missing=True, conflicts=True)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    table = Table(tmp_path / uuid.uuid4().hex, list(start.values()), 3)
    model = TableModel(KEY, dict(start))
    expected = None
    for event in events:
        try:
            model.apply(event)
        except KeyTaken:
            expected = Seq(event.lsn, event.ordinal)
            break
    before = set(Path(table.state.location).glob("part-*"))
    result = planned(table, events, UNTRUSTED, Tasks())
    if expected is None:
        assert isinstance(result, Upsert)
    else:
        assert isinstance(result, RowFailure)
        assert (result.seq, result.sqlstate) == (expected, "23505")
        assert set(Path(table.state.location).glob("part-*")) == before


def test_an_error_of_a_task_is_raised_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(50)], 2)
    events = [RowEvent(1, n, "U", (0, n, "x", UNCHANGED)) for n in range(50)]
    before = set((tmp_path / "t").glob("part-*"))
    real, calls = plan_share, []

    def fails(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise StorageError("No space left on device", sqlstate="53100")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(spread, "plan_share", fails)
    with pytest.raises(StorageError, match="No space left"):
        planned(table, events, TRUSTED, Tasks())
    assert set((tmp_path / "t").glob("part-*")) == before


@pytest.mark.parametrize("ties", [False, True])
def test_the_events_of_one_key_wait_in_files_if_a_task_has_no_memory_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ties: bool
) -> None:
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(5)], 2)
    model = TableModel(KEY, table.rows())
    events = [
        RowEvent(n, n, "U", (n + 1, 0, f"{n}" * 50, UNCHANGED), (n, 0))
        if ties
        else RowEvent(n, n, "U", (0, 3, f"{n}" * 50, UNCHANGED))
        for n in range(400)
    ]
    model.apply_all(events)
    task_bytes = 8000
    held: list[int] = []
    real = plan_share

    def planning(changes: object, *others: object) -> object:
        assert isinstance(changes, spread._Changes)
        held.append(sum(one.nbytes for one in changes.held))
        assert changes.size > 4 * task_bytes or not changes.paths
        return real(changes, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(spread, "plan_share", planning)
    upsert = planned(table, events, TRUSTED, Tasks(), count=2, task_bytes=task_bytes)
    assert isinstance(upsert, Upsert)
    assert upsert.runs > 4
    assert max(held) <= task_bytes // 2
    table.commit(upsert)
    assert table.rows() == model.rows


def test_files_of_tasks_are_synced_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(50)], 2)
    events = [RowEvent(1, n, "U", (0, n, "x", "y")) for n in range(50)]
    synced: list[str] = []

    def settle(store: object, files: Sequence[str], vectors: Sequence[object]) -> None:
        assert len(files) == len(vectors)
        synced.extend(files)

    monkeypatch.setattr(spread, "settle_files", settle)
    upsert = planned(table, events, TRUSTED, Tasks())
    assert isinstance(upsert, Upsert)
    assert sorted(synced) == sorted(added.path for added in upsert.adds)


def test_what_events_tie_together_otherwise_is_not_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(5)], 1)
    events = [RowEvent(1, n, "U", (1, n, "x", "y"), (0, n)) for n in range(5)]
    deferrable = replace(TRUSTED, deferrable=True)
    assert planned(table, events, deferrable, Tasks()) is None
    assert isinstance(planned(table, events, TRUSTED, Tasks()), Upsert)
    monkeypatch.setattr(spread, "_MOST_TIED", 4)
    assert planned(table, events, TRUSTED, Tasks()) is None


def test_keys_that_are_equal_by_their_type_belong_to_one_task() -> None:
    shape = replace(
        shape_of([]),
        fields=(replace(shape_of([]).fields[0], spark_ddl="double"),),
        key=(0,),
    )
    column = pa.chunked_array([pa.array([0.0, -0.0, 1.0])])
    hashes = spread._hashes(shape, [column])
    assert hashes[0] == hashes[1] != hashes[2]
