"""Removes segments of the log that are no longer needed, and measures the log.

A segment may be removed once its ``sealed_lsn`` is at or below the floor: every table has durably
applied it. The newest ``history_bytes`` of such segments are kept for later inspection. The newest
segment is always kept: with an empty journal, it has the log's end and the next number. The
journal removes its own files (``Journal.trim``).

All files except spools count against ``size_limit_bytes``. An open or prepared transaction ends
with a message that is still to be received, so a pause because of its spool would never end. Files
that are not needed are bounded, too: history to half of the limit, a journal file to an eighth (two
can exist that are not needed). So a log that is applied in time never comes near the limit.

Order of a removal: the manifest (which removes the segment), fsync of the directory, then the
segment's files. A crash in between leaves files without a manifest, which
``segments.open_writer`` removes.

Called in any process that knows the floor, one at a time per directory. ``Inventory`` serves
views, in any process: each reading lists the directory once and reads few manifests, which it
caches.
"""

from __future__ import annotations

import bisect
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from wal2lake.changelog import files, manifest
from wal2lake.changelog.manifest import Manifest
from wal2lake.errors import CorruptLogError
from wal2lake.model import Lsn
from wal2lake.observe import failpoint
from wal2lake.settings import LogSettings

_HISTORY_PART: Final = 2
_JOURNAL_FILE_PART: Final = 8
"""Parts of the size limit. Their sum, with a second journal file, is below the default warning."""

_MANIFESTS_KEPT: Final = 4000
"""Number of manifests that an inventory caches: about 2 MB."""


@dataclass(frozen=True, slots=True)
class LogSize:
    """Bytes on disk."""

    journal_bytes: int
    segment_bytes: int
    """Includes files that are spilled for the next segment."""
    spool_bytes: int = 0
    """Bytes of open streamed transactions and of prepared transactions."""

    @property
    def limited_bytes(self) -> int:
        """Bytes that count against the limit."""
        return self.journal_bytes + self.segment_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return self.limited_bytes + self.spool_bytes


class LimitState(Enum):
    """A log's size compared with its limit."""

    BELOW = "below"
    NEAR = "near"
    """At or above the warning's percentage of the limit: report it."""
    REACHED = "reached"
    """At or above the limit: the receiver must stop receiving; the publisher keeps its WAL."""


def log_size(directory: Path) -> LogSize:
    """Add up the files of the directory; files that are removed meanwhile do not count."""
    journal = segments = spools = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    size = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                if entry.name.startswith("journal-"):
                    journal += size
                elif entry.name.startswith("spool-"):
                    spools += size
                elif files.is_log_file(entry.name):
                    segments += size
    except OSError as error:
        raise files.storage_error("open directory", directory, error) from error
    return LogSize(journal, segments, spools)


def check_limit(size: LogSize, settings: LogSettings) -> LimitState:
    """Compare a size with ``size_limit_bytes``; a limit of 0 means no limit."""
    limit = settings.size_limit_bytes
    if limit and size.limited_bytes >= limit:
        return LimitState.REACHED
    if limit and size.limited_bytes * 100 >= limit * settings.size_warning_percent:
        return LimitState.NEAR
    return LimitState.BELOW


