"""A log file that is rotated by size and age, and reopened if somebody else has moved it.

    wal2lake.log      the present file
    wal2lake.log.1    the one before it; .2 is older, and so on up to ``keep``

Takes bytes as they come from a pipe. A rotation never splits a line. As in PostgreSQL, the age is
counted in periods since 1970: with a day, a new file begins at midnight UTC, also across restarts.
An error of the disk loses lines instead of stopping the node, and the next line that can be written
says how much was lost.

Called by: ``collector``. Source: PostgreSQL's syslogger.c (modes, ages).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 1.0
"""Interval of looks at whether the file is still the one of that name."""

_RETRY_SECONDS: Final = 60.0
"""Interval between two attempts to rename, if the folder does not allow it. Chosen arbitrarily."""

_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class LogRotation:
    """When a file ends, and how many of the ended ones are kept."""

    size_bytes: int
    """0: at any size."""
    age_seconds: float
    """0: at any age."""
    keep: int


class RotatedFile:
    """The present file. Not thread-safe; several processes may append to one file."""

    def __init__(
        self,
        path: Path,
        rotation: LogRotation,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file. If that fails, it is tried again at each look, and lines are lost."""
        self._path = path
        self.rotation = rotation
        self._clock = clock
        self._descriptor = -1
        self._lost = 0
        self._line_begins = True
        self._looked_at = 0.0
        self._blocked_at = float("-inf")
        self._identity = (-1, -1)
        self._size = self._period = 0
        with contextlib.suppress(OSError):
            self._open()

    def write(self, data: bytes) -> None:
        """Append; rotate before it if the file is full or old."""
        self._look()
        if self._is_due(len(data)):
            if not self._line_begins:
                head, newline, data = data.partition(b"\n")
                self._append(head + newline)
            if self._line_begins:
                self._rotate()
        self._append(data)

    def reopen(self) -> None:
        """Open the file of that name anew: somebody has moved the one that is open."""
        with contextlib.suppress(OSError):
            before = self._descriptor
            self._open()
            if before >= 0:
                os.close(before)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, _MODE)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._size = status.st_size
        self._period = self._period_of(status.st_mtime if self._size else self._clock())

    def _period_of(self, moment: float) -> int:
        age = self.rotation.age_seconds
        return int(moment // age) if age else 0

    def _look(self) -> None:
        now = self._clock()
        if abs(now - self._looked_at) < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            status = self._path.stat()
        except OSError:
            self.reopen()
            return
        if (status.st_dev, status.st_ino) != self._identity:
            self.reopen()
        else:
            # Somebody may have truncated it.
            self._size = status.st_size

    def _is_due(self, coming: int) -> bool:
        # A clock that was set back must not block it for longer.
        if self._size == 0 or abs(self._clock() - self._blocked_at) < _RETRY_SECONDS:
            return False
        limit = self.rotation.size_bytes
        full = limit > 0 and self._size + coming > limit
        return full or self._period_of(self._clock()) != self._period

    def _rotate(self) -> None:
        keep = self.rotation.keep
        try:
            if keep == 0:
                self._path.unlink()
            for number in range(keep, 0, -1):
                newer = self._numbered(number - 1) if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    newer.rename(self._numbered(number))
            self._remove_older(keep)
        except OSError as error:
            self._blocked_at = self._clock()
            self._append(f"could not rotate log file: {error.strerror}\n".encode())
        self.reopen()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _remove_older(self, keep: int) -> None:
        # ``keep`` may have been larger before.
        number = keep + 1
        while self._numbered(number).exists():
            self._numbered(number).unlink()
            number += 1

    def _append(self, data: bytes) -> None:
        if self._lost and data and self._line_begins:
            notice = f"{self._lost} bytes of the log could not be written\n".encode()
            if self._put(notice) == len(notice):
                self._lost = 0
        done = self._put(data)
        self._lost += len(data) - done
        if data:
            self._line_begins = data.endswith(b"\n")

    def _put(self, data: bytes) -> int:
        """Return the number of bytes that were written."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            pass
        self._size += done
        return done
