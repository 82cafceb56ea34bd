"""Puts the sealed segments of one subscription into the store, and removes them there.

    put_new()      segments that the store lacks, oldest first: Parquet files, then the manifest
    trim()         segments that are gone from the disk

A segment is in the store from the moment its manifest is, as on disk. So what the store has is a
log that a receiver can open. Segments that an earlier generation has put stay where they are.

``trim`` removes a segment only if it is gone from the disk, which retention allows when all tables
have applied it, and if the newest stored catalog knows that they have: its floor is at or above the
segment's end, because the image was made after the directory was listed. The caller makes that
image in between (``oldest_on_disk``).

Called by the receiver's archive thread; belongs to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.archive import layout
from wal2lake.changelog import LogReader, Manifest, files
from wal2lake.errors import StorageError, reason_of
from wal2lake.lake.store import LocalStore, Store
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import failpoint

_PIECE_BYTES: Final = 8 << 20
"""Bytes of a file that are in memory while it is sent."""


def stored_segments(
    store: Store, log: str, generations: list[int]
) -> dict[int, tuple[str, list[str]]]:
    """Return the store's segments: folder and names of the files by number, ascending and without
    a gap up to the newest. The manifest's name is the last one."""
    segments: dict[int, tuple[str, list[str]]] = {}
    for generation in sorted(generations):
        folder = layout.log_folder(log, generation)
        names: dict[int, list[str]] = {}
        for name in store.list_after(folder):
            number = files.segment_number(name)
            if number is not None:
                names.setdefault(number, []).append(name)
        whole = {
            number: (folder, [*sorted(set(of_one) - {manifest}), manifest])
            for number, of_one in names.items()
            if (manifest := files.manifest_name(number)) in of_one
        }
        # A generation goes on behind its first segment; what a former one has put there since is
        # of a machine that was taken for lost.
        first = min(whole, default=None)
        if first is not None:
            segments = {
                number: segment
                for number, segment in segments.items()
                if number < first
            }
        segments |= whole
    numbers = sorted(segments, reverse=True)
    last = itertools.takewhile(
        lambda pair: pair[0] == numbers[0] - pair[1],
        zip(numbers, itertools.count(), strict=False),
    )
    return {number: segments[number] for number, _ in sorted(last)}


class SegmentArchive:
    """The segments of one log directory in the store."""

    def __init__(
        self,
        directory: Path,
        store: Store,
        *,
        log: str,
        generation: int,
        generations: list[int],
    ) -> None:
        """``log``: its name (``layout``). ``generations``: of all claims that the store has. Lists
        the store."""
        self._directory = directory
        self._disk = LocalStore(directory)
        self._reader = LogReader(directory)
        self._store = store
        self._folder = layout.log_folder(log, generation)
        self._stored = stored_segments(store, log, generations)
        self._newest: Manifest | None = None
        store.make_folder(self._folder)
        self._compare()

    def _compare(self) -> None:
        """Compare the store with the disk, which always has the newest segment. What a former
        generation has put above that came too late, and leaves. Raises StorageError if this one has
        put it: the directory is older than the store."""
        newest = max(self._reader.numbers(), default=0)
        for number in [number for number in self._stored if number > newest]:
            folder, names = self._stored[number]
            if folder == self._folder:
                raise StorageError(
                    f'the log in "{self._directory}" is older than its store',
                    sqlstate="55000",
                    detail=f"It ends with segment {newest}, and this directory has stored segment"
                    f" {number}.",
                    hint='Restore the directory by wal2lake init --from, or set "store" of [log]'
                    " to an empty prefix.",
                )
            self._store.delete(f"{folder}/{names[-1]}")
            del self._stored[number]

    @property
    def newest(self) -> int:
        """Number of the newest segment in the store; 0: there is none."""
        return max(self._stored, default=0)

    def put_new(self, stopped: Callable[[], bool] = lambda: False) -> Lsn:
        """Put the segments that are missing, until ``stopped``; return the end of the last
        transaction up to which the store has all.

        Raises StorageError (call again), CorruptLogError, ConfigurationError.
        """
        if self._newest is None and self._stored:
            self._newest = next(self._reader.load([self.newest]), None)
        for number in self._reader.numbers():
            if stopped():
                break
            if number > self.newest:
                for segment in self._reader.load([number]):
                    self._put(segment)
        return INVALID_LSN if self._newest is None else self._newest.sealed_lsn

    def _put(self, segment: Manifest) -> None:
        names = [file.name for file in segment.log_files]
        for name in names:
            self._send(name)
        manifest = files.manifest_name(segment.number)
        self._store.settle(self._folder)
        self._store.put(f"{self._folder}/{manifest}", self._disk.read(manifest))
        self._store.settle(self._folder)
        self._stored[segment.number] = self._folder, [*names, manifest]
        self._newest = segment
        failpoint("archive.segment")

    def _send(self, name: str) -> None:
        with self._disk.open_ranges(name) as reader:
            writer = self._store.open_writer(f"{self._folder}/{name}")
            try:
                for start in range(0, reader.size, _PIECE_BYTES):
                    size = min(_PIECE_BYTES, reader.size - start)
                    writer.sink.write(reader.source.read_at(size, start))
                writer.finish()
            except OSError as error:
                writer.discard()
                raise StorageError(
                    f'could not send file "{name}" to "{self._store.location}":'
                    f" {reason_of(error)}",
                    sqlstate="58030",
                ) from error
            except BaseException:
                writer.discard()
                raise

    def put_confirmed(self, content: bytes) -> None:
        """Put the content of the file ``confirmed``, durably."""
        self._store.put(f"{self._folder}/{layout.CONFIRMED}", content)
        self._store.settle(self._folder)

    def oldest_on_disk(self) -> int:
        """Return the number of the oldest segment on disk; 0: there is none."""
        return min(self._reader.numbers(), default=0)

    def has_below(self, number: int) -> bool:
        """Whether the store has segments below a number."""
        return min(self._stored, default=number) < number

    def trim(self, oldest: int) -> None:
        """Remove segments below ``oldest``, the oldest one first."""
        for number in [n for n in sorted(self._stored) if n < oldest]:
            folder, names = self._stored[number]
            manifest = f"{folder}/{names[-1]}"
            self._store.delete(manifest)
            self._store.settle(folder)
            self._store.delete_all([f"{folder}/{name}" for name in names[:-1]])
            del self._stored[number]
