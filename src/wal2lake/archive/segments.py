"""Puts the sealed segments of one subscription into the store, and removes them there.

    put()          segments that the store lacks, oldest first: Parquet files, then the manifest;
                   before them the transactions that are prepared at the end of the last one
    trim()         segments that are gone from the disk

A segment is in the store from the moment its manifest is, as on disk. So what the store has is a
log that a receiver can open. Segments that an earlier generation has put stay where they are.
``prepared`` says which segments count while prepared transactions come and go.

``trim`` removes a segment only if it is gone from the disk, which retention allows when all tables
have applied it, and if the newest stored catalog knows that they have: its floor is at or above the
segment's end, because the image was made after the directory was listed. The caller makes that
image in between (``oldest_on_disk``). The last segment that counts stays.

Called by the receiver's archive thread; belongs to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal2lake.archive import layout
from wal2lake.archive.prepared import (
    PreparedRecord,
    StoredTransaction,
    record_in_force,
)
from wal2lake.changelog import LogReader, Manifest, SealedMoment, files
from wal2lake.errors import StorageError, reason_of
from wal2lake.lake.store import LocalStore, MissingFileError, Store
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import failpoint

_PIECE_BYTES: Final = 8 << 20
"""Bytes of a file that are in memory while it is sent."""


@dataclass(frozen=True, slots=True)
class LogInStore:
    """Contents of the store that belong to one log."""

    segments: dict[int, tuple[str, list[str]]]
    """Segments that count: folder and names of the files by number, ascending and without a gap.
    The manifest's name is the last one."""
    record: PreparedRecord | None
    """The transactions that are prepared at the end of the last one. None: there are none."""
    others: dict[int, tuple[str, list[str]]]
    """Segments above that do not count yet."""
    keys: frozenset[str]
    """Objects of prepared transactions, and of records about them."""


def log_in_store(store: Store, log: str, generations: list[int]) -> LogInStore:
    """Read what the store has of a log."""
    segments: dict[int, tuple[str, list[str]]] = {}
    records: dict[int, str] = {}
    keys: set[str] = set()
    for generation in sorted(generations):
        folder = layout.log_folder(log, generation)
        whole = _segments_of(store, folder)
        # Listed behind the segments: the record for the newest one was put before it, and leaves
        # only when a later segment is there.
        names = store.list_after(folder)
        # A generation goes on behind its first segment; what a former one has put there since is
        # of a machine that was taken for lost.
        first = min(whole, default=None)
        if first is not None:
            segments = {n: names for n, names in segments.items() if n < first}
            records = {n: key for n, key in records.items() if n < first}
        segments |= whole
        for name in names:
            begun = layout.prepared_of(name)
            if begun is not None:
                records[begun] = f"{folder}/{name}"
            if begun is not None or layout.is_transaction(name):
                keys.add(f"{folder}/{name}")
    numbers = sorted(segments, reverse=True)
    newest = numbers[0] if numbers else 0
    last, record = record_in_force(store, records, newest)
    without_gap = {
        number
        for number, expected in zip(numbers, itertools.count(newest, -1), strict=False)
        if number == expected
    }
    return LogInStore(
        {n: segments[n] for n in sorted(without_gap) if n <= last},
        record,
        {n: segments[n] for n in sorted(without_gap) if n > last},
        frozenset(keys),
    )


