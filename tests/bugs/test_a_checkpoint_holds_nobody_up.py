"""Checkpoints are written behind the commits at which they are due, one after the other.

They were part of the commit. The tables of a subscription reach the version together, and in an
engine that had made none before apply stood still for 8 to 13 seconds."""

from __future__ import annotations

import threading

from wal2lake.lake.delta.log.background import BackgroundWork
from wal2lake.testing.waits import wait_until


class Writer:
    """Waits until it may; the table "bad" cannot have one."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.begun: list[str] = []
        self.done: list[str] = []

    def write(self, location: str) -> None:
        self.begun.append(location)
        assert self.may.wait(10)
        if location == "bad":
            raise OSError("no")
        self.done.append(location)


def test_who_asks_does_not_wait_and_an_error_is_of_one_table() -> None:
    writer = Writer()
    checkpoints = BackgroundWork("write a checkpoint", writer.write)
    for location in ("a", "bad", "b", "b"):
        checkpoints.ask(location)
    wait_until(lambda: writer.begun == ["a"], describe="the first one is at work")
    assert writer.done == []
    writer.may.set()
    wait_until(lambda: writer.done == ["a", "b"], describe="all others are written")
    checkpoints.ask("a")
    wait_until(lambda: writer.done == ["a", "b", "a"], describe="it goes on")


def test_a_table_that_goes_has_none_any_more() -> None:
    """Written afterwards, it would bring the table's directory back."""
    writer = Writer()
    checkpoints = BackgroundWork("write a checkpoint", writer.write)
    for location in ("a", "b"):
        checkpoints.ask(location)
    wait_until(lambda: writer.begun == ["a"], describe="the first one is at work")
    checkpoints.leave("b")
    gone = threading.Thread(target=checkpoints.leave, args=("a",))
    gone.start()
    gone.join(0.1)
    assert gone.is_alive(), "it waits for what is being written"
    writer.may.set()
    gone.join(10)
    assert not gone.is_alive()
    assert writer.done == ["a"]
    checkpoints.ask("c")
    wait_until(lambda: writer.done == ["a", "c"], describe="b is left out")
