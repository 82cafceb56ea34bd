"""What the net change rests on: the model says what PostgreSQL does, links are followed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.lake.spark.merge.follow import ARRIVE, LEAVE, follow
from wal2lake.lake.staging.layout import DELETE, INSERT
from wal2lake.testing.rowmodel import (
    KEY,
    UNCHANGED,
    HistoryShape,
    Key,
    KeyTaken,
    Row,
    RowEvent,
    TableModel,
    batches,
    history,
    initial_rows,
)


def model(*rows: tuple[object, ...]) -> TableModel:
    return TableModel((0,), {(row[0],): row for row in rows})


def apply(table: TableModel, *steps: tuple[str, Row | None, Key | None]) -> TableModel:
    for ordinal, (kind, new, old) in enumerate(steps):
        table.apply(RowEvent(1, ordinal, kind, new, old))
    return table


def test_an_unchanged_value_survives_a_chain_of_updates_and_a_key_change() -> None:
    table = apply(
        model((1, "short", "LONG")),
        ("U", (1, "a", UNCHANGED), None),
        ("U", (2, UNCHANGED, UNCHANGED), (1,)),
        ("U", (2, "b", UNCHANGED), None),
    )
    assert table.rows == {(2,): (2, "b", "LONG")}


def test_keys_can_be_swapped_through_a_third_value() -> None:
    table = apply(
        model((1, "one", "L1"), (2, "two", "L2")),
        ("U", (0, "one", UNCHANGED), (1,)),
        ("U", (1, "two", UNCHANGED), (2,)),
        ("U", (2, "one", UNCHANGED), (0,)),
    )
    assert table.rows == {(1,): (1, "two", "L2"), (2,): (2, "one", "L1")}


def test_events_on_missing_rows_do_nothing_and_are_counted() -> None:
    table = apply(
        model((1, "one", "L1")),
        ("U", (9, "x", UNCHANGED), None),
        ("D", None, (9,)),
        ("U", (1, "x", "y"), (9,)),
    )
    assert table.rows == {(1,): (1, "one", "L1")}
    assert [one[1:] for one in table.missing] == [("U", (9,)), ("D", (9,)), ("U", (9,))]


def test_truncate_removes_what_was_before_it_only() -> None:
    table = apply(
        model((1, "one", "L1")),
        ("I", (2, "two", "L2"), None),
        ("T", None, None),
        ("I", (3, "three", "L3"), None),
        ("U", (2, "x", UNCHANGED), None),
    )
    assert table.rows == {(3,): (3, "three", "L3")}


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [("I", (2, "x", "y"), None), ("U", (2, "x", UNCHANGED), (1,))],
)
def test_a_taken_key_is_refused_and_nothing_changes(
    kind: str, new: tuple[object, ...], old: tuple[object, ...] | None
) -> None:
    table = model((1, "one", "L1"), (2, "two", "L2"))
    with pytest.raises(KeyTaken):
        apply(table, (kind, new, old))
    assert table.rows == {(1,): (1, "one", "L1"), (2,): (2, "two", "L2")}


@given(st.integers(0, 2**32), st.booleans(), st.booleans(), st.integers(1, 4))
def test_a_history_means_the_same_in_any_batches(
    seed: int, missing: bool, moves: bool, parts: int
) -> None:
    rng = random.Random(seed)
    shape = HistoryShape(5, 3, moves=moves, missing=missing, truncates=1)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    whole = TableModel(KEY, dict(start))
    whole.apply_all(events)
    stepwise = TableModel(KEY, dict(start))
    for batch in batches(events, rng, parts):
        stepwise.apply_all(batch)
    assert stepwise == whole
    assert [(e.lsn, e.ordinal) for e in events] == sorted(
        {(e.lsn, e.ordinal) for e in events}
    )


def test_histories_visit_the_corners() -> None:
    rng = random.Random(7)
    shape = HistoryShape(300, 4, missing=True)
    start = initial_rows(shape, rng)
    events = history(shape, start, rng)
    moved = [
        e for e in events if e.kind == "U" and e.old and e.new and e.old != e.new[:2]
    ]
    assert len(moved) > 200
    assert sum(UNCHANGED in (e.new or ()) for e in moved) > 50
    assert {e.kind for e in events} == {"I", "U", "D"}
    table = TableModel(KEY, dict(start))
    table.apply_all(events)
    assert len(table.missing) > 50


def test_a_row_is_followed_from_key_to_key_to_where_its_life_began() -> None:
    links = [
        # Stored row, then twice on; an insert of the batch; a stored row that is not there.
        (10, 1, None, None, None, None, None, None, True),
        (10, 2, ARRIVE, 10, 1, None, None, None, False),
        (11, 1, ARRIVE, 10, 2, DELETE, 10, 9, False),
        (11, 2, INSERT, 10, 7, None, None, None, False),
        (11, 3, None, None, None, None, None, None, False),
    ]
    assert list(follow(links)) == [
        (10, 1, True, False, 10, 1),
        (10, 2, True, False, 10, 1),
        (11, 1, True, False, 10, 1),
        (11, 2, True, True, 10, 7),
        (11, 3, False, False, None, None),
    ]


def test_a_key_that_nothing_arrived_at_is_as_it_was_before() -> None:
    links = [
        (10, 1, DELETE, 9, 9, INSERT, 8, 8, False),
        # Its source arrived empty-handed, so the insert at (8, 8) is still there.
        (10, 2, ARRIVE, 10, 1, None, None, None, False),
        (10, 3, LEAVE, 10, 2, None, None, None, False),
        # The same over two arrivals of nothing, down to the stored row.
        (10, 4, ARRIVE, 10, 3, ARRIVE, 10, 3, True),
        (10, 5, ARRIVE, 10, 3, None, None, None, True),
    ]
    assert [found[2:] for found in follow(links)] == [
        (False, False, None, None),
        (True, True, 8, 8),
        (False, False, None, None),
        (True, False, 10, 4),
        (True, False, 10, 5),
    ]
