"""The positions of one walsender, shared by mapped memory.

``run/walsender-<pid>.page``: native 64-bit words, each with one writer, the walsender. Readers are
the system views, synchronous commits, and whoever advances the slot. They may see two words of
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
"""Microseconds and one; 0: not known."""
_COUNTS: Final = tuple(field.name for field in fields(Counts))
_INDEX: Final = {name: i for i, name in enumerate((*_WORDS, *_LAGS, *_COUNTS))}


@dataclass(frozen=True, slots=True)
class WalsenderPositions:
    """One reading; 0: nothing yet."""

    sent: Lsn
    write: Lsn
    flush: Lsn
    apply: Lsn
    reply_time: int
    """Time of the client's last message: microseconds since 2000-01-01 UTC."""
    streaming: bool
    """It has caught up once."""
    write_lag_us: int | None = None
    """From sending to the client's word of it; None: not known, or the client has had all."""
    flush_lag_us: int | None = None
    apply_lag_us: int | None = None


class Page:
    """The mapped file."""

    def __init__(self, path: Path) -> None:
        """Map it; made if missing."""
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
        """Store words by name; only the walsender may."""
        for name, value in words.items():
            self._words[_INDEX[name]] = int(value)

    def set_lags(self, lags_us: Sequence[int | None]) -> None:
        """Set the lags of writing, flushing and applying; only the walsender may."""
        for name, lag_us in zip(_LAGS, lags_us, strict=True):
            self._words[_INDEX[name]] = 0 if lag_us is None else lag_us + 1

    def read(self) -> WalsenderPositions:
        """All of them."""
        sent, write, flush, apply, at, streaming = self._words[: len(_WORDS)]
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
            at,
            bool(streaming),
            *lags_us,
        )

    def read_counts(self) -> Counts:
        """Return the counts of decoded changes."""
        first = len(_WORDS) + len(_LAGS)
        return Counts(*self._words[first : first + len(_COUNTS)])

    def close(self) -> None:
        """Unmap; the file stays."""
        self._words.release()
        self._view.release()
        self._map.close()


def page_path(directory: Path, pid: int) -> Path:
    """Where it is below the node's ``run/``; ``pid``: the session's."""
    return directory / f"walsender-{pid}.page"
