"""DROP TABLE while somebody writes the table.

The directory went from under the statement, or the commit, that was at work on it, and what that
wrote afterwards brought it back: no table, but in the way of the next one of the name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.fakes.commands import GONE, World

from wal2lake.commands.tables import table as tables
from wal2lake.local.node import Caller
from wal2lake.sql.grammar import parse
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_the_directory_goes_when_the_write_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    table = world.catalog.table_by_oid(GONE)
    assert table is not None
    statement = parse(f'drop table "{table.namespace}"."{table.name}"')
    caller = Caller(world.role("me"), world.notices.append)
    command = tables.COMMANDS[type(statement)]
    drop = threading.Thread(target=command, args=(world.node, caller, statement))
    with world.writing.of(table.location):
        drop.start()
        wait_until(lambda: bool(world.sync.halted), describe="its copies are ended")
        drop.join(0.2)
        assert world.dropped == []
    drop.join(10)
    assert world.dropped == [table.location]
