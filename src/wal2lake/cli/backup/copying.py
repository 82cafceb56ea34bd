"""Copies files durably, with sizes and checksums. Used by ``backup`` and ``restore``.

Each file is fsynced, and at the end each directory, so a manifest that is written afterwards
never names a file that a power cut can remove.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.changelog.files import sync_directory
from wal2lake.cli.backup.manifest import BackupFile
from wal2lake.errors import StorageError, reason_of
from wal2lake.observe import failpoint

_CHUNK: Final = 1 << 20

Advance = Callable[[int], None]
"""Is called with the number of bytes that were copied."""


class Copying:
    """Copies files below directories that it makes; ``sync`` makes their names durable."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._folders: set[Path] = set()

    def copy(
        self,
        source: Path,
        target: Path,
        name: str,
        mode: int,
        folder_mode: int = 0o700,
    ) -> BackupFile:
        """Copy one file, with its modification time. Raises StorageError."""
        try:
            self._make(target.parent, folder_mode)
            digest, size = hashlib.sha256(), 0
            with source.open("rb") as reader, target.open("xb") as writer:
                os.fchmod(writer.fileno(), mode)
                status = os.fstat(reader.fileno())
                while chunk := reader.read(_CHUNK):
                    writer.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    self._advance(len(chunk))
                writer.flush()
                os.fsync(writer.fileno())
            os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
        except OSError as error:
            raise StorageError(
                f'could not copy file "{source}" to "{target}": {reason_of(error)}',
                sqlstate="58030",
            ) from error
        failpoint("backup.file_copied")
        return BackupFile(
            name,
            size,
            digest.hexdigest(),
            status.st_mode & 0o777,
            status.st_mtime_ns,
        )

    def sync(self) -> None:
        """Make the names of all copied files durable."""
        for folder in sorted(self._folders):
            sync_directory(folder)

    def _make(self, folder: Path, mode: int) -> None:
        if folder in self._folders:
            return
        if not folder.exists():
            self._make(folder.parent, mode)
            folder.mkdir(mode=mode)
        self._folders.add(folder)
