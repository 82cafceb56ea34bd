"""Items ahead: order, errors, and an end in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from wal2lake.errors import StorageError
from wal2lake.lake.prefetch import Prefetched, called_ahead
from wal2lake.testing.waits import wait_until


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "ahead of it"]


def test_items_come_in_order_and_then_the_end() -> None:
    with Prefetched(iter(range(100)), "ahead of it") as items:
        assert list(items) == list(range(100))
        assert next(items, None) is None
    assert not threads()


def test_an_error_comes_where_it_was() -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise StorageError("no such file")

    with Prefetched(fails(), "ahead of it") as items:
        assert next(items) == 1
        with pytest.raises(StorageError, match="no such file"):
            next(items)
        assert next(items, None) is None


def test_no_more_is_made_than_is_asked_for_soon() -> None:
    made = []

    def counted() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    with Prefetched(counted(), "ahead of it") as items:
        assert not made and not threads()
        assert next(items) == 0
        wait_until(lambda: len(made) == 3, timeout_seconds=30)
        assert next(items) == 1
    assert len(made) <= 5 and not threads()
    assert next(items, None) is None


def test_what_was_never_begun_is_closed() -> None:
    items = Prefetched(iter([1]), "ahead of it")
    items.close()
    items.close()
    assert next(items, None) is None


def test_calls_are_ahead_in_order_and_bounded() -> None:
    called: list[int] = []

    def call(number: int) -> int:
        called.append(number)
        time.sleep(0.01 * (number % 3))
        return number * number

    found = called_ahead(call, range(20), 4)
    assert called == []
    for number in range(10):
        assert next(found) == (number, number * number)
        assert len(called) <= number + 4
    found.close()  # type: ignore[attr-defined]
    assert len(called) <= 13
    before = set(threading.enumerate())
    assert list(called_ahead(call, range(20), 4)) == [(n, n * n) for n in range(20)]
    assert list(called_ahead(call, (), 4)) == []
    assert set(threading.enumerate()) <= before


def test_the_error_of_a_call_comes_in_its_turn() -> None:
    def call(number: int) -> int:
        if number == 2:
            raise KeyError(number)
        return number

    found = called_ahead(call, range(10), 4)
    assert [next(found)[1], next(found)[1]] == [0, 1]
    with pytest.raises(KeyError):
        next(found)
    assert list(found) == []
