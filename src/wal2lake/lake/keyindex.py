"""Caches where keys are in a table's data files, so that the files need not be read.

Comes in: integer keys of a whole file, once. Goes out: the rows of a few keys. Used by ``upsert``
for batches of few keys and for the keys that local statements add. Never: Parquet or Delta.

Why. 1,000 updates scattered over a table touch nearly all of its row groups, so statistics do not
help, and reading the key column takes time in proportion to the table: a second for 50 M rows of
bigint. A search in sorted keys takes microseconds and reads the pages of a few rows.

A small file is read as fast as it is searched, but opening it takes a millisecond, and a table
that is written all the time has a dozen small files between two compactions. So the keys of small
files stay in memory; the keys of other files are on local disk.

Data files never change and no two have the same name, so an entry stays valid. The directory is
emptied at each start, so nothing depends on leftovers of a crash. Cost: 8 bytes of disk a row, 16
if a file is not sorted by its key (and the same of the system's page cache, while it has room),
and one read of the key column of each file in each life of the engine.

Entries that were used recently are never evicted for others: otherwise tables that do not fit
together would evict each other and be read whole for each batch. Nothing depends on the cache: if
it cannot be written or read, files are read as if there were none.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from wal2lake.observe import get_logger

Index = npt.NDArray[np.int64]

LEAST_ROWS: Final = 20_000
"""Least rows of a file whose keys are on disk; keys of smaller files are in memory."""

_MEMORY_BYTES: Final = 32 << 20
"""Most bytes of small files' keys in memory."""

MOST_ROWS: Final = 8 << 20
"""Most rows of a file: its keys are sorted in memory, up to 40 bytes a row, one file at a time."""

ROW_BYTES: Final = 16
"""Most bytes of disk for a row."""

SPARE_BYTES: Final = 1 << 30
"""Bytes that stay free on the disk, because the change log may be on it."""

_LATELY_SECONDS: Final = 300.0
_REFUSED_KEPT: Final = 100_000
_PAUSE_SECONDS: Final = 60.0
"""After a failure nothing is cached for so long."""


@dataclass(slots=True)
class _Entry:
    rows: int
    is_sorted: bool
    used: float

    @property
    def size(self) -> int:
        return self.rows * 8 * (1 if self.is_sorted else 2)


@dataclass(frozen=True, slots=True)
class _Held:
    """A file's keys."""

    keys: Index
    """Ascending."""
    order: Index | None
    """Row numbers of the keys; None: the file is sorted by its key."""

    @property
    def size(self) -> int:
        return int(self.keys.nbytes + (0 if self.order is None else self.order.nbytes))


