"""A deferrable key in a transaction that does not fit into memory: it is counted at its end.

Rows are found by their content. The model applies the events to a list, and counts the keys at the
end; PostgreSQL names the first event whose row's key another row has then.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.stored_table import StoredTable
from tests.pure import test_upsert_repeats as keyless

from wal2lake.lake.staging.layout import COMMIT, RowFailure, Seq
from wal2lake.lake.upsert import TooLarge, Upsert

pytestmark = pytest.mark.usefixtures("no_fsync")

COUNTED = replace(keyless.UNTRUSTED, counted=(0,))

LSN = 7


def transaction(
    rng: random.Random, rows: list[keyless.Row], count: int
) -> list[keyless.Event]:
    """Random events on rows of keys 1 to 9, which change."""
    events = []
    for number in range(count):
        new: keyless.Row = (rng.randint(1, 9), float(number), "new")
        kind = rng.choice("IUUUUD") if rows else "I"
        old = None if kind == "I" else rng.choice(rows)
        event = keyless.Event(kind, old, None if kind == "D" else new)
        if old is not None:
            rows.remove(old)
        if kind != "D":
            rows.append(new)
        events.append(event)
    return events


def first_repeated(
    events: Sequence[keyless.Event], rows: Sequence[keyless.Row]
) -> int | None:
    counts = Counter(row[0] for row in rows)
    puts = [
        number
        for number, event in enumerate(events)
        if event.new is not None and counts[event.new[0]] > 1
    ]
    return min(puts, default=None)


def staged_events(events: Sequence[keyless.Event], *, apart: bool = False) -> pa.Table:
    """Stage events of one transaction, or of one for each event."""
    staged, _ = keyless.stage(events)
    numbers = pa.array(range(len(events)), pa.int64())
    lsn = numbers if apart else pa.array([LSN] * len(events), pa.int64())
    ordinals = pa.array([0] * len(events), pa.int64()) if apart else numbers
    for name, values in (("lsn", lsn), ("ord", ordinals)):
        place = staged.column_names.index(name)
        staged = staged.set_column(place, name, values)
    return staged


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), runs=st.sampled_from([1, 2, 5, 9]))
def test_a_transaction_is_judged_at_its_end_whatever_the_number_of_runs(
    tmp_path: Path, seed: int, runs: int
) -> None:
    rng = random.Random(seed)
    rows: list[keyless.Row] = [(key, 0.0, "stored") for key in range(1, 6)]
    table = StoredTable(
        tmp_path / uuid.uuid4().hex,
        keyless.FIELDS,
        keyless.SCHEMA,
        [(*row, None) for row in rows],
        rng.randint(1, 3),
    )
    events = transaction(rng, rows, rng.randint(1, 30))
    expected = first_repeated(events, rows)
    _, shape = keyless.stage(events)
    found = table.plan(
        shape, [staged_events(events)], COUNTED, memory=1 << 22, runs=runs
    )
    if expected is None:
        assert isinstance(found, Upsert), found
        assert found.runs > 1 or runs == 1 or len(events) < 3
        table.commit(found)
        assert Counter(row[:3] for row in table.read()) == Counter(rows)
    else:
        assert isinstance(found, RowFailure)
        assert found.seq == Seq(LSN, expected)
        assert (found.sqlstate, found.op) == ("23505", COMMIT)


def test_several_transactions_are_divided(tmp_path: Path) -> None:
    """Each of them ends with its own count."""
    rows: list[keyless.Row] = [(1, 0.0, "stored")]
    table = StoredTable(
        tmp_path / "t", keyless.FIELDS, keyless.SCHEMA, [(*rows[0], None)], 1
    )
    events = transaction(random.Random(1), rows, 12)
    _, shape = keyless.stage(events)
    with pytest.raises(TooLarge):
        table.plan(
            shape, [staged_events(events, apart=True)], COUNTED, memory=0, runs=5
        )
