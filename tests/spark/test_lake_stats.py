"""File statistics: never wrong, whatever the values. No session needed."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.lake.delta.stats import STRING_PREFIX, stats_for


def stats(table: pa.Table, row_group_size: int | None = None) -> dict[str, Any]:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size)
    parsed: dict[str, Any] = json.loads(
        stats_for(pq.read_metadata(pa.BufferReader(sink.getvalue()))),
        parse_float=Decimal,
    )
    return parsed


def test_bounds_and_nulls_span_all_row_groups() -> None:
    table = pa.table(
        {
            "id": pa.array([5, None, -3, 9], pa.int64()),
            "d": pa.array([Decimal("1.50"), Decimal("-2.25"), None, None]),
            "on": pa.array([datetime.date(2024, 1, 2)] * 4),
            "none": pa.array([None] * 4, pa.int32()),
        }
    )
    assert stats(table, row_group_size=2) == {
        "numRecords": 4,
        "minValues": {"id": -3, "d": Decimal("-2.25"), "on": "2024-01-02"},
        "maxValues": {"id": 9, "d": Decimal("1.50"), "on": "2024-01-02"},
        "nullCount": {"id": 1, "d": 2, "on": 0, "none": 4},
        "tightBounds": True,
    }


def test_large_decimals_keep_every_digit() -> None:
    value = Decimal("99999999999999999999999999999.999999999")
    found = stats(pa.table({"d": pa.array([value], pa.decimal128(38, 9))}))
    assert found["maxValues"]["d"] == value


def test_instants_are_rounded_outwards_to_milliseconds() -> None:
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 1500)
    before = datetime.datetime(1960, 1, 1, 0, 0, 0, 1)
    table = pa.table(
        {
            "ntz": pa.array([moment, before], pa.timestamp("us")),
            "tz": pa.array([moment], pa.timestamp("us", "UTC")).take([0, 0]),
        }
    )
    found = stats(table)
    assert found["minValues"]["ntz"] == "1960-01-01T00:00:00.000"
    assert found["maxValues"]["ntz"] == "2024-02-29T12:00:00.002"
    assert found["minValues"]["tz"] == "2024-02-29T12:00:00.001Z"
    assert found["maxValues"]["tz"] == "2024-02-29T12:00:00.002Z"


def test_what_cannot_be_certain_is_left_out() -> None:
    table = pa.table(
        {
            "f": pa.array([1.0, float("nan")]),
            "far": pa.array([2**40, 0], pa.int64())
            .cast(pa.timestamp("s"))
            .cast("timestamp[us]"),
            "bc": pa.array([-1_000_000, 0], pa.int32()).cast(pa.date32()),
            "b": pa.array([b"\x00", b"\xff"]),
            "t": pa.array([True, False]),
            "l": pa.array([[1, None], None]),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "after": pa.array([1, 2]),
        }
    )
    found = stats(table)
    # Of far dates the bound that has a text of Delta's stays.
    assert found["minValues"] == {"after": 1, "far": "1970-01-01T00:00:00.000"}
    assert found["maxValues"] == {"after": 2, "bc": "1970-01-01"}
    assert "l" not in found["nullCount"]
    assert found["nullCount"]["f"] == 0


def test_statistics_stop_where_delta_stops_reading_them() -> None:
    found = stats(pa.table({f"c{n}": [n] for n in range(40)}))
    assert len(found["minValues"]) == 32


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(max_size=2 * STRING_PREFIX), min_size=1, max_size=5))
def test_string_bounds_hold_every_string(values: list[str]) -> None:
    values = [v.encode("utf-8", "ignore").decode() for v in values]
    found = stats(pa.table({"s": pa.array(values, pa.string())}))
    for value in values:
        # Spark compares strings by their UTF-8 bytes.
        assert found["minValues"]["s"].encode() <= value.encode()
        assert value.encode() <= found["maxValues"]["s"].encode()


def test_a_string_of_the_highest_characters_still_has_an_upper_bound() -> None:
    value = "\U0010ffff" * 40
    found = stats(pa.table({"s": [value]}))
    assert value <= found["maxValues"]["s"]
