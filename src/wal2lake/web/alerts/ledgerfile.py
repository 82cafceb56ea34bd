"""The file of one channel's ledger, and the lock that says which sender is at work.

    alerts-webhook.json         {"owner": <PID>, "entries": [...]}
    .alerts-webhook.json.lock   locked from before the first reading until the sender ends

Two senders of one channel may exist at a time: after a reload, while the first one still has a
delivery under way, and in two web processes of one node. The lock is the kernel's (flock). Whoever
has it sends, the others wait for it, so no alert is sent by two of them, and none reads a ledger
that another one still writes. The kernel releases the lock when its holder ends in whatever way, so
no file outlives it and no PID has to be judged. ``owner`` is for people and for the log.

In: entries in JSON's types. Out: those of the file. Called by: ``sending``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class LedgerFile:
    """One ledger's file, as one sender sees it. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Lock and read nothing yet."""
        self.path = path
        self._lock_path = path.with_name(f".{path.name}.lock")
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this sender has the lock."""
        return self._descriptor is not None

    def lock(self) -> bool:
        """Take the lock, without waiting; returns False if another sender has it. Raises
        OSError."""
        # For reading: that also works if the file system has become read-only.
        descriptor = os.open(
            self._lock_path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Leave the file to the next sender."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def read(self) -> list[Any]:
        """Return the entries; a file that does not exist has none.

        Raises OSError if the file cannot be read, and ValueError if it holds no ledger."""
        try:
            content = _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return []
        # The file was once a list, before it had an owner.
        entries = content.get("entries") if isinstance(content, dict) else content
        if not isinstance(entries, list):
            raise ValueError("not a ledger")
        return entries

    def owner(self) -> int | None:
        """Return the PID of the process that has written the file last; None if unknown."""
        with contextlib.suppress(OSError, ValueError):
            content = _parsed(self.path.read_bytes())
            owner = content.get("owner") if isinstance(content, dict) else None
            return owner if isinstance(owner, int) else None
        return None

    def write(self, entries: Sequence[Any]) -> None:
        """Replace the entries. Only for the holder of the lock. Raises OSError."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w") as file:
            json.dump({"owner": os.getpid(), "entries": list(entries)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def set_aside(self) -> Path:
        """Rename a file that holds no ledger, and return its new path. Raises OSError."""
        return self.path.replace(self.path.with_name(f"{self.path.name}.broken"))


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
