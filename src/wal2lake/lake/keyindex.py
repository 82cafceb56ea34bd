"""Where the keys of a table's data files are, without reading the files: a cache on local disk.

Comes in: integer keys of a whole file, once. Goes out: the rows of a few keys. Used by ``upsert``
for batches of few keys and for the keys that local statements bring. Never: Parquet or Delta.

Why. 1,000 updates scattered over a table touch nearly all of its row groups, so statistics
help nothing, and reading the key column costs as much as the table is long: a second for 50 M rows
of bigint. Sorted keys are searched in microseconds, and the pages that a search visits are those
of a few rows.

Data files never change and no two have the same name, so what is noted of one stays true; the
directory is emptied at each start, so nothing depends on what a crash has left. Cost: 8 bytes a
row, 16 where a file is not sorted by its key, of disk (and of the system's page cache, while it has
room), and one read of the key column of each file for each life of the engine.

What was asked for lately is not thrown out for something else: tables that are too large together
would throw each other out and be read whole for each batch. And nothing depends on the cache: where
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
"""Of a file; a smaller one is read as fast as it is looked up."""

MOST_ROWS: Final = 8 << 20
"""Of a file: its keys are sorted in memory, up to 40 bytes a row, one file at a time."""

ROW_BYTES: Final = 16
"""Of disk, at most."""

SPARE_BYTES: Final = 1 << 30
"""That stay free on the disk: the change log may be on it."""

_LATELY_SECONDS: Final = 300.0
_REFUSED_KEPT: Final = 100_000
_PAUSE_SECONDS: Final = 60.0
"""After a failure nothing is noted for so long."""


@dataclass(slots=True)
class _Entry:
    rows: int
    is_sorted: bool
    used: float

    @property
    def size(self) -> int:
        return self.rows * 8 * (1 if self.is_sorted else 2)


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
        """``directory`` is emptied. There are at most ``limit_bytes``; 0: nothing is kept."""
        self._directory = directory
        self._least = least_rows
        self._limit = limit_bytes
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By file's name, the one that was used last at the end."""
        self._refused: set[str] = set()
        self._pause_until = 0.0
        self._lock = threading.Lock()
        self.learning = threading.Lock()
        """Held while a file's keys are in memory."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)

    def takes(self, rows: int | None) -> bool:
        """Whether a file of so many rows is kept."""
        return (
            rows is not None
            and self._least <= rows <= MOST_ROWS
            and rows * ROW_BYTES <= self._limit
        )

    def refuse(self, file: str) -> None:
        """Its keys are none that can be kept: there is a NULL."""
        with self._lock:
            if len(self._refused) >= _REFUSED_KEPT:
                self._refused.clear()
            self._refused.add(file)

    def refuses(self, file: str) -> bool:
        """Whether that was said of it."""
        with self._lock:
            return file in self._refused

    def knows(self, file: str) -> bool:
        """Whether it can be asked about a file; it was used then."""
        with self._lock:
            entry = self._entries.get(file)
            if entry is not None:
                entry.used = self._clock()
                self._entries.move_to_end(file)
            return entry is not None

    def admits(self, rows: int) -> bool:
        """Whether there is room for so many more, in all."""
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
        """Of distinct ascending keys: positions of those that the file has, and their rows'
        numbers; a key that it has twice is there twice. None: nothing is known of the file.

        ``file``: its name, unique among all tables and all times."""
        with self._lock:
            entry = self._entries.get(file)
        if entry is None:
            return None
        try:
            held = np.memmap(self._path(file), np.int64, "r")
            if held.nbytes != entry.size:
                raise ValueError(f"{held.nbytes} bytes instead of {entry.size}")
        except (OSError, ValueError) as error:
            self._failed(file, error)
            return None
        stored = held[: entry.rows]
        first = int(np.searchsorted(keys, stored[0], "left"))
        last = int(np.searchsorted(keys, stored[-1], "right"))
        sought = keys[first:last]
        start = np.searchsorted(stored, sought, "left")
        counts = np.searchsorted(stored, sought, "right") - start
        positions = np.repeat(np.arange(first, last), counts)
        # start, start + 1 ... for each key that is there.
        offsets = np.arange(len(positions)) - np.repeat(
            np.cumsum(counts) - counts, counts
        )
        at = np.repeat(start, counts) + offsets
        rows = at if entry.is_sorted else np.asarray(held[entry.rows :][at])
        return positions.astype(np.int64), rows.astype(np.int64)

    def add(self, file: str, keys: Index) -> None:
        """Note all keys of a file, in the order of its rows; at least one."""
        order = None
        if not bool(np.all(keys[1:] >= keys[:-1])):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
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
                # Another thread has just made room.
                return
            self._pause_until = self._clock() + _PAUSE_SECONDS
        get_logger().warning("could not use the cache of keys", error=error)

    def _path(self, file: str) -> Path:
        name = hashlib.blake2b(file.encode(), digest_size=20).hexdigest()
        return self._directory / f"{name}.keys"
