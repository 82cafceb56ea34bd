"""Positions at which a batch shall end, so that the state of exactly this LSN is published.

Comes in: positions from sessions that compare tables with their source. Goes out: for each mark the
vector that is the state of its position. The worker asks for the next mark before each batch and
settles marks after each step. A mark that the published state has passed already, or whose worker
has ended, is *missed*: the session takes a later position, which the next worker gets. A mark is
missed for good while an error stops the worker that needs the operator; the session reports it.

The vector's LSN may be below the mark: then nothing between them has changed a table.

A mark that *holds* is for a repair (``repairing``). The worker waits at its state until the session
hands over the rows, writes them, and goes on; the wait has a limit, since apply stands still.

    session                        worker
    -------                        ------
    add                            ends a batch at the mark
    reads rows at the source       settle, then taken: waits for the rows
    wait, hand                     writes them, finish
    wait_finished                  next batch

Thread-safe. Called by ``nextbatch`` and, through the launcher, by sessions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from wal2lake.apply.step.repairs.sourcerows import RowRepair
from wal2lake.catalog import SnapshotVector
from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn

_POLL_SECONDS: Final = 0.2
"""Interval at which a waiting session looks for a cancel, and a waiting worker for its end."""

HOLD_SECONDS: Final = 60.0
"""Longest wait of a worker for the rows of a repair. The session looks up some hundred rows by
their keys, which takes milliseconds. A guess."""


class StateMark:
    """A position whose state a session waits for."""

    def __init__(self, lsn: Lsn, *, holds: bool = False) -> None:
        """``lsn``: the state has every transaction whose commit is below. ``holds``: the worker
        waits at the state for a repair."""
        self.lsn = lsn
        self.holds = holds
        self.vector: SnapshotVector | None = None
        """The state; None if the mark was missed."""
        self.stopped_by: Wal2LakeError | None = None
        """The error for which the worker does not reach the mark."""
        self.error: Exception | None = None
        """The reason why the repair was not made."""
        self._settled = threading.Event()
        self._guard = threading.Lock()
        self._handed = threading.Event()
        self._finished = threading.Event()
        self._repair: RowRepair | None = None

    def settle(
        self, vector: SnapshotVector | None, stopped_by: Wal2LakeError | None = None
    ) -> None:
        """End the wait."""
        self.vector = vector
        self.stopped_by = stopped_by
        self._settled.set()

    def wait(self, seconds: float, check: Callable[[], None]) -> bool:
        """Wait until the worker has settled the mark; False after the time limit. ``check`` raises
        if the statement shall end."""
        return _wait(self._settled, seconds, check)

    # ---- a repair, for a mark that holds ---------------------------------------------

    def hand(self, repair: RowRepair | None) -> bool:
        """Hand the rows over to the waiting worker (None: there are none, so it goes on). Return
        False if it has gone on already. Only the first call counts."""
        with self._guard:
            if not self._handed.is_set():
                self._repair = repair
                self._handed.set()
            return self._repair is repair

    def taken(self, seconds: float, ends: Callable[[], bool]) -> RowRepair | None:
        """Wait for the rows; None if the worker goes on without a repair: because there are none,
        after the time limit, or if ``ends`` says that the worker shall end."""
        deadline = time.monotonic() + seconds
        while not self._handed.wait(_POLL_SECONDS):
            if ends() or time.monotonic() > deadline:
                self.hand(None)
        return self._repair

    def finish(self, error: Exception | None) -> None:
        """End the session's wait: the rows are written, unless there is an error."""
        self.error = error
        self._finished.set()

    def wait_finished(self, seconds: float, check: Callable[[], None]) -> bool:
        """Wait until the worker has written the rows, or has failed to; False after the time
        limit."""
        return _wait(self._finished, seconds, check)


def _wait(event: threading.Event, seconds: float, check: Callable[[], None]) -> bool:
    deadline = time.monotonic() + seconds
    while not event.wait(_POLL_SECONDS):
        check()
        if time.monotonic() > deadline:
            return False
    return True


class StateMarks:
    """The marks of one worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: list[StateMark] = []
        self._ended = False
        self.worker_stops = False
        """True if the worker shall end: it waits for no repair any more."""

    def add(self, mark: StateMark) -> None:
        """Add a mark. It is missed if the worker has ended."""
        with self._lock:
            if self._ended:
                mark.settle(None)
            else:
                self._marks.append(mark)

    def end(self) -> None:
        """Settle all marks as missed, because the worker has ended."""
        with self._lock:
            self._ended = True
        self.stop(None)

    def stop(self, error: Wal2LakeError | None) -> None:
        """Settle all marks as missed. ``error``: why the worker does not reach them."""
        with self._lock:
            for mark in self._marks:
                mark.settle(None, error)
            self._marks = []

    def remove(self, mark: StateMark) -> None:
        """Forget a mark that nobody waits for any more."""
        mark.hand(None)
        with self._lock:
            self._marks = [m for m in self._marks if m is not mark]

    def __bool__(self) -> bool:
        """Whether there are marks."""
        return bool(self._marks)

    def next_between(self, start: Lsn, end: Lsn) -> Lsn | None:
        """Return the first position above ``start`` and below ``end``."""
        with self._lock:
            inside = [mark.lsn for mark in self._marks if start < mark.lsn < end]
        return min(inside, default=None)

    def settle(
        self, decided: Lsn, newest: Callable[[], SnapshotVector | None]
    ) -> list[StateMark]:
        """Settle the marks up to ``decided``, below which everything is published. ``newest``
        returns the newest vector, which readers see. Return the marks whose state the worker has to
        hold."""
        with self._lock:
            if all(mark.lsn > decided for mark in self._marks):
                return []
            vector = newest()
            left: list[StateMark] = []
            held: list[StateMark] = []
            for mark in self._marks:
                if mark.lsn > decided:
                    left.append(mark)
                elif vector is None or vector.lsn > mark.lsn:
                    mark.settle(None)
                else:
                    mark.settle(vector)
                    if mark.holds:
                        held.append(mark)
            self._marks = left
            return held
