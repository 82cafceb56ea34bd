"""A file of native 64-bit words that processes share by mapping it.

A word is stored in one machine instruction, so a reader never sees half of one. The pages of
a writer's file have their places on the disk before it is mapped: a store to a page without one
would end the process with SIGBUS once the disk is full.

Called by ``progress`` and ``committimes``, which say what the words mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

_MODE: Final = 0o600


class MappedWords:
    """The mapped file. Threads may share it."""

    def __init__(self, mapped: mmap.mmap, kind: Literal["q", "Q"]) -> None:
        """Use ``open_writer`` or ``open_reader``."""
        self._map = mapped
        self._bytes = memoryview(mapped)
        self.words: memoryview[int] = self._bytes.cast(kind)
        """The words, signed (``q``) or unsigned (``Q``)."""

    @classmethod
    def open_writer(cls, path: Path, size: int, kind: Literal["q", "Q"]) -> MappedWords:
        """Map a file of ``size`` bytes. One that is missing or of another size is made anew, with
        all words 0. Raises OSError."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
        try:
            if os.fstat(descriptor).st_size != size:
                _make(descriptor, size)
            return cls(mmap.mmap(descriptor, size), kind)
        finally:
            os.close(descriptor)

    @classmethod
    def open_reader(
        cls, path: Path, size: int, kind: Literal["q", "Q"]
    ) -> MappedWords | None:
        """Map a file for reading. None if there is none, or one of another size."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(descriptor).st_size != size:
                return None
            return cls(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), kind)
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Set all words to 0, on disk, too."""
        self._bytes[:] = bytes(len(self._bytes))
        self._map.flush()

    def close(self) -> None:
        """Unmap the file, which stays. Safe to call twice."""
        self.words.release()
        self._bytes.release()
        self._map.close()

    def __enter__(self) -> MappedWords:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _make(descriptor: int, size: int) -> None:
    """Fill the file with zeros: not every system and file system has posix_fallocate."""
    # Several processes may find the file missing. No process maps it before it has its size, and
    # nobody changes its size after that.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if os.fstat(descriptor).st_size == size:
            return
        os.ftruncate(descriptor, 0)
        left = size
        while left:
            left -= os.write(descriptor, bytes(left))
    finally:
        # Closing does not unlock: the mapping keeps a duplicate of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
