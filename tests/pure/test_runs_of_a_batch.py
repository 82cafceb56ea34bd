"""Staged changes are cut into runs in log order, whatever files they are in."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import TRUSTED, shape_of
from tests.fakes.stored_table import HeldChanges
from tests.pure.test_upsert import Table, staged_tables

from wal2lake.errors import StorageError
from wal2lake.lake.upsert import TooLarge, Upsert, UpsertMemory, plan_upsert
from wal2lake.lake.upsert.plan import RunEffect, plan_run
from wal2lake.lake.upsert.runs.cutting import cut_into_runs
from wal2lake.lake.upsert.runs.whole import _Runs
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Row,
    RowEvent,
    TableModel,
    history,
    initial_rows,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

some = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(directory: Path, table: pa.Table, rows: int) -> str:
    """A staged file with row groups of so many rows."""
    path = directory / f"{uuid.uuid4()}.parquet"
    pq.write_table(table, path, row_group_size=rows)
    return str(path)


@some
@given(
    events=st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, unique=True
    ),
    files=st.integers(1, 4),
    held=st.booleans(),
    rows=st.integers(1, 7),
    most=st.integers(0, 400),
    seed=st.integers(0, 99),
)
def test_runs_are_all_events_in_log_order(
    tmp_path: Path,
    events: list[tuple[int, int]],
    files: int,
    held: bool,
    rows: int,
    most: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    parts: list[list[tuple[int, int]]] = [[] for _ in range(files)]
    for event in sorted(events):
        rng.choice(parts).append(event)
    tables = [
        pa.table({"lsn": [e[0] for e in part], "ord": [e[1] for e in part]})
        for part in parts
        if part
    ]
    kept = tables[:1] if held else []
    paths = [write(tmp_path, table, rows) for table in tables[len(kept) :]]
    runs = [
        sorted((row["lsn"], row["ord"]) for table in run for row in table.to_pylist())
        for run in cut_into_runs(kept, paths, most)
    ]
    # Each run is behind the one before.
    assert [event for run in runs for event in run] == sorted(events)
    if not held and len(events) * 16 > 2 * (most + files * rows * 16):
        assert len(runs) > 1


@settings(some, max_examples=examples(8))
@given(seed=st.integers(0, 2**32))
def test_staged_files_mean_what_their_events_mean(tmp_path: Path, seed: int) -> None:
    """Files of several tasks, each with the columns that its events need."""
    rng = random.Random(seed)
    shape = HistoryShape(12, 5, missing=True)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    place = tmp_path / uuid.uuid4().hex
    table = Table(place, list(start.values()), 2)
    kind = shape_of(events)
    tables = staged_tables(events, kind, rng.randint(1, 3))
    size = sum(one.nbytes for one in tables)
    paths = [write(place, one, rng.randint(1, 30)) for one in tables]
    upsert = plan_upsert(
        HeldChanges(kind, size, (), paths),
        table.state,
        table.files,
        TRUSTED,
        UpsertMemory(size // rng.choice((1, 2, 5)) - 1),
        str(place / "spill"),
    )
    assert isinstance(upsert, Upsert)
    assert upsert.runs > 1
    table.commit(upsert)
    model = TableModel(KEY, dict(start))
    model.apply_all(events)
    assert table.rows() == model.rows


def test_events_of_earlier_runs_are_not_held(tmp_path: Path) -> None:
    count, group = 10_000, 1000
    columns = {"lsn": [1] * count, "ord": list(range(count)), "n0": ["x" * 99] * count}
    staged = pa.table(columns)
    size = staged.nbytes
    paths = [write(tmp_path, staged, group)]
    del staged
    before = pa.total_allocated_bytes()
    most = 0
    for run in cut_into_runs([], paths, size // 2):
        run.clear()
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < size // 4


def test_a_batch_is_read_again_when_the_first_reading_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    table = Table(place, [(0, n, "old", "kept") for n in range(100)], 1)
    events = [RowEvent(1, n, "U", (0, n % 100, "x" * 99, "b")) for n in range(9000)]
    kind = shape_of(events)
    (staged,) = staged_tables(events, kind, 1)
    size = staged.nbytes
    paths = [write(place, staged, 1000)]
    del staged
    before = pa.total_allocated_bytes()
    held: list[int] = []
    plan = plan_run

    def refused(*args: Any, **more: Any) -> Any:
        held.append(pa.total_allocated_bytes() - before)
        if len(held) <= 2:
            raise TooLarge
        return plan(*args, **more)

    monkeypatch.setattr("wal2lake.lake.upsert.runs.whole.plan_run", refused)
    upsert = plan_upsert(
        HeldChanges(kind, size, (), paths),
        table.state,
        table.files,
        TRUSTED,
        UpsertMemory(size + 1),
        str(place / "spill"),
    )
    assert isinstance(upsert, Upsert)
    first, second, *parts = held
    assert second < first * 1.5
    assert max(parts) < first
    table.commit(upsert)
    assert set(table.rows().values()) == {(0, n, "x" * 99, "b") for n in range(100)}


def test_conflicts_of_earlier_runs_are_counted_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t", [(1, 0, "a", "b")], 1)
    events = [RowEvent(1, n, "D", None, (2, n)) for n in range(3000)]
    held: list[int] = []
    take = _Runs._take

    def counted(self: _Runs, effect: RunEffect) -> None:
        take(self, effect)
        held.append(len(self._conflicts))

    monkeypatch.setattr(_Runs, "_take", counted)
    upsert = table.plan_events(events, TRUSTED, runs=6)
    assert isinstance(upsert, Upsert)
    assert upsert.runs >= 6
    assert max(held) == 1001
    assert sum(conflict.count for conflict in upsert.conflicts) == 3000


def test_a_change_whose_row_is_not_found_for_lack_of_memory_says_so(
    tmp_path: Path,
) -> None:
    """It was divided without end."""
    table = Table(tmp_path / "t", [(0, n, "a", "b") for n in range(3)], 1)
    events = [RowEvent(1, n, "U", (0, n, "c", "d")) for n in range(3)]

    def refused(*args: Any, **more: Any) -> Any:
        raise TooLarge

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("wal2lake.lake.upsert.runs.whole.plan_run", refused)
        with pytest.raises(StorageError) as raised:
            table.plan_events(events, TRUSTED)
    error = raised.value
    assert error.sqlstate == "53200"
    assert error.message == "out of memory while the row of a change was looked for"
    assert error.detail is not None and "/spill" in error.detail
    assert error.hint == "Free some space on the disk of that directory."
    assert isinstance(table.plan_events(events, TRUSTED), Upsert)


def test_only_a_run_of_a_large_batch_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    table = Table(place, [(0, n, "old", "kept") for n in range(100)], 1)
    events = [RowEvent(1, n, "U", (0, n % 100, "x" * 99, "b")) for n in range(40_000)]
    kind = shape_of(events)
    (staged,) = staged_tables(events, kind, 1)
    size = staged.nbytes
    paths = [write(place, staged, 1000)]
    del staged
    before = pa.total_allocated_bytes()
    held: list[int] = []
    plan = plan_run

    def measured(*args: Any, **more: Any) -> Any:
        held.append(pa.total_allocated_bytes() - before)
        return plan(*args, **more)

    monkeypatch.setattr("wal2lake.lake.upsert.runs.whole.plan_run", measured)
    limit = size // 10
    upsert = plan_upsert(
        HeldChanges(kind, size, (), paths),
        table.state,
        table.files,
        TRUSTED,
        UpsertMemory(limit),
        str(place / "spill"),
    )
    assert isinstance(upsert, Upsert)
    assert upsert.runs >= 10
    assert len(upsert.adds) == 1
    # A run is half of the limit; a copy of it is there while it is sorted and filtered.
    assert max(held) < 2 * limit
    table.commit(upsert)
    assert set(table.rows().values()) == {(0, n, "x" * 99, "b") for n in range(100)}


def test_a_row_group_larger_than_the_memory_does_not_decide_on_the_runs(
    tmp_path: Path,
) -> None:
    """Each run reads it whole, and a smaller run would not read less."""
    place = tmp_path / "t"
    start: list[Row] = [(0, n, "old", f"{n:0200}") for n in range(2000)]
    table = Table(place, start, 1)
    (group,) = row_group_sizes(table)
    events = [RowEvent(1, n, "U", (0, n * 3, "new", UNCHANGED)) for n in range(500)]
    kind = shape_of(events)
    (staged,) = staged_tables(events, kind, 1)
    memory = 2 * staged.nbytes
    assert group > 5 * memory
    upsert = table.plan(kind, [staged], TRUSTED, memory=memory)
    assert isinstance(upsert, Upsert)
    # The rows are about as large as the memory, and half of it is for the events.
    assert 1 < upsert.runs <= 10
    table.commit(upsert)
    changed = {(0, n * 3) for n in range(500)}
    assert table.rows() == {
        row[:2]: (*row[:2], "new" if row[:2] in changed else "old", row[3])
        for row in start
    }


def row_group_sizes(table: Table) -> list[int]:
    """The bytes of the row groups of a table's files, uncompressed."""
    metadata = [
        pq.read_metadata(file.place(table.state.location)) for file in table.files
    ]
    return [
        one.row_group(group).total_byte_size
        for one in metadata
        for group in range(one.num_row_groups)
    ]
