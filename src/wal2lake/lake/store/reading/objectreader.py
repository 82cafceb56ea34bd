"""Reads an object as a file.

In: ranges that will be read next, by its owner; reads, by pyarrow. Out: their bytes.

pyarrow reads a file through ``seek`` and ``read``, a column of a row group at a time, one after
another. An object would be asked once for each. So the owner says beforehand what it will read
(``fetch``); that is asked for in few requests at once and kept until the next ``fetch``. What is
too large for that is asked for while it is read, in windows of several requests (``windows``).
Anything else that is read is asked for as it comes.

pyarrow has this itself (``pre_buffer``), but reads a file of Python one range at a time, and joins
ranges 8 KiB apart at most: 11 of 64 columns, far from each other, take 0.50 s there and 0.17 s
here with 30 ms a request.

Called by ``objects``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

import pyarrow as pa

from wal2lake.lake.store.port import Range
from wal2lake.lake.store.reading.ranges import (
    HOLE_BYTES,
    PART_BYTES,
    Part,
    find,
    only,
    requests_for,
    without_holes,
)
from wal2lake.lake.store.reading.windows import Window

_REQUESTS_AT_ONCE: Final = 4
"""Most requests of one reader that are under way. A guess: one connection to S3 gives 50 to 90 MB
a second."""


class ObjectReader:
    """Reads one object, as in ``port.StoreReader``."""

    is_remote: Final = True

    def __init__(self, size: int, get: Callable[[int, int], Any]) -> None:
        """``get`` returns bytes from one offset to another."""
        self.size = size
        self._file = _ObjectFile(size, get)
        self.source: Any = pa.PythonFile(self._file, mode="r")

    def fetch(self, ranges: Sequence[Range], most_bytes: int | None = None) -> None:
        """Ask for the ranges, and keep them instead of what is kept now."""
        self._file.keep(ranges, most_bytes)

    def close(self) -> None:
        """Forget what is kept."""
        self._file.keep(())
        with suppress(OSError, pa.ArrowException):
            self.source.close()

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _ObjectFile(io.RawIOBase):
    """The object as a file of Python. pyarrow calls it from its threads, one call at a time."""

    def __init__(self, size: int, get: Callable[[int, int], Any]) -> None:
        self._size = size
        self._get = get
        self._kept: list[Part] = []
        self._window: Window | None = None
        self._part_bytes = PART_BYTES
        self._at = 0

    def keep(self, ranges: Sequence[Range], most_bytes: int | None = None) -> None:
        """Keep these ranges alone, or windows of them that have ``most_bytes``."""
        ends = [(start, min(end, self._size)) for start, end in ranges]
        self._window = None
        self._part_bytes = PART_BYTES
        if most_bytes is not None and sum(e - s for s, e in ends) > most_bytes:
            self._kept = []
            self._window = Window(ends, most_bytes)
            # A window is small: its parts are, so that several are under way.
            part = most_bytes // _REQUESTS_AT_ONCE
            self._part_bytes = min(max(part, HOLE_BYTES), PART_BYTES)
            return
        # A small object is here as a whole once its end has been read.
        kept = [
            (first, content)
            for first, content in self._kept
            if any(
                first <= start and end <= first + len(content) for start, end in ends
            )
        ]
        missing = [byte_range for byte_range in ends if find(kept, *byte_range) is None]
        self._kept = []
        self._kept = sorted([*kept, *self._ask(missing)], key=lambda part: part[0])

    def _ask(self, ranges: Sequence[Range]) -> list[Part]:
        def get(request: Range) -> list[Part]:
            part = (request[0], memoryview(self._get(*request)))
            return without_holes(part, ranges)

        requests = requests_for(ranges, self._part_bytes)
        if len(requests) <= 1:
            return [part for request in requests for part in get(request)]
        with ThreadPoolExecutor(min(len(requests), _REQUESTS_AT_ONCE)) as pool:
            return [part for parts in pool.map(get, requests) for part in parts]

    def _move(self, start: int, end: int) -> bool:
        """Move the window to a read; False if it has no such bytes."""
        moved = None if self._window is None else self._window.move(start, end)
        if self._window is None or moved is None:
            return False
        keep, ask = moved
        self._kept = only(self._kept, keep)
        self._kept = sorted([*self._kept, *self._ask(ask)], key=lambda part: part[0])
        self._window.add(ask)
        return True

    def readable(self) -> bool:
        """Tell pyarrow that bytes may be read."""
        return True

    def seekable(self) -> bool:
        """Tell pyarrow that any range may be read."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = base[whence] + offset
        return self._at

    def read(self, size: int | None = -1, /) -> Any:
        """Return the next bytes, fewer only at the end of the object."""
        start = self._at
        end = self._size
        if size is not None and size >= 0:
            end = min(start + size, end)
        if start >= end:
            return b""
        part = find(self._kept, start, end)
        if part is None and self._move(start, end):
            part = find(self._kept, start, end)
        if self._window is not None:
            self._window.note(start, end)
        if part is None:
            parts = self._ask([(start, end)])
            part = find(parts, start, end)
            if part is None:
                # The object is shorter than its owner was told.
                part = memoryview(b"".join(content for _, content in parts))
        self._at += len(part)
        return part
