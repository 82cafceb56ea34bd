"""The positions of one walsender, shared by mapped memory.

``run/walsender-<pid>.page`` has native 64-bit words, written by the walsender only. Readers are the
system views, synchronous commits, and functions that advance the slot. A reader may see words of
different moments.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from wal2lake.model import Lsn
from wal2lake.publish.statistics import Counts

_SIZE: Final = 4096
_WORDS: Final = ("sent", "write", "flush", "apply", "reply_time", "streaming")
_LAGS: Final = ("write_lag", "flush_lag", "apply_lag")
"""Lags in microseconds plus one; 0 if not known."""
_COUNTS: Final = tuple(field.name for field in fields(Counts))
_INDEX: Final = {name: i for i, name in enumerate((*_WORDS, *_LAGS, *_COUNTS))}


@dataclass(frozen=True, slots=True)
class WalsenderPositions:
    """Positions at one moment; 0 if there is none yet."""

    sent: Lsn
    write: Lsn
    flush: Lsn
    apply: Lsn
    reply_time: int
    """Time of the client's last message: microseconds since 2000-01-01 UTC."""
    streaming: bool
    """Whether the walsender has caught up once."""
    write_lag_us: int | None = None
    """Time from sending to the client's report. None if not known, or if the client has
    everything."""
    flush_lag_us: int | None = None
    apply_lag_us: int | None = None


class Page:
    """The mapped file of one walsender."""

    def __init__(self, path: Path) -> None:
        """Map the file, and create it if it is missing."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < _SIZE:
                os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._view = memoryview(self._map)
        self._words = self._view.cast("Q")

    def set(self, **words: int) -> None:
        """Store words by name. Only the walsender calls this."""
        for name, value in words.items():
            self._words[_INDEX[name]] = int(value)

    def set_lags(self, lags_us: Sequence[int | None]) -> None:
        """Store the lags of writing, flushing and applying. Only the walsender calls this."""
        for name, lag_us in zip(_LAGS, lags_us, strict=True):
            self._words[_INDEX[name]] = 0 if lag_us is None else lag_us + 1

    def read(self) -> WalsenderPositions:
        """Read the positions."""
        sent, write, flush, apply, reply_time, streaming = self._words[: len(_WORDS)]
        first = len(_WORDS)
        lags_us = (
            word - 1 if word else None
            for word in self._words[first : first + len(_LAGS)]
        )
        return WalsenderPositions(
            Lsn(sent),
            Lsn(write),
            Lsn(flush),
            Lsn(apply),
            reply_time,
            bool(streaming),
            *lags_us,
        )

    def read_counts(self) -> Counts:
        """Return the counts of decoded changes."""
        first = len(_WORDS) + len(_LAGS)
        return Counts(*self._words[first : first + len(_COUNTS)])

    def close(self) -> None:
        """Unmap the file. The file stays."""
        self._words.release()
        self._view.release()
        self._map.close()


def page_path(directory: Path, pid: int) -> Path:
    """Return the path below the node's ``run/``. ``pid``: the session's."""
    return directory / f"walsender-{pid}.page"