class KeyIndex:
    """A cache of files' keys. Safe for many threads of one process."""

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        least_rows: int = LEAST_ROWS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Empty ``directory``. ``limit_bytes``: most bytes on disk; 0: nothing is cached."""
        self._directory = directory
        self._least = least_rows
        self._limit = limit_bytes
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """Entries on disk by file name; the last one was used last."""
        self._small: OrderedDict[str, _Held] = OrderedDict()
        """Entries in memory, in the same order."""
        self._small_bytes = 0
        self._refused: set[str] = set()
        self._pause_until = 0.0
        self._lock = threading.Lock()
        self.learning = threading.Lock()
        """Held while all keys of a large file are in memory."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)

    def takes(self, rows: int | None) -> bool:
        """Whether a file of so many rows is cached."""
        return (
            rows is not None
            and 0 < rows <= MOST_ROWS
            and rows * ROW_BYTES <= self._limit
        )

    def is_small(self, rows: int) -> bool:
        """Whether a file's keys are kept in memory, where there is always room."""
        return rows < self._least

    def refuse(self, file: str) -> None:
        """Record that the keys of a file cannot be cached because there is a NULL."""
        with self._lock:
            if len(self._refused) >= _REFUSED_KEPT:
                self._refused.clear()
            self._refused.add(file)

    def refuses(self, file: str) -> bool:
        """Whether ``refuse`` was called for the file."""
        with self._lock:
            return file in self._refused

    def knows(self, file: str) -> bool:
        """Whether the file is cached; counts as a use of its entry."""
        with self._lock:
            if file in self._small:
                self._small.move_to_end(file)
                return True
            entry = self._entries.get(file)
            if entry is not None:
                entry.used = self._clock()
                self._entries.move_to_end(file)
            return entry is not None

    def admits(self, rows: int) -> bool:
        """Whether the disk has room for so many more rows."""
        with self._lock:
            now = self._clock()
            lately = now - _LATELY_SECONDS
            kept = sum(e.size for e in self._entries.values() if e.used > lately)
            if now < self._pause_until or kept + rows * ROW_BYTES > self._limit:
                return False
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return False
        return free - rows * ROW_BYTES > SPARE_BYTES

    def find(self, file: str, keys: Index) -> tuple[Index, Index] | None:
        """Find distinct ascending keys in a file. Return the positions of the keys that the file
        has, and their row numbers; a key that the file has twice is returned twice. None: the file
        is not cached.

        ``file``: its name, unique among all tables and all times.
        """
        with self._lock:
            held = self._small.get(file)
        held = self._on_disk(file) if held is None else held
        if held is None:
            return None
        stored = held.keys
        first = int(np.searchsorted(keys, stored[0], "left"))
        last = int(np.searchsorted(keys, stored[-1], "right"))
        sought = keys[first:last]
        start = np.searchsorted(stored, sought, "left")
        counts = np.searchsorted(stored, sought, "right") - start
        positions = np.repeat(np.arange(first, last), counts)
        # start, start + 1 ... for each key that the file has.
        offsets = np.arange(len(positions)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        indexes = np.repeat(start, counts) + offsets
        rows = indexes if held.order is None else np.asarray(held.order[indexes])
        return positions.astype(np.int64), rows.astype(np.int64)

    def _on_disk(self, file: str) -> _Held | None:
        with self._lock:
            entry = self._entries.get(file)
        if entry is None:
            return None
        try:
            mapped = np.memmap(self._path(file), np.int64, "r")
            if mapped.nbytes != entry.size:
                raise ValueError(f"{mapped.nbytes} bytes instead of {entry.size}")
        except (OSError, ValueError) as error:
            self._failed(file, error)
            return None
        order = None if entry.is_sorted else mapped[entry.rows :]
        return _Held(mapped[: entry.rows], order)

    def add(self, file: str, keys: Index) -> None:
        """Cache all keys of a file, at least one, in the order of its rows."""
        order = None
        if not bool(np.all(keys[1:] >= keys[:-1])):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
        if self.is_small(len(keys)):
            # Copy the keys: the array may be a slice of a larger one.
            self._hold(file, _Held(keys.copy(), order))
            return
        entry = _Entry(len(keys), order is None, self._clock())
        if entry.size > self._limit:
            return
        temporary = self._directory / f"{uuid.uuid4().hex}.tmp"
        try:
            with temporary.open("wb") as out:
                keys.tofile(out)
                if order is not None:
                    order.tofile(out)
            with self._lock:
                temporary.replace(self._path(file))
                self._entries[file] = entry
                self._entries.move_to_end(file)
                self._make_room()
        except OSError as error:
            self._failed(file, error)
        finally:
            temporary.unlink(missing_ok=True)

    def _hold(self, file: str, held: _Held) -> None:
        limit = min(_MEMORY_BYTES, self._limit)
        if held.size > limit:
            return
        with self._lock:
            before = self._small.pop(file, None)
            self._small[file] = held
            self._small_bytes += held.size - (0 if before is None else before.size)
            while self._small_bytes > limit:
                self._small_bytes -= self._small.popitem(last=False)[1].size

    def _make_room(self) -> None:
        total = sum(entry.size for entry in self._entries.values())
        while total > self._limit:
            oldest, entry = self._entries.popitem(last=False)
            self._path(oldest).unlink(missing_ok=True)
            total -= entry.size

    def _failed(self, file: str, error: Exception) -> None:
        with self._lock:
            gone = self._entries.pop(file, None)
            if isinstance(error, FileNotFoundError) and gone is None:
                # Another thread has just evicted the entry.
                return
            self._pause_until = self._clock() + _PAUSE_SECONDS
        get_logger().warning("could not use the cache of keys", error=error)

    def _path(self, file: str) -> Path:
        name = hashlib.blake2b(file.encode(), digest_size=20).hexdigest()
        return self._directory / f"{name}.keys"
