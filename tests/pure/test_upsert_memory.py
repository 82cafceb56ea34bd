"""The memory of batches that are applied in the engine is divided fairly."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from wal2lake.lake.upsert import TooLarge, UpsertMemory
from wal2lake.testing.waits import wait_until


class Watched(threading.Condition):
    """A condition that counts the threads that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, counted."""
        self.waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self.waiting -= 1


class Claims:
    """Threads that take memory one after the other."""

    def __init__(self, limit: int) -> None:
        self.memory = UpsertMemory(limit)
        self._condition = Watched()
        self.memory._changed = self._condition
        self.served: list[str] = []
        self._threads: list[threading.Thread] = []

    def claim(self, name: str, size: int, *, alone: bool = False) -> None:
        """Take memory as soon as there is some; return when the thread waits or has it."""

        def take() -> None:
            with self.memory.share(size, alone=alone):
                self.served.append(name)

        before = self._condition.waiting
        thread = threading.Thread(target=take, daemon=True)
        self._threads.append(thread)
        thread.start()
        wait_until(
            lambda: self._condition.waiting > before or name in self.served,
            describe=f"{name} waits for memory",
        )

    def end(self) -> None:
        """Wait for all of them."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def test_a_batch_that_waits_for_all_memory_is_not_overtaken() -> None:
    claims = Claims(100)
    with claims.memory.share(50):
        claims.claim("all", 10, alone=True)
        claims.claim("small", 10)
        claims.claim("smaller", 1)
        assert claims.served == []
    claims.end()
    assert claims.served[0] == "all"
    assert sorted(claims.served[1:]) == ["small", "smaller"]


def test_a_turn_that_is_given_up_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(100)

    def interrupted(predicate: Callable[[], bool]) -> bool:
        raise KeyboardInterrupt

    with claims.memory.share(50):
        with monkeypatch.context() as patched:
            patched.setattr(claims.memory._changed, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt), claims.memory.share(60):
                pass
        claims.claim("later", 40)
    claims.end()
    assert claims.served == ["later"]


def test_what_is_needed_briefly_is_held_once() -> None:
    memory = UpsertMemory(100)
    with memory.share(10) as share:
        share.grow(20, 30)
        share.grow(20, 30)
        assert share.held == 80
        with pytest.raises(TooLarge):
            share.grow(0, 51)
    with memory.share(10, alone=True) as share:
        share.grow(90, 1000)
        with pytest.raises(TooLarge):
            share.grow(1)
    with memory.share(100):
        pass
