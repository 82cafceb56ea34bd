"""One command at a time for each key, with waits that can be ended.

Takes a key (a subscription's OID, a name); gives the turn for the duration of a block. A turn is
held during the conversation with a publisher, which may take forever. It therefore covers one
subscription only, a wait for it ends with a cancel or after ``lock_timeout``, and work in the
background releases it if a command wants it (``wanted``).

A block keeps its turns, so two blocks can wait for each other. ``Waits`` records which session
waits for which, over all turns of a node. The session whose wait would close a cycle is refused at
once: a cycle arises only when a wait begins, so no other check is needed.

Source: LockSharedObject(), and CHECK_FOR_INTERRUPTS() in ProcSleep(); deadlock.c, which checks
after deadlock_timeout because the check is more expensive there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from wal2lake.errors import UsageError
from wal2lake.model import Oid
from wal2lake.pg import Check

K = TypeVar("K", bound=Hashable)

_LOOK_SECONDS: Final = 0.05
"""How soon a wait notices its end. Chosen arbitrarily, too short for a user to notice."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """The session that waits for a turn, and its limits."""

    check: Check
    """Called during the wait; ends it by raising."""
    pid: int = 0
    """The session's process number; 0 for background work, which holds nothing while it waits."""
    timeout_ms: int = 0
    """lock_timeout; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class _Wait:
    shown: str
    """Description of the object, for messages."""
    holder: Callable[[], int | None]
    """Returns the session that holds the object."""


class Waits:
    """The waiting sessions and the sessions they wait for, over all turns of a node.

    Used with ``changed`` held."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._of: dict[int, _Wait] = {}

    @contextmanager
    def noted(
        self, pid: int, shown: str, holder: Callable[[], int | None]
    ) -> Iterator[None]:
        """Record a session's wait; 40P01 if the holder waits for this session."""
        if not pid:
            yield
            return
        self._of[pid] = _Wait(shown, holder)
        try:
            self._refuse_circle(pid)
            yield
        finally:
            del self._of[pid]

    def _refuse_circle(self, pid: int) -> None:
        lines: list[str] = []
        waiter = pid
        # Each session occurs at most once, since cycles of others have been refused.
        for _ in range(len(self._of)):
            wait = self._of.get(waiter)
            holder = None if wait is None else wait.holder()
            if wait is None or not holder:
                return
            lines.append(
                f"Process {waiter} waits for {wait.shown}; blocked by process {holder}."
            )
            if holder == pid:
                raise UsageError(
                    "deadlock detected",
                    sqlstate="40P01",
                    detail="\n".join(lines),
                    hint="The transaction might succeed if retried.",
                )
            waiter = holder


class Turns(Generic[K]):
    """Turns of all keys. A session that holds a turn must not ask for it again."""

    def __init__(self, waits: Waits | None = None, kind: str = "object") -> None:
        """``waits``: shared with the node's other turns. ``kind``: the key's kind, for errors."""
        self._waits = Waits() if waits is None else waits
        self._kind = kind
        self._changed = self._waits.changed
        self._held: dict[K, int] = {}
        """The holding session by key; 0 for background work."""
        self._waiting: list[K] = []

    @contextmanager
    def hold(self, key: K, waiter: Waiter) -> Iterator[None]:
        """Wait for the turn and hold it; 40P01 and 55P03 as PostgreSQL."""
        with self._changed:
            if key in self._held:
                self._wait(key, waiter)
            self._held[key] = waiter.pid
        try:
            yield
        finally:
            self._release(key)

    @contextmanager
    def try_hold(self, key: K) -> Iterator[bool]:
        """Hold the turn if it is free; yields False if it is not."""
        with self._changed:
            free = key not in self._held
            if free:
                self._held[key] = 0
        try:
            yield free
        finally:
            if free:
                self._release(key)

    def wanted(self, key: K) -> bool:
        """True if somebody waits for the turn."""
        with self._changed:
            return key in self._waiting

    def _wait(self, key: K, waiter: Waiter) -> None:
        shown = (
            f'{self._kind} "{key}"' if isinstance(key, str) else f"{self._kind} {key}"
        )
        limit = waiter.timeout_ms / 1000 or math.inf
        deadline = time.monotonic() + limit
        self._waiting.append(key)
        try:
            with self._waits.noted(waiter.pid, shown, lambda: self._held.get(key)):
                while key in self._held:
                    waiter.check()
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise UsageError(
                            "canceling statement due to lock timeout", sqlstate="55P03"
                        )
                    self._changed.wait(min(remaining, _LOOK_SECONDS))
        finally:
            self._waiting.remove(key)

    def _release(self, key: K) -> None:
        with self._changed:
            del self._held[key]
            self._changed.notify_all()


class NodeTurns:
    """The turns of a node."""

    def __init__(self) -> None:
        waits = Waits()
        self.altering: Turns[Oid] = Turns(waits)
        """Held by commands that change a subscription or a publication, until they end.

        This includes the conversation with a publisher. A caller without the permission must not
        wait for the turn (``owner.altering``), because a waiter makes background work step
        aside."""
        self.creating: Turns[str] = Turns(waits, "subscription")
        """Held by CREATE SUBSCRIPTION, by the new subscription's name."""
        self.making: Turns[str] = Turns(waits, "replication slot")
        """Held to create a slot, to take one for a new subscription, or to drop a planned one.

        The key is the slot's name alone, since two connection strings may lead to one server.
        Taken inside of ``creating``."""
