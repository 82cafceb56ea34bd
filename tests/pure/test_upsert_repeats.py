"""A batch for a table without a primary key: each UPDATE and DELETE touches one of the equal rows.

The model is a list that is searched from its beginning, first for an identical row (null is null,
NaN is NaN, and 0.0 is not -0.0), then for one that is equal by its types.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.stored_table import StoredTable

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.layout import ChangeShape, Seq, Uniqueness
from wal2lake.lake.upsert import Upsert
from wal2lake.model import Oid
from wal2lake.pgtypes.equality import alike, loose_columns

pytestmark = pytest.mark.usefixtures("no_fsync")

FIELDS = (
    FieldSpec("n", "bigint"),
    FieldSpec("f", "double"),
    FieldSpec("t", "string"),
    FieldSpec("own", "string"),
)
"""``own`` is a column that the publisher does not have."""
SENT = (0, 1, 2)
KINDS = [pa.int64(), pa.float64(), pa.string(), pa.string()]
SCHEMA = pa.schema([(f.name, kind) for f, kind in zip(FIELDS, KINDS, strict=True)])
UNTRUSTED = Uniqueness(trusted=False, constraint="t_pkey", relation="public.t")

Row = tuple[int | None, float | None, str | None]

VALUES: tuple[Row, ...] = (
    (1, 0.0, "a"),
    (1, -0.0, "a"),
    (1, math.nan, "a"),
    (None, 1.5, None),
    (None, None, None),
    (2, None, "é"),
)


@dataclass(frozen=True)
class Event:
    kind: str
    old: Row | None = None
    new: Row | None = None


def identical(row: Sequence[object]) -> tuple[object, ...]:
    """The row as something that is equal if it is identical."""
    return tuple(
        ("nan" if math.isnan(v) else struct.pack(">d", v))
        if isinstance(v, float)
        else v
        for v in row
    )


def equal(row: Sequence[object]) -> tuple[object, ...]:
    """The row as something that is equal if PostgreSQL says so."""
    return identical([v + 0.0 if isinstance(v, float) else v for v in row])


def apply(rows: list[tuple[Row, str | None]], event: Event) -> None:
    """One event, as PostgreSQL's search for a row of REPLICA IDENTITY FULL."""
    if event.kind == "T":
        rows.clear()
        return
    if event.kind == "I":
        assert event.new is not None
        rows.append((event.new, None))
        return
    assert event.old is not None
    wanted = identical(event.old)
    at = next((i for i, (row, _) in enumerate(rows) if identical(row) == wanted), None)
    if at is None:
        wanted = equal(event.old)
        at = next((i for i, (row, _) in enumerate(rows) if equal(row) == wanted), None)
    if at is None:
        return
    if event.kind == "D":
        del rows[at]
    else:
        assert event.new is not None
        rows[at] = (event.new, rows[at][1])


class Table(StoredTable):
    """Rows of three columns, and what the fourth has."""

    def __init__(
        self, location: Path, rows: Sequence[tuple[Row, str | None]], files: int
    ) -> None:
        whole = [(*row, own) for row, own in rows]
        super().__init__(location, FIELDS, SCHEMA, whole, files)

    def apply(
        self, events: Sequence[Event], *, memory: int = 1 << 20, runs: int = 1
    ) -> None:
        staged, shape = stage(events)
        upsert = self.plan(shape, [staged], UNTRUSTED, memory=memory, runs=runs)
        assert isinstance(upsert, Upsert), upsert
        self.commit(upsert)


