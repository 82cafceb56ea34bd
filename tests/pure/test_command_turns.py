"""One command at a time for each key."""

from __future__ import annotations

import threading

import pytest

from wal2lake.frontend.commands.concurrency.turns import Turns
from wal2lake.testing.waits import wait_until


class Cancelled(Exception):
    pass


def test_a_wait_can_be_ended_and_leaves_nothing_behind() -> None:
    turns: Turns[str] = Turns()
    ended: list[str] = []
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise Cancelled

    def wait() -> None:
        try:
            with turns.hold("a", check):
                ended.append("held")
        except Cancelled:
            ended.append("cancelled")

    with turns.try_hold("a") as mine, turns.hold("b", check):
        assert mine
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: turns.wanted("a"), describe="somebody waits")
        assert not turns.wanted("b")
        with turns.try_hold("a") as again:
            assert not again
        cancelled.set()
        waiting.join(10)
        assert ended == ["cancelled"]
        assert not turns.wanted("a")
    cancelled.clear()
    wait()
    assert ended == ["cancelled", "held"]


def test_a_turn_ends_with_an_error_too() -> None:
    turns: Turns[str] = Turns()
    with pytest.raises(Cancelled), turns.hold("a", lambda: None):
        raise Cancelled
    with turns.try_hold("a") as mine:
        assert mine
