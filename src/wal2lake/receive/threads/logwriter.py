"""The journal thread: appends gulps to the change log, and reports durable positions.

    reader ── put ──▶ queue ──▶ journal thread: append, fsync ──▶ done ── collect ──▶ reader

All waiting gulps are written as one record and synced once, as in a group commit. On a full disk
the thread retries the same group, and the reader pauses when the queue is full. No other group is
written after a group that failed, because the log would have a hole.

Only the reader calls ``put``, ``collect`` and ``is_full``, so only the reader counts the waiting
bytes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from wal2lake.changelog import ChangeLog
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.errors import StorageError, UnusableLogError
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.receive.gulps import Gulp
from wal2lake.receive.threads.pauses import Pauses

RECORD_BYTES: Final = 4 << 20
"""Size up to which gulps are gathered into one journal record; the last gulp may be as large
itself. The fsync of such a record costs about as much as its write."""

_QUEUE_BYTES: Final = 64 << 20
"""Limit of the bytes that wait for the journal thread. Estimated as one second of a busy
walsender."""

STORAGE_RETRY_SECONDS: Final = 1.0
"""Interval between retries on a full disk."""

_UNWRITABLE: Final = "the change log cannot be written"


@dataclass(frozen=True, slots=True)
class Logged:
    """A durable gulp."""

    lsn: Lsn
    """End of the log after the gulp."""
    gulp: Gulp


class Observer(Protocol):
    """Measurements of the journal's thread."""

    def begin(self) -> None:
        """Begin, before the first gulp."""

    def logging(self, data: bytes, lengths: Lengths) -> None:
        """Note messages that are about to be logged."""

    def durable(self) -> None:
        """Note that they are durable."""


class LogWriter:
    """Writes the journal of one connection. The walreceiver starts and joins the thread."""

    def __init__(
        self,
        log: ChangeLog,
        pauses: Pauses,
        *,
        stop: threading.Event,
        wake: Callable[[], None],
        before: Callable[[Gulp], None] = lambda gulp: None,
        observer: Observer | None = None,
    ) -> None:
        """``wake`` tells the reader that there are positions to collect. ``before`` is called with
        all changes before they are logged, and may block."""
        self._log = log
        self._pauses = pauses
        self._stop = stop
        self._wake = wake
        self._before = before
        self._observer = observer
        self._queue: queue.SimpleQueue[Gulp | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Logged] = queue.SimpleQueue()
        self._waiting_bytes = 0
        """Counted by the reader only."""

    def put(self, gulp: Gulp) -> None:
        """Hand over a gulp."""
        self._waiting_bytes += len(gulp.data)
        self._queue.put(gulp)

    def collect(self) -> Iterator[Logged]:
        """Yield the positions that have become durable since the last call, in order."""
        while True:
            try:
                logged = self._done.get_nowait()
            except queue.Empty:
                return
            self._waiting_bytes -= len(logged.gulp.data)
            yield logged

    @property
    def is_full(self) -> bool:
        """Whether the reader should stop reading."""
        return self._waiting_bytes >= _QUEUE_BYTES

    def end(self) -> None:
        """Announce that no gulp will follow. The thread ends when it has written the rest, or at
        once if the run was stopped and there is no space."""
        self._queue.put(None)

    def _measure(self, note: Callable[[Observer], None]) -> None:
        """Call the observer. Its error ends the measurements of this run, never the run."""
        if self._observer is None:
            return
        try:
            note(self._observer)
        except Exception as error:
            self._observer = None
            get_logger().error("receiving is no longer measured", exc_info=error)

    def work(self) -> None:
        """Run the thread. Raises errors that must end the run."""
        self._measure(lambda observer: observer.begin())
        # Ends after a group that could not be written: a smaller one might fit, but behind a
        # hole.
        while self._next_is_written():
            pass

    def _next_is_written(self) -> bool:
        # A frame of its own releases the group, so that no gulp is held during the wait for the
        # next.
        group = self._next_group()
        if group is None:
            return False
        joined = _joined(group)
        # At once, because that may ask the publisher.
        self._before(joined)
        return self._write(group, joined)

    def _next_group(self) -> list[Gulp] | None:
        first = self._queue.get()
        if first is None:
            return None
        group, size = [first], len(first.data)
        while size < RECORD_BYTES:
            try:
                gulp = self._queue.get_nowait()
            except queue.Empty:
                break
            if gulp is None:
                self._queue.put(None)
                break
            group.append(gulp)
            size += len(gulp.data)
        return group

    def _write(self, group: list[Gulp], joined: Gulp) -> bool:
        """Log a group. Return False if the run was stopped before there was space."""
        data, lengths = joined.data, joined.lengths
        self._measure(lambda observer: observer.logging(data, lengths))
        while True:
            try:
                self._log.append(data, lengths)
                break
            except UnusableLogError:
                raise
            except StorageError as error:
                self._pauses.begin(_UNWRITABLE, error)
                if self._stop.wait(STORAGE_RETRY_SECONDS):
                    return False
        logged = self._log.sync()
        for gulp in group:
            self._done.put(Logged(logged, gulp))
        self._wake()
        self._measure(lambda observer: observer.durable())
        # Report durable positions first: the catalog's disk may be slow, or full.
        self._pauses.end(_UNWRITABLE)
        return True


def _joined(group: list[Gulp]) -> Gulp:
    if len(group) == 1:
        return group[0]
    return Gulp(
        b"".join(gulp.data for gulp in group),
        np.concatenate([gulp.lengths for gulp in group]),
        group[-1].open_at_end,
    )
