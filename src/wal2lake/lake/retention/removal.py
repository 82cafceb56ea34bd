"""Removes chosen files, one after the other.

In: a table's directory, a ``Removal``. Out: the number of removed files and bytes. A file that is
not the listed one (the table was dropped and made anew meanwhile) stays, with all after it in the
log. A file that is gone already is no error, so a removal that a crash has ended can be repeated.

Called by ``local.retention``. Source: unlink(2).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wal2lake.errors import StorageError
from wal2lake.lake.retention.directory import FileKind, StoredFile
from wal2lake.lake.retention.plan import Removal
from wal2lake.lake.retention.tablelog import LOG, Entry
from wal2lake.lake.store import sync_path
from wal2lake.observe import failpoint


@dataclass(slots=True)
class Removed:
    """Counts of removed files and bytes."""

    files: Counter[FileKind] = field(default_factory=Counter)
    bytes: Counter[FileKind] = field(default_factory=Counter)

    def add(self, file: StoredFile) -> None:
        """Count a file."""
        self.files[file.kind] += 1
        self.bytes[file.kind] += file.entry.size


def remove(
    root: Path,
    removal: Removal,
    removed: Removed,
    before_each: Callable[[], None],
) -> None:
    """Remove the files and count them in ``removed``. ``before_each`` may pause, or end it by
    raising."""
    try:
        for file in removal.files:
            before_each()
            path = root / file.name
            try:
                if not _is_same(path, file.entry):
                    if file.kind is FileKind.LOG:
                        break
                    continue
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(
                    f'could not remove file "{path}": {error.strerror}',
                    sqlstate="58030",
                ) from error
            removed.add(file)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            is_commit = file.kind is FileKind.LOG
            failpoint("vacuum.commit_removed" if is_commit else "vacuum.file_removed")
    finally:
        if any(file.kind is FileKind.LOG for file in removal.files):
            sync_path(root / LOG)


def _is_same(path: Path, entry: Entry) -> bool:
    present = Entry.of(os.lstat(path))
    return (present.inode, present.written, present.size) == (
        entry.inode,
        entry.written,
        entry.size,
    )