def _segments_of(store: Store, folder: str) -> dict[int, tuple[str, list[str]]]:
    names: dict[int, list[str]] = {}
    for name in store.list_after(folder):
        number = files.segment_number(name)
        if number is not None:
            names.setdefault(number, []).append(name)
    return {
        number: (folder, [*sorted(set(of_one) - {manifest}), manifest])
        for number, of_one in names.items()
        if (manifest := files.manifest_name(number)) in of_one
    }


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
        stored = log_in_store(store, log, generations)
        self._stored = stored.segments
        self._sent: dict[int, tuple[str, list[str]]] = {}
        """Segments that count when those behind them have been put, too."""
        self._record = stored.record
        self._begun: PreparedRecord | None = None
        """Record of the segments that are being put."""
        self._moves: int | None = None
        """``moves`` of the moment of the last segment that counts; None: of another run."""
        self._transactions = {
            transaction.end_lsn: transaction
            for transaction in (
                () if stored.record is None else stored.record.transactions
            )
        }
        self._prepared_keys = set(stored.keys)
        self._newest: Manifest | None = None
        store.make_folder(self._folder)
        self._compare(stored.others)

    def _compare(self, others: dict[int, tuple[str, list[str]]]) -> None:
        """Compare the store with the disk, which always has the newest segment. What a former
        generation has put that is not on disk came too late, and leaves. Raises StorageError if
        this one has put it: the directory is older than the store."""
        newest = max(self._reader.numbers(), default=0)
        there = self._stored | others
        for number in sorted(there, reverse=True):
            folder, names = there[number]
            if folder == self._folder:
                if number <= newest:
                    break
                raise StorageError(
                    f'the log in "{self._directory}" is older than its store',
                    sqlstate="55000",
                    detail=f"It ends with segment {newest}, and this directory has stored segment"
                    f" {number}.",
                    hint='Restore the directory by wal2lake init --from, or set "store" of [log]'
                    " to an empty prefix.",
                )
            if number <= newest and self._is_on_disk(folder, names[-1]):
                break
            self._store.delete(f"{folder}/{names[-1]}")
            self._stored.pop(number, None)

    def _is_on_disk(self, folder: str, manifest: str) -> bool:
        """Whether a stored segment is that of the disk. One that has left the disk was."""
        try:
            content = self._disk.read(manifest)
        except MissingFileError:
            return True
        return self._store.read(f"{folder}/{manifest}") == content

    @property
    def newest(self) -> int:
        """Number of the last segment in the store that counts; 0: there is none."""
        return max(self._stored, default=0)

    @property
    def transactions(self) -> frozenset[Lsn]:
        """Return the prepared transactions that the store has, by the ends of their PREPAREs."""
        return frozenset(self._transactions)

    def put(
        self, moment: SealedMoment, stopped: Callable[[], bool] = lambda: False
    ) -> Lsn:
        """Put what is missing up to a moment's segment, until ``stopped``; return the end of the
        last transaction up to which the store has all.

        Raises StorageError (call again), CorruptLogError, ConfigurationError.
        """
        if self._newest is None and self._stored:
            self._newest = next(self._reader.load([self.newest]), None)
        if moment.segment > self.newest:
            if self._needs_record(moment):
                self._put_record(moment)
            if self._put_up_to(moment.segment, stopped):
                self._count(moment)
        elif self._moves is None and self._has_same(moment):
            self._moves = moment.moves
        return INVALID_LSN if self._newest is None else self._newest.sealed_lsn

    def _put_up_to(self, last: int, stopped: Callable[[], bool]) -> bool:
        """Put the segments up to a number. Return False if ``stopped`` before that."""
        newest = self.newest
        for number in self._reader.numbers():
            if newest < number <= last and number not in self._sent:
                if stopped():
                    return False
                for segment in self._reader.load([number]):
                    self._put(segment)
        return True

    def _has_same(self, moment: SealedMoment) -> bool:
        """Whether the same transactions are prepared at the last segment that counts."""
        ends = frozenset() if self._record is None else self._record.ends
        return ends == {transaction.end_lsn for transaction in moment.prepared}

    def _needs_record(self, moment: SealedMoment) -> bool:
        """Whether other transactions are prepared at the moment than at the last segment that
        counts, or at a segment between the two, or an attempt has left its record."""
        first = self.newest + 1
        if self._record_key(first) in self._prepared_keys or not self._has_same(moment):
            return True
        return moment.segment > first and moment.moves != self._moves

    def _put_record(self, moment: SealedMoment) -> None:
        """Put the files of prepared transactions that the store lacks, then their record."""
        for transaction in moment.prepared:
            if transaction.end_lsn not in self._transactions:
                keys = []
                end = int(transaction.end_lsn)
                for name in transaction.names:
                    key = f"{self._folder}/{layout.transaction_name(end, name)}"
                    self._prepared_keys.add(key)
                    self._send(files.held_name(name), key)
                    keys.append(key)
                self._store.settle(self._folder)
                self._transactions[transaction.end_lsn] = StoredTransaction(
                    transaction.end_lsn, tuple(keys)
                )
                failpoint("archive.transaction")
        key = self._record_key(self.newest + 1)
        record = PreparedRecord(
            key,
            self.newest + 1,
            moment.segment,
            tuple(
                self._transactions[transaction.end_lsn]
                for transaction in moment.prepared
            ),
        )
        self._begun = record
        self._prepared_keys.add(key)
        self._store.put(key, record.encode())
        self._store.settle(self._folder)
        failpoint("archive.prepared")

    def _record_key(self, first: int) -> str:
        return f"{self._folder}/{layout.prepared_name(first)}"

    def _count(self, moment: SealedMoment) -> None:
        """Note that the store has all segments of a moment."""
        self._newest = next(self._reader.load([moment.segment]))
        self._stored |= self._sent
        self._sent = {}
        self._moves = moment.moves
        if self._begun is not None:
            self._record, self._begun = self._begun, None

    def _put(self, segment: Manifest) -> None:
        names = [file.name for file in segment.log_files]
        for name in names:
            self._send(name, f"{self._folder}/{name}")
        manifest = files.manifest_name(segment.number)
        self._store.settle(self._folder)
        self._store.put(f"{self._folder}/{manifest}", self._disk.read(manifest))
        self._store.settle(self._folder)
        self._sent[segment.number] = self._folder, [*names, manifest]
        failpoint("archive.segment")

    def _send(self, name: str, key: str) -> None:
        """Send a file of the log's directory."""
        with self._disk.open_ranges(name) as reader:
            writer = self._store.open_writer(key)
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

    def has_left(self, oldest: int) -> bool:
        """Whether the store has what ``trim`` would remove."""
        first = min(oldest, self.newest)
        return min(self._stored, default=first) < first or bool(self._unneeded())

    def trim(self, oldest: int) -> None:
        """Remove segments below ``oldest``, the oldest one first, and transactions that are not
        prepared any more. Nobody becomes this node meanwhile: the caller has looked at the claims
        since the last segment was put."""
        first = min(oldest, self.newest)
        for number in [n for n in sorted(self._stored) if n < first]:
            folder, names = self._stored[number]
            manifest = f"{folder}/{names[-1]}"
            self._store.delete(manifest)
            self._store.settle(folder)
            self._store.delete_all([f"{folder}/{name}" for name in names[:-1]])
            del self._stored[number]
        unneeded = self._unneeded()
        if unneeded:
            self._store.delete_all(sorted(unneeded))
            self._prepared_keys -= unneeded
            if self._record is not None and self._record.key in unneeded:
                self._record = None
            self._transactions = {
                end: transaction
                for end, transaction in self._transactions.items()
                if not unneeded.intersection(transaction.keys)
            }

    def _unneeded(self) -> set[str]:
        """Return the objects of prepared transactions that the record in force does not name, and
        at last the record itself, if it names none."""
        if self._begun is not None:
            return set()
        needed = {self._record_key(self.newest + 1)}
        if self._record is not None:
            needed.update(self._record.keys)
            # Without it the record before it would be in force, as long as that is there.
            if self._record.transactions or self._prepared_keys != {self._record.key}:
                needed.add(self._record.key)
        return self._prepared_keys - needed
