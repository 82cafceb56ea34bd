"""The file of one channel's ledger, and who may write it.

    {"owner": "<number of one sender>", "entries": [...]}

A sender that is told to stop finishes the delivery that it has begun, and notes the result. By then
another sender may have the file: of the same process after a reload, or of the next web process,
while the first one is still ending. So a sender takes the file over before it reads it, and writes
only as long as nobody has taken it over since. What a predecessor has not noted by then is open to
its successor as after a kill: the alert is sent again with the same id.

Takes: entries in JSON's types. Gives: those of the file. All of a step, comparison and replacement,
happens under a lock of the kernel on a file beside it. Called by: ``sending``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

_WAIT_SECONDS: Final = 1.0
"""Longest wait for the lock, which is held for as long as a small file takes to write. Longer means
that its holder was stopped or that the disk hangs; readings of the node must not wait for that."""

_RETRY_SECONDS: Final = 0.01


class LedgerFile:
    """One ledger's file, as one sender sees it. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self.path = path
        self._lock = path.with_name(f".{path.name}.lock")
        self._owner = str(uuid4())
        self._allowed: set[str | None] = {None, self._owner}
        """Owners whose file this sender may replace. None: there is no valid file."""
        self.entries: list[Any] = []
        """Entries that the predecessor has left."""

    def take(self) -> None:
        """Take the file over, and read its entries.

        Raises OSError if it cannot be written; the next ``write`` then takes it over."""
        # Before the lock, too: a disk that is full may have no place for the lock's file.
        self._look()
        with self._locked():
            self._look()
            self._replace(self.entries)

    def _look(self) -> None:
        owner, self.entries = self._read()
        self._allowed.add(owner)

    def is_lost(self) -> bool:
        """Return whether another sender has taken the file over. False if the file cannot be
        read."""
        return self._read()[0] not in self._allowed

    def write(self, entries: Sequence[Any]) -> bool:
        """Replace the entries; returns False if another sender has taken the file over. Raises
        OSError."""
        with self._locked():
            if self.is_lost():
                return False
            self._replace(entries)
            return True

    def _read(self) -> tuple[str | None, list[Any]]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self.path.read_text())
            return str(content["owner"]), list(content["entries"])
        return None, []

    def _replace(self, entries: Sequence[Any]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w") as file:
            json.dump({"owner": self._owner, "entries": list(entries)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        # A predecessor that comes back now is a stranger.
        self._allowed = {None, self._owner}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        ends = time.monotonic() + _WAIT_SECONDS
        with self._lock.open("a") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > ends:
                        raise
                time.sleep(_RETRY_SECONDS)
            # Closing the file unlocks it.
            yield
