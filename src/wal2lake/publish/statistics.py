"""Statistics of decoding: the numbers of pg_stat_replication_slots.

Comes in: counts of decodings, of walsenders (in mapped memory) and of SQL functions. Goes out: one
sum for each slot. They are in the engine's memory and begin anew with it, as PostgreSQL's do after
a crash; nothing is spilled here, so nothing is counted of that.

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
    """Since a decoding's beginning."""

    total_txns: int = 0
    """Given to the plugin, streamed ones too."""
    total_bytes: int = 0
    """Bytes of the changes, as they are decoded."""
    stream_txns: int = 0
    stream_count: int = 0
    """Blocks."""
    stream_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(one + another for one, another in pairs))


Reading = Callable[[], Counts]


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """A slot's row."""

    counts: Counts
    reset_at: float | None
    """Unix time."""


class Statistics:
    """Statistics of one node's slots, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, Counts] = {}
        self._running: dict[str, list[Reading]] = {}
        self._reset: dict[str, tuple[Counts, float]] = {}
        """Counts at the last reset, and its time."""

    @contextmanager
    def of(self, slot: str, read: Reading) -> Iterator[None]:
        """Around a decoding, whose counts ``read`` tells at any time."""
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
            before, at = self._reset.get(name, (Counts(), None))
            now = astuple(self._all(name))
            counted = zip(now, astuple(before), strict=True)
            return SlotStatistics(Counts(*(a - b for a, b in counted)), at)

    def reset(self, name: str) -> None:
        """Count from zero."""
        with self._lock:
            self._reset[name] = self._all(name), time.time()

    def forget(self, name: str) -> None:
        """The slot is gone, or is about to be made."""
        with self._lock:
            self._ended.pop(name, None)
            self._reset.pop(name, None)

    def _all(self, name: str) -> Counts:
        found = self._ended.get(name, Counts())
        for read in self._running.get(name, ()):
            found += read()
        return found


def no_such_slot(name: str) -> UsageError:
    """For a name that is to be reset."""
    return UsageError(f'replication slot "{name}" does not exist', sqlstate="22023")
