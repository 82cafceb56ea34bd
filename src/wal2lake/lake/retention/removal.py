"""Removes chosen files, in order.

In: the store of a table, a ``Removal``. Out: the number of removed files and bytes. A file that is
not the listed one (the table was dropped and made anew meanwhile) stays, with all after it in the
log. A file that is gone already is no error, so a removal that a crash has ended can be repeated.

Files of a directory go one by one, objects up to a thousand at once. A thousand objects go in no
order, so a removal from a log that ends in the middle may leave a gap below the checkpoint; what
is below the gap goes the next time.

Called by ``local.retention``. Source: unlink(2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wal2lake.lake.retention.directory import FileKind, StoredFile
from wal2lake.lake.retention.plan import Removal
from wal2lake.lake.retention.tablelog import LOG
from wal2lake.lake.store import LocalStore, Store
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
    store: Store,
    removal: Removal,
    removed: Removed,
    before_each: Callable[[], None],
) -> None:
    """Remove the files and count them in ``removed``. ``before_each`` may pause, or end it by
    raising."""
    files, most = removal.files, store.most_at_once
    try:
        for start in range(0, len(files), most):
            if not _remove(store, files[start : start + most], removed, before_each):
                break
    finally:
        if any(file.kind is FileKind.LOG for file in files):
            store.settle(LOG)


def _remove(
    store: Store,
    files: Sequence[StoredFile],
    removed: Removed,
    before_each: Callable[[], None],
) -> bool:
    """Remove some files; False if the rest must stay."""
    for _ in files:
        before_each()
    present = store.entries([file.name for file in files])
    going: list[StoredFile] = []
    goes_on = True
    for file in files:
        entry = present.get(file.name)
        if entry is None:
            continue
        if entry.stamp == file.entry.stamp:
            going.append(file)
        elif file.kind is FileKind.LOG:
            goes_on = False
            break
    store.delete_all([file.name for file in going])
    if isinstance(store, LocalStore):
        store.delete_all([_companion(file.name) for file in going])
    for file in going:
        removed.add(file)
        is_commit = file.kind is FileKind.LOG
        failpoint("vacuum.commit_removed" if is_commit else "vacuum.file_removed")
    return goes_on


def _companion(name: str) -> str:
    """Return the name of the checksums that Hadoop keeps beside a file of a directory."""
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}.{own}.crc"
