"""Computes items ahead of their consumer, in other threads.

Comes in: an iterator, or a function and its arguments. Goes out: the same items in the same order,
and the same error. While the consumer works on an item, the following items are computed: at most
two by ``Prefetched``, used for rows of a table on their way to a client; so many as the caller
says by ``called_ahead``, used for files in an object store, which take their time to answer.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")


def called_ahead(
    call: Callable[[A], T], arguments: Iterable[A], most: int
) -> Iterator[tuple[A, T]]:
    """Yield arguments with what ``call`` returns for them. At most ``most`` calls are under way or
    have returned what the consumer has not taken yet."""
    left = iter(arguments)
    ahead: deque[tuple[A, Future[T]]] = deque()
    pool = ThreadPoolExecutor(most)
    try:
        while True:
            for argument in islice(left, most - len(ahead)):
                ahead.append((argument, pool.submit(call, argument)))
            if not ahead:
                return
            argument, future = ahead.popleft()
            yield argument, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


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
