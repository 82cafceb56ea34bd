"""Lists the files of a table's directory that a writer of Delta may have left there.

In: a table's directory on this machine. Out: data files, files of deletion vectors, change data
files and temporary files, by name. A file of another name is never listed, so nothing removes it;
nor are directories that begin with ``_`` or ``.`` (unless a partition column is called so), links
to elsewhere, and tables inside of the table.

Called by ``local.retention``. Source: Delta's VacuumCommand.scala, and isHiddenDirectory in
DeltaTableUtils.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from wal2lake.lake.retention.tablelog import LOG, Entry

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
    """A file of a table's directory."""

    name: str
    """Relative to the table's directory, ``/`` between segments."""
    kind: FileKind
    entry: Entry


def list_files(
    root: Path,
    partition_columns: frozenset[str],
    check: Callable[[], None] = lambda: None,
) -> dict[str, StoredFile]:
    """List the files by name. ``check`` is called for each directory and may raise."""
    files: dict[str, StoredFile] = {}
    waiting = [""]
    while waiting:
        check()
        folder = waiting.pop()
        names: dict[str, Entry] = {}
        for item in _scan(root / folder):
            name = f"{folder}{item.name}"
            try:
                if item.is_dir(follow_symlinks=False):
                    if (
                        _is_ours(item.name, folder, partition_columns)
                        and not (root / name / LOG).exists()
                    ):
                        waiting.append(f"{name}/")
                elif item.is_file(follow_symlinks=False):
                    names[item.name] = Entry.of(item.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
        in_changes = folder.startswith(f"{CHANGES}/")
        for own, entry in names.items():
            kind = _kind(own, names, in_changes=in_changes)
            if kind is not None:
                files[f"{folder}{own}"] = StoredFile(f"{folder}{own}", kind, entry)
    return files


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            yield from listed
    except FileNotFoundError:
        return


def _is_ours(name: str, folder: str, partition_columns: frozenset[str]) -> bool:
    """Whether a directory below the table belongs to it."""
    if not name.startswith((".", "_")):
        return True
    if name == CHANGES:
        return not folder
    column, is_partition, _ = name.partition("=")
    return bool(is_partition) and unquote(column) in partition_columns


def _kind(
    name: str, beside: Mapping[str, Entry], *, in_changes: bool
) -> FileKind | None:
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
