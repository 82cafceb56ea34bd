"""The queue from the journal's thread to the seal thread: bounded memory, no waits for the writer.

Gulps are handed over with their bytes while the queue holds less than ``memory_bytes``. Beyond
that only their place in the journal is queued, and the seal thread reads them back. So a slow or
failing seal neither stops the receiver nor fills its memory; the journal, whose files stay until
they are sealed, is the overflow.

The queue gives out nothing before it is durable in the journal (``release``): neither a segment nor
the state of a prepared transaction may depend on a record that a power loss can remove.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.changelog.journal.journal import JournalPlace

# Buffers a few gulps; reading back from the page cache costs little more.
DEFAULT_MEMORY_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class GulpHandover:
    """Appended payloads. ``data`` and ``lengths`` are None if they must be read back."""

    place: JournalPlace
    size: int
    """Bytes."""
    data: bytes | None
    lengths: Lengths | None


@dataclass(frozen=True, slots=True)
class Connected:
    """The start of a new connection in the stream."""

    place: JournalPlace


class Handover:
    """A queue of one producer and one consumer."""

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._items: deque[GulpHandover | Connected] = deque()
        self._held = 0
        self._waiting = 0
        self._released = 0
        """Number of the oldest items that may be given out."""
        self._unreleased = 0
        """Bytes of the other items."""
        self._woken = False
        self._ready = threading.Condition()

    @property
    def length(self) -> int:
        """Number of items."""
        return len(self._items)

    def put(self, place: JournalPlace, data: bytes, lengths: Lengths) -> None:
        """Queue a gulp."""
        size = len(data)
        with self._ready:
            if self._held < self._memory_bytes:
                self._held += size
                self._items.append(GulpHandover(place, size, data, lengths))
            else:
                self._items.append(GulpHandover(place, size, None, None))
            self._unreleased += size

    def put_connected(self, place: JournalPlace) -> None:
        """Queue the start of a new connection."""
        with self._ready:
            self._items.append(Connected(place))

    def release(self) -> None:
        """Allow all queued items to be given out: they are durable in the journal."""
        with self._ready:
            self._released = len(self._items)
            self._waiting += self._unreleased
            self._unreleased = 0
            self._ready.notify()

    def peek(
        self, timeout_seconds: float, *, enough_bytes: int
    ) -> Connected | list[GulpHandover] | None:
        """Return the oldest items, which stay queued until ``done``; None: none came in time.

        A Connected is returned at once. For gulps the call waits until there are
        ``enough_bytes``, or for the time; it returns gulps up to that size, and none behind the
        next Connected.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._ready:
            while not (
                self._woken
                or self._waiting >= enough_bytes
                or self._connected_is_next()
            ):
                left = deadline - time.monotonic()
                if left <= 0 or not self._ready.wait(left):
                    break
            self._woken = False
            if not self._released:
                return None
            first = self._items[0]
            if isinstance(first, Connected):
                return first
            gulps: list[GulpHandover] = []
            size = 0
            for item in itertools.islice(self._items, self._released):
                if isinstance(item, Connected) or size >= enough_bytes:
                    break
                gulps.append(item)
                size += item.size
            return gulps

    def _connected_is_next(self) -> bool:
        return self._released > 0 and isinstance(self._items[0], Connected)

    def done(self, count: int) -> None:
        """Remove the oldest items, as many as ``peek`` returned."""
        with self._ready:
            self._released -= count
            for _ in range(count):
                item = self._items.popleft()
                if isinstance(item, GulpHandover):
                    self._waiting -= item.size
                    if item.data is not None:
                        self._held -= item.size

    def wake(self) -> None:
        """End a wait of ``peek`` now, even without an item."""
        with self._ready:
            self._woken = True
            self._ready.notify_all()

    def oldest_file(self) -> int | None:
        """Return the number of the oldest journal file from which an item may be read back."""
        with self._ready:
            return self._items[0].place.number if self._items else None
