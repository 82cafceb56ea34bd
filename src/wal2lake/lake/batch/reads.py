"""Versions that batches read between staging and commit, so that nothing removes their files.

In: batches as they are staged. Out: the versions that running batches read of a table. A batch that
nobody refers to any more reads nothing. Called by ``lake.spark.batches``; asked by retention.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from wal2lake.lake.port import TableState


class ReadsVersion(Protocol):
    """A staged batch."""

    state: TableState
    """The version that it reads."""


class BatchReads:
    """The versions that one process's batches read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._staging: Counter[tuple[str, int]] = Counter()
        self._staged: weakref.WeakSet[ReadsVersion] = weakref.WeakSet()

    @contextmanager
    def of(self, state: TableState) -> Iterator[None]:
        """Record that a batch is being staged on a version."""
        read = state.location, state.version
        with self._lock:
            self._staging[read] += 1
        try:
            yield
        finally:
            with self._lock:
                self._staging[read] -= 1
                if not self._staging[read]:
                    del self._staging[read]

    def keep(self, staged: ReadsVersion) -> None:
        """Record a staged batch, for as long as it exists."""
        with self._lock:
            self._staged.add(staged)

    def versions(self, location: str) -> list[int]:
        """Return the versions of a table that batches read."""
        with self._lock:
            staging = [v for place, v in self._staging if place == location]
            staged = list(self._staged)
        return staging + [
            batch.state.version for batch in staged if batch.state.location == location
        ]
