"""``wal2lake.pid``: one node per directory, and where to find it.

The lock is the kernel's (flock). It ends with the processes that hold it, so a crash leaves no
stale lock, and no process has to decide whether a pid in a file still denotes the same process. The
supervisor and its guardian hold the lock. The guardian releases it when the whole tree is dead, so
a new start cannot overlap with remains of the old node.

The file's lines are those of ``postmaster.pid``: pid, directory, start time, port, socket directory
(empty), address, shared memory key (empty), state. The file is rewritten in place, because the lock
is on the inode. A reader that sees an incomplete file tries again.

Called by: supervisor (writes), the command line's start, stop and status (read).
Source: PostgreSQL's src/include/utils/pidfile.h and miscinit.c (texts).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch.processes import is_alive

FILE_NAME: Final = "wal2lake.pid"

_DYING_SECONDS: Final = 15.0
"""How long a start waits for the remains of a killed node. The guardian gives up after 10
seconds."""

_PROBE_SECONDS: Final = 0.2
"""``is_locked`` holds the lock for a moment, which must not make a start fail."""


@dataclass(frozen=True, slots=True)
class LockFacts:
    """Contents of the lock file, which are valid only while the lock is held."""

    pid: int
    directory: str
    started_at: float
    """Seconds since 1970."""
    port: int
    address: str
    """The first listen address, in a form that clients can connect to."""
    state: str
    """starting, ready or stopping."""

    def render(self) -> bytes:
        """Return the file's content."""
        lines = (
            self.pid,
            self.directory,
            int(self.started_at),
            self.port,
            "",
            self.address,
            "",
            self.state,
        )
        return "".join(f"{line}\n" for line in lines).encode()


class LockFile:
    """A held lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Only ``acquire`` creates locks."""
        self._path = path
        self.fileno = descriptor

    @classmethod
    def acquire(cls, directory: Path) -> LockFile:
        """Lock the directory; ConfigurationError while another node has it."""
        path = directory / FILE_NAME
        begin = time.monotonic()
        while True:
            held = cls._try(path)
            if held is not None:
                return held
            facts = read_lock(directory)
            owner_lives = facts is not None and is_alive(facts.pid)
            patience = _PROBE_SECONDS if owner_lives else _DYING_SECONDS
            if time.monotonic() - begin > patience:
                pid = facts.pid if facts is not None else "unknown"
                raise ConfigurationError(
                    f'lock file "{FILE_NAME}" already exists',
                    hint=f"Is another wal2lake (PID {pid}) running in directory"
                    f' "{directory}"?',
                )
            time.sleep(0.01)

    @classmethod
    def _try(cls, path: Path) -> LockFile | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A node that ends removes the file. The lock must be on the file that others will
            # open.
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                # What is in it is of a node that was killed; its PID may be another process's.
                os.ftruncate(descriptor, 0)
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def __enter__(self) -> LockFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def write(self, facts: LockFacts) -> None:
        """Replace the content."""
        content = facts.render()
        os.pwrite(self.fileno, content, 0)
        os.ftruncate(self.fileno, len(content))

    def release(self) -> None:
        """Remove the file and release the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self.fileno)


def read_lock(directory: Path) -> LockFacts | None:
    """Read the lock file; None if there is no complete one.

    ConfigurationError if the file is another user's."""
    try:
        lines = (directory / FILE_NAME).read_text().split("\n")
        return LockFacts(
            pid=int(lines[0]),
            directory=lines[1],
            started_at=float(lines[2]),
            port=int(lines[3]),
            address=lines[5],
            state=lines[7],
        )
    except PermissionError as error:
        raise _inaccessible(directory) from error
    except (OSError, ValueError, IndexError):
        return None


def is_locked(directory: Path) -> bool:
    """Return whether a node, or the rest of a killed one, has the directory.

    ConfigurationError if the file is another user's."""
    try:
        descriptor = os.open(directory / FILE_NAME, os.O_RDONLY)
    except PermissionError as error:
        raise _inaccessible(directory) from error
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _inaccessible(directory: Path) -> ConfigurationError:
    return ConfigurationError(
        f'could not access directory "{directory}": {os.strerror(errno.EACCES)}',
        hint="Use the OS user that started the node, or root.",
    )
