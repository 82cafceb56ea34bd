"""What becomes of a slot that a crashed CREATE SUBSCRIPTION had planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, PlannedSlot, Subscription
from wal2lake.frontend.commands.subscription.steps.unfinished import Verdict, judge_slot
from wal2lake.model import Lsn, Oid

PLANNED = PlannedSlot("s", "host=p dbname=app", "s", Lsn.parse("0/2000"))

OURS: dict[str, str | None] = {
    "plugin": "pgoutput",
    "database": "app",
    "active_pid": None,
    "wal_status": "reserved",
    "confirmed_flush_lsn": "0/2100",
    "restart_lsn": "0/2080",
    "query": None,
}


@pytest.mark.parametrize(
    ("slot", "verdict"),
    [
        (OURS, Verdict.DROP),
        ({**OURS, "restart_lsn": "0/2000"}, Verdict.DROP),
        (None, Verdict.LEAVE),
        # Somebody else's: older than the plan, of another kind, or in use.
        ({**OURS, "restart_lsn": "0/1FFF"}, Verdict.LEAVE),
        ({**OURS, "restart_lsn": None}, Verdict.LEAVE),
        ({**OURS, "plugin": "wal2json"}, Verdict.LEAVE),
        ({**OURS, "plugin": None}, Verdict.LEAVE),
        ({**OURS, "database": "other"}, Verdict.LEAVE),
        (
            {**OURS, "active_pid": "7", "query": 'START_REPLICATION SLOT "s" LOGICAL'},
            Verdict.LEAVE,
        ),
        ({**OURS, "active_pid": "7", "query": None}, Verdict.LEAVE),
        # The publisher goes on making it for a client that is gone.
        (
            {
                **OURS,
                "active_pid": "7",
                "restart_lsn": None,
                "query": 'CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput',
            },
            Verdict.WAIT,
        ),
    ],
)
def test_only_a_slot_that_is_surely_ours_is_dropped(
    slot: dict[str, str | None] | None, verdict: Verdict
) -> None:
    assert judge_slot(slot, "app", PLANNED) is verdict


def test_recording_a_subscription_ends_the_plan_of_its_slot_in_the_same_transaction(
    tmp_path: Path,
) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    other = PlannedSlot("other", "host=p", "o", Lsn.parse("0/1"), True)
    catalog.plan_slot(PLANNED)
    catalog.plan_slot(other)
    assert catalog.planned_slots() == [other, PLANNED]
    before = catalog.change_counter
    subscription = Subscription(
        Oid(20000),
        "s",
        Oid(10),
        True,
        PLANNED.conninfo,
        "s",
        ("p",),
        floor=Lsn.parse("0/2100"),
    )
    catalog.create_subscription(subscription, [], {})
    assert catalog.change_counter == before + 1
    assert catalog.planned_slots() == [other]
    vector = catalog.newest_vector(subscription.oid)
    assert vector is not None
    assert vector.lsn == Lsn.parse("0/2100")
