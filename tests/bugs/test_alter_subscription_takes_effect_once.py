"""An ALTER SUBSCRIPTION that has been committed has taken effect, whatever comes after it; one
that has not has left nothing; two at the same time are one after the other.

A copy whose commit did not end in time made REFRESH, and DISABLE, an error after the fact, and the
others heard of the change only then; tables that a failed REFRESH had made stayed; the copy of
the old connection's rows could be committed after CONNECTION; ENABLE and SET (slot_name = NONE)
each checked the state before the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.commands import GONE, KEPT, NEW, SUB, World

from wal2lake.catalog import (
    Subscription,
    SyncSnapshot,
)
from wal2lake.errors import StorageError, UsageError, Wal2LakeError
from wal2lake.local.concurrency.turns import Waiter
from wal2lake.model import Lsn
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "sql",
    [
        "alter subscription s refresh publication",
        "alter subscription s disable",
        "alter subscription s connection 'host=new'",
    ],
)
def test_a_copy_that_does_not_end_in_time_is_a_warning_after_the_command_has_worked(
    world: World, sql: str
) -> None:
    world.sync.ends = False
    before = world.now
    assert world.run(sql) == "ALTER SUBSCRIPTION"
    (warning,) = (one for one in world.notices if one.severity == "WARNING")
    assert warning.sqlstate == "55006"
    assert (
        warning.message == 'tablesync worker of subscription "s" has not ended in time'
    )
    names = {r.remote_name for r in world.catalog.rels(SUB)}
    assert world.now != before or names == {f"t{KEPT}", f"t{NEW}"}


def test_the_others_hear_of_a_refresh_before_it_waits_for_copies(world: World) -> None:
    heard: list[list[str]] = []
    halt = world.sync.halt

    def listening(**arguments: Any) -> bool:
        heard.append(list(world.told))
        return halt(**arguments)

    world.sync.halt = listening  # type: ignore[method-assign]
    world.run("alter subscription s refresh publication")
    assert heard == [["changed"]]
    assert [relids for _, relids in world.sync.halted] == [{GONE}]


def test_a_refresh_that_cannot_be_recorded_leaves_no_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Subscription:
        raise StorageError("no space left on device", sqlstate="53100")

    monkeypatch.setattr(world.catalog, "set_publications", full)
    with pytest.raises(Wal2LakeError, match="no space"):
        world.run("alter subscription s refresh publication")
    assert [location.rpartition("/")[2] for location in world.dropped] == [f"t{NEW}"]
    assert world.catalog.table("public", f"t{NEW}") is None
    assert world.told == []


def test_no_copy_of_the_old_connection_goes_on_after_connection(world: World) -> None:
    world.catalog.hold_snapshot(
        SyncSnapshot(SUB, "00000003-00000002-1", Lsn(9), "1", (int(KEPT),))
    )
    generation = world.now.generation
    world.run("alter subscription s connection 'host=new'")
    ((seen, relids),) = world.sync.halted
    assert relids is None
    assert seen is not None
    assert (seen.conninfo, seen.generation) == ("host=new", generation + 1)
    # The other server may have a snapshot of that very name.
    assert world.catalog.snapshot_held(SUB) is None


FORMS = [
    "enable",
    "disable",
    "connection 'host=new'",
    "rename to r",
    "skip (lsn = '0/64')",
    "set (slot_name = 'other')",
    "refresh publication",
    "drop publication p with (refresh = false)",
]


@pytest.mark.parametrize("form", FORMS)
def test_two_alters_at_once_are_one_after_the_other(world: World, form: str) -> None:
    done: list[str] = []

    def other() -> None:
        try:
            done.append(world.run(f"alter subscription s {form}"))
        except UsageError as error:
            done.append(error.message)

    before = world.now, world.catalog.rels(SUB)
    thread = threading.Thread(target=other)
    with world.node.turns.altering.hold(SUB, Waiter(lambda: None)):
        thread.start()
        thread.join(0.2)
        assert not done, "it waits"
        assert (world.now, world.catalog.rels(SUB)) == before
    thread.join(10)
    assert len(done) == 1


def test_enable_and_slot_name_none_at_once_do_not_both_work(world: World) -> None:
    world.catalog.update_subscription(SUB, enabled=False)
    write = world.catalog.alter_subscription
    gate = threading.Event()

    def slow(*arguments: Any, **more: Any) -> Subscription:
        assert gate.wait(10)
        return write(*arguments, **more)

    world.catalog.alter_subscription = slow  # type: ignore[method-assign]
    ended: dict[str, str] = {}

    def command(form: str) -> Callable[[], None]:
        def run() -> None:
            try:
                ended[form] = world.run(f"alter subscription s {form}")
            except UsageError as error:
                ended[form] = error.message

        return run

    forms = ("set (slot_name = none)", "enable")
    threads = [threading.Thread(target=command(form)) for form in forms]
    threads[0].start()
    wait_until(lambda: not _is_free(world), describe="the first one is at work")
    threads[1].start()
    threads[1].join(0.2)
    gate.set()
    for thread in threads:
        thread.join(10)
    assert ended == {
        forms[0]: "ALTER SUBSCRIPTION",
        forms[1]: "cannot enable subscription that does not have a slot name",
    }
    assert (world.now.enabled, world.now.slot_name) == (False, None)


def _is_free(world: World) -> bool:
    with world.node.turns.altering.try_hold(SUB) as free:
        return free
