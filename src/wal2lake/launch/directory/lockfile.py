"""``wal2lake.pid``: one node per directory, and where to find it.

The lock is the kernel's (flock). It ends with the processes that hold it, so a crash leaves no
stale lock, and no process has to decide whether a pid in a file still denotes the same process. The
supervisor and its guardian hold the lock. The guardian releases it when the whole tree is dead, so
a new start cannot overlap with remains of the old node.

The file's lines are those of ``postmaster.pid``: pid, directory, start time, port, socket directory
(empty), address, shared memory key (empty), state. The file is rewritten in place, because the lock
is on the inode. It has the supervisor's pid from the first moment, so that a node can be stopped
while it starts, and its port and address once the supervisor listens.

The lock is only as good as the file's name: if somebody removes the file or puts another directory
in this one's place, a second node can lock what is there now. The supervisor therefore looks each
time around its loop (``is_in_place``) and ends the node, as PostgreSQL's postmaster does.

Called by: supervisor (writes), the command line's start, stop and status (read).
Source: PostgreSQL's src/include/utils/pidfile.h and miscinit.c (texts, RecheckDataDirLockFile).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
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
    """0 until the node listens."""
    address: str
    """The first listen address, in a form that clients can connect to; empty until it listens."""
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
        return os.fsencode("".join(f"{line}\n" for line in lines))


class LockFile:
    """A held lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Only ``acquire`` creates locks."""
        self._path = path
        self.fileno = descriptor

    @classmethod
    def acquire(
        cls, directory: Path, on_wait: Callable[[], None] = lambda: None
    ) -> LockFile:
        """Lock the directory; ConfigurationError while another node has it. ``on_wait`` is called
        again and again; what it raises ends the wait.

        ``directory`` may lead through a symbolic link: the lock is in its place as long as the
        link leads there, since the node's processes find their files by this name."""
        path = directory / FILE_NAME
        begin = time.monotonic()
        while True:
            held = cls._try(path)
            if held is not None:
                starting = LockFacts(
                    pid=os.getpid(),
                    directory=str(directory.resolve()),
                    started_at=time.time(),
                    port=0,
                    address="",
                    state="starting",
                )
                try:
                    held.write(starting)
                except OSError:
                    # The disk is full. The supervisor goes on trying; meanwhile the file must not
                    # speak of a killed node, whose PID may be another process's.
                    os.ftruncate(held.fileno, 0)
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
            on_wait()
            time.sleep(0.01)

    @classmethod
    def _try(cls, path: Path) -> LockFile | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A node that ends removes the file. The lock must be on the file that others will
            # open.
            held = cls(path, descriptor)
            if held.is_in_place():
                return held
        except BlockingIOError:
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

    def is_in_place(self) -> bool:
        """Return whether the locked file is the one that others would open. True if the file system
        does not say: only what is certain may end a node."""
        try:
            status = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        ours = os.fstat(self.fileno)
        return (status.st_dev, status.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Remove the file and release the lock. Another node's file stays."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self.fileno)


def read_lock(directory: Path) -> LockFacts | None:
    """Read the lock file; None if there is no complete one.

    ConfigurationError if the file is another user's."""
    try:
        lines = os.fsdecode((directory / FILE_NAME).read_bytes()).split("\n")
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
