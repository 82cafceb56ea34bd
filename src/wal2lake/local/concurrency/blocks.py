"""Turns that a transaction block holds, and steps that it postpones to its end.

Takes turns of commands, and steps that wait for COMMIT or ROLLBACK; gives the steps, in order, to
``transaction.definitions``. As in PostgreSQL, nobody else changes an object until the block that
changes it has ended. One session uses a block; it is not shared by threads.

Source: LockSharedObject() and smgrDoPendingDeletes() of PostgreSQL hold and wait in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wal2lake.local.concurrency.turns import Turns, Waiter

if TYPE_CHECKING:
    from wal2lake.local.node import EngineParts

K = TypeVar("K", bound=Hashable)

Around = Callable[["EngineParts"], AbstractContextManager[object]]
"""Gets the node as other sessions see it."""


@dataclass(frozen=True, slots=True)
class BlockMark:
    """The numbers of steps and tables at a savepoint."""

    before: int = 0
    under_lock: int = 0
    afterwards: int = 0
    undo: int = 0
    made: int = 0
    dropped: int = 0


class OpenBlock:
    """Turns and steps of one block."""

    def __init__(self) -> None:
        self.before: list[Around] = []
        """Entered before the commit, without a lock; left after it has succeeded or failed."""
        self.under_lock: list[Around] = []
        """Entered before the commit, under the DDL lock."""
        self.afterwards: list[Callable[[EngineParts], None]] = []
        """Called once the commit is durable."""
        self.made: list[str] = []
        """Locations of tables that the block has made."""
        self.dropped: list[str] = []
        """Locations of tables that the block has dropped."""
        self._undo: list[Callable[[], None]] = []
        self._turns = ExitStack()
        self._kept: set[tuple[int, Hashable]] = set()

    def keep(self, turns: Turns[K], key: K, waiter: Waiter) -> None:
        """Take a turn and keep it to the block's end, even if a savepoint is rolled back."""
        turn = (id(turns), key)
        if turn not in self._kept:
            self._turns.enter_context(turns.hold(key, waiter))
            self._kept.add(turn)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Register a step that undoes something done already."""
        self._undo.append(undo)

    def mark(self) -> BlockMark:
        """Return a mark for ``back_to``."""
        return BlockMark(
            len(self.before),
            len(self.under_lock),
            len(self.afterwards),
            len(self._undo),
            len(self.made),
            len(self.dropped),
        )

    def back_to(self, mark: BlockMark) -> None:
        """Undo everything after a savepoint."""
        del self.before[mark.before :]
        del self.under_lock[mark.under_lock :]
        del self.afterwards[mark.afterwards :]
        del self.made[mark.made :]
        del self.dropped[mark.dropped :]
        while len(self._undo) > mark.undo:
            self._undo.pop()()

    def committed(self) -> None:
        """Forget the undo steps: nothing is undone any more."""
        self._undo.clear()

    def end(self) -> None:
        """Undo what has not been committed, and release the turns."""
        try:
            self.back_to(BlockMark())
        finally:
            self._turns.close()
            self._kept.clear()
