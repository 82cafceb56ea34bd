"""Tables were read from the catalog, in d, and their copy ended before it was asked who is being
copied: they were asked about and tried again, for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.tablesync_world import LARGE, World, tablesync_world

from wal2lake.catalog import Catalog
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with tablesync_world(tmp_path, monkeypatch) as made:
        yield made


def test_a_table_whose_copy_ends_during_a_look_is_not_asked_about_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.subscribe(1, {101: LARGE})
    world.hold(1, "a", 500)
    looked_late, may_end = threading.Event(), threading.Event()
    read = Catalog.rels

    def late(self: Catalog, *of: Any) -> Any:
        found = read(self, *of)
        sync = world.sync
        if (
            sync is not None
            and sync._attempts
            and threading.current_thread() is sync._thread
            and not looked_late.is_set()
        ):
            may_end.set()
            wait_until(lambda: not sync._attempts, describe="the copy has ended")
            looked_late.set()
        return found

    def wait(location: str) -> None:
        assert may_end.wait(30)

    world.committing = wait
    monkeypatch.setattr(Catalog, "rels", late)
    world.start()
    world.reaches(1, {101: "f"})
    assert looked_late.wait(30)
    sync = world.sync
    assert sync is not None
    wait_until(lambda: not sync._workers[world.rel(1, 101).subid])
    assert world.questions == [1]
