"""An ALTER SUBSCRIPTION that has been committed has taken effect, whatever comes after it; one
that has not has left nothing; two at the same time are one after the other.

A copy whose commit did not end in time made REFRESH, and DISABLE, an error after the fact, and the
others heard of the change only then; tables that a failed REFRESH had made stayed; the copy of
the old connection's rows could be committed after CONNECTION; ENABLE and SET (slot_name = NONE)
each checked the state before the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Role,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.errors import StorageError, UsageError, Wal2LakeError
from wal2lake.frontend.backend import Notice
from wal2lake.frontend.commands.node import Caller, Node, SubscriptionLocks
from wal2lake.frontend.commands.subscription import COMMANDS, refresh
from wal2lake.frontend.commands.subscription.targets import Choices, Wanted
from wal2lake.frontend.grammar import parse
from wal2lake.model import Lsn, Oid, ReplicaIdentity, SyncState
from wal2lake.pg import RemoteColumn, RemoteTable
from wal2lake.settings import Settings
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

SUB, KEPT, GONE, NEW = Oid(20000), Oid(30000), Oid(30001), Oid(30002)


@dataclass
class Sync:
    """Copies that end at once, or do not."""

    catalog: Catalog
    ends: bool = True
    halted: list[tuple[Subscription | None, Collection[Oid] | None]] = field(
        default_factory=list
    )
    """What the catalog said when they were to end."""

    def halt(
        self,
        *,
        subid: Oid | None = None,
        relids: Collection[Oid] | None = None,
        timeout_seconds: float,
    ) -> bool:
        self.halted.append((self.catalog.subscription(SUB), relids))
        return self.ends


class World:
    """A node without workers, and a publisher that has a table less and one more."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        self.sync = Sync(self.catalog)
        self.told: list[str] = []
        self.notices: list[Notice] = []
        self.dropped: list[str] = []
        unused: Any = None
        sync: Any = self.sync
        tables: Any = SimpleNamespace(
            state=lambda location: SimpleNamespace(version=0),
            exists=lambda location: False,
            create=lambda *_: None,
            drop=self.dropped.append,
        )
        self.node = Node(
            catalog=self.catalog,
            settings=Settings(directory=directory),
            tables=tables,
            queries=unused,
            apply=unused,
            sync=sync,
            locks=SubscriptionLocks(),
            branches=unused,
            keys=unused,
            changed=lambda: self.told.append("changed"),
        )
        for oid in (KEPT, GONE):
            self.catalog.create_table(table(oid))
        self.catalog.create_subscription(
            Subscription(SUB, "s", Oid(10), True, "host=old", "s", ("p",)),
            [rel(KEPT), rel(GONE)],
            {int(KEPT): 1, int(GONE): 1},
        )

        def ask_wanted(*_: object, **__: object) -> Wanted:
            published = {("public", f"t{oid}"): remote(oid) for oid in (KEPT, NEW)}
            return Wanted(published, True, True, Choices.of("", ""), SUB)

        monkeypatch.setattr(refresh, "connect_publisher", lambda *_, **__: Session())
        monkeypatch.setattr(refresh, "ask_wanted", ask_wanted)
        monkeypatch.setattr(refresh, "look_before", lambda *_: None)

    def run(self, sql: str) -> str:
        statement = parse(sql)
        caller = Caller(Role(Oid(10), "me", True, None), self.notices.append)
        return COMMANDS[type(statement)](self.node, caller, statement)

    @property
    def now(self) -> Subscription:
        found = self.catalog.subscription(SUB)
        assert found is not None
        return found


class Session:
    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None: ...


def table(oid: Oid) -> TableDef:
    return TableDef(
        oid, "public", f"t{oid}", Oid(10), (ColumnDef("id", Oid(23)),), (), f"/t{oid}"
    )


def remote(oid: Oid) -> RemoteTable:
    """What the publisher has: one column, no key."""
    id_ = RemoteColumn(
        "id",
        Oid(23),
        -1,
        "int4",
        "b",
        0,
        not_null=True,
        default=None,
        is_identity_key=False,
        toastable=False,
    )
    return RemoteTable(
        oid,
        "public",
        f"t{oid}",
        "r",
        ReplicaIdentity.DEFAULT,
        (id_,),
        (),
        (),
        (),
        None,
        0,
        None,
        "p",
        row_security=False,
    )


def rel(oid: Oid) -> SubscriptionRel:
    return SubscriptionRel(
        SUB, oid, "public", f"t{oid}", SyncState.READY, Lsn(5), int(oid)
    )


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
    (warning,) = world.notices
    assert (warning.severity, warning.sqlstate) == ("WARNING", "55006")
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
    with world.node.altering.hold(SUB, lambda: None):
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
    with world.node.altering.try_hold(SUB) as free:
        return free
