"""Whose turn it is: tables that failed, and ranges that wait (tablesync/turns.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.model import Oid
from wal2lake.tablesync.turns import Key, RangePool, SyncTurns
from wal2lake.testing.waits import wait_until


def key(relid: int, subid: int = 1, epoch: int = 1) -> Key:
    return Oid(subid), Oid(relid), epoch


def test_a_table_that_failed_comes_again_later_and_after_those_that_failed_less() -> (
    None
):
    turns = SyncTurns(5.0)
    tables = [key(1), key(2), key(3)]
    assert turns.due(tables, 0.0) == tables
    turns.failed(key(1), 0.0)
    assert turns.due(tables, 4.9) == [key(2), key(3)]
    assert turns.next_due(0.0) == 5.0
    turns.failed(key(2), 1.0)
    turns.failed(key(1), 5.0)
    assert turns.due(tables, 10.0) == [key(3), key(2), key(1)]
    assert [turns.failures(k) for k in tables] == [2, 1, 0]
    assert turns.next_due(6.0) == 10.0
    assert turns.next_due(10.0) is None
    # In another epoch it is another copy; one that waits no more is forgotten.
    assert turns.due([key(1, epoch=2)], 5.0) == [key(1, epoch=2)]
    turns.retain([key(2)])
    assert turns.due(tables, 5.5) == [key(1), key(3)]


@given(st.integers(1, 3), st.integers(0, 20), st.integers(1, 20))
def test_however_many_tables_fail_for_ever_each_other_one_is_copied(
    workers: int, failing: int, healthy: int
) -> None:
    """The ones that fail have the lowest numbers, and used to keep all workers."""
    turns = SyncTurns(5.0)
    left = {key(n) for n in range(failing + healthy)}
    bad = {key(n) for n in range(failing)}
    for round_ in range(failing + healthy + 1):
        now = float(round_)
        for one in turns.due(sorted(left), now)[:workers]:
            if one in bad:
                turns.failed(one, now)
            else:
                left.discard(one)
        if left == bad:
            break
    assert left == bad


# ---- ranges ---------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[Callable[[int], RangePool]]:
    made: list[RangePool] = []

    def make(readers: int) -> RangePool:
        made.append(RangePool(readers))
        return made[-1]

    yield make
    for one in made:
        one.stop()


class Gate:
    """Calls that wait until each is let through, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._permits = threading.Semaphore(0)
        self._lock = threading.Lock()

    def call(self, name: str, error: Exception | None = None) -> Callable[[], None]:
        def go() -> None:
            with self._lock:
                self.began.append(name)
            assert self._permits.acquire(timeout=20)
            if error is not None:
                raise error

        return go

    def open(self, count: int = 1) -> None:
        self._permits.release(count)

    def wait(self, count: int) -> list[str]:
        wait_until(lambda: len(self.began) >= count, describe=lambda: str(self.began))
        return list(self.began)


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def never() -> bool:
    return False


def test_ranges_of_tables_and_subscriptions_take_turns(
    pool: Callable[[int], RangePool],
) -> None:
    """A huge table used to queue all of its ranges before everybody else's."""
    gate, readers = Gate(), pool(1)

    def run(owner: int, table: str, count: int) -> threading.Thread:
        calls = [gate.call(f"{table}{n}") for n in range(count)]
        return in_thread(lambda: readers.run(Oid(owner), calls, never))

    threads = [run(1, "huge", 50)]
    gate.wait(1)
    threads.append(run(1, "b", 2))
    threads.append(run(2, "c", 2))
    wait_until(lambda: len(readers._jobs) == 3)
    for n in range(1, 7):
        gate.open()
        gate.wait(n + 1)
    assert gate.began[1:7] == ["b0", "c0", "huge1", "b1", "c1", "huge2"]
    gate.open(60)
    for thread in threads:
        thread.join(20)
    assert len(gate.began) == 54


def test_a_reader_that_is_free_goes_to_the_subscription_with_the_fewest(
    pool: Callable[[int], RangePool],
) -> None:
    gate, readers = Gate(), pool(2)
    calls = [gate.call(f"a{n}") for n in range(10)]
    first = in_thread(lambda: readers.run(Oid(1), calls, never))
    gate.wait(2)
    others = [gate.call(f"b{n}") for n in range(3)]
    second = in_thread(lambda: readers.run(Oid(2), others, never))
    wait_until(lambda: len(readers._jobs) == 2)
    gate.open()
    assert gate.wait(3)[2] == "b0"
    gate.open(20)
    first.join(20)
    second.join(20)
    assert len(gate.began) == 13


def test_after_an_error_no_further_range_begins_and_nobody_is_waited_for(
    pool: Callable[[int], RangePool],
) -> None:
    gate, readers = Gate(), pool(2)
    stuck = Gate()

    def fail() -> None:
        stuck.wait(1)
        raise ValueError("no")

    calls = [stuck.call("stuck"), fail, gate.call("later")]
    with pytest.raises(ValueError, match="no"):
        readers.run(Oid(1), calls, never)
    assert gate.began == []
    # The one reader that is left works for others.
    done: list[int] = []
    readers.run(Oid(2), [lambda: done.append(1), lambda: done.append(2)], never)
    assert done == [1, 2]
    stuck.open()


def test_who_waits_is_let_go_when_it_is_over(
    pool: Callable[[int], RangePool],
) -> None:
    gate, readers = Gate(), pool(1)
    over = threading.Event()
    calls = [gate.call("one"), gate.call("two")]
    waiting = in_thread(lambda: readers.run(Oid(1), calls, over.is_set))
    gate.wait(1)
    over.set()
    readers.wake()
    waiting.join(20)
    assert not waiting.is_alive()
    gate.open(2)
    readers.run(Oid(1), [lambda: None], never)
    assert gate.began == ["one"]


def test_a_pool_that_stops_lets_everybody_go(
    pool: Callable[[int], RangePool],
) -> None:
    gate, readers = Gate(), pool(1)
    waiting = in_thread(lambda: readers.run(Oid(1), [gate.call("one")], never))
    gate.wait(1)
    readers.stop()
    waiting.join(20)
    assert not waiting.is_alive()
    gate.open()
