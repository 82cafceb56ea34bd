"""Zones: what a setting means, and what AT TIME ZONE names. PostgreSQL 18 gave the answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wal2lake.door.session.commands import SetParameter, parse_command
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.pgtypes import zone_for
from wal2lake.pgtypes.abbreviations import expression_zone, interval_zone

SUMMER = datetime(2024, 7, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "shown", "local"),
    [
        ("5.5", "<+05:30>-05:30", "05:30"),
        ("+5", "<+05>-05", "05:00"),
        (" 5", "<+05>-05", "05:00"),
        ("0x5", "<+05>-05", "05:00"),
        ("5e0", "<+05>-05", "05:00"),
        ("1.234", "<+01:14:02>-01:14:02", "01:14"),
        ("<+01:14:02>-01:14:02", "<+01:14:02>-01:14:02", "01:14"),
        ("-7", "<-07>+07", "17:00"),
        ("+05:30", "+05:30", "18:30"),
        ("-05:30", "-05:30", "05:30"),
        ("05:30", "05:30", "18:30"),
        ("<+05:30>-05:30", "<+05:30>-05:30", "05:30"),
        ("XST7:30", "XST7:30", "16:30"),
        ("<x>3", "<X>3", "21:00"),
        ("ab3", "AB3", "21:00"),
        ("UTC0", "UTC0", "00:00"),
        ("cet", "CET", "02:00"),
    ],
)
def test_a_setting_means_what_it_means_in_postgresql(
    value: str, shown: str, local: str
) -> None:
    name, zone = zone_for(value)
    assert name == shown
    assert f"{SUMMER.astimezone(zone):%H:%M}" == local
    assert zone_for(name)[0] == shown, "the stored form is read again"


@pytest.mark.parametrize(
    ("value", "message", "detail"),
    [
        (
            "170",
            'invalid value for parameter "TimeZone": "170"',
            "UTC timezone offset is out of range.",
        ),
        (
            "+05:30:15",
            'time zone "+05:30:15" appears to use leap seconds',
            "PostgreSQL does not support leap seconds.",
        ),
        ("5 ", 'invalid value for parameter "TimeZone": "5 "', None),
        ("PST", 'invalid value for parameter "TimeZone": "PST"', None),
    ],
)
def test_a_wrong_setting_is_refused(
    value: str, message: str, detail: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        zone_for(value)
    error = caught.value
    assert (error.sqlstate, error.message, error.detail) == ("22023", message, detail)


@pytest.mark.parametrize(
    ("text", "session", "local"),
    [
        ("CET", "UTC", "01:00"),
        ("cet", "Europe/Berlin", "01:00"),
        ("Europe/Berlin", "UTC", "02:00"),
        ("WET", "UTC", "00:00"),
        ("PST", "UTC", "16:00"),
        ("IST", "UTC", "02:00"),
        ("z", "UTC", "00:00"),
        ("EST5EDT", "UTC", "20:00"),
        ("+05:30", "UTC", "18:30"),
        ("+05:30", "5.5", "05:30"),
        ("5", "UTC", "19:00"),
        ("UTC+3", "UTC", "21:00"),
        ("+05:30:15", "UTC", "18:29"),
    ],
)
def test_an_expression_knows_abbreviations_first(
    text: str, session: str, local: str
) -> None:
    assert f"{SUMMER.astimezone(expression_zone(text, session)[1]):%H:%M}" == local


@pytest.mark.parametrize(
    ("text", "session", "sqlstate", "message"),
    [
        ("Mars", "UTC", "22023", 'time zone "Mars" not recognized'),
        ("msk", "UTC", "0A000", 'time zone abbreviation "msk" is not supported'),
        (
            "IST",
            "Asia/Kolkata",
            "0A000",
            'time zone abbreviation "IST" is not supported',
        ),
    ],
)
def test_a_zone_without_one_meaning_is_refused(
    text: str, session: str, sqlstate: str, message: str
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        expression_zone(text, session)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    assert caught.value.hint == (
        "Use a zone's name, as America/New_York." if sqlstate == "0A000" else None
    )


def test_an_interval_is_a_zone_ahead() -> None:
    assert f"{SUMMER.astimezone(interval_zone('05:30:00')[1]):%H:%M}" == "05:30"
    with pytest.raises(UsageError) as caught:
        interval_zone("1 day")
    assert caught.value.message == (
        'interval time zone "1 day" must not include months or days'
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("interval '+05:30' hour to minute", "<+05:30>-05:30"),
        ("interval '-8' hour", "<-08>+08"),
        ("interval '-08:00'", "<-08>+08"),
        ("-7", "<-07>+07"),
    ],
)
def test_set_time_zone_takes_an_interval(text: str, shown: str) -> None:
    command = parse_command(f"set time zone {text}")
    assert isinstance(command, SetParameter)
    assert command.values is not None
    assert zone_for(command.values[0])[0] == shown


@pytest.mark.parametrize("text", ["1 day", "1 month"])
def test_an_interval_of_days_is_no_zone(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command(f"set time zone interval '{text}'")
    unit = text.removeprefix("1 ")
    assert caught.value.detail == f"Cannot specify {unit}s in time zone interval."
