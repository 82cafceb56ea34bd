"""Decides which segments of the log may go, and measures the log.

A segment may go once its ``sealed_lsn`` is at or below the floor: every table has durably
applied it. The newest ``history_bytes`` of such segments are kept for whoever wants to look
back, and the newest segment always: it tells an empty journal where the log ends and which
number comes next. Journal files are the journal's own (``Journal.trim``).

Against ``size_limit_bytes`` counts all that is on disk but spools: an open or prepared
transaction ends by a message that is to come, so a pause would never end. What is kept for
comfort alone is bounded by it too: half of it for the history, an eighth for a journal file (of
which two can be there with nothing needed of them). A log that nobody waits for thus never comes
near.

Manifest first (the segment is gone), directory fsync, then its files: a crash in between leaves
files without a manifest, which ``segments.open_writer`` removes.

Called by whoever knows the floor, in any process; one at a time per directory. ``Inventory``
is for those who look, in any process: one listing of the directory for each reading, and few
manifests, which it remembers.
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
"""Parts of the size limit; together with a second journal file under the default warning."""

_MANIFESTS_KEPT: Final = 4000
"""How many an inventory remembers: about 2 MB."""


@dataclass(frozen=True, slots=True)
class LogSize:
    """Bytes on disk."""

    journal_bytes: int
    segment_bytes: int
    """With what is spilled for the segment to come."""
    spool_bytes: int = 0
    """Bytes of open streamed transactions and of prepared ones."""

    @property
    def limited_bytes(self) -> int:
        """Bytes that count against the limit."""
        return self.journal_bytes + self.segment_bytes

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return self.limited_bytes + self.spool_bytes


class LimitState(Enum):
    """How a log's size stands to its limit."""

    BELOW = "below"
    NEAR = "near"
    """At or over the warning's part of it: report it."""
    REACHED = "reached"
    """At or over: the receiver must stop taking more, which holds the publisher's WAL."""


def log_size(directory: Path) -> LogSize:
    """Add up the directory; files that go meanwhile count as gone."""
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
    """Compare with ``size_limit_bytes``, of which 0 means none."""
    limit = settings.size_limit_bytes
    if limit and size.limited_bytes >= limit:
        return LimitState.REACHED
    if limit and size.limited_bytes * 100 >= limit * settings.size_warning_percent:
        return LimitState.NEAR
    return LimitState.BELOW


