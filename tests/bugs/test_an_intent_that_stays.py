"""The intent of a local transaction that could be neither carried out nor removed.

Its client was told that it had failed, and the tables took other transactions; the next engine
found the intent and carried it out: rows of a transaction that had not happened, in those of its
tables that had no later commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pure.test_local_commit import FULL, World

from wal2lake.local.commits import commit

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_a_commit_goes_on_if_its_intent_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0.0)
    world = World(tmp_path)
    full, publish = iter([True]), world.catalog.publish_local

    def publish_local(*arguments: Any, **named: Any) -> None:
        if next(full, False):
            raise FULL
        publish(*arguments, **named)

    monkeypatch.setattr(world.catalog, "publish_local", publish_local)
    refused = iter([True])
    world.refused = lambda _: next(refused, False)
    world.finish()
    assert (world.cursors, world.pending) == ({"a": 1, "b": 1}, 0)
