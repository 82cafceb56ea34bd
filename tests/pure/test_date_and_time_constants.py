"""What the input functions of dates and times make of a text with a zone; PostgreSQL 18 answers
the same."""

from __future__ import annotations

import pytest

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments import (
    parse_moment,
    parse_time,
    parse_timetz,
)

_HOUR = 3_600_000_000
_ZONE = "Asia/Tokyo"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01 +00", 0),
        ("1970-01-01  +00", 0),
        ("1970-01-01+02", -2 * _HOUR),
        ("1970-01-01 -02", 2 * _HOUR),
        ("1970-01-01 +5", -5 * _HOUR),
        ("1970-01-01 +0530", -11 * _HOUR // 2),
        ("1970-01-01 Z", 0),
        ("1970-01-01Z", 0),
        ("1970-01-01", -9 * _HOUR),
        ("1970-01-01 00:00+5", -5 * _HOUR),
    ],
)
def test_a_date_may_have_a_zone(text: str, micros: int) -> None:
    assert parse_moment(text, t.TIMESTAMPTZ, _ZONE) == micros
    assert parse_moment(text, t.TIMESTAMP, _ZONE) == 0
    assert parse_moment(text, t.DATE, _ZONE) == 0


@pytest.mark.parametrize(
    ("text", "time", "timetz"),
    [
        ("00:00:00+00", "00:00:00", "00:00:00+00"),
        ("24:00:00+00", "24:00:00", "24:00:00+00"),
        ("03:04:05.678-0830", "03:04:05.678", "03:04:05.678-08:30"),
        ("03:04:05 Z", "03:04:05", "03:04:05+00"),
        ("03:04+5", "03:04:00", "03:04:00+05"),
        ("03:04:05 +02:30:15", "03:04:05", "03:04:05+02:30:15"),
        ("03:04:05", "03:04:05", "03:04:05+09"),
    ],
)
def test_a_time_may_have_a_zone(text: str, time: str, timetz: str) -> None:
    assert parse_time(text) == time
    assert parse_timetz(text, _ZONE) == timetz


@pytest.mark.parametrize("text", ["1970-01-01 +16", "1970-01-01 00:00:00 +02:60"])
@pytest.mark.parametrize("oid", [t.DATE, t.TIMESTAMP, t.TIMESTAMPTZ])
def test_a_zone_is_less_than_sixteen_hours_away(text: str, oid: int) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        parse_moment(text, oid, "UTC")
    assert caught.value.sqlstate == "22009"
    assert str(caught.value) == f'time zone displacement out of range: "{text}"'


def test_a_hyphen_behind_a_date_is_no_zone() -> None:
    with pytest.raises(Wal2LakeError):
        parse_moment("1970-01-01-02", t.DATE, "UTC")