def read_manifest(directory: Path, number: int) -> Manifest | None:
    """One segment's; None: it is not there (any more)."""
    path = directory / files.manifest_name(number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.storage_error("read file", path, error) from error
    return manifest.decode(content, path)


def history_bytes(settings: LogSettings) -> int:
    """How much of what is applied is kept: the setting, or less under a size limit."""
    limit = settings.size_limit_bytes
    wanted = settings.history_bytes
    return min(wanted, limit // _HISTORY_PART) if limit else wanted


def journal_file_bytes(settings: LogSettings) -> int:
    """The size of a journal file: the setting, or less under a size limit."""
    limit = settings.size_limit_bytes
    wanted = settings.journal_file_bytes
    return min(wanted, max(1, limit // _JOURNAL_FILE_PART)) if limit else wanted


class Retention:
    """Trims the segments of one directory. Keep it: it remembers what it has read."""

    def __init__(self, directory: Path, *, history_bytes: int = 0) -> None:
        """Keep ``history_bytes`` of applied segments beyond what must be kept."""
        self._directory = directory
        self._history_bytes = history_bytes
        self._known: dict[int, Manifest] = {}

    def trim(self, floor: Lsn) -> list[int]:
        """Remove what may go; returns the numbers of the removed segments. A segment whose
        manifest is damaged may go if one behind it may; until then it stays, and whoever
        reads it reports it.

        Raises ConfigurationError, StorageError.
        """
        numbers = files.manifest_numbers(self._directory)
        applied: list[tuple[int, Manifest | None]] = []
        damaged: list[tuple[int, Manifest | None]] = []
        for number in numbers:
            try:
                one = self._manifest(number)
            except CorruptLogError:
                damaged.append((number, None))
                continue
            if one is None or one.sealed_lsn > floor:
                break
            applied += [*damaged, (number, one)]
            damaged = []
        kept = 0
        if applied and (last := applied[-1][1]) and last.number == numbers[-1]:
            # It stays, and is the history's first.
            kept = last.size
            applied.pop()
        # A damaged manifest does not tell a size, so neither it nor what is older is kept.
        while applied and (last := applied[-1][1]) is not None:
            if kept + last.size > self._history_bytes:
                break
            kept += last.size
            applied.pop()
        for number, one in applied:
            self._remove(number, one)
        return [number for number, _ in applied]

    def _manifest(self, number: int) -> Manifest | None:
        if number not in self._known:
            found = read_manifest(self._directory, number)
            if found is None:
                return None
            self._known[number] = found
        return self._known[number]

    def _remove(self, number: int, one: Manifest | None) -> None:
        path = self._directory / files.manifest_name(number)
        try:
            path.unlink(missing_ok=True)
            # One by one: a crash must never leave a gap between two numbers.
            files.sync_directory(self._directory)
            failpoint("log.trimmed")
        except OSError as error:
            raise files.storage_error("remove file", path, error) from error
        if one is None:
            names = [entry.name for entry in self._directory.iterdir()]
            names = [name for name in names if files.segment_of(name) == number]
        else:
            names = [file.name for file in one.log_files]
        for name in names:
            files.remove(self._directory / name)
        self._known.pop(number, None)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One sealed segment, for people."""

    manifest: Manifest
    bytes: int
    """Bytes of the segment's files, the manifest among them."""
    sealed_at: float
    """Seconds since 1970: when its manifest was written."""


@dataclass(frozen=True, slots=True)
class Held:
    """A part of the log."""

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
    """Files of no segment yet: rows of open and prepared transactions, or a seal that is at
    work; and those of a segment that is just going."""
    spool_bytes: int
    """Bytes of the streamed or prepared transactions among them."""

    @property
    def segment_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(self.sizes)

    @property
    def size(self) -> LogSize:
        """Size of the log as it is compared with the limit."""
        loose = self.open_bytes - self.spool_bytes
        return LogSize(self.journal_bytes, self.segment_bytes + loose, self.spool_bytes)


class Inventory:
    """Looks at one directory, again and again. For one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """No I/O yet."""
        self._directory = directory
        self._manifests: dict[int, Manifest] = {}
        self._order: deque[int] = deque()
        self._sizes: dict[str, int] = {}

    def read(self) -> LogContents | None:
        """List the directory; None: there is none. Raises StorageError.

        Files of a sealed segment never change, so a file of one is measured once.
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
        """Return the segments that a reader that is complete below ``lsn`` still needs. Reads a
        manifest for each halving of the log. Raises CorruptLogError, ConfigurationError,
        StorageError."""
        first = bisect.bisect_right(
            contents.numbers, int(lsn), key=lambda number: self._sealed_lsn(number)
        )
        rest = contents.sizes[first:]
        return Held(len(rest), sum(rest))

    def facts(
        self, contents: LogContents, numbers: Sequence[int]
    ) -> list[SegmentFacts]:
        """Some of its segments; one that has gone since is left out. Errors as ``above``."""
        sizes = dict(zip(contents.numbers, contents.sizes, strict=True))
        found = []
        for number in numbers:
            one = self._manifest(number)
            path = self._directory / files.manifest_name(number)
            try:
                sealed_at = path.stat().st_mtime
            except FileNotFoundError:
                continue
            if one is not None:
                found.append(SegmentFacts(one, sizes[number], sealed_at))
        return found

    def _sealed_lsn(self, number: int) -> int:
        # The oldest ones go: nobody needs one that is gone.
        one = self._manifest(number)
        return 0 if one is None else int(one.sealed_lsn)

    def _manifest(self, number: int) -> Manifest | None:
        found = self._manifests.get(number)
        if found is None:
            found = read_manifest(self._directory, number)
            if found is not None:
                self._manifests[number] = found
                self._order.append(number)
                if len(self._order) > _MANIFESTS_KEPT:
                    del self._manifests[self._order.popleft()]
        return found
