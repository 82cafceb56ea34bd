"""One command at a time for each key."""

from __future__ import annotations

import threading

import pytest

from wal2lake.errors import UsageError
from wal2lake.local.concurrency.turns import NodeTurns, Turns, Waiter
from wal2lake.model import Oid
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
            with turns.hold("a", Waiter(check)):
                ended.append("held")
        except Cancelled:
            ended.append("cancelled")

    with turns.try_hold("a") as mine, turns.hold("b", Waiter(check)):
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
    with pytest.raises(Cancelled), turns.hold("a", Waiter(lambda: None)):
        raise Cancelled
    with turns.try_hold("a") as mine:
        assert mine


def test_a_wait_ends_after_lock_timeout() -> None:
    turns: Turns[str] = Turns()
    with turns.hold("a", Waiter(lambda: None, 1)):
        with (
            pytest.raises(UsageError) as caught,
            turns.hold("a", Waiter(lambda: None, 2, timeout_ms=1)),
        ):
            raise AssertionError("two have it")
        assert (caught.value.sqlstate, caught.value.message) == (
            "55P03",
            "canceling statement due to lock timeout",
        )
        assert not turns.wanted("a")


def test_the_session_whose_wait_closes_a_circle_is_refused() -> None:
    """Of three, over turns of several kinds; the others go on once it has given way."""
    turns = NodeTurns()
    done: list[int] = []
    relid = Oid(16385)

    def patient(pid: int) -> Waiter:
        return Waiter(lambda: None, pid)

    def first() -> None:
        with turns.creating.hold("new", patient(1)):
            done.append(1)

    def second() -> None:
        with turns.making.hold("slot", patient(2)):
            done.append(2)

    threads = [threading.Thread(target=one, daemon=True) for one in (first, second)]
    with turns.altering.hold(relid, patient(1)):
        with turns.creating.hold("new", patient(2)):
            with turns.making.hold("slot", patient(3)):
                threads[0].start()
                wait_until(lambda: turns.creating.wanted("new"), describe="1 waits")
                threads[1].start()
                wait_until(lambda: turns.making.wanted("slot"), describe="2 waits")
                with (
                    pytest.raises(UsageError) as caught,
                    turns.altering.hold(relid, patient(3)),
                ):
                    raise AssertionError("two have it")
                assert (caught.value.sqlstate, caught.value.message) == (
                    "40P01",
                    "deadlock detected",
                )
                assert caught.value.detail == (
                    "Process 3 waits for object 16385; blocked by process 1.\n"
                    'Process 1 waits for subscription "new"; blocked by process 2.\n'
                    'Process 2 waits for replication slot "slot"; blocked by process 3.'
                )
                assert not done
            threads[1].join(10)
            assert done == [2]
        threads[0].join(10)
        assert done == [2, 1]
        assert not turns.altering.wanted(relid)


def test_work_in_the_background_closes_no_circle() -> None:
    turns = NodeTurns()

    def stop() -> None:
        raise Cancelled

    with turns.altering.try_hold(Oid(1)), turns.altering.hold(Oid(2), Waiter(stop, 1)):
        for pid in (1, 2):
            with (
                pytest.raises(Cancelled),
                turns.altering.hold(Oid(1), Waiter(stop, pid)),
            ):
                raise AssertionError("two have it")
