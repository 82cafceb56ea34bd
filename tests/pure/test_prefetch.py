"""One item ahead: order, errors, and an end in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wal2lake.errors import StorageError
from wal2lake.lake.prefetch import Prefetched
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
