"""DROP SUBSCRIPTION and a re-copy that fail leave everything as it was, or go on to the end.

A re-copy whose slot was fine, and whose tables could not be made, went on behind its user's back.
A DROP, or a re-copy, that was cancelled while the publisher dropped the slot took its mark back:
the subscription was left without a slot. So was one whose slot was dropped, and the catalog could
not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.commands import NEW, SUB, Session, World

from wal2lake.catalog import Recopy, Subscription
from wal2lake.commands.subscription import refresh
from wal2lake.commands.subscription.steps import drop, recopy
from wal2lake.errors import PublisherError, StorageError, UsageError

pytestmark = pytest.mark.usefixtures("no_fsync")

RECOPY = "alter subscription s refresh publication with (recopy = true)"
DROP = "drop subscription s"


class Publisher:
    """What becomes of the slot."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = Session()
        self.goes_on = False
        self.fails: Exception | None = None
        self.dropped: list[str] = []

        def connect(*_: object, **__: object) -> Session:
            return self.session

        identity = SimpleNamespace(system_identifier="7", timeline=1)
        publisher = SimpleNamespace(identify=lambda: identity)
        for where, name, value in [
            (refresh, "connect_publisher", connect),
            (recopy, "Publisher", lambda _: publisher),
            (recopy, "_slot_can_continue", lambda *_: self.goes_on),
            (recopy, "await_workers", lambda *_: None),
            (recopy, "drop_slot", self.drop),
            (drop, "connect_to_drop", connect),
            (drop, "await_workers", lambda *_: None),
            (drop, "drop_slot", self.drop),
        ]:
            monkeypatch.setattr(where, name, value)

    def drop(self, _: Session, slot: str, *, missing_ok: bool) -> bool:
        if self.fails is not None:
            raise self.fails
        self.dropped.append(slot)
        return True

    @contextmanager
    def fail(self, *, unanswered: bool) -> Iterator[None]:
        self.session.unanswered = unanswered
        self.fails = UsageError("canceling statement", sqlstate="57014")
        with pytest.raises(UsageError, match="canceling statement"):
            yield


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def publisher(world: World, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    return Publisher(world, monkeypatch)


def state(world: World) -> tuple[bool, bool, Recopy, str | None]:
    now = world.now
    return now.enabled, now.dropping, now.recopying, now.slot_name


AS_BEFORE = (True, False, Recopy.NO, "s")


def test_a_recopy_whose_slot_is_intact_and_whose_tables_cannot_be_made_is_undone(
    world: World, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.goes_on = True
    rels = world.catalog.rels(SUB)

    def full(*_: object, **__: object) -> Subscription:
        raise StorageError("no space left on device", sqlstate="53100")

    monkeypatch.setattr(world.catalog, "copy_anew", full)
    with pytest.raises(StorageError):
        world.run(RECOPY)
    assert state(world) == AS_BEFORE
    assert world.catalog.rels(SUB) == rels
    assert world.catalog.table("public", f"t{NEW}") is None


@pytest.mark.parametrize("sql", [RECOPY, DROP])
def test_a_drop_of_the_slot_that_was_refused_or_cancelled_in_time_undoes_the_command(
    world: World, publisher: Publisher, sql: str
) -> None:
    with publisher.fail(unanswered=False):
        world.run(sql)
    assert state(world) == AS_BEFORE
    assert [n for n in world.notices if n.severity == "WARNING"] == []


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        (RECOPY, (True, False, Recopy.GIVEN_UP, "s")),
        (DROP, (False, True, Recopy.NO, "s")),
    ],
)
def test_if_nobody_knows_whether_the_slot_is_dropped_the_node_goes_on(
    world: World, publisher: Publisher, sql: str, left: object
) -> None:
    with publisher.fail(unanswered=True):
        world.run(sql)
    assert state(world) == left
    (warning,) = [n for n in world.notices if n.severity == "WARNING"]
    assert warning.message == (
        'publisher has not said whether replication slot "s" was dropped'
    )
    assert "this node goes on" in str(warning.detail).lower()


def test_a_drop_whose_slot_is_gone_stays_one_though_the_catalog_cannot_be_written(
    world: World, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = world.catalog.update_subscription

    def full(*arguments: Any, **changes: Any) -> Subscription:
        if "slot_name" in changes:
            raise StorageError("no space left on device", sqlstate="53100")
        return update(*arguments, **changes)

    monkeypatch.setattr(world.catalog, "update_subscription", full)
    with pytest.raises(StorageError):
        world.run(DROP)
    assert publisher.dropped == ["s"]
    assert state(world) == (False, True, Recopy.NO, "s")


def test_a_publisher_that_cannot_be_reached_undoes_a_drop(
    world: World, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> Session:
        raise PublisherError("no route to host", sqlstate="08006")

    monkeypatch.setattr(drop, "connect_to_drop", away)
    with pytest.raises(PublisherError):
        world.run(DROP)
    assert state(world) == AS_BEFORE
