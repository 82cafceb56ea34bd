"""A local write to a table that a subscription takes at that moment.

The writer had seen no subscription, and the subscription no row: inserts of the publisher were
trusted to meet none, and readers were kept at the version before the write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.commands import NEW, SUB, World, table

from wal2lake.catalog import SubscriptionRel
from wal2lake.commands.tables.dml import run_dml
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.sql.backend import TransactionKind
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

T = table(NEW)
REFRESH = "alter subscription s refresh publication"


class Writer:
    """INSERT INTO the table, which is there and in no subscription."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens before the write is committed."""
        world.catalog.create_table(T)
        queries: Any = SimpleNamespace(run=self.write)
        world.node.queries = queries

    def write(self, sql: str, **_: object) -> Any:
        if sql == "insert":
            self.meanwhile()
            self.world.versions[T.location] += 1
        return SimpleNamespace(batches=[])

    def run(self) -> None:
        node, unused = self.world.node, cast("Any", None)
        node.tables.actions = lambda *_: []  # type: ignore[method-assign]
        transaction = LocalTransaction(node, TransactionKind.STATEMENT)
        try:
            (target,) = transaction.targets([T], unused, "job")
            write = SparkWrite(target, "insert", "INSERT")
            run_dml(node, write, lambda one: transaction.run(one, unused, "job"))
        finally:
            transaction.rollback()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def joined(world: World) -> SubscriptionRel:
    return next(r for r in world.catalog.rels(SUB) if r.relid == NEW)


def seen(world: World) -> int:
    vector = world.catalog.newest_vector(SUB)
    assert vector is not None
    return vector.versions[int(NEW)]


def test_the_table_joins_when_the_write_is_done(world: World) -> None:
    writer = Writer(world)
    refresh = threading.Thread(target=world.run, args=(REFRESH,))

    def begin() -> None:
        refresh.start()
        wait_until(lambda: not is_free(world), describe="REFRESH is at work")
        refresh.join(0.2)
        assert refresh.is_alive(), "it waits"

    writer.meanwhile = begin
    writer.run()
    refresh.join(10)
    assert not joined(world).trusted
    assert seen(world) == 1


def test_a_write_that_has_waited_for_it_tells_the_subscription(world: World) -> None:
    writer = Writer(world)
    writing = threading.Thread(target=writer.run)
    asked = threading.Event()
    known = world.node.tables.writing

    def noted(location: str) -> Any:
        asked.set()
        return known(location)

    world.node.tables.writing = noted  # type: ignore[method-assign]
    node = world.node
    # All that REFRESH takes, in their order: the writer waits for the last one.
    with node.ddl_lock, node.locks.of(SUB), world.writing.of(T.location):
        writing.start()
        assert asked.wait(10)
        world.run(REFRESH)
        assert joined(world).trusted
    writing.join(10)
    assert not joined(world).trusted
    assert seen(world) == 1


def is_free(world: World) -> bool:
    with world.node.turns.altering.try_hold(SUB) as free:
        return free
