"""A local transaction whose table commit is there when the engine starts.

Its maker may have been killed between the commit and its sync. Recovery found it, published it and
forgot the intent: a power loss could still take it, and only it, away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pure.test_local_commit import World

from wal2lake.local.transaction import recovery

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_what_recovery_finds_is_made_durable_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.cursors["a"] = 1
    publish = world.catalog.publish_local
    before: list[object] = []

    def publish_local(*arguments: Any) -> None:
        before.extend(world.synced)
        publish(*arguments)

    monkeypatch.setattr(world.catalog, "publish_local", publish_local)
    (commit,) = world.catalog.local_commits()
    recovery._finish(world.node, world.changes, str(commit.number), commit.number)
    assert before == [("a", 1)]
    assert (world.cursors, world.pending) == ({"a": 1, "b": 1}, 0)
