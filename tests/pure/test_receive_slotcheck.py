"""Which slots can go on with what was received, and what is said of the others."""

from __future__ import annotations

import pytest

from wal2lake.model import Lsn
from wal2lake.receive.source.slotcheck import UnusableSlot, check_slot

OURS: dict[str, str | None] = {
    "plugin": "pgoutput",
    "database": "app",
    "active_pid": None,
    "wal_status": "reserved",
    "confirmed_flush_lsn": "0/2000",
    "restart_lsn": "0/1000",
    "query": None,
    "slot_type": "logical",
    "invalidation_reason": None,
}


def check(
    slot: dict[str, str | None] | None, received: int | None, *, same: bool = True
) -> Lsn:
    return check_slot(
        slot,
        name="s",
        database="app",
        received=None if received is None else Lsn(received),
        same=same,
    )


@pytest.mark.parametrize("received", [0x2000, 0x2001, None])
def test_a_slot_at_or_below_what_was_received_goes_on(received: int | None) -> None:
    assert check(OURS, received) == 0x2000


def test_one_that_nothing_has_come_from_may_start_anywhere() -> None:
    assert check(OURS, 0x1000, same=False) == 0x2000


def test_one_that_is_being_made_has_no_position_yet() -> None:
    assert check({**OURS, "confirmed_flush_lsn": None}, 0x1000) == 0


@pytest.mark.parametrize(
    ("changed", "sqlstate", "message", "detail"),
    [
        (None, "42704", 'replication slot "s" does not exist', None),
        (
            {"wal_status": "lost", "invalidation_reason": "wal_removed"},
            "55000",
            'can no longer access replication slot "s"',
            'This replication slot has been invalidated due to "wal_removed".',
        ),
        (
            {"wal_status": "lost"},
            "55000",
            'can no longer access replication slot "s"',
            'This replication slot has been invalidated due to "wal_removed".',
        ),
        (
            {"wal_status": "lost", "invalidation_reason": "idle_timeout"},
            "55000",
            'can no longer access replication slot "s"',
            'This replication slot has been invalidated due to "idle_timeout".',
        ),
        (
            {"database": "other"},
            "55000",
            'replication slot "s" was not created in this database',
            'It belongs to database "other".',
        ),
        (
            {"plugin": "test_decoding"},
            "55000",
            'replication slot "s" uses output plugin "test_decoding", and not "pgoutput"',
            None,
        ),
        (
            {"slot_type": "physical", "plugin": None, "database": None},
            "55000",
            "cannot use physical replication slot for logical decoding",
            'The slot is "s".',
        ),
        (
            {"confirmed_flush_lsn": "0/2001"},
            "55000",
            'replication slot "s" starts at 0/2001, above 0/2000, up to where everything'
            " has been received",
            "It was dropped and created again, or advanced by hand: what was committed in"
            " between will not be sent.",
        ),
    ],
)
def test_others_are_refused_in_postgresqls_words_with_a_way_out(
    changed: dict[str, str | None] | None,
    sqlstate: str,
    message: str,
    detail: str | None,
) -> None:
    with pytest.raises(UnusableSlot) as caught:
        check(None if changed is None else {**OURS, **changed}, 0x2000)
    error = caught.value
    assert (error.sqlstate, error.message, error.detail) == (sqlstate, message, detail)
    assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error.hint)
    # A slot that is somebody else's stays: the subscription must name its own.
    own = changed is None or not changed.keys() & {"database", "plugin"}
    assert str(error.hint).startswith("Name the subscription's own slot") == (not own)


def test_a_slot_that_was_never_there_is_to_be_made() -> None:
    with pytest.raises(UnusableSlot) as caught:
        check(None, None)
    assert "pg_create_logical_replication_slot('s', 'pgoutput')" in str(
        caught.value.hint
    )
