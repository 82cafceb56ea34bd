"""Keys that are equal by their type are one key to a batch, however they are written."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.histories import TRUSTED, UNTRUSTED
from tests.fakes.spelled import (
    ARROW,
    FIELDS,
    SpelledModel,
    meant,
    shape_of,
    spelled,
    spelled_events,
    staged_rows,
)
from tests.fakes.stored_table import StoredTable

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.layout import RowFailure
from wal2lake.lake.upsert import Upsert
from wal2lake.lake.upsert.keys import open_keys
from wal2lake.model import ConflictType, Oid
from wal2lake.pgtypes.equality import alike, loose_columns
from wal2lake.testing.rowmodel import (
    KEY,
    HistoryShape,
    RowEvent,
    batches,
    history,
    initial_rows,
)

thorough = settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def staged_table(events: list[RowEvent]) -> pa.Table:
    shape = shape_of(events)
    kinds = {"lsn": pa.int64(), "ord": pa.int64(), "op": pa.int8(), "moved": pa.bool_()}
    kinds |= {f"n{i}": field.type for i, field in enumerate(ARROW)}
    kinds |= {f"u{i}": pa.bool_() for i in shape.unchanged}
    if shape.moved:
        kinds |= {f"o{i}": ARROW.field(i).type for i in KEY}
    return pa.Table.from_pylist(staged_rows(events, shape), pa.schema(kinds))


def plan(
    table: StoredTable, events: list[RowEvent], trusted: bool
) -> Upsert | RowFailure:
    uniqueness = TRUSTED if trusted else UNTRUSTED
    return table.plan(
        shape_of(events), [staged_table(events)], uniqueness, memory=1 << 20
    )


@thorough
@given(seed=st.integers(0, 2**32), moves=st.booleans())
def test_events_find_the_rows_that_they_mean(
    tmp_path: Path, seed: int, moves: bool
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(6, 12, moves=moves, missing=True, truncates=seed % 2)
    start = {key: spelled(row, rng) for key, row in initial_rows(shape, rng).items()}
    numbers = {key: (*key, *row[2:]) for key, row in start.items()}
    events = spelled_events(history(shape, numbers, rng), rng)
    location = tmp_path / uuid.uuid4().hex
    table = StoredTable(location, FIELDS, ARROW, list(start.values()), 3)
    model = SpelledModel(KEY, dict(start))
    for batch in batches(events, rng, 3):
        if not batch:
            continue
        model.missing.clear()
        model.apply_all(batch)
        upsert = plan(table, batch, trusted=bool(seed % 3))
        assert isinstance(upsert, Upsert), upsert
        assert len(upsert.conflicts) == len(model.missing)
        table.commit(upsert)
        assert {meant(row[:2]): row for row in table.read()} == model.rows
        assert len(table.read()) == len(model.rows)


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (RowEvent(1, 0, "I", (1, "24:00:00", "new", None)), ConflictType.INSERT_EXISTS),
        (
            RowEvent(1, 0, "U", (1, "24:00:00", "x", None), (1, "2 days")),
            ConflictType.UPDATE_EXISTS,
        ),
        (RowEvent(1, 0, "U", (1, "24:00:00", "x", None), (1, "1 day")), None),
        (RowEvent(1, 0, "I", (1, "24:00:01", "new", None)), None),
    ],
)
def test_a_row_that_meets_its_key_written_differently_is_a_conflict(
    tmp_path: Path, event: RowEvent, found: ConflictType | None
) -> None:
    rows = [(1, "1 day", "old", None), (1, "2 days", "two", None)]
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, rows, 1)
    planned = plan(table, [event], trusted=False)
    if found is None:
        assert isinstance(planned, Upsert)
        assert not planned.conflicts
    else:
        assert isinstance(planned, RowFailure)
        assert (planned.conflict, planned.key) == (found, "(grp, number)=(1, 24:00:00)")


def test_files_whose_statistics_say_nothing_of_equality_are_read(
    tmp_path: Path,
) -> None:
    """As text 24:00:00 is below every day."""
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, [(1, "1 day", "a", None)], 1)
    event = RowEvent(1, 0, "D", None, (1, "24:00:00"))
    planned = plan(table, [event], trusted=True)
    assert isinstance(planned, Upsert)
    table.commit(planned)
    assert table.read() == []


@pytest.mark.parametrize("more", [False, True], ids=["one column", "two columns"])
def test_the_first_key_of_equal_ones_has_their_number(
    tmp_path: Path, more: bool
) -> None:
    fields = [FieldSpec("k", "string", pg_type_oid=Oid(3802))]
    columns = [pa.chunked_array([['{"a": 1.0}', '{"a": 1.00}', '{"a": 2}']])]
    if more:
        fields.append(FieldSpec("n", "int"))
        columns.append(pa.chunked_array([[7, 7, 7]]))
    loose = loose_columns(fields, range(len(fields)))
    with open_keys(columns, str(tmp_path), loose=loose) as keys:
        assert keys.count == 2
        assert keys.numbers.tolist() == [0, 0, 1]


def test_arrays_are_made_alike_element_by_element() -> None:
    fields = (
        FieldSpec("n", "array<string>", pg_type_oid=Oid(1231)),
        FieldSpec("d", "array<double>", pg_type_oid=Oid(1022)),
        FieldSpec("c", "string", pg_type_oid=Oid(25), pg_type_name='public."citext"[]'),
        FieldSpec("t", "array<string>", pg_type_oid=Oid(1009)),
    )
    given = [
        pa.chunked_array(
            [
                pa.array([["9.9"], ["1.0", None], None], pa.list_(pa.string()))[1:],
                pa.array([[], ["1.50", "2"]], pa.list_(pa.string())),
            ]
        ),
        pa.chunked_array([pa.array([[-0.0, 1.5]], pa.list_(pa.float64()))]),
        pa.chunked_array([['{A,"b C"}']]),
        pa.chunked_array([[["1.0"]]]),
    ]
    found = alike(given, loose_columns(fields, range(4)))
    assert [one.type for one in found] == [one.type for one in given]
    assert [str(one.to_pylist()) for one in found] == [
        str([["1", None], None, [], ["1.5", "2"]]),
        str([[0.0, 1.5]]),
        str(['{a,"b c"}']),
        str([["1.0"]]),
    ]
