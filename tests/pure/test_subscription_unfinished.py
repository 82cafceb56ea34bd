"""What becomes of a slot that a crashed CREATE SUBSCRIPTION had planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fakes.commands import Session, World

from wal2lake.catalog import Catalog, PlannedSlot, Subscription
from wal2lake.commands.subscription.steps import unfinished
from wal2lake.commands.subscription.steps.unfinished import (
    UnfinishedCommands,
    Verdict,
    judge_slot,
)
from wal2lake.errors import PublisherError
from wal2lake.local.concurrency.turns import Waiter
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


class Servers:
    """What is asked of publishers, each known by its connection string."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away: set[str] = set()
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens after the slot was looked at."""
        self.unfinished = UnfinishedCommands(world.node)
        monkeypatch.setattr(unfinished, "connect", self.connect)
        monkeypatch.setattr(unfinished, "Publisher", lambda session: self)
        self.session = Session()

    def connect(self, conninfo: str, **_: object) -> Session:
        self.asked.append(conninfo)
        if conninfo in self.away:
            raise PublisherError("no route to host")
        return self.session

    def slot(self, _: str) -> dict[str, str | None]:
        self.meanwhile()
        return OURS

    def drop_idle_slot(self, name: str) -> None:
        self.dropped.append(name)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Servers:
    return Servers(world, monkeypatch)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


A = PlannedSlot("new", "host=a", "new", Lsn.parse("0/2000"))
B = PlannedSlot("new", "host=b", "new", Lsn.parse("0/2000"))


def test_a_command_that_makes_a_slot_of_that_name_is_not_interfered_with(
    world: World, servers: Servers
) -> None:
    """Its connection string may be another text for the same server."""
    world.catalog.plan_slot(A)
    with world.node.turns.making.hold("new", Waiter(lambda: None)):
        servers.unfinished._drop("new")
    assert (servers.asked, servers.dropped) == ([], [])
    world.catalog.create_subscription(
        Subscription(Oid(20001), "new", Oid(10), True, "host=b", "new", ("p",)), [], {}
    )
    servers.unfinished._drop("new")
    assert (servers.asked, servers.dropped) == ([], [])
    world.catalog.drop_subscription(Oid(20001))
    servers.unfinished._drop("new")
    assert servers.dropped == ["new"]
    assert world.catalog.planned_slots() == []


def test_a_slot_that_somebody_takes_meanwhile_stays(
    world: World, servers: Servers
) -> None:
    world.catalog.plan_slot(A)
    (s,) = world.catalog.subscriptions()
    servers.meanwhile = lambda: world.catalog.update_subscription(
        s.oid, slot_name="new"
    )
    servers.unfinished._drop("new")
    assert servers.dropped == []


def test_of_two_left_overs_of_one_name_the_one_that_is_away_does_not_hold_up_the_other(
    world: World, servers: Servers
) -> None:
    world.catalog.plan_slot(A)
    world.catalog.plan_slot(B)
    servers.away = {"host=a"}
    servers.unfinished._drop("new")
    assert servers.asked == ["host=a", "host=b"]
    assert (world.catalog.planned_slots(), servers.dropped) == ([A], ["new"])
