"""Collects the statistics of decoding for pg_stat_replication_slots.

In: counts of decodings, by walsenders (in mapped memory) and SQL functions. Out: one sum for each
slot. The counts are in the engine's memory and begin anew with each start, as PostgreSQL's do after
a crash. Decoding spills nothing here, so there are no counts of spilled transactions.

Source: pgstat_replslot.c; manual, "pg_stat_replication_slots".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass

from wal2lake.errors import UsageError


@dataclass(slots=True)
class Counts:
    """Counts since the beginning of a decoding."""

    total_txns: int = 0
    """Transactions given to the plugin, streamed ones included."""
    total_bytes: int = 0
    """Bytes of the decoded changes."""
    stream_txns: int = 0
    stream_count: int = 0
    """Number of streamed blocks."""
    stream_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(count + other_count for count, other_count in pairs))


Reading = Callable[[], Counts]


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """Statistics of one slot."""

    counts: Counts
    reset_at: float | None
    """Unix time of the last reset."""


class Statistics:
    """Statistics of one node's slots, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, Counts] = {}
        self._running: dict[str, list[Reading]] = {}
        self._reset: dict[str, tuple[Counts, float]] = {}
        """Counts at the last reset, and the time of the reset."""

    @contextmanager
    def of(self, slot: str, read: Reading) -> Iterator[None]:
        """Count a decoding while the context is open. ``read`` returns its counts at any time."""
        with self._lock:
            self._running.setdefault(slot, []).append(read)
        try:
            yield
        finally:
            with self._lock:
                self._ended[slot] = self._ended.get(slot, Counts()) + read()
                self._running[slot].remove(read)

    def slot(self, name: str) -> SlotStatistics:
        """Return the statistics of a slot as they are now."""
        with self._lock:
            before, reset_at = self._reset.get(name, (Counts(), None))
            now = astuple(self._all(name))
            counted = zip(now, astuple(before), strict=True)
            return SlotStatistics(Counts(*(a - b for a, b in counted)), reset_at)

    def reset(self, name: str) -> None:
        """Reset the counts of a slot to zero."""
        with self._lock:
            self._reset[name] = self._all(name), time.time()

    def forget(self, name: str) -> None:
        """Forget the counts of a slot that is dropped or about to be created."""
        with self._lock:
            self._ended.pop(name, None)
            self._reset.pop(name, None)

    def _all(self, name: str) -> Counts:
        counts = self._ended.get(name, Counts())
        for read in self._running.get(name, ()):
            counts += read()
        return counts


def no_such_slot(name: str) -> UsageError:
    """Error for a reset of a slot that does not exist."""
    return UsageError(f'replication slot "{name}" does not exist', sqlstate="22023")
