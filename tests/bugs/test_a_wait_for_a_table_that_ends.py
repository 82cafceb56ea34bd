"""A write that waits for a table which somebody else is writing.

The wait could not be ended: a cancel, statement_timeout and the end of the session took effect when
the other one was done, which may be a statement of an hour."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fakes.commands import KEPT, SUB, World

from wal2lake.errors import UsageError
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.sql.backend import TransactionKind

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_it_ends_with_a_cancel_and_gives_back_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    table = world.catalog.table_by_oid(KEPT)
    assert table is not None
    cancelled = threading.Event()
    found: list[object] = []

    def check() -> None:
        if cancelled.is_set():
            raise UsageError("canceling statement", sqlstate="57014")

    def write() -> None:
        transaction = LocalTransaction(world.node, TransactionKind.STATEMENT, check)
        try:
            transaction.targets([table], cast("Any", None), "job")
        except UsageError as error:
            found.append(error.sqlstate)
        # Of the subscription: not by this thread's own count.
        other = threading.Thread(target=lambda: found.append(is_free(world)))
        other.start()
        other.join(10)

    writing = threading.Thread(target=write)
    with world.writing.of(table.location):
        writing.start()
        writing.join(0.2)
        assert writing.is_alive(), "it waits"
        cancelled.set()
        writing.join(10)
        assert found == ["57014", True]


def is_free(world: World) -> bool:
    lock = world.node.locks.of(SUB)
    free = lock.acquire(timeout=1)
    if free:
        lock.release()
    return free
