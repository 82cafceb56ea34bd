"""Any role could keep the node from finishing an interrupted DROP or re-copy: it waited for the
subscription's turn before anybody asked whether it may change the subscription, and the node's own
work steps aside for whoever wants the turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.commands import SUB, World

from wal2lake.catalog import Role
from wal2lake.errors import UsageError
from wal2lake.model import Oid

pytestmark = pytest.mark.usefixtures("no_fsync")

OTHER, OWNER = Oid(16500), Oid(16501)


def waits() -> None:
    raise AssertionError("the turn is waited for")


@pytest.mark.parametrize(
    "form",
    [
        "alter subscription s enable",
        "alter subscription s refresh publication",
        "alter subscription s owner to other",
        "alter subscription s rename to r",
        "drop subscription s",
    ],
)
def test_who_may_not_change_it_does_not_wait_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    world = World(tmp_path, monkeypatch)
    role = Role(OTHER, "other", False, None)
    world.catalog.create_role(role)
    with (
        world.node.turns.altering.try_hold(SUB),
        pytest.raises(UsageError, match="must be owner of subscription s"),
    ):
        world.run(form, role=role, check=waits)


def test_it_is_asked_again_after_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    role = Role(OTHER, "other", False, None)
    world.catalog.create_role(role)
    world.catalog.create_role(Role(OWNER, "owner", False, None))
    world.catalog.update_subscription(SUB, owner=OTHER)
    held = world.node.turns.altering.try_hold(SUB)
    held.__enter__()

    def given_away_meanwhile() -> None:
        world.catalog.update_subscription(SUB, owner=OWNER)
        held.__exit__(None, None, None)

    with pytest.raises(UsageError, match="must be owner of subscription s"):
        world.run("alter subscription s disable", role=role, check=given_away_meanwhile)
    assert world.now.enabled
