"""What Delta demands of a table's rows holds for each event, wherever a batch is cut.

The demands are those of a table in Python: a column that is computed from two others, and a
condition over the whole row. ``spark/test_demanding_tables.py`` has Delta's own.
"""

from __future__ import annotations

import random
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import TRUSTED, shape_of
from tests.pure.test_upsert import Table, staged_tables

from wal2lake.errors import FeatureNotSupportedError, StorageError
from wal2lake.lake.expressions import RefusedRow, RefusedValue
from wal2lake.lake.partitions import EMPTY_TEXT, by_partition, value_of
from wal2lake.lake.staging.layout import RowFailure, Seq
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.judging import ConflictRules
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
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NAMES = ("grp", "number", "a", "b")


def computed(row: Row) -> Row:
    return (*row[:3], f"{row[1]}:{row[2]}")


def is_bad(row: Row, every: int) -> bool:
    return every > 0 and zlib.crc32(repr(row).encode()) % every == 0


@dataclass(frozen=True)
class PythonDemands:
    """Column b is computed; one row in ``every`` is refused. A number of -1 has no value."""

    every: int = 0
    generated: frozenset[str] = frozenset({"b"})
    inputs: frozenset[str] = frozenset({"number", "a"})
    checked: frozenset[str] = frozenset(NAMES)

    def compute(self, rows: pa.Table) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        pairs = zip(
            rows.column("number").to_pylist(), rows.column("a").to_pylist(), strict=True
        )
        texts = [None if n == -1 else f"{n}:{a}" for n, a in pairs]
        failed = [
            RefusedValue(i, "b", "22012", "division by zero")
            for i, text in enumerate(texts)
            if text is None
        ]
        return {"b": pa.array(texts, pa.string())}, failed

    def violating(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        columns = [rows.column(name).to_pylist() for name in NAMES]
        bad = [is_bad(row, self.every) for row in zip(*columns, strict=True)]
        return np.array(bad, np.bool_)

    def explain(self, relation: str, row: pa.Table) -> RefusedRow:
        assert self.violating(row).all()
        return RefusedRow("23514", f"{relation} refuses it", True)


def without_b(events: Sequence[RowEvent]) -> list[RowEvent]:
    """As staging leaves a column that the publisher does not send."""
    return [
        event
        if event.new is None
        else replace(
            event, new=(*event.new[:3], None if event.kind == "I" else UNCHANGED)
        )
        for event in events
    ]


def first_refused(model: TableModel, events: Sequence[RowEvent], every: int) -> Seq:
    """The first event that makes a row which is refused; the model is as before it."""
    for event in events:
        after = TableModel(KEY, dict(model.rows))
        after.apply(event)
        for key, row in after.rows.items():
            after.rows[key] = computed(row)
            if model.rows.get(key) != after.rows[key] and is_bad(computed(row), every):
                return Seq(event.lsn, event.ordinal)
        model.rows = after.rows
    return Seq(0, 0)


@some
@example(seed=477, runs=1, every=60)
@given(
    seed=st.integers(0, 2**32),
    runs=st.sampled_from([1, 2, 7]),
    every=st.sampled_from([0, 10, 60]),
)
def test_rows_are_computed_and_checked_event_by_event(
    tmp_path: Path, seed: int, runs: int, every: int
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(10, 6, missing=True)
    rows = {key: computed(row) for key, row in initial_rows(shape, rng).items()}
    # A row that is there fulfils the condition.
    start = {key: row for key, row in rows.items() if not is_bad(row, every)}
    events = without_b(history(shape, start, rng))
    table = Table(tmp_path / uuid.uuid4().hex, list(start.values()), 3)
    model = TableModel(KEY, dict(start))
    refused = first_refused(model, events, every)
    kind = shape_of(events)
    planned = table.plan(
        kind,
        staged_tables(events, kind, 2),
        TRUSTED,
        memory=1 << 20,
        runs=runs,
        rules=ConflictRules(relation="t", demands=PythonDemands(every)),
    )
    if refused != Seq(0, 0):
        assert isinstance(planned, RowFailure)
        assert (planned.seq, planned.sqlstate) == (refused, "23514")
        assert planned.message == "t refuses it"
        assert planned.detail is not None
        assert planned.detail.startswith("Failing row contains (")
        return
    assert isinstance(planned, Upsert)
    table.commit(planned)
    assert table.rows() == model.rows


@pytest.mark.parametrize("keyed", [True, False])
def test_a_value_that_cannot_be_computed_is_refused_at_its_event(
    tmp_path: Path, keyed: bool
) -> None:
    table = Table(tmp_path / "t", [(1, 1, "a", "1:a")], 1)
    rules = ConflictRules(relation="t", demands=PythonDemands())
    good, bad = (
        RowEvent(1, 0, "I", (2, 2, "x", None)),
        RowEvent(2, 5, "I", (2, -1, "x", None)),
    )

    def planned(*events: RowEvent) -> Upsert | RowFailure:
        kind = shape_of(events)
        if not keyed:
            kind = replace(kind, key=())
        staged = staged_tables(events, kind, 1)
        return table.plan(kind, staged, TRUSTED, memory=1 << 20, rules=rules)

    failure = planned(good, bad)
    assert isinstance(failure, RowFailure)
    assert (failure.seq, failure.sqlstate) == (Seq(2, 5), "22012")
    assert failure.hint is not None
    assert failure.hint.startswith("Delta Lake's table computes this column")
    upsert = planned(good)
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert table.rows()[2, 2] == (2, 2, "x", "2:x")


@dataclass(frozen=True)
class EmptyTexts(PythonDemands):
    """A number of 0 has an empty text."""

    def compute(self, rows: pa.Table) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        columns, failed = super().compute(rows)
        texts = columns["b"].to_pylist()
        numbers = rows.column("number").to_pylist()
        pairs = zip(numbers, texts, strict=True)
        return {"b": pa.array([text if n else "" for n, text in pairs])}, failed


@pytest.mark.parametrize("keyed", [True, False])
def test_a_computed_empty_text_that_is_a_partition_is_refused_at_its_event(
    tmp_path: Path, keyed: bool
) -> None:
    table = Table(tmp_path / "t", [(1, 1, "a", "1:a")], 1)
    good, bad, later = (
        RowEvent(1, 0, "I", (2, 2, "x", None)),
        RowEvent(2, 5, "I", (2, 0, "x", None)),
        RowEvent(3, 0, "I", (3, 0, "x", None)),
    )

    def planned(texts: frozenset[str]) -> Upsert | RowFailure:
        rules = ConflictRules(relation="t", demands=EmptyTexts(), partition_texts=texts)
        kind = shape_of([good, bad, later])
        if not keyed:
            kind = replace(kind, key=())
        staged = staged_tables([good, bad, later], kind, 1)
        return table.plan(kind, staged, TRUSTED, memory=1 << 20, rules=rules)

    failure = planned(frozenset({"b"}))
    assert isinstance(failure, RowFailure)
    assert (failure.seq, failure.sqlstate) == (Seq(2, 5), "0A000")
    assert (failure.message, failure.column) == (EMPTY_TEXT, "b")
    assert failure.hint == (
        "Create the table anew without partitions by this column, or skip the"
        " transaction: ALTER SUBSCRIPTION ... SKIP (lsn = ...)."
    )
    # Another column has empty texts.
    assert isinstance(planned(frozenset({"a"})), Upsert)


@dataclass(frozen=True)
class FailsOnce(PythonDemands):
    """The first evaluation fails, for a reason that passes."""

    calls: list[int] = field(default_factory=list)

    def compute(self, rows: pa.Table) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        self.calls.append(rows.num_rows)
        columns, failed = super().compute(rows)
        if len(self.calls) > 1:
            return columns, failed
        nulls = pa.nulls(rows.num_rows, pa.string())
        return {"b": nulls}, [RefusedValue(0, "b", "53200", "out of memory")]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_value_that_could_not_be_computed_at_first_does_not_become_null(
    tmp_path: Path, keyed: bool
) -> None:
    table = Table(tmp_path / "t", [(1, 1, "a", "1:a")], 1)
    rules = ConflictRules(relation="t", demands=FailsOnce())
    events = [RowEvent(1, 0, "I", (2, 2, "x", None))]
    kind = shape_of(events)
    if not keyed:
        kind = replace(kind, key=())
    staged = staged_tables(events, kind, 1)
    with pytest.raises(StorageError) as failed:
        table.plan(kind, staged, TRUSTED, memory=1 << 20, rules=rules)
    assert failed.value.sqlstate == "57P01"
    upsert = table.plan(kind, staged, TRUSTED, memory=1 << 20, rules=rules)
    assert isinstance(upsert, Upsert)
    table.commit(upsert)
    assert table.rows()[2, 2] == (2, 2, "x", "2:x")


def test_texts_are_partitions_but_for_the_empty_one() -> None:
    rows = pa.table({"t": ["a b/c=%é", None, "0"], "n": [1, 2, 3]})
    parts = {
        values: kept.column("n").to_pylist() for values, kept in by_partition(rows, [0])
    }
    assert parts == {("a b/c=%é",): [1], (None,): [2], ("0",): [3]}
    assert value_of("a b/c=%é", pa.string()) == "a b/c=%é"
    assert value_of("", pa.string()) is None
    with pytest.raises(FeatureNotSupportedError, match="empty text"):
        list(by_partition(pa.table({"t": [""]}), [0]))
