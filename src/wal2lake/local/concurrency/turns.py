"""One command at a time for each key; whoever waits for his turn can be told to stop.

In: a key (a subscription's OID, a name). Out: the turn, for as long as a block lasts. A turn is
held while a publisher is talked to, which may take for ever. So it is of one subscription alone,
its wait ends with a cancel or after ``lock_timeout``, and work in the background looks whether it
is ``wanted`` and steps aside.

A block keeps its turns, so two blocks can wait for each other. ``Waits`` knows whom each session
waits for, in all turns of a node. The session whose wait would close a circle is refused at once:
a circle begins with a wait, and no other moment needs a look.

Source: LockSharedObject(), and CHECK_FOR_INTERRUPTS() in ProcSleep(); deadlock.c, whose look comes
after deadlock_timeout only because it costs more there.
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
"""How soon a wait is ended; a guess at what a person does not notice."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """The session that asks for a turn, and how long it waits."""

    check: Check
    """Raises to end the wait; called meanwhile."""
    pid: int = 0
    """The session's; 0: of no session, which holds nothing else while it waits."""
    timeout_ms: int = 0
    """lock_timeout; 0: none."""


@dataclass(frozen=True, slots=True)
class _Wait:
    shown: str
    """Description of the object that is waited for."""
    holder: Callable[[], int | None]
    """The session that has it."""


class Waits:
    """Waiting sessions and the sessions that they wait for, in all turns of a node. Used with
    ``changed`` held."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._of: dict[int, _Wait] = {}

    @contextmanager
    def noted(
        self, pid: int, shown: str, holder: Callable[[], int | None]
    ) -> Iterator[None]:
        """The session waits within. 40P01 if whoever has it waits for this session."""
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
        # Nobody's wait leads here more than once: a circle of others has been refused.
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
        """``waits``: shared with the node's other turns. ``kind``: what errors call a key."""
        self._waits = Waits() if waits is None else waits
        self._kind = kind
        self._changed = self._waits.changed
        self._held: dict[K, int] = {}
        """By which session; 0: by none."""
        self._waiting: list[K] = []

    @contextmanager
    def hold(self, key: K, waiter: Waiter) -> Iterator[None]:
        """Wait until nobody else has it. 40P01, 55P03 as PostgreSQL."""
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
        """False if somebody else has it."""
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
        """Does somebody wait for it?"""
        with self._changed:
            return key in self._waiting

    def _wait(self, key: K, waiter: Waiter) -> None:
        shown = (
            f'{self._kind} "{key}"' if isinstance(key, str) else f"{self._kind} {key}"
        )
        limit = waiter.timeout_ms / 1000 or math.inf
        ends = time.monotonic() + limit
        self._waiting.append(key)
        try:
            with self._waits.noted(waiter.pid, shown, lambda: self._held.get(key)):
                while key in self._held:
                    waiter.check()
                    left = ends - time.monotonic()
                    if left <= 0:
                        raise UsageError(
                            "canceling statement due to lock timeout", sqlstate="55P03"
                        )
                    self._changed.wait(min(left, _LOOK_SECONDS))
        finally:
            self._waiting.remove(key)

    def _release(self, key: K) -> None:
        with self._changed:
            del self._held[key]
            self._changed.notify_all()


class NodeTurns:
    """All those of a node."""

    def __init__(self) -> None:
        waits = Waits()
        self.altering: Turns[Oid] = Turns(waits)
        """Held by commands that change a subscription or a publication, to their end, the talk
        with a publisher included. Who may not change it must not take it (``owner.altering``):
        who wants it has work in the background step aside."""
        self.creating: Turns[str] = Turns(waits, "subscription")
        """The same for CREATE SUBSCRIPTION, by the new one's name."""
        self.making: Turns[str] = Turns(waits, "replication slot")
        """Held by who makes a slot, or takes one for a new subscription, and by who drops a
        planned one: by its name alone, for two connection strings may lead to one server. Inside
        of ``creating``."""
