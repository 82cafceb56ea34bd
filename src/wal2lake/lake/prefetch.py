"""Runs an iterator one step ahead of its consumer, in a thread of its own.

Comes in: an iterator. Goes out: the same items, and the same error. While the consumer works on an
item, the following items are computed, but no more than two besides it exist at once. Used for
rows of a table on their way to a client.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetched(Generic[T]):
    """A context manager. Its thread starts with the first item that the consumer takes, and ends
    at its exit."""

    def __init__(self, items: Iterator[T], name: str) -> None:
        """``name``: name of the thread."""
        self._items = items
        self._queue: queue.Queue[T | _End] = queue.Queue(1)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._ended = False

    def __iter__(self) -> Prefetched[T]:
        return self

    def __next__(self) -> T:
        if self._ended or self._closed.is_set():
            raise StopIteration
        if self._thread.ident is None:
            self._thread.start()
        item = self._queue.get()
        if not isinstance(item, _End):
            return item
        self._ended = True
        if item.error is not None:
            raise item.error
        raise StopIteration

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._queue.put(item)
                if self._closed.is_set():
                    return
        except BaseException as raised:
            error = raised
        self._queue.put(_End(error))

    def close(self) -> None:
        """Compute no more items; wait for the one that is being computed."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                # Make room for the item that the thread is about to put.
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Prefetched[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _End:
    """Marks the end of the items."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
