"""Decides which files of a table are removed. Pure.

In: the files that its versions need (``tablelog``), those in its store (``directory``), those
that are noted by name, the ages. Out: a ``Removal``: the files to remove, in order.

    a file                                              is removed
    --------------------------------------------------  ------------------------------------------
    a version from the oldest kept one on needs it      never
    is noted (a copy, a prepared transaction ...)       never
    only versions below the oldest kept one need it     at once
    no version has ever had it                          when it is older than the safe age: its
                                                        writer may be about to commit it
    a commit below a checkpoint that is at or below     once that checkpoint is older than the safe
     the oldest kept version                             age: a reader may be in the middle

Commits go from the lowest version up, so that a crash in between leaves no gap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from wal2lake.lake.retention.directory import FileKind, StoredFile
from wal2lake.lake.retention.tablelog import LOG, History, TableLog

_NUMBERED: Final = re.compile(
    r"\.?(?:[0-9]{20}\.)?([0-9]{20})\."
    r"(?:json|crc|compacted\.json|checkpoint(?:\.[0-9]+\.[0-9]+)?\.parquet"
    r"|checkpoint\.[0-9a-f-]{36}\.(?:parquet|json))(?:\.crc)?"
)
"""Names of the log's files with the version up to which they go, and their companions."""

_TEMPORARY: Final = re.compile(
    r"\.([0-9]{20}|_last_checkpoint)\..*\.tmp|\..*\.[0-9a-f]{32}\.tmp"
)


@dataclass(frozen=True, slots=True)
class Removal:
    """The files of one table to remove, in order."""

    files: tuple[StoredFile, ...]
    orphans: int = 0
    """How many of them no version ever had."""
    waiting: int = 0
    """Files that no version has and that are not old enough."""

    @property
    def bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.entry.size for file in self.files)

    @property
    def counts(self) -> Mapping[FileKind, int]:
        """Number of files by kind."""
        return Counter(file.kind for file in self.files)


def choose(
    history: History,
    present: Mapping[str, StoredFile],
    noted: Collection[str],
    too_young: float,
) -> Removal:
    """Choose among the files of the table's store. ``too_young``: a file that has changed
    since then may still be committed."""
    expired: list[StoredFile] = []
    orphans: list[StoredFile] = []
    waiting = 0
    for name, file in sorted(present.items()):
        if name in history.needed or name in noted:
            continue
        if name in history.gone:
            expired.append(file)
        elif file.entry.changed < too_young:
            orphans.append(file)
        else:
            waiting += 1
    return Removal((*expired, *orphans), len(orphans), waiting)


def choose_log(
    log: TableLog,
    oldest: int,
    too_young: float,
    keep_since: float | None,
    has_cursors: Callable[[int], bool],
) -> Removal:
    """Choose among the files of the log. ``keep_since``: commits since then stay in any case.
    ``has_cursors``: whether the checkpoint of a version has every cursor (``txn``) of the commits
    up to there."""
    bases = [
        version
        for version, checkpoint in log.checkpoints.items()
        if version <= oldest
        and version in log.commits
        and version <= (-1 if log.pointer is None else log.pointer)
        and all(log.entries[name].changed < too_young for name in checkpoint.names)
    ]
    base = next(filter(has_cursors, sorted(bases, reverse=True)), 0)
    chosen = sorted(_below(log, base, keep_since))
    abandoned = [
        StoredFile(f"{LOG}/{name}", FileKind.TEMPORARY, entry)
        for name, entry in sorted(log.entries.items())
        if _TEMPORARY.fullmatch(name) and entry.changed < too_young
    ]
    numbered = [
        StoredFile(f"{LOG}/{name}", FileKind.LOG, log.entries[name])
        for _, name in chosen
    ]
    return Removal((*numbered, *abandoned), len(abandoned))


def _below(
    log: TableLog, base: int, keep_since: float | None
) -> Iterator[tuple[int, str]]:
    """Yield the names below a checkpoint, up to the first commit that stays for its age."""
    if keep_since is not None:
        young = [
            version
            for version, name in log.commits.items()
            if log.entries[name].written >= keep_since
        ]
        base = min([base, *young])
    for name in log.entries:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is not None and int(numbered[1]) < base:
            yield int(numbered[1]), name
