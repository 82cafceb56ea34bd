"""The queue from the journal's thread to the seal thread: bounded memory, never a wait.

What has been appended is handed over with its bytes while the queue holds less than
``memory_bytes``; beyond that only its place in the journal is, and the seal thread reads it
back. So a slow or failing seal neither stops the receiver nor fills its memory; the journal,
whose files stay until they are sealed, is the overflow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.changelog.journal.journal import Place

# A few gulps' worth of smoothing; reading back from the page cache costs little more.
DEFAULT_MEMORY_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Gulp:
    """Appended payloads. ``data`` and ``lengths`` are None if they must be read back."""

    place: Place
    data: bytes | None
    lengths: Lengths | None


@dataclass(frozen=True, slots=True)
class Connected:
    """A new connection began here in the stream."""

    place: Place


class Handover:
    """A queue of one producer and one consumer."""

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._items: deque[Gulp | Connected] = deque()
        self._held = 0
        self._ready = threading.Condition()

    @property
    def held_bytes(self) -> int:
        """Bytes of payload in memory."""
        return self._held

    @property
    def length(self) -> int:
        """How many items wait."""
        return len(self._items)

    def put(self, place: Place, data: bytes, lengths: Lengths) -> None:
        """Hand a gulp over."""
        with self._ready:
            if self._held < self._memory_bytes:
                self._held += len(data)
                self._items.append(Gulp(place, data, lengths))
            else:
                self._items.append(Gulp(place, None, None))
            self._ready.notify()

    def put_connected(self, place: Place) -> None:
        """Hand over that a new connection began."""
        with self._ready:
            self._items.append(Connected(place))
            self._ready.notify()

    def peek(self, timeout_seconds: float) -> Gulp | Connected | None:
        """The oldest item, which stays until ``done``; None after the time without one."""
        deadline = time.monotonic() + timeout_seconds
        with self._ready:
            while not self._items:
                left = deadline - time.monotonic()
                if left <= 0 or not self._ready.wait(left):
                    break
            return self._items[0] if self._items else None

    def done(self) -> None:
        """Remove the item that ``peek`` gave."""
        with self._ready:
            item = self._items.popleft()
            if isinstance(item, Gulp) and item.data is not None:
                self._held -= len(item.data)

    def wake(self) -> None:
        """End a wait of ``peek`` now, item or not."""
        with self._ready:
            self._ready.notify_all()

    def oldest_file(self) -> int | None:
        """Number of the oldest journal file that an item may still be read from."""
        with self._ready:
            return self._items[0].place.number if self._items else None
