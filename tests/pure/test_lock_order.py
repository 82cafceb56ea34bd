"""The order of locks, and its check."""

from __future__ import annotations

import threading

import pytest

from wal2lake.errors import InternalError
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock, locks


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_is_checked", True)
    monkeypatch.setattr(locks, "_threads", threading.local())


def test_locks_are_taken_by_rank_and_by_key() -> None:
    subscriptions: KeyedLocks[int] = KeyedLocks(LockRank.SUBSCRIPTION)
    tables: KeyedLocks[str] = KeyedLocks(LockRank.TABLE)
    definitions = OrderedLock(LockRank.DEFINITIONS)
    with (
        definitions,
        subscriptions.of(1),
        subscriptions.of(2),
        tables.of("a"),
        tables.of("b"),
        # A lock that the thread holds can be taken again, whatever came between.
        subscriptions.of(1),
        definitions,
    ):
        pass
    with tables.of("b"):
        pass
    with definitions, tables.of("a"):
        pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            OrderedLock(LockRank.SUBSCRIPTION, 7),
            OrderedLock(LockRank.DEFINITIONS),
        ),
        (OrderedLock(LockRank.TABLE, "b"), OrderedLock(LockRank.TABLE, "a")),
        (
            OrderedLock(LockRank.SUBSCRIPTION, 10),
            OrderedLock(LockRank.SUBSCRIPTION, 9),
        ),
        (OrderedLock(LockRank.SEQUENCE, 1), OrderedLock(LockRank.TABLE, "a")),
        (OrderedLock(LockRank.BRANCH, "a"), OrderedLock(LockRank.TABLE, "b")),
    ],
)
def test_another_order_is_an_error(first: OrderedLock, second: OrderedLock) -> None:
    with first, pytest.raises(InternalError) as caught, second:
        pass
    assert str(caught.value) == f"lock {second!r} taken while {first!r} is held"
    # Nothing is held any more.
    with second, first:
        pass


def test_each_thread_has_its_own_order() -> None:
    table = OrderedLock(LockRank.TABLE, "a")
    definitions = OrderedLock(LockRank.DEFINITIONS)
    failed: list[BaseException] = []

    def create() -> None:
        try:
            with definitions:
                pass
        except BaseException as error:
            failed.append(error)

    with table:
        thread = threading.Thread(target=create)
        thread.start()
        thread.join()
    assert not failed


def test_a_lock_that_was_not_taken_is_not_held() -> None:
    table = OrderedLock(LockRank.TABLE, "a")
    with table:
        answers: list[bool] = []
        thread = threading.Thread(
            target=lambda: answers.append(table.acquire(timeout=0.01))
        )
        thread.start()
        thread.join()
    assert answers == [False]


def test_nothing_is_checked_without_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "_is_checked", False)
    with OrderedLock(LockRank.TABLE, "b"), OrderedLock(LockRank.DEFINITIONS):
        pass
