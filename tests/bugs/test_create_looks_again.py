"""CREATE SUBSCRIPTION looks again, under the lock, at what it found before it talked to the
publisher: the caller may do less by then, and with connect = false his role may be gone.

A slot that was there when it looked, and gone when it made its own, was made without a note: a
command that failed then, or was killed, left it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.commands import Session, World

from wal2lake.catalog import Role
from wal2lake.commands.subscription import create
from wal2lake.commands.subscription.targets import Choices, WantedTables
from wal2lake.errors import PublisherError, UsageError
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")


class Publisher:
    """One without tables, and with the slots that it has."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = Session()
        self.slots: set[str] = set()
        self.made: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens while it is talked to."""
        self.world = world

        def patch(name: str, value: object) -> None:
            monkeypatch.setattr(create, name, value)

        patch("connect_publisher", lambda *_, **__: self.session)
        patch("Publisher", lambda session: self)
        patch("warn_of_missing", lambda *_: None)
        patch("ask_wanted", self.ask)
        patch("run_preflight", lambda *_, **__: None)
        patch("nudged", lambda *_, **__: Session())

    def ask(self, *_: object, **__: object) -> WantedTables:
        self.meanwhile()
        return WantedTables({}, True, True, Choices.of("", ""))

    def slot(self, name: str) -> dict[str, str] | None:
        return {} if name in self.slots else None

    def identify(self) -> Any:
        return SimpleNamespace(position=Lsn(7))

    def create_slot(self, name: str, **_: object) -> Any:
        assert [p.slot_name for p in self.world.catalog.planned_slots()] == [name]
        self.slots.add(name)
        self.made.append(name)
        return SimpleNamespace(consistent_point=Lsn(9))

    def drop_slot(self, name: str, *, missing_ok: bool) -> bool:
        self.slots.discard(name)
        return True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def publisher(world: World, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    return Publisher(world, monkeypatch)


def may_create(world: World, create_role: str) -> Role:
    world.run(create_role)
    world.run("grant pg_create_subscription to joe")
    world.run("grant create on database lake to joe")
    return world.role("joe")


def test_who_loses_his_rights_meanwhile_gets_no_subscription(
    world: World, publisher: Publisher
) -> None:
    joe = may_create(world, "create role joe")
    publisher.meanwhile = lambda: world.run("revoke pg_create_subscription from joe")
    with pytest.raises(UsageError, match="denied to create subscription"):
        world.run(
            "create subscription n connection 'host=p password=x' publication p",
            role=joe,
        )
    assert publisher.made == ["n"]
    assert world.catalog.subscription_named("n") is None
    assert (publisher.slots, world.catalog.planned_slots()) == (set(), [])


def test_a_superuser_who_is_none_any_more_has_to_give_a_password(
    world: World, publisher: Publisher
) -> None:
    joe = may_create(world, "create role joe superuser")
    publisher.meanwhile = lambda: world.run("alter role joe nosuperuser")
    with pytest.raises(UsageError, match="password is required"):
        world.run("create subscription n connection 'host=p' publication p", role=joe)
    assert publisher.made == ["n"]
    assert (publisher.slots, world.catalog.planned_slots()) == (set(), [])


def test_without_a_connection_the_role_may_be_gone_too(world: World) -> None:
    joe = may_create(world, "create role joe superuser")
    held = world.node.turns.making.try_hold("n")
    held.__enter__()

    def dropped_meanwhile() -> None:
        world.catalog.drop_roles([joe.oid])
        held.__exit__(None, None, None)

    with pytest.raises(UsageError, match="was concurrently dropped"):
        world.run(
            "create subscription n connection 'host=p' publication p"
            " with (connect = false)",
            role=joe,
            check=dropped_meanwhile,
        )
    assert world.catalog.subscription_named("n") is None


def test_a_slot_that_is_there_is_the_error_and_nothing_is_made(
    world: World, publisher: Publisher
) -> None:
    publisher.slots = {"n"}
    with pytest.raises(PublisherError) as raised:
        world.run("create subscription n connection 'host=p' publication p")
    assert raised.value.message == (
        'could not create replication slot "n": ERROR:  replication slot "n" already'
        " exists"
    )
    assert raised.value.sqlstate == "08P01"
    assert (publisher.slots, world.catalog.planned_slots()) == ({"n"}, [])
