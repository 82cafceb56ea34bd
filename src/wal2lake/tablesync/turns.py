"""Orders waiting tables and waiting ranges. Pure but for the threads that ``RangePool`` runs ranges
on.

``SyncTurns`` orders tables. One whose copy has failed is not due again before
wal_retrieve_retry_interval is over, and comes after those that have failed less often: however
many tables cannot be copied, the others are.

``RangePool`` orders ranges. As many are read at once as there are cores. A reader that becomes
free takes one of the subscription with the fewest readers, and of its tables of the one
that was served longest ago: a huge table queues its ranges before nobody.

Called by ``worker`` (tables) and ``group`` (ranges).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.model import Oid

_GAVE_WAY_SECONDS: Final = 0.5
"""ALTER TABLE without a rewrite takes milliseconds. A guess."""

Key = tuple[Oid, Oid, int]
"""Subscription, table, epoch: one copy, whatever number of attempts it takes."""


@dataclass(slots=True)
class _Failed:
    attempts: int
    failed_at: float
    longest_pause: float = math.inf

    def due_at(self, retry_seconds: float) -> float:
        return self.failed_at + min(retry_seconds, self.longest_pause)


class SyncTurns:
    """Which of the waiting tables may be tried. Not thread-safe."""

    def __init__(self, retry_seconds: float) -> None:
        """``retry_seconds`` pass between a failure and the next attempt; may be changed."""
        self.retry_seconds = retry_seconds
        self._failed: dict[Key, _Failed] = {}

    def due(self, waiting: Iterable[Key], now: float) -> list[Key]:
        """Return the keys that may be tried now, fewest failures first, ties in the order given."""
        found = []
        for key in waiting:
            failed = self._failed.get(key)
            if failed is None or failed.due_at(self.retry_seconds) <= now:
                found.append(key)
        return sorted(found, key=self.failures)

    def failed(self, key: Key, now: float) -> None:
        """An attempt has ended with an error."""
        before = self._failed.get(key)
        attempts = 1 if before is None else before.attempts + 1
        self._failed[key] = _Failed(attempts, now)

    def gave_way(self, key: Key, now: float) -> None:
        """An attempt has ended for somebody at the publisher: a short pause, which counts as a
        failure, so that the table does not hold up others again."""
        self.failed(key, now)
        self._failed[key].longest_pause = _GAVE_WAY_SECONDS

    def retain(self, waiting: Collection[Key]) -> None:
        """Forget the failures of all others: they are copied, or gone."""
        for key in self._failed.keys() - set(waiting):
            del self._failed[key]

    def failures(self, key: Key) -> int:
        """How often it has failed."""
        failed = self._failed.get(key)
        return 0 if failed is None else failed.attempts

    def next_due(self, after: float) -> float | None:
        """When the first of them may be tried again after a moment; None: there is none."""
        times = (one.due_at(self.retry_seconds) for one in self._failed.values())
        return min((at for at in times if at > after), default=None)


@dataclass(slots=True)
class _Job:
    """The ranges that one worker waits for."""

    owner: Oid
    waiting: deque[Callable[[], None]]
    running: int = 0
    served: int = 0
    error: BaseException | None = None


class RangePool:
    """Reads ranges of all copies, at most ``readers`` at once."""

    def __init__(self, readers: int) -> None:
        """Threads begin with the first range."""
        self._readers = readers
        self._changed = threading.Condition()
        self._jobs: list[_Job] = []
        self._started = 0
        self._idle = 0
        self._served = 0
        self._stopped = False

    def run(
        self, owner: Oid, calls: Sequence[Callable[[], None]], over: Callable[[], bool]
    ) -> None:
        """Call all of them, and return when they have ended, with the first error.

        ``over`` is asked after each: if it is true there is nothing more to wait for. Then,
        or after an error, those that have not begun are not called, and those that run
        are left to end by themselves.
        """
        job = _Job(owner, deque(calls))
        with self._changed:
            self._jobs.append(job)
            self._start_readers()
            self._changed.notify_all()
            try:
                while (
                    job.error is None
                    and not self._stopped
                    and (job.waiting or job.running)
                    and not over()
                ):
                    self._changed.wait()
            finally:
                self._jobs.remove(job)
        if job.error is not None:
            raise job.error

    def wake(self) -> None:
        """Wake all waiting threads to check again whether the work is over."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin no more; what runs ends with the process."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _start_readers(self) -> None:
        wanted = sum(len(job.waiting) for job in self._jobs)
        missing = min(wanted - self._idle, self._readers - self._started)
        for _ in range(max(0, missing)):
            name = f"copy-{self._started}"
            self._started += 1
            threading.Thread(target=self._read, name=name, daemon=True).start()

    def _read(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._stopped and not any(j.waiting for j in self._jobs):
                    self._changed.wait()
                self._idle -= 1
                if self._stopped:
                    return
                job = self._next()
                call = job.waiting.popleft()
                job.running += 1
                self._served += 1
                job.served = self._served
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
            with self._changed:
                job.running -= 1
                if error is not None:
                    job.error = job.error or error
                    job.waiting.clear()
                self._changed.notify_all()

    def _next(self) -> _Job:
        readers: dict[Oid, int] = {}
        for job in self._jobs:
            readers[job.owner] = readers.get(job.owner, 0) + job.running
        return min(
            (job for job in self._jobs if job.waiting),
            key=lambda job: (readers[job.owner], job.served),
        )
