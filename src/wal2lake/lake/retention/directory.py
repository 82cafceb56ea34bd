"""Lists the files of a table that a writer of Delta may have left there.

In: the store of a table's files. Out: data files, files of deletion vectors, change data
files and temporary files, by name. A file of another name is never listed, so nothing removes it;
nor are directories that begin with ``_`` or ``.`` (unless a partition column is called so), links
to elsewhere, and tables inside of the table.

Called by ``local.retention``. Source: Delta's VacuumCommand.scala, and isHiddenDirectory in
DeltaTableUtils.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from wal2lake.lake.retention.tablelog import LOG
from wal2lake.lake.store import Entry, Store

CHANGES: Final = "_change_data"

_VECTOR: Final = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
_TEMPORARY: Final = re.compile(r"\..*\.([0-9a-f]{32}|[0-9a-f-]{36})\.tmp")
_COMPANION: Final = re.compile(r"\.(.+)\.crc")


class FileKind(StrEnum):
    """Kinds of files, in the words of reports and metrics."""

    DATA = "data"
    """Rows."""
    VECTOR = "deletion vector"
    """Deletion vectors of data files."""
    CHANGES = "change data"
    """Changes of Delta's change data feed."""
    TEMPORARY = "temporary"
    """Files that a writer has not given their names, and companions of files that are gone."""
    LOG = "log"
    """Commits and checkpoints in ``_delta_log``."""
    BRANCH = "branch"
    """Files that a transaction has written beside the table."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table's store."""

    name: str
    """Relative to the table's directory, ``/`` between segments."""
    kind: FileKind
    entry: Entry


def list_files(
    store: Store,
    partition_columns: frozenset[str],
    check: Callable[[], None] = lambda: None,
) -> dict[str, StoredFile]:
    """List the files by name. ``check`` is called often and may raise."""
    inner: list[str] = []

    def enters(folder: str) -> bool:
        above, _, name = folder.rpartition("/")
        if name == LOG and above:
            inner.append(f"{above}/")
        return _is_ours(name, above, partition_columns)

    folders: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for key, entry in store.list_below("", enters, check).items():
        folder, slash, name = key.rpartition("/")
        folders[f"{folder}{slash}"][name] = entry
    others = tuple(inner)
    files: dict[str, StoredFile] = {}
    for folder, names in folders.items():
        if others and folder.startswith(others):
            continue
        in_changes = folder.startswith(f"{CHANGES}/")
        for name, entry in names.items():
            kind = _kind(name, names, in_changes=in_changes)
            if kind is not None:
                files[f"{folder}{name}"] = StoredFile(f"{folder}{name}", kind, entry)
    return files


def _is_ours(name: str, folder: str, partition_columns: frozenset[str]) -> bool:
    """Whether a directory below the table belongs to it."""
    if not name.startswith((".", "_")):
        return True
    if name == CHANGES:
        return not folder
    column, is_partition, _ = name.partition("=")
    return bool(is_partition) and unquote(column) in partition_columns


def _kind(name: str, beside: Container[str], *, in_changes: bool) -> FileKind | None:
    if _TEMPORARY.fullmatch(name):
        return FileKind.TEMPORARY
    companion = _COMPANION.fullmatch(name)
    if companion is not None:
        # A companion goes with its file.
        of_ours = _kind(companion[1], beside, in_changes=in_changes) is not None
        alone = companion[1] not in beside
        return FileKind.TEMPORARY if of_ours and alone else None
    if name.startswith(("_", ".")):
        return None
    if name.endswith(".parquet"):
        return FileKind.CHANGES if in_changes else FileKind.DATA
    return FileKind.VECTOR if _VECTOR.fullmatch(name) else None
