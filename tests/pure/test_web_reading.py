"""Readings that the surfaces share: one a second, and no failure that ends the looking."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.fakes.readings import node

from wal2lake.errors import StorageError
from wal2lake.health import load_seen
from wal2lake.settings import Settings
from wal2lake.web import reading as module
from wal2lake.web.reading import NodeReadings


class Reader:
    """A reader of facts that counts, and fails when it is told to."""

    def __init__(self, settings: Settings) -> None:
        self.reads = 0
        self.errors: list[Exception] = []

    def read(self, now: object) -> object:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return node()

    def read_reports(self) -> tuple[()]:
        return ()


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeReadings:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(module, "FactReader", Reader)
    clock = iter(range(0, 10_000, 1))
    return NodeReadings(Settings(tmp_path), lambda: next(clock) / 100)


def reader(readings: NodeReadings) -> Reader:
    found = readings._reader
    assert isinstance(found, Reader)
    return found


def test_many_who_ask_within_a_second_get_one_reading(readings):
    found: set[int] = set()

    def ask() -> None:
        found.add(id(readings.read()))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 1 and reader(readings).reads == 1


def test_problems_are_written_for_those_who_look_now_and_then(readings, tmp_path):
    reading = readings.read()
    assert reading.problems
    seen = load_seen(tmp_path / "run", reading.facts.taken_at)
    assert {problem.key for problem in reading.problems} == set(seen)


def test_no_failure_ends_the_looking(readings, monkeypatch):
    errors = [StorageError("the disk is gone"), KeyError("a bug")]
    reader(readings).errors[:] = [*errors, *errors[1:], *errors[1:]]
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.01)

    async def look() -> None:
        following = asyncio.create_task(readings.follow())
        while reader(readings).reads < 5:
            await asyncio.sleep(0.01)
        assert not following.done()
        following.cancel()

    asyncio.run(look())
