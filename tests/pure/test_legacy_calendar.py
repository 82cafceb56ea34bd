"""Dates before 1582 of files in Spark's legacy calendar; Spark itself is asked in
``spark/test_plain_read.py``."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.upsert.calendar import Legacy, legacy_of

UTC = Legacy(True, True, b"UTC")
VERSION = b"org.apache.spark.version"


def julian(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date in the Julian calendar, counted from 1 March of year 0."""
    y = year if month > 2 else year - 1
    m = (month - 3) % 12
    return 365 * y + y // 4 + (153 * m + 2) // 5 + day - 1 - 719_470


@given(st.dates(max_value=dt.date(1582, 10, 4)))
def test_the_date_is_the_same(date: dt.date) -> None:
    stored = pa.array([julian(date.year, date.month, date.day), None], pa.int32())
    found = UTC.meant(stored.cast(pa.date32()), is_int96=False)
    assert found.to_pylist() == [date, None]
    micros = pa.array([stored[0].as_py() * 86_400_000_000 + 7, None], pa.int64())
    found = UTC.meant(micros.cast(pa.timestamp("us", "UTC")), is_int96=True)
    assert found.cast(pa.timestamp("us")).to_pylist() == [
        dt.datetime(date.year, date.month, date.day, microsecond=7),
        None,
    ]


def test_days_that_only_one_calendar_has() -> None:
    stored = pa.array([julian(1500, 2, 29), julian(1500, 3, 1)], pa.int32())
    assert (
        UTC.meant(stored.cast(pa.date32()), is_int96=False).to_pylist()
        == [dt.date(1500, 3, 1)] * 2
    )


def test_what_is_not_that_old_stays_as_it_is() -> None:
    dates = pa.chunked_array([[dt.date(1582, 10, 15)], [dt.date(2026, 1, 1), None]])
    assert UTC.meant(dates, is_int96=False) == dates
    assert UTC.meant(pa.array(["x"]), is_int96=False) == pa.array(["x"])
    # Without a zone nothing is counted by Java.
    old = pa.array([-(1 << 56)], pa.timestamp("us"))
    assert UTC.meant(old, is_int96=False) == old
    partly = Legacy(dates=False, int96=True, zone=b"UTC")
    dates = pa.array([dt.date(1, 1, 1)])
    assert partly.meant(dates, is_int96=False) == dates


def test_dates_in_lists() -> None:
    day = pa.array([julian(1000, 1, 1)], pa.int32()).cast(pa.date32())[0].as_py()
    lists = pa.array([[day], None, [], [day, None]], pa.list_(pa.date32()))
    there = dt.date(1000, 1, 1)
    expected = [[there], None, [], [there, None]]
    assert UTC.meant(lists, is_int96=False).to_pylist() == expected
    assert UTC.meant(lists.slice(1), is_int96=False).to_pylist() == expected[1:]


def test_other_time_zones_are_refused_where_calendars_differ() -> None:
    berlin = Legacy(True, True, b"Europe/Berlin")
    kind = pa.timestamp("us", "UTC")
    new = pa.array([dt.datetime(1900, 1, 1)], pa.timestamp("us")).cast(kind)
    assert berlin.meant(new, is_int96=False) == new
    old = pa.array([dt.datetime(1899, 12, 31)], pa.timestamp("us")).cast(kind)
    with pytest.raises(FeatureNotSupportedError, match="Europe/Berlin"):
        berlin.meant(old, is_int96=False)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, None),
        ({}, None),
        ({VERSION: b"4.1.4"}, None),
        ({VERSION: b"2.4.8"}, Legacy(True, True, b"UTC")),
        ({VERSION: b"3.0.1"}, Legacy(False, True, b"UTC")),
        (
            {
                VERSION: b"4.1.4",
                b"org.apache.spark.legacyDateTime": b"",
                b"org.apache.spark.timeZone": b"Asia/Tokyo",
            },
            Legacy(True, False, b"Asia/Tokyo"),
        ),
    ],
)
def test_what_a_footer_says(
    said: dict[bytes, bytes] | None, expected: Legacy | None
) -> None:
    assert legacy_of(SimpleNamespace(metadata=said)) == expected
