"""Orders waiting tables and waiting ranges. Pure but for the threads that ``RangePool`` runs ranges
on.

``SyncTurns`` orders tables. A table whose copy has failed is not due again before
wal_retrieve_retry_interval is over, and comes after tables that have failed less often. So tables
that cannot be copied never keep the others from being copied.

``RangePool`` orders ranges. As many ranges are read at once as there are cores. A free reader takes
a range of the subscription with the fewest readers, and among its groups of the one that was served
longest ago, so the ranges of a huge table do not block other tables.

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
"""Pause after yielding. ALTER TABLE without a rewrite takes milliseconds. Chosen arbitrarily."""

Key = tuple[Oid, Oid, int]
"""Subscription, table and epoch identify one copy with all its attempts."""


@dataclass(slots=True)
class _Failed:
    attempts: int
    failed_at: float
    longest_pause: float = math.inf

    def due_at(self, retry_seconds: float) -> float:
        return self.failed_at + min(retry_seconds, self.longest_pause)


class SyncTurns:
    """Decides which waiting tables may be tried. Not thread-safe."""

    def __init__(self, retry_seconds: float) -> None:
        """``retry_seconds``: time between a failure and the next attempt. May be changed."""
        self.retry_seconds = retry_seconds
        self._failed: dict[Key, _Failed] = {}

    def due(self, waiting: Iterable[Key], now: float) -> list[Key]:
        """Return the keys that may be tried now, fewest failures first, ties in the order given."""
        keys = []
        for key in waiting:
            failed = self._failed.get(key)
            if failed is None or failed.due_at(self.retry_seconds) <= now:
                keys.append(key)
        return sorted(keys, key=self.failures)

    def failed(self, key: Key, now: float) -> None:
        """Note that an attempt has ended with an error."""
        before = self._failed.get(key)
        attempts = 1 if before is None else before.attempts + 1
        self._failed[key] = _Failed(attempts, now)

    def gave_way(self, key: Key, now: float) -> None:
        """Note that an attempt has yielded to another session. The pause is short, but counts as a
        failure, so that the table is copied alone next time and holds up no other."""
        self.failed(key, now)
        self._failed[key].longest_pause = _GAVE_WAY_SECONDS

    def retain(self, waiting: Collection[Key]) -> None:
        """Forget the failures of all other keys: their tables are copied or dropped."""
        for key in self._failed.keys() - set(waiting):
            del self._failed[key]

    def failures(self, key: Key) -> int:
        """Return the number of failed attempts."""
        failed = self._failed.get(key)
        return 0 if failed is None else failed.attempts

    def next_due(self, after: float) -> float | None:
        """Return the first time after ``after`` at which a failed key is due again; None if there
        is none."""
        times = (failed.due_at(self.retry_seconds) for failed in self._failed.values())
        return min((time for time in times if time > after), default=None)


@dataclass(slots=True)
class _Job:
    """Ranges that one worker waits for."""

    owner: Oid
    waiting: deque[Callable[[], None]]
    running: int = 0
    served: int = 0
    error: BaseException | None = None


class RangePool:
    """Reads ranges of all copies, at most ``readers`` at once."""

    def __init__(self, readers: int) -> None:
        """Create the pool. Its threads start with the first range."""
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
        """Run all calls, and return when they have ended. Raises their first error.

        ``over`` is called after each: if it returns true, the results are not needed any more.
        Then, and after an error, the remaining calls are not started, and running calls end by
        themselves.
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
        """Start no more ranges. Running ones end with the process."""
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
