"""Sealing of decoded changes in segments.

    add(decoded) ─▶ rows per relation version, in memory
                         │ seal()                        │ relieve(), over segment_bytes
                         ▼                               ▼
       rows of whole transactions              first seal(); if the open transaction alone
       ─▶ files ─▶ manifest ─▶ visible         is too big: its rows ─▶ files, *spilled*

A segment has whole transactions, and the logical messages outside of transactions. Rows and
messages of the open transaction stay in memory: it commits at or above the end of the last whole
one, because commits arrive in order. Spilled files have the number of the next segment and only
rows of the open transaction, so the next manifest includes them unchanged, and ``discard_open``
can remove them: after a lost connection the publisher sends that transaction again.

Order of a seal: each data file (temporary name, fsync, rename), the directory, the manifest's
temporary file, its rename, the directory. A crash before the manifest's rename leaves files that
``open_writer`` removes. A failure before the rename leaves the rows in memory: call again. A
failure after it makes the writer unusable, because the segment is visible but not known to be
durable.

A transaction whose rows are in files already is *attached*: it becomes a segment of its own, whose
rows files are hard links to those files under the segment's names.

One thread owns a SegmentWriter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from wal2lake.changelog import files, manifest, parquet
from wal2lake.changelog.manifest import (
    LogFile,
    Manifest,
    MessagesFile,
    RowsFile,
)
from wal2lake.changelog.parquet import (
    RowsInMemory,
    VersionRows,
    collect,
    version_key,
)
from wal2lake.changelog.reader import LogReader
from wal2lake.changelog.sealedmessages import last_outside, take_whole
from wal2lake.errors import CorruptLogError, InternalError, UnusableLogError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import failpoint
from wal2lake.wire.columnar import Decoded

# A Spark task reads one such file at a time, and the receiver may hold this size twice.
DEFAULT_SEGMENT_BYTES: Final = 64 << 20

_WRITERS: Final = 8
"""Files of a segment that are written at the same time. The disk serves fsyncs together that come
together: 17 small files took 30 ms with four, 18 ms with sixteen."""


def open_writer(
    directory: Path,
    *,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    unread: bool = False,
) -> SegmentWriter:
    """Continue the segments of ``directory``; removes files that a crash has left.

    ``unread``: no reader needs the log's content, so a damaged newest manifest is ignored.
    ``Retention`` removes it once a later segment is sealed.

    Raises CorruptLogError (the newest manifest), StorageError, ConfigurationError.
    """
    numbers = files.manifest_numbers(directory)
    last: Manifest | None = None
    if numbers:
        path = directory / files.manifest_name(numbers[-1])
        try:
            last = manifest.decode(path.read_bytes(), path)
        except OSError as error:
            raise files.storage_error("read file", path, error) from error
        except CorruptLogError:
            if not unread:
                raise
            end = _end_of_files(directory, numbers)
            return SegmentWriter(
                directory, None, segment_bytes, before=numbers[-1], end=end
            )
    _remove_leftovers(directory, set(numbers), last)
    return SegmentWriter(directory, last, segment_bytes)


def _end_of_files(directory: Path, numbers: Sequence[int]) -> Lsn:
    """Find the end of a log with a damaged newest manifest, from its text and other files.

    A position that a client has seen must not be assigned again."""
    reader = LogReader(directory)
    path = directory / files.manifest_name(numbers[-1])
    ends_seen = [manifest.end_of_damaged(path.read_bytes())]
    transactions = LogFile(files.transactions_name(numbers[-1]), 0, 0)
    with suppress(CorruptLogError):
        ends = reader.read(transactions, ["end_lsn"]).column("end_lsn")
        ends_seen += [Lsn(end.as_py()) for end in ends[-1:]]
    for number in reversed(numbers[:-1]):
        with suppress(CorruptLogError):
            ends_seen += [segment.sealed_lsn for segment in reader.load([number])]
            break
    return max(ends_seen)


def _remove_leftovers(directory: Path, sealed: set[int], last: Manifest | None) -> None:
    named = {file.name for file in last.log_files} if last else set()
    for name in [entry.name for entry in directory.iterdir()]:
        number = files.segment_of(name)
        unreferenced = number is not None and (
            number not in sealed
            or (last is not None and number == last.number and name not in named)
        )
        if unreferenced or files.is_temporary(name):
            files.remove(directory / name)


class SegmentWriter:
    """Collects decoded changes and seals them. Use ``open_writer``."""

    def __init__(
        self,
        directory: Path,
        last: Manifest | None,
        segment_bytes: int,
        *,
        before: int = 0,
        end: Lsn = INVALID_LSN,
    ) -> None:
        """``before`` and ``end`` are number and end of the segment before, if there is no
        ``last``."""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._number = (last.number if last else before) + 1
        self._sealed = last.sealed_lsn if last else end
        self._complete = self._sealed
        self._rows: RowsInMemory = {}
        self._transactions: list[Any] = []
        self._messages: list[Any] = []
        self._spilled: list[RowsFile] = []
        self._spilled_messages: list[MessagesFile] = []
        self._next_k = 0
        self._buffered = 0
        self._unusable = False
        self.captured = last.captured if last else None
        """Capture's state for the next manifest; only in a publisher's log."""

    @property
    def sealed_lsn(self) -> Lsn:
        """End LSN of the last sealed transaction, or LSN of a later message outside of
        transactions; 0: none. Any thread may read it."""
        return self._sealed

    @property
    def complete_lsn(self) -> Lsn:
        """End LSN of the last whole transaction, or LSN of a later message outside of
        transactions, that was added. It may not be sealed yet."""
        return self._complete

    @property
    def last_number(self) -> int:
        """Number of the newest sealed segment; 0: none. Any thread may read it."""
        return self._number - 1

    @property
    def commit_times(self) -> tuple[int, int] | None:
        """Commit times of the first and the last whole transaction that is not sealed, in
        microseconds since 2000-01-01 UTC; None: there is none."""
        if not self._transactions:
            return None
        first = self._transactions[0].column("commit_time")[0].as_py()
        last = self._transactions[-1].column("commit_time")[-1].as_py()
        return first, last

    @property
    def buffered_bytes(self) -> int:
        """Bytes of rows and messages in memory."""
        return self._buffered

    def add(self, decoded: Decoded) -> None:
        """Add decoded changes. No I/O: call ``relieve`` afterwards."""
        ended = decoded.transactions
        if ended.num_rows:
            first = int(ended.column("commit_lsn")[0].as_py())
            if first < self._complete:
                raise InternalError(
                    f"transaction committed at {Lsn(first)} reached the change log after "
                    f"all up to {self._complete}"
                )
        for block in decoded.blocks:
            self._buffered += collect(self._rows, block)
        if ended.num_rows:
            self._transactions.append(ended)
            self._buffered += ended.nbytes
            self._complete = Lsn(ended.column("end_lsn")[-1].as_py())
        if decoded.messages.num_rows:
            self._messages.append(decoded.messages)
            self._buffered += decoded.messages.nbytes
            self._complete = max(self._complete, last_outside(decoded.messages))

    def reach(self, end: Lsn) -> None:
        """Advance to the end of a message without rows: a Prepare, or Rollback Prepared."""
        self._complete = max(self._complete, end)

    def relieve(self) -> Manifest | None:
        """Reduce memory below ``segment_bytes`` by sealing, then by spilling.

        Returns the manifest if it sealed. On StorageError nothing is lost: call again.
        """
        if self._buffered <= self._segment_bytes:
            return None
        sealed = self.seal()
        if self._buffered > self._segment_bytes:
            self._spill()
        return sealed

    def seal(self) -> Manifest | None:
        """Seal all whole transactions; None: there are none.

        On return they survive a power loss, and readers see them. On StorageError before the
        manifest is in place nothing is lost: call again.
        """
        self._check_usable()
        if self._complete == self._sealed:
            return None
        complete, remaining = _split(self._rows, self._complete)
        whole, open_messages = take_whole(self._messages, self._complete)
        written: list[str] = []
        try:
            rows = self._write_rows(complete, written)
            messages = self._write_messages(whole, written)
            sealed = self._describe(
                (*self._spilled, *rows),
                (*self._spilled_messages, *messages),
                self._transactions,
                self._complete,
                written,
            )
            self._finish(sealed)
        except BaseException:
            # If the manifest may be in place, the files that it names must stay.
            for name in () if self._unusable else written:
                files.remove(self._directory / name)
            raise
        self._rows, self._transactions = remaining, []
        self._messages = open_messages
        self._spilled, self._spilled_messages, self._next_k = [], [], 0
        self._buffered = _bytes(remaining.values(), open_messages)
        return sealed

    def attach(
        self,
        transaction: Any,
        rows: Sequence[RowsFile],
        messages: Iterable[Any],
    ) -> Manifest:
        """Seal all whole transactions, then one more transaction as a segment of its own.

        ``rows`` are durable files of the directory under other names, which stay; the segment
        gets hard links. ``messages`` has batches, one for each file. On StorageError call again.
        """
        self._check_usable()
        self.seal()
        if self._buffered or self._spilled or self._spilled_messages:
            raise InternalError("a transaction is attached while another one is open")
        written: list[str] = []
        try:
            linked = [self._link(k, file, written) for k, file in enumerate(rows)]
            described: list[MessagesFile] = []
            for batch in messages:
                if batch.num_rows:
                    described += self._write_messages([batch], written, len(described))
            end = Lsn(transaction.column("end_lsn")[-1].as_py())
            sealed = self._describe(
                tuple(linked), tuple(described), [transaction], end, written
            )
            self._finish(sealed)
        except BaseException:
            for name in () if self._unusable else written:
                files.remove(self._directory / name)
            raise
        self._complete = sealed.sealed_lsn
        return sealed

    def _link(self, k: int, rows: RowsFile, written: list[str]) -> RowsFile:
        name = files.rows_name(self._number, rows.relation.relid, k)
        path = self._directory / name
        try:
            path.hardlink_to(self._directory / rows.file.name)
            written.append(name)
            failpoint("spool.linked")
        except OSError as error:
            raise files.storage_error("link file", path, error) from error
        return replace(rows, file=replace(rows.file, name=name))

    def _finish(self, sealed: Manifest) -> None:
        """Write the manifest. The segment is visible from its rename on."""
        path = self._directory / files.manifest_name(self._number)
        self._publish(self._write_manifest(path, sealed), path)
        self._number += 1
        self._sealed = sealed.sealed_lsn

    def _write_manifest(self, path: Path, sealed: Manifest) -> Path:
        try:
            # The data files' names become durable first: a manifest must never outlive a file.
            files.sync_directory(self._directory)
        except OSError as error:
            raise files.storage_error("fsync", self._directory, error) from error
        temporary = files.write_temporary(path, manifest.encode(sealed))
        try:
            failpoint("segment.manifest_written")
        except OSError as error:
            files.remove(temporary)
            raise files.storage_error("write to file", path, error) from error
        return temporary

    def _publish(self, temporary: Path, path: Path) -> None:
        # Until the end of this function it is not known whether the segment exists.
        self._unusable = True
        try:
            temporary.rename(path)
            failpoint("segment.manifest_renamed")
            files.sync_directory(self._directory)
        except OSError as error:
            raise files.storage_error("rename file", path, error) from error
        self._unusable = False

    def _spill(self) -> None:
        """Write the rows of the open transaction, which are all rows in memory, to files."""
        written: list[str] = []
        try:
            rows = self._write_rows(self._rows.values(), written)
            messages = self._write_messages(self._messages, written)
        except BaseException:
            for name in written:
                files.remove(self._directory / name)
            raise
        self._spilled += rows
        self._spilled_messages += messages
        self._next_k += len(rows)
        self._rows, self._messages = {}, []
        self._buffered = 0

    def discard_open(self) -> None:
        """Drop the open transaction: the publisher will send it again."""
        complete, _ = _split(self._rows, self._complete)
        self._messages, _ = take_whole(self._messages, self._complete)
        self._rows = {version_key(v.relation, v.type_names): v for v in complete}
        self._buffered = _bytes(complete, self._transactions, self._messages)
        for rows in [f for f in self._spilled if f.max_commit_lsn >= self._complete]:
            files.remove(self._directory / rows.file.name)
            self._spilled.remove(rows)
        for messages in [
            f for f in self._spilled_messages if f.max_commit_lsn >= self._complete
        ]:
            files.remove(self._directory / messages.file.name)
            self._spilled_messages.remove(messages)

    # ------------------------------------------------------------------ files

    def _write_rows(
        self, versions: Iterable[VersionRows], written: list[str]
    ) -> list[RowsFile]:
        described: list[RowsFile] = []
        numbered = list(enumerate(versions, self._next_k))
        if not numbered:
            return described
        # The largest first: otherwise the others would have to wait for it at the end.
        largest = sorted(numbered, key=lambda of: _bytes([of[1]]), reverse=True)
        with ThreadPoolExecutor(min(_WRITERS, len(numbered))) as pool:
            writing = {
                k: pool.submit(self._write_version, k, rows) for k, rows in largest
            }
        running = [writing[k] for k, _ in numbered]
        unnamed = [f.result()[0] for f in running if f.exception() is None]
        try:
            for future in running:
                temporary, rows = future.result()
                self._name(temporary, rows.file.name, written)
                unnamed.remove(temporary)
                described.append(rows)
        except BaseException:
            for temporary in unnamed:
                files.remove(temporary)
            raise
        return described

    def _write_version(self, k: int, version: VersionRows) -> tuple[Path, RowsFile]:
        """Write rows under a temporary name. Runs in a thread: several files are encoded beside
        each other, and an fsync waits for the disk."""
        content, facts = parquet.encode_rows(version)
        name = files.rows_name(self._number, version.relation.relid, k)
        data = memoryview(content)
        temporary = files.write_temporary(self._directory / name, data)
        file = LogFile(name, len(data), files.checksum(data))
        return temporary, parquet.describe_rows(file, version, facts)

    def _write_messages(
        self, batches: list[Any], written: list[str], k: int | None = None
    ) -> list[MessagesFile]:
        if not batches:
            return []
        content, facts = parquet.encode_messages(batches)
        k = len(self._spilled_messages) if k is None else k
        name = files.messages_name(self._number, k)
        return [
            MessagesFile(
                self._write_file(name, content, written),
                facts.messages,
                facts.content_bytes,
                facts.max_commit_lsn,
            )
        ]

    def _write_file(self, name: str, content: Any, written: list[str]) -> LogFile:
        data = memoryview(content)
        temporary = files.write_temporary(self._directory / name, data)
        self._name(temporary, name, written)
        return LogFile(name, len(data), files.checksum(data))

    def _name(self, temporary: Path, name: str, written: list[str]) -> None:
        """Give a file its name."""
        try:
            temporary.rename(self._directory / name)
            written.append(name)
            failpoint("segment.file_written")
        except OSError as error:
            files.remove(temporary)
            raise files.storage_error("rename file", temporary, error) from error

    def _describe(
        self,
        rows: tuple[RowsFile, ...],
        messages: tuple[MessagesFile, ...],
        transactions: Sequence[Any],
        end: Lsn,
        written: list[str],
    ) -> Manifest:
        """Build the manifest of the next segment; writes its transactions file."""
        transactions_file = self._write_file(
            files.transactions_name(self._number),
            parquet.encode_transactions(transactions),
            written,
        )
        first = last = INVALID_LSN
        last_time = 0
        if transactions:
            newest = transactions[-1]
            first = Lsn(transactions[0].column("commit_lsn")[0].as_py())
            last = Lsn(newest.column("commit_lsn")[-1].as_py())
            last_time = newest.column("commit_time")[-1].as_py()
        return Manifest(
            number=self._number,
            first_commit_lsn=first,
            last_commit_lsn=last,
            sealed_lsn=end,
            last_commit_time=last_time,
            transactions=sum(t.num_rows for t in transactions),
            transactions_file=transactions_file,
            files=rows,
            messages_files=messages,
            captured=self.captured,
        )

    def _check_usable(self) -> None:
        if self._unusable:
            raise UnusableLogError(
                f'change log in "{self._directory}" must be opened again after an error',
                hint="Check the file system of the log directory.",
            )


def _bytes(versions: Iterable[VersionRows], *others: Iterable[Any]) -> int:
    rows = (batch for version in versions for batch in version.batches)
    return sum(batch.nbytes for batch in itertools.chain(rows, *others))


def _split(
    rows: RowsInMemory, complete_lsn: Lsn
) -> tuple[list[VersionRows], RowsInMemory]:
    """Separate the rows of whole transactions from those of the open one."""
    complete: list[VersionRows] = []
    remaining: RowsInMemory = {}
    for key, version in rows.items():
        done = VersionRows(version.relation, version.type_names)
        rest = VersionRows(version.relation, version.type_names)
        for batch in version.batches:
            lsns = batch.column("commit_lsn").to_numpy()
            count = int(np.searchsorted(lsns, int(complete_lsn), side="left"))
            if count:
                done.batches.append(batch.slice(0, count))
            if count < batch.num_rows:
                rest.batches.append(batch.slice(count))
        if done.batches:
            complete.append(done)
        if rest.batches:
            remaining[key] = rest
    return complete, remaining
