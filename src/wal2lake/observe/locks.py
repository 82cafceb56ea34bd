"""Locks that a thread holds while it takes others, and the order in which it must take them.

Comes in: a lock's rank and key. Goes out: a re-entrant lock. ``LockRank`` is the order, from the
first to the last; locks of the same rank are taken in the order of their keys. Two threads that
keep to it cannot wait for each other.

With the environment variable WAL2LAKE_CHECK_LOCKS each thread records what it holds, and a lock
that is taken out of order raises InternalError, whether or not another thread waits. The tests of
whole nodes set it. Locks that protect a few lines without another lock inside ("guards") have no
rank; ``Turns`` of commands detect deadlocks themselves.
"""

from __future__ import annotations

import os
import threading
from enum import IntEnum
from types import TracebackType
from typing import Final, Generic, TypeVar

from wal2lake.errors import InternalError

VARIABLE: Final = "WAL2LAKE_CHECK_LOCKS"

K = TypeVar("K", bound=int | str)


class LockRank(IntEnum):
    """The order of locks. A thread that holds a lock takes only locks of higher ranks, or of the
    same rank and a greater key."""

    DEFINITIONS = 1
    """The engine's one lock for commands that create, alter or drop objects. Never held while a
    publisher is talked to."""
    SUBSCRIPTION = 2
    """One for each subscription, by OID: its tables' states and its vector."""
    TABLE = 3
    """One for each table, by location: commits to it."""
    BRANCH = 4
    """One for each branch of a table, by location. Only one transaction writes it, which may hold
    the table's lock, whatever the two locations are called."""
    SEQUENCE = 5
    """One for each sequence, by OID: its last value."""


class OrderedLock:
    """A re-entrant lock with its place in the order."""

    __slots__ = ("_key", "_lock", "_rank")

    def __init__(self, rank: LockRank, key: int | str = 0) -> None:
        self._lock = threading.RLock()
        self._rank = rank
        self._key = key

    def __repr__(self) -> str:
        return f"{self._rank.name} {self._key}"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as ``threading.RLock.acquire``; InternalError if it is out of order."""
        if _is_checked:
            self._check()
        taken = self._lock.acquire(blocking, timeout)
        if taken and _is_checked:
            _held().append(self)
        return taken

    def release(self) -> None:
        """Release the lock once."""
        if _is_checked:
            held = _held()
            # The last of its entries: a lock that was taken twice is still held.
            for position in reversed(range(len(held))):
                if held[position] is self:
                    del held[position]
                    break
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _check(self) -> None:
        held = _held()
        if self in held:
            return
        for lock in held:
            if lock._place >= self._place:
                raise InternalError(f"lock {self!r} taken while {lock!r} is held")

    @property
    def _place(self) -> tuple[int, int, str]:
        number, text = (self._key, "") if isinstance(self._key, int) else (0, self._key)
        return self._rank, number, text


class KeyedLocks(Generic[K]):
    """The locks of one rank, created at their first use."""

    def __init__(self, rank: LockRank) -> None:
        self._rank = rank
        self._locks: dict[K, OrderedLock] = {}
        self._guard = threading.Lock()

    def of(self, key: K) -> OrderedLock:
        """Return the lock of a key, the same for all callers."""
        with self._guard:
            lock = self._locks.get(key)
            if lock is None:
                lock = self._locks[key] = OrderedLock(self._rank, key)
            return lock


_is_checked = bool(os.environ.get(VARIABLE))

_threads = threading.local()


def _held() -> list[OrderedLock]:
    """The ranked locks that the thread holds, in the order in which it took them."""
    held: list[OrderedLock] = _threads.__dict__.setdefault("held", [])
    return held
