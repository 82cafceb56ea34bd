"""What of the log may go, and how big it is.

A segment may go once its ``sealed_lsn`` is at or below the floor: every table has durably
applied it. The newest ``history_bytes`` of such segments are kept for whoever wants to look
back, and the newest segment always: it tells an empty journal where the log ends and which
number comes next. Journal files are the journal's own (``Journal.trim``).

Manifest first (the segment is gone), directory fsync, then its files: a crash in between leaves
files without a manifest, which ``segments.open_writer`` removes.

Called by whoever knows the floor, in any process; one at a time per directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from wal2lake.changelog import files, manifest
from wal2lake.changelog.manifest import Manifest
from wal2lake.model import Lsn
from wal2lake.observe import failpoint
from wal2lake.settings import LogSettings


@dataclass(frozen=True, slots=True)
class LogSize:
    """Bytes on disk."""

    journal_bytes: int
    segment_bytes: int
    """With what is spooled for segments to come."""

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return self.journal_bytes + self.segment_bytes


class LimitState(Enum):
    """How a log's size stands to its limit."""

    BELOW = "below"
    NEAR = "near"
    """At or over the warning's part of it: report it."""
    REACHED = "reached"
    """At or over: the receiver must stop taking more, which holds the publisher's WAL."""


def log_size(directory: Path) -> LogSize:
    """Add up the directory; files that go meanwhile count as gone."""
    journal = segments = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    size = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                if entry.name.startswith("journal-"):
                    journal += size
                elif entry.name.startswith(("seg-", "spool-")):
                    segments += size
    except OSError as error:
        raise files.storage_error("open directory", directory, error) from error
    return LogSize(journal, segments)


def check_limit(size: LogSize, settings: LogSettings) -> LimitState:
    """Compare with ``size_limit_bytes``, of which 0 means none."""
    limit = settings.size_limit_bytes
    if limit and size.total_bytes >= limit:
        return LimitState.REACHED
    if limit and size.total_bytes * 100 >= limit * settings.size_warning_percent:
        return LimitState.NEAR
    return LimitState.BELOW


class Retention:
    """Trims the segments of one directory. Keep it: it remembers what it has read."""

    def __init__(self, directory: Path, *, history_bytes: int = 0) -> None:
        """Keep ``history_bytes`` of applied segments beyond what must be kept."""
        self._directory = directory
        self._history_bytes = history_bytes
        self._known: dict[int, Manifest] = {}

    def trim(self, floor: Lsn) -> list[int]:
        """Remove what may go; returns the numbers of the removed segments.

        Raises CorruptLogError, ConfigurationError, StorageError.
        """
        numbers = files.manifest_numbers(self._directory)
        applied: list[Manifest] = []
        for number in numbers[:-1]:
            one = self._manifest(number)
            if one is None or one.sealed_lsn > floor:
                break
            applied.append(one)
        kept = 0
        while applied and kept + applied[-1].size <= self._history_bytes:
            kept += applied.pop().size
        for one in applied:
            self._remove(one)
        return [one.number for one in applied]

    def _manifest(self, number: int) -> Manifest | None:
        if number not in self._known:
            path = self._directory / files.manifest_name(number)
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise files.storage_error("read file", path, error) from error
            self._known[number] = manifest.decode(content, path)
        return self._known[number]

    def _remove(self, one: Manifest) -> None:
        path = self._directory / files.manifest_name(one.number)
        try:
            path.unlink(missing_ok=True)
            # One by one: a crash must never leave a gap between two numbers.
            files.sync_directory(self._directory)
            failpoint("log.trimmed")
        except OSError as error:
            raise files.storage_error("remove file", path, error) from error
        for file in one.log_files:
            files.remove(self._directory / file.name)
        self._known.pop(one.number, None)
