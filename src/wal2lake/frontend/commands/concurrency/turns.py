"""One command at a time for each key; whoever waits for his turn can be told to stop.

In: a key (a subscription's OID, a name). Out: the turn, for as long as a block lasts. A turn is
held while a publisher is talked to, which may take for ever. So it is of one subscription alone,
its wait ends with a cancel, and work in the background looks whether it is ``wanted`` and steps
aside.

Source: LockSharedObject(), and CHECK_FOR_INTERRUPTS() in ProcSleep().
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from wal2lake.pg import Check

K = TypeVar("K", bound=Hashable)

_LOOK_SECONDS: Final = 0.05
"""How soon a wait is ended; a guess at what a person does not notice."""


class Turns(Generic[K]):
    """Of all keys. Who holds one must not ask for it again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[K] = set()
        self._waiting: list[K] = []

    @contextmanager
    def hold(self, key: K, check: Check) -> Iterator[None]:
        """Wait until nobody else has it; ``check`` is called meanwhile."""
        with self._changed:
            self._waiting.append(key)
            try:
                while key in self._held:
                    check()
                    self._changed.wait(_LOOK_SECONDS)
                self._held.add(key)
            finally:
                self._waiting.remove(key)
        try:
            yield
        finally:
            self._release(key)

    @contextmanager
    def try_hold(self, key: K) -> Iterator[bool]:
        """False if somebody else has it."""
        with self._changed:
            free = key not in self._held
            if free:
                self._held.add(key)
        try:
            yield free
        finally:
            if free:
                self._release(key)

    def wanted(self, key: K) -> bool:
        """Does somebody wait for it?"""
        with self._changed:
            return key in self._waiting

    def _release(self, key: K) -> None:
        with self._changed:
            self._held.discard(key)
            self._changed.notify_all()
