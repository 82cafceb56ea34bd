"""``.wal2lake.lock`` in a warehouse that is a directory: one node at a time writes tables there.

In: the warehouse's path, the start of a node. Out: a lock, or an error that says who has it. A
warehouse in an object store has a lease instead, which the trial of it takes.

The lock is the kernel's (flock), as the one of the node's directory: it ends with the processes
that hold it, so a killed node leaves none behind, and a node that is stopped for minutes keeps it.
The supervisor holds it, and the engine, which makes all commits, inherits it: another node has to
wait until both have ended. NFS, SMB and cluster file systems pass it on to the other machines. A
file system without locks is used without, with a warning.

Called by: supervisor. Source: flock(2), nfs(5) ("local_lock").
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.model import WarehouseHolder
from wal2lake.observe import get_logger

FILE_NAME: Final = ".wal2lake.lock"

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a file system without locks."""

_ALONE_SECONDS: Final = 2.0
"""Most time for which a start or an end waits for another's look at the lock file, which takes
less than a millisecond."""

_WRITING_SECONDS: Final = 1.0
"""Time after which the lock file surely says who has the lock. NFS shows a file as it is when it is
opened, but its directories have no locks that keep other machines out. A guess."""


class WarehouseLock:
    """The lock of one warehouse. A context manager."""

    def __init__(self, path: Path, start: WarehouseHolder) -> None:
        """Hold nothing yet."""
        self._path = path
        self._start = start
        self._descriptor: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors by which a process holds the lock."""
        return () if self._descriptor is None else (self._descriptor,)

    def take(self) -> None:
        """Take the lock; ConfigurationError (55006) while another node has it. OSError if the file
        cannot be made."""
        with _alone(self._path.parent):
            while not self._try():
                holder = self._holder()
                if holder is None or not holder.is_dead_for(self._start):
                    raise self._in_use(holder)
                # A supervisor whose lock file was removed, and which is stopped: its other
                # processes, which could write, have been killed. Or a node on another machine
                # that has just got the lock, and is about to write who it is.
                time.sleep(_WRITING_SECONDS)
                if self._holder() == holder:
                    self._path.unlink(missing_ok=True)

    def _in_use(self, holder: WarehouseHolder | None) -> ConfigurationError:
        return ConfigurationError(
            f'the warehouse "{self._path.parent}" is in use by another node',
            sqlstate="55006",
            detail=None if holder is None else holder.describe(),
            hint='Stop that node, or set "warehouse" of [spark] to a directory of its own for'
            " each node.",
        )

    def _try(self) -> bool:
        while True:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A node that ends removes the file: the lock must be on the one that others open.
                if self._is_in_place(descriptor):
                    break
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError as error:
                os.close(descriptor)
                if error.errno not in _NO_LOCKS:
                    raise
                get_logger().warning(
                    f'could not lock the warehouse "{self._path.parent}": {reason_of(error)};'
                    " nothing keeps another node from writing there"
                )
                return True
            os.close(descriptor)
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            # A full disk leaves it empty, which only costs the next node a DETAIL.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{self._start.render()}\n".encode(), 0)
        return True

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except PermissionError as error:
            raise ConfigurationError(
                f'could not open lock file "{self._path}": {reason_of(error)}',
                sqlstate="42501",
                hint="Start the node as the OS user that owns this file, or remove the file if no"
                " node uses the warehouse.",
            ) from error

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _holder(self) -> WarehouseHolder | None:
        """Return who has the lock; None if the file does not say."""
        try:
            return WarehouseHolder.parse(self._path.read_bytes())
        except (OSError, ValueError):
            return None

    def __enter__(self) -> WarehouseLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Remove the file and release the lock, if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError), _alone(self._path.parent):
            if self._is_in_place(descriptor):
                self._path.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def _alone(warehouse: Path) -> Iterator[None]:
    """Keep other starts and ends out while a lock file is judged and removed: a lock on the
    directory, where the file system has such. One that was stopped within is waited for briefly."""
    descriptor = os.open(warehouse, os.O_RDONLY | os.O_DIRECTORY)
    until = time.monotonic() + _ALONE_SECONDS
    try:
        with contextlib.suppress(OSError):
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)