def stage(events: Sequence[Event]) -> tuple[pa.Table, ChangeShape]:
    """As staging writes them; the last TRUNCATE is in the shape."""
    blank = (None,) * len(SENT)
    named = [e.new or (e.old if e.kind == "D" else None) or blank for e in events]
    olds = [e.old if e.kind == "U" and e.old is not None else blank for e in events]
    updates = [e.kind == "U" for e in events]
    columns = {
        "lsn": pa.array([i // 3 for i in range(len(events))], pa.int64()),
        "ord": pa.array([i % 3 for i in range(len(events))], pa.int64()),
        "op": pa.array([ord(e.kind) for e in events], pa.int8()),
        "moved": pa.array(updates),
    }
    for i in SENT:
        columns[f"n{i}"] = pa.array([row[i] for row in named], KINDS[i])
        columns[f"o{i}"] = pa.array([row[i] for row in olds], KINDS[i])
    columns["n3"] = pa.nulls(len(events), KINDS[3])
    columns["u3"] = pa.array(updates)
    last = max((i for i, e in enumerate(events) if e.kind == "T"), default=None)
    shape = ChangeShape(
        FIELDS,
        SENT,
        frozenset({3}),
        True,
        None if last is None else Seq(last // 3, last % 3),
        repeats=True,
    )
    return pa.table(columns), shape


rows_of = st.sampled_from(VALUES)
event = st.one_of(
    st.builds(Event, st.just("I"), new=rows_of),
    st.builds(Event, st.just("D"), old=rows_of),
    st.builds(Event, st.just("U"), old=rows_of, new=rows_of),
    st.builds(Event, st.just("U"), old=rows_of, new=rows_of),
)
start = st.lists(st.tuples(rows_of, st.sampled_from([None, "mine"])), max_size=12)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    stored=start,
    batches=st.lists(st.lists(event, min_size=1, max_size=25), min_size=1, max_size=3),
    files=st.integers(1, 3),
    runs=st.sampled_from([1, 2, 7]),
)
def test_the_table_holds_what_one_event_after_the_other_leaves(
    tmp_path: Path,
    stored: list[tuple[Row, str | None]],
    batches: list[list[Event]],
    files: int,
    runs: int,
) -> None:
    table = Table(tmp_path / uuid.uuid4().hex, stored, files)
    model = list(stored)
    for batch in batches:
        for one in batch:
            apply(model, one)
        table.apply(batch, runs=runs)
        assert Counter(identical(row[:3]) for row in table.read()) == Counter(
            identical(row) for row, _ in model
        )


def test_a_column_of_our_own_keeps_its_value_and_is_null_in_a_new_row(
    tmp_path: Path,
) -> None:
    a, b, c = VALUES[0], VALUES[3], VALUES[5]
    table = Table(tmp_path / "t", [(a, "mine"), (b, "yours")], 2)
    table.apply([Event("U", a, c), Event("U", c, b), Event("I", new=a)])
    assert Counter(identical(row) for row in table.read()) == Counter(
        identical(row) for row in [(*b, "mine"), (*b, "yours"), (*a, None)]
    )


def test_only_what_follows_a_truncate_counts(tmp_path: Path) -> None:
    a, b, c = VALUES[0], VALUES[3], VALUES[5]
    table = Table(tmp_path / "t", [(a, None), (b, None)], 1)
    table.apply([Event("D", a), Event("T"), Event("I", new=c), Event("U", b, a)])
    assert table.read() == [(*c, None)]


def test_values_that_are_equal_by_their_type_are_made_alike() -> None:
    fields = (
        FieldSpec("n", "string", pg_type_oid=Oid(1700)),
        FieldSpec("f", "float", pg_type_oid=Oid(700)),
        FieldSpec("c", "string", pg_type_oid=Oid(25), pg_type_name="public.citext"),
        FieldSpec("t", "string", pg_type_oid=Oid(25)),
        FieldSpec("b", "string", pg_type_oid=Oid(1042)),
        FieldSpec("i", "string", pg_type_oid=Oid(1186)),
    )
    spans = ["1 mon", "30 days", "720:00:00", "29 days 23:59:59", "infinity", None]
    negative = ["-1 years", "-360 days", "-1 mons -330 days +00:00:00", "1 day", "?"]
    columns = [
        pa.chunked_array([["1.0", "1.00", "1", "100", "0.10", "NaN", None]]),
        pa.chunked_array([pa.array([0.0, -0.0, 1.5], pa.float32())]),
        pa.chunked_array([["aB", "Ab"]]),
        pa.chunked_array([["aB", "1.0"]]),
        pa.chunked_array([["a ", " a"]]),
        pa.chunked_array([spans, negative]),
    ]
    loose = loose_columns(fields, range(len(fields)))
    *found, intervals = [column.to_pylist() for column in alike(columns, loose)]
    numbers = [intervals.index(one) for one in intervals]
    assert numbers == [0, 0, 0, 3, 4, 5, 6, 6, 6, 9, 10]
    assert found == [
        ["1", "1", "1", "100", "0.1", "NaN", None],
        [0.0, 0.0, 1.5],
        ["ab", "ab"],
        ["aB", "1.0"],
        ["a", " a"],
    ]
    assert not any(math.copysign(1, value) < 0 for value in found[1])


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize(
    ("stored", "gone", "left"),
    [
        ([0.0, 0.5], 0.0, [0.5]),
        ([0.5], 0.0, [0.5]),
        ([math.nan, -0.0], -0.0, [math.nan]),
        ([math.inf, 1.0], -0.0, [math.inf, 1.0]),
    ],
)
def test_rows_of_one_number_are_found_by_the_number_and_not_by_its_bits(
    tmp_path: Path,
    kind: pa.DataType,
    stored: list[float],
    gone: float,
    left: list[float],
) -> None:
    """The first batch looks into the index of keys, which holds integers."""
    name = "double" if kind == pa.float64() else "float"
    fields = (FieldSpec("f", name),)
    table = StoredTable(
        tmp_path / "t", fields, pa.schema([("f", kind)]), [(f,) for f in stored], 1
    )
    event = pa.table(
        {
            "lsn": pa.array([1]),
            "ord": pa.array([0]),
            "op": pa.array([ord("D")], pa.int8()),
            "moved": [False],
            "n0": pa.array([gone], kind),
        }
    )
    shape = ChangeShape(fields, (0,), frozenset(), False, None, True)
    planned = table.plan(shape, [event], UNTRUSTED, memory=1 << 24)
    assert isinstance(planned, Upsert)
    assert len(planned.conflicts) == (len(stored) == len(left))
    table.commit(planned)
    assert list(map(identical, table.read())) == [identical((f,)) for f in left]
