"""The journal thread: gulps into the change log, and what is durable back to the reader.

    reader ── put ──▶ queue ──▶ journal thread: append, fsync ──▶ done ── collect ──▶ reader

All that waits is written as one record and synced once: the group of a group fsync. On a full disk
the thread tries again, the same group, and the reader pauses when the queue is full; a group that
could not be written is never followed by another, or the log would have a hole.

``put``, ``collect`` and ``is_full`` are the reader's: what waits is counted by it alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from wal2lake.changelog import ChangeLog
from wal2lake.errors import StorageError, UnusableLogError
from wal2lake.model import Lsn
from wal2lake.receive.gulps import Gulp
from wal2lake.receive.threads.pauses import Pauses

RECORD_BYTES: Final = 4 << 20
"""Gulps are gathered into one journal record up to this; the last may be as large itself. One
fsync for it costs about what its write does."""

_QUEUE_BYTES: Final = 64 << 20
"""Bound of what waits for the journal thread; a guess at a second of a busy walsender."""

STORAGE_RETRY_SECONDS: Final = 1.0
"""How soon a disk that was full is tried again."""

_UNWRITABLE: Final = "the change log cannot be written"


@dataclass(frozen=True, slots=True)
class Logged:
    """A gulp that is durable."""

    lsn: Lsn
    """The end of the log with it."""
    gulp: Gulp


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
    ) -> None:
        """``wake`` tells the reader that there is something to collect; ``before`` is called
        with each gulp before it is logged, and may take its time."""
        self._log = log
        self._pauses = pauses
        self._stop = stop
        self._wake = wake
        self._before = before
        self._queue: queue.SimpleQueue[Gulp | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Logged] = queue.SimpleQueue()
        self._waiting_bytes = 0
        """The reader's alone."""

    def put(self, gulp: Gulp) -> None:
        """Hand one over."""
        self._waiting_bytes += len(gulp.data)
        self._queue.put(gulp)

    def collect(self) -> Iterator[Logged]:
        """Yield the positions that have become durable since the last call, in order."""
        while True:
            try:
                one = self._done.get_nowait()
            except queue.Empty:
                return
            self._waiting_bytes -= len(one.gulp.data)
            yield one

    @property
    def is_full(self) -> bool:
        """Nothing more should be read."""
        return self._waiting_bytes >= _QUEUE_BYTES

    def end(self) -> None:
        """Nothing will be put any more: the thread ends when it has written the rest, or at
        once if it was told to stop and there is no space for it."""
        self._queue.put(None)

    def work(self) -> None:
        """The thread. Raises what must end the run."""
        # After one that could not be written what follows might fit: behind a hole.
        while self._next_is_written():
            pass

    def _next_is_written(self) -> bool:
        # A frame of its own, for it lets the group go: no gulp is held while the next is
        # waited for.
        group = self._next_group()
        if group is None:
            return False
        for one in group:
            self._before(one)
        return self._write(group)

    def _next_group(self) -> list[Gulp] | None:
        first = self._queue.get()
        if first is None:
            return None
        group, size = [first], len(first.data)
        while size < RECORD_BYTES:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            group.append(more)
            size += len(more.data)
        return group

    def _write(self, group: list[Gulp]) -> bool:
        """Log a group; False: the run was stopped before there was space for it."""
        data, lengths = group[0].data, group[0].lengths
        if len(group) > 1:
            data = b"".join(one.data for one in group)
            lengths = np.concatenate([one.lengths for one in group])
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
        for one in group:
            self._done.put(Logged(logged, one))
        self._wake()
        # What is durable is told first: the catalog's disk may be slow, or full.
        self._pauses.end(_UNWRITABLE)
        return True
