"""Positions up to which readers see everything, for sessions that wait for one.

Comes in: from an idle worker, the position below which nothing is left to apply; from the launcher,
that something was published or that the catalog has changed. Goes out: a number that grows with
each of these, and a wait for the next one.

The published vector alone is not enough. If the source writes what concerns no table, the sealed
position moves on and the vector does not, although it is the state of that position, too. A
position belongs to a generation of the subscription: after a change of the source it says nothing.

Thread-safe; one object serves all workers of a node and all sessions.
"""

from __future__ import annotations

import threading
import time

from wal2lake.model import INVALID_LSN, Lsn, Oid


class VisiblePositions:
    """Positions that idle workers have reached, and the word that something has changed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._reached: dict[Oid, tuple[int, Lsn]] = {}

    @property
    def number(self) -> int:
        """Return a number that differs after each change. Read it before you look at anything."""
        with self._changed:
            return self._number

    def set_reached(self, subid: Oid, generation: int, lsn: Lsn) -> None:
        """Note that nothing is left to apply below ``lsn``, and that readers see all of it."""
        with self._changed:
            if self._reached.get(subid) != (generation, lsn):
                self._reached[subid] = (generation, lsn)
                self._announce()

    def reached(self, subid: Oid, generation: int) -> Lsn:
        """Return what an idle worker has reached in this generation; 0 if nothing is known."""
        with self._changed:
            last_generation, lsn = self._reached.get(subid, (generation, INVALID_LSN))
            return lsn if last_generation == generation else INVALID_LSN

    def forget(self, subid: Oid) -> None:
        """Forget a position whose worker has ended."""
        with self._changed:
            self._reached.pop(subid, None)
            self._announce()

    def announce(self) -> None:
        """Wake all that wait: a state was published, or the catalog has changed."""
        with self._changed:
            self._announce()

    def wait(self, number: int, seconds: float) -> bool:
        """Wait for a change since ``number`` was read. Return False after the time limit."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._number == number:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _announce(self) -> None:
        self._number += 1
        self._changed.notify_all()
