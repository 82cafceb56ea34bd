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
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import uuid
from collections import OrderedDict
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]

LEAST_ROWS: Final = 20_000
"""Of a file; a smaller one is read as fast as it is looked up."""

MOST_ROWS: Final = 16 << 20
"""Of a file: its keys are sorted in memory, 16 bytes a row."""


class KeyIndex:
    """A cache of files' keys. Safe for many threads of one process."""

    def __init__(
        self, directory: Path, limit_bytes: int, *, least_rows: int = LEAST_ROWS
    ) -> None:
        """``directory`` is emptied. What was not asked for longest goes, when there would
        be more than ``limit_bytes``; 0: nothing is kept."""
        self._directory = directory
        self._least = least_rows
        self._limit = limit_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """By file's name, the one that was used last at the end."""
        self._lock = threading.Lock()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)

    def takes(self, rows: int | None) -> bool:
        """Whether a file of so many rows is kept."""
        return rows is not None and self._least <= rows <= MOST_ROWS and self._limit > 0

    def find(self, file: str, keys: Index) -> tuple[Index, Index] | None:
        """Of distinct ascending keys: positions of those that the file has, and their rows'
        numbers; a key that it has twice is there twice. None: nothing is known of the file.

        ``file``: its name, unique among all tables and all times."""
        with self._lock:
            if file not in self._sizes:
                return None
            self._sizes.move_to_end(file)
        try:
            held = np.load(self._path(file), mmap_mode="r")
        except FileNotFoundError:
            # Another thread has just made room.
            return None
        stored = held[0]
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
        rows = at if len(held) == 1 else np.asarray(held[1][at])
        return positions.astype(np.int64), rows.astype(np.int64)

    def add(self, file: str, keys: Index) -> None:
        """Note all keys of a file, in the order of its rows."""
        if bool(np.all(keys[1:] >= keys[:-1])):
            held = keys[np.newaxis]
        else:
            order = np.argsort(keys, kind="stable")
            held = np.stack([keys[order], order])
        if held.nbytes > self._limit:
            return
        temporary = self._directory / f"{uuid.uuid4().hex}.tmp"
        with temporary.open("wb") as out:
            np.save(out, np.ascontiguousarray(held))
        with self._lock:
            temporary.replace(self._path(file))
            self._sizes[file] = held.nbytes
            self._sizes.move_to_end(file)
            total = sum(self._sizes.values())
            while total > self._limit:
                oldest, size = self._sizes.popitem(last=False)
                self._path(oldest).unlink(missing_ok=True)
                total -= size

    def _path(self, file: str) -> Path:
        name = hashlib.blake2b(file.encode(), digest_size=20).hexdigest()
        return self._directory / f"{name}.npy"
