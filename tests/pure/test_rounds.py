"""Background work in rounds begins in time, ends when it must, and survives an error."""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal2lake.local.concurrency.rounds import Rounds
from wal2lake.observe import get_logger
from wal2lake.settings import Settings
from wal2lake.testing.waits import wait_until


def rounds(
    work: Callable[[], None], seconds: Callable[[], float], first: float | None = None
) -> Rounds:
    return Rounds("testing", work, seconds, get_logger(), first_seconds=first)


def test_a_failed_round_is_followed_by_the_next() -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("the first one")

    worker = rounds(work, lambda: 0.01)
    worker.start()
    wait_until(lambda: len(ran) > 2)
    worker.stop()


def test_no_round_without_an_interval_until_it_is_set(tmp_path) -> None:
    ran, seconds = threading.Event(), [0.0]
    worker = rounds(ran.set, lambda: seconds[0], first=0.0)
    worker.start()
    assert not ran.wait(0.05)
    seconds[0] = 0.01
    worker.reload(Settings(tmp_path))
    assert ran.wait(10)
    worker.stop()


def test_a_round_in_a_hurry_does_not_wait() -> None:
    ran = threading.Event()
    worker = rounds(ran.set, lambda: 3600.0)
    worker.start()
    worker.hurry()
    assert ran.wait(10)
    worker.stop()


def test_a_stop_ends_a_pause() -> None:
    begun, passed = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        worker.sleep(3600)
        passed.set()

    worker = rounds(work, lambda: 0.01)
    worker.start()
    assert begun.wait(10)
    worker.stop()
    assert worker.is_stopping
    assert not passed.is_set()