def read_manifest(directory: Path, number: int) -> Manifest | None:
    """Read a segment's manifest; None: there is none (any more)."""
    path = directory / files.manifest_name(number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.storage_error("read file", path, error) from error
    return manifest.decode(content, path)


def history_bytes(settings: LogSettings) -> int:
    """Return the bytes of applied segments to keep: the setting, or less with a size limit."""
    limit = settings.size_limit_bytes
    wanted = settings.history_bytes
    return min(wanted, limit // _HISTORY_PART) if limit else wanted


def journal_file_bytes(settings: LogSettings) -> int:
    """Return the size of a journal file: the setting, or less with a size limit."""
    limit = settings.size_limit_bytes
    wanted = settings.journal_file_bytes
    return min(wanted, max(1, limit // _JOURNAL_FILE_PART)) if limit else wanted


class Retention:
    """Trims the segments of one directory. Keep the object: it caches manifests."""

    def __init__(self, directory: Path, *, history_bytes: int = 0) -> None:
        """Keep ``history_bytes`` of applied segments in addition to those that must be kept."""
        self._directory = directory
        self._history_bytes = history_bytes
        self._known: dict[int, Manifest] = {}

    def trim(self, floor: Lsn) -> list[int]:
        """Remove segments that are not needed; returns their numbers. A segment with a damaged
        manifest may be removed if a later segment may; until then it stays, and its readers
        report the damage.

        Raises ConfigurationError, StorageError.
        """
        numbers = files.manifest_numbers(self._directory)
        applied: list[tuple[int, Manifest | None]] = []
        damaged: list[tuple[int, Manifest | None]] = []
        for number in numbers:
            try:
                segment = self._manifest(number)
            except CorruptLogError:
                damaged.append((number, None))
                continue
            if segment is None or segment.sealed_lsn > floor:
                break
            applied += [*damaged, (number, segment)]
            damaged = []
        kept = 0
        if applied and (last := applied[-1][1]) and last.number == numbers[-1]:
            # The newest segment stays and counts as history.
            kept = last.size
            applied.pop()
        # The size of a segment with a damaged manifest is not known, so history ends there.
        while applied and (last := applied[-1][1]) is not None:
            if kept + last.size > self._history_bytes:
                break
            kept += last.size
            applied.pop()
        for number, segment in applied:
            self._remove(number, segment)
        return [number for number, _ in applied]

    def _manifest(self, number: int) -> Manifest | None:
        if number not in self._known:
            segment = read_manifest(self._directory, number)
            if segment is None:
                return None
            self._known[number] = segment
        return self._known[number]

    def _remove(self, number: int, segment: Manifest | None) -> None:
        path = self._directory / files.manifest_name(number)
        try:
            path.unlink(missing_ok=True)
            # Sync after each removal: a crash must never leave a gap between two numbers.
            files.sync_directory(self._directory)
            failpoint("log.trimmed")
        except OSError as error:
            raise files.storage_error("remove file", path, error) from error
        if segment is None:
            names = [entry.name for entry in self._directory.iterdir()]
            names = [name for name in names if files.segment_of(name) == number]
        else:
            names = [file.name for file in segment.log_files]
        for name in names:
            files.remove(self._directory / name)
        self._known.pop(number, None)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about one sealed segment, for views."""

    manifest: Manifest
    bytes: int
    """Bytes of the segment's files, including the manifest."""
    sealed_at: float
    """Time at which its manifest was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Held:
    """Number and bytes of segments that a reader holds back."""

    segments: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogContents:
    """Contents of a log's directory at one moment."""

    numbers: tuple[int, ...]
    """Numbers of the segments, ascending."""
    sizes: tuple[int, ...]
    """Bytes of each of them."""
    journal_files: int
    journal_bytes: int
    open_bytes: int
    """Bytes of files without a manifest: rows of open and prepared transactions, files of a running
    seal, and files of a segment that is being removed."""
    spool_bytes: int
    """The part of ``open_bytes`` that belongs to streamed or prepared transactions."""

    @property
    def segment_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self.sizes)

    @property
    def size(self) -> LogSize:
        """Size of the log, for the comparison with the limit."""
        loose = self.open_bytes - self.spool_bytes
        return LogSize(self.journal_bytes, self.segment_bytes + loose, self.spool_bytes)


class Inventory:
    """Repeated reading of one directory. For one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Do no I/O yet."""
        self._directory = directory
        self._manifests: dict[int, Manifest] = {}
        self._order: deque[int] = deque()
        self._sizes: dict[str, int] = {}

    def read(self) -> LogContents | None:
        """List the directory; None: there is none. Raises StorageError.

        Files of a sealed segment never change, so each is measured only once.
        """
        segments: dict[int, int] = {}
        sealed: set[int] = set()
        seen: dict[str, int] = {}
        journal: list[int] = []
        loose = spools = 0
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    name = entry.name
                    number = files.segment_number(name)
                    size = self._sizes.get(name)
                    if number is None and not files.is_log_file(name):
                        continue
                    try:
                        size = size or entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
                    if number is not None:
                        segments[number] = segments.get(number, 0) + size
                        seen[name] = size
                        if files.is_manifest(name):
                            sealed.add(number)
                    elif name.startswith("journal-"):
                        journal.append(size)
                    else:
                        loose += size
                        if name.startswith("spool-"):
                            spools += size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise files.storage_error(
                "open directory", self._directory, error
            ) from error
        self._sizes = {
            name: size
            for name, size in seen.items()
            if files.segment_number(name) in sealed
        }
        numbers = sorted(sealed)
        return LogContents(
            tuple(numbers),
            tuple(segments[number] for number in numbers),
            len(journal),
            sum(journal),
            loose + sum(size for n, size in segments.items() if n not in sealed),
            spools,
        )

    def above(self, contents: LogContents, lsn: Lsn) -> Held:
        """Return the segments that a reader which is complete below ``lsn`` still needs.

        A binary search reads few manifests. Raises CorruptLogError, ConfigurationError,
        StorageError."""
        first = bisect.bisect_right(
            contents.numbers, int(lsn), key=lambda number: self._sealed_lsn(number)
        )
        rest = contents.sizes[first:]
        return Held(len(rest), sum(rest))

    def facts(
        self, contents: LogContents, numbers: Sequence[int]
    ) -> list[SegmentFacts]:
        """Return facts of some segments; removed ones are skipped. Errors as ``above``."""
        sizes = dict(zip(contents.numbers, contents.sizes, strict=True))
        segments = []
        for number in numbers:
            segment = self._manifest(number)
            path = self._directory / files.manifest_name(number)
            try:
                sealed_at = path.stat().st_mtime
            except FileNotFoundError:
                continue
            if segment is not None:
                segments.append(SegmentFacts(segment, sizes[number], sealed_at))
        return segments

    def _sealed_lsn(self, number: int) -> int:
        # The oldest segments are removed first, and no reader needs a removed one.
        segment = self._manifest(number)
        return 0 if segment is None else int(segment.sealed_lsn)

    def _manifest(self, number: int) -> Manifest | None:
        segment = self._manifests.get(number)
        if segment is None:
            segment = read_manifest(self._directory, number)
            if segment is not None:
                self._manifests[number] = segment
                self._order.append(number)
                if len(self._order) > _MANIFESTS_KEPT:
                    del self._manifests[self._order.popleft()]
        return segment
