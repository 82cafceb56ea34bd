"""The steps of a commit to several tables that cannot be taken back, when one of them fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, TableChange
from wal2lake.errors import StorageError
from wal2lake.lake import Cursor
from wal2lake.local.commits import commit
from wal2lake.model import Oid

pytestmark = pytest.mark.usefixtures("no_fsync")

FULL = StorageError("no space left on device", sqlstate="53100")


class Ended(BaseException):
    """What os._exit does."""


class World:
    """Two tables that may refuse a commit, and a catalog that may."""

    def __init__(self, directory: Path) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        self.cursors: dict[str, int] = {}
        self.refused: Callable[[str], bool] = lambda _: False
        self.synced: list[tuple[str, int]] = []
        tables = SimpleNamespace(
            state=self._state,
            commit_changes=self._commit,
            recover=lambda *_: (),
            sync=lambda *synced: self.synced.append(synced),
        )
        self.node: Any = SimpleNamespace(
            catalog=self.catalog, tables=tables, committed=lambda: None
        )
        self.changes = [
            TableChange(Oid(n), name, name, 0, 1, (), False, said)
            for n, name, said in ((1, "a", (("p", b"\xff"),)), (2, "b", ()))
        ]
        self.number = self.catalog.begin_local_commit(self.changes)

    def finish(self) -> None:
        commit.finish(
            self.node,
            self.changes,
            str(self.number),
            lambda: self.catalog.publish_local({}, number=self.number),
            lambda: self.catalog.publish_local({}, number=self.number),
        )

    @property
    def pending(self) -> int:
        return len(self.catalog.local_commits())

    def _state(self, location: str) -> Any:
        cursor = self.cursors.get(location)
        return SimpleNamespace(version=cursor or 0, cursor=lambda _: cursor)

    def _commit(
        self, location: str, changes: object, cursor: Cursor, **_: object
    ) -> None:
        if self.refused(location):
            raise FULL
        self.cursors[location] = cursor.version


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0.0)
    return World(tmp_path)


def test_a_commit_of_which_nothing_has_happened_is_taken_back(world: World) -> None:
    world.refused = lambda location: location == "a"
    with pytest.raises(StorageError):
        world.finish()
    assert (world.cursors, world.pending) == ({}, 0)


def test_a_commit_that_has_begun_is_tried_again(world: World) -> None:
    answers = iter([True, True, False])
    world.refused = lambda location: location == "b" and next(answers)
    world.finish()
    assert (world.cursors, world.pending) == ({"a": 1, "b": 1}, 0)


def test_the_engine_ends_with_a_commit_that_it_cannot_finish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one does, before it lets anybody in: the intent is there still."""
    monkeypatch.setattr(commit, "_FINISH_SECONDS", 0.0)
    world.refused = lambda location: location == "b"
    with pytest.raises(Ended) as ended:
        world.finish()
    assert ended.value.args == (1,)
    assert (world.cursors, world.pending) == ({"a": 1}, 1)
    first, second = world.catalog.local_commits()[0].tables
    assert (first.messages, second.messages) == ((("p", b"\xff"),), ())
