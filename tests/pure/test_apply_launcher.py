"""One apply worker for each enabled subscription, whatever ended the last one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.altering import never_alter
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.model import Lsn, Oid
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found


@pytest.fixture
def launcher(world: World) -> Iterator[ApplyLauncher]:
    found = ApplyLauncher(
        world.catalog,
        world.settings,
        world.lake,  # type: ignore[arg-type]
        world.lake,
        lambda subid: world.side.lock,
        never_alter,
    )
    found.start()
    yield found
    found.stop(30)


def insert(lsn: int, value: bytes = b"v") -> Transaction:
    return Transaction(lsn, (Change(1, "I", (b"%d" % lsn, value)),))


def enable(world: World, enabled: bool) -> None:
    world.catalog.update_subscription(Oid(1), enabled=enabled)


def test_a_disabled_subscription_has_none_and_an_enabled_one_has(
    world: World, launcher: ApplyLauncher
) -> None:
    world.side.send(insert(100))
    world.side.reaches(108)
    enable(world, False)
    assert launcher.halt(Oid(1), 30)
    wait_until(lambda: world.side.progress.word("engine_pid") == 0)
    world.side.send(insert(200))
    enable(world, True)
    world.side.reaches(208)


def test_one_that_was_told_to_stop_while_it_was_busy_has_a_successor(
    world: World, launcher: ApplyLauncher
) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def commit(_: str) -> None:
        busy.set()
        go_on.wait(30)

    world.lake.before_commit = commit
    world.side.send(insert(100))
    assert busy.wait(30)
    enable(world, False)
    assert not launcher.halt(Oid(1), 0.1), "it ends after the batch in hand"
    # Whoever wanted it to end has given up.
    enable(world, True)
    go_on.set()
    world.side.send(insert(200))
    world.side.reaches(208)


def test_a_session_that_waits_for_a_state_hears_of_the_end_of_the_worker(
    world: World, launcher: ApplyLauncher
) -> None:
    world.side.send(insert(100))
    world.side.reaches(108)
    mark = launcher.mark(Oid(1), Lsn(10**9))
    assert mark is not None
    enable(world, False)
    assert mark.wait(30, lambda: None)
    assert mark.vector is None


def test_an_error_that_cannot_be_recorded_ends_nothing(
    world: World, launcher: ApplyLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def full(*_: object) -> None:
        refused.set()
        raise sqlite3.OperationalError("database or disk is full")

    world.lake.poison = {b"bad"}
    with monkeypatch.context() as patched:
        patched.setattr(world.catalog, "note_error", full)
        world.side.send(insert(100, b"bad"))
        assert refused.wait(30)
        world.lake.poison = set()
    world.side.reaches(108)
