"""The journal: the publisher's messages, raw, durable within milliseconds.

One thread of the receiver owns a Journal and calls, for each gulp of the socket:

    append(gulp)      one pwritev: header, lengths, payloads
    sync()            fdatasync; returns the end LSN that may now be reported as flushed

The first append after opening, and every append once the file has reached ``file_bytes``,
begins a new file. The old file is synced first, so that only the newest file can have a torn
tail. A file starts with the Relation and Type messages in force, and with the Stream Start whose
block is open (PREAMBLE), so that earlier files can be removed. A new file may begin in the middle
of a transaction.

A file may be removed once every transaction that *begins* in it, or in an earlier file, is in a
sealed segment: each closed file remembers the commit LSN of the last Begin up to its end. The
spools of streamed transactions state which files they still need (``keep_from``).

    append_*, sync, close   the journal's thread
    recover                 before the first append, any one thread
    trim, clear, read       any thread: they use closed files and the list of them, which
                            a lock guards

A failed append leaves the file as it was and may be repeated. No other gulp may follow: if a
later gulp succeeded, ``logged`` would move beyond a transaction that is missing, and the
publisher would never send that transaction again. A failed fsync may have lost data that a second
fsync would not report ("fsyncgate"). The object then refuses all further work. Code that opens the
directory again must not trust the file and must write its content again; ``log.ChangeLog.open``
does so by sealing it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from wal2lake.changelog import files
from wal2lake.changelog.journal import format as journal_format
from wal2lake.changelog.journal.format import Broken, JournalRecord, RecordKind
from wal2lake.changelog.journal.gulp import (
    Lengths,
    LoggedDefinition,
    TransactionPositions,
    block_of,
    continued,
    find_positions,
    foreign_kinds,
    foreign_message,
)
from wal2lake.errors import InternalError, UnusableLogError
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.observe import failpoint, get_logger

# A common size of WAL segments in PostgreSQL: few files, and a trim frees disk space soon.
DEFAULT_FILE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """The file and byte position of a record."""

    number: int
    offset: int


@dataclass(slots=True)
class _OpenFile:
    number: int
    path: Path
    descriptor: int
    size: int
    synced: int


@dataclass(frozen=True, slots=True)
class _ClosedFile:
    number: int
    last_begin: Lsn
    """Commit LSN of the last transaction that begins in this file or an earlier one."""


class Journal:
    """The journal files of one directory. The module says which thread may call which method."""

    def __init__(
        self, directory: Path, *, file_bytes: int = DEFAULT_FILE_BYTES
    ) -> None:
        """Do no I/O yet: call ``recover`` first."""
        self._directory = directory
        self._file_bytes = file_bytes
        self._file: _OpenFile | None = None
        self._next_number: int | None = None
        self._unusable = False
        self._failed: tuple[RecordKind, bytes, Lengths] | None = None
        self._lock = threading.Lock()
        self._closed: list[_ClosedFile] = []
        self._definitions: dict[tuple[bool, Oid], LoggedDefinition] = {}
        self._of_streams: dict[
            int, dict[int, dict[tuple[bool, Oid], LoggedDefinition]]
        ] = {}
        """Definitions by streamed transaction and subtransaction, in force from its commit on."""
        self._block: bytes | None = None
        """The Stream Start whose block is open."""
        self._refused = foreign_kinds(streaming=False, two_phase=False)
        self._last_begin = INVALID_LSN
        self._appended = INVALID_LSN
        self._logged = INVALID_LSN

    @property
    def newest(self) -> int:
        """Number of the newest file that has been closed; 0: none. Any thread."""
        with self._lock:
            return self._closed[-1].number if self._closed else 0

    @property
    def logged(self) -> Lsn:
        """End LSN of the last whole transaction that is durable here; 0: none."""
        return self._logged

    # ------------------------------------------------------------------ recovery

    def recover(self) -> Iterator[JournalRecord]:
        """Yield every record of every file, oldest first, and cut off a torn tail.

        Must be exhausted before the first append. Raises CorruptLogError, StorageError,
        ConfigurationError (a newer format).
        """
        if self._file is not None:
            raise InternalError("journal is recovered after its first append")
        numbers = files.journal_numbers(self._directory)
        for before, number in itertools.pairwise(numbers):
            if number != before + 1:
                missing = self._path(before + 1)
                raise journal_format.corrupt(missing, Broken(0, "the file is missing"))
        self._closed = []
        for number in numbers:
            last = number == numbers[-1]
            try:
                yield from self._recover_file(number, newest=last)
            except OSError as error:
                path = self._path(number)
                raise files.storage_error("read file", path, error) from error
            if self._path(number).exists():
                self._closed.append(_ClosedFile(number, self._last_begin))
        self._logged = self._appended
        # A newest file with a torn header only has been removed.
        self._next_number = self._closed[-1].number + 1 if self._closed else 1

    def _recover_file(self, number: int, *, newest: bool) -> Iterator[JournalRecord]:
        path = self._path(number)
        broken: Broken | None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(journal_format.FILE_HEADER_BYTES)
            broken = journal_format.check_file_header(head, path, number)
            while broken is None:
                record = journal_format.read_record(file, number, size)
                if record is None:
                    return
                if isinstance(record, Broken):
                    broken = record
                    break
                if record.kind is RecordKind.PREAMBLE:
                    # A preamble repeats the open block; in the first file it is all there is.
                    self._block = None
                self._note(
                    _positions(record.kind, record.data, record.lengths, self._block)
                )
                yield record
        if not newest or journal_format.synced_beyond(path, number, broken.offset):
            raise journal_format.corrupt(path, broken)
        get_logger().info(
            "journal ends in an incomplete record, which was never confirmed",
            file=str(path),
            offset=broken.offset,
            bytes=size - broken.offset,
        )
        self._cut(path, broken.offset)

    def _cut(self, path: Path, size: int) -> None:
        if size < journal_format.FILE_HEADER_BYTES:
            path.unlink()
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        files.sync_directory(self._directory)

    # ------------------------------------------------------------------ appending

    def append_connect(
        self, start: Lsn, *, streaming: bool = False, two_phase: bool = False
    ) -> JournalPlace:
        """Record that a new connection streams from ``start`` with these options."""
        self._refused = foreign_kinds(streaming=streaming, two_phase=two_phase)
        data = int(start).to_bytes(8, "little")
        return self._append(RecordKind.CONNECT, data, np.array([8], np.uint32))

    def append(self, data: bytes, lengths: Lengths) -> JournalPlace:
        """Append one gulp of payloads. It is not durable before ``sync``.

        On StorageError the journal is as before the call, which may be repeated.
        Raises ProtocolViolation, and writes nothing, for a message that is visibly not a
        requested one, without decoding it. After either error only the same gulp may be
        appended: any other is an InternalError.
        """
        return self._append(RecordKind.DATA, data, lengths)

    def sync(self) -> Lsn:
        """Make all appended records durable; returns ``logged``.

        On StorageError this object is unusable: open the directory again.
        """
        file = self._file
        self._check_usable()
        if file is not None and file.synced < file.size:
            try:
                files.sync_data(file.descriptor)
                failpoint("journal.synced")
            except OSError as error:
                self._unusable = True
                raise files.storage_error("fsync file", file.path, error) from error
            except BaseException:
                self._unusable = True
                raise
            file.synced = file.size
        self._logged = max(self._logged, self._appended)
        return self._logged

    def _append(self, kind: RecordKind, data: bytes, lengths: Lengths) -> JournalPlace:
        self._check_usable()
        self._check_same_as_failed(kind, data, lengths)
        self._failed = kind, data, lengths
        # Before anything is written, because this also refuses a truncated message.
        positions = None
        if kind is not RecordKind.CONNECT:
            positions = find_positions(data, lengths, self._block, self._refused)
        if positions is not None and positions.foreign is not None:
            raise foreign_message(data, lengths, positions.foreign)
        file = self._file
        if file is None or file.size >= self._file_bytes:
            file = self._start_file(fresh=kind is RecordKind.CONNECT)
        place = JournalPlace(file.number, file.size)
        raw = lengths.astype("<u4", copy=False).tobytes()
        self._write(file, kind, raw, data)
        self._failed = None
        self._note(positions)
        return place

    def _write(
        self, file: _OpenFile, kind: RecordKind, raw: bytes, data: bytes
    ) -> None:
        head = journal_format.pack_record_header(
            file.number, file.size, kind, raw, data, file.synced
        )
        try:
            end = _write_all(file.descriptor, [head, raw, data], file.size)
            failpoint("journal.appended")
        except OSError as error:
            self._take_back(file)
            raise files.storage_error("write to file", file.path, error) from error
        except BaseException:
            self._take_back(file)
            raise
        file.size = end

    def _take_back(self, file: _OpenFile) -> None:
        try:
            os.ftruncate(file.descriptor, file.size)
        except OSError:
            # The bytes behind the last record are unknown: only recovery can clean them up.
            self._unusable = True

    def _start_file(self, *, fresh: bool) -> _OpenFile:
        """Begin the next file; on StorageError the current one stays in use."""
        if self._next_number is None:
            raise InternalError("journal is written before it was recovered")
        self.sync()
        number = self._next_number
        path = self._path(number)
        preamble = [] if fresh else self._preamble()
        raw = np.array([len(p) for p in preamble], "<u4").tobytes()
        data = b"".join(preamble)
        head = journal_format.pack_file_header(number)
        record = journal_format.pack_record_header(
            number, len(head), RecordKind.PREAMBLE, raw, data, 0
        )
        try:
            descriptor = files.create(path)
            try:
                size = _write_all(descriptor, [head, record, raw, data], 0)
                os.fsync(descriptor)
                files.sync_directory(self._directory)
            except BaseException:
                os.close(descriptor)
                files.remove(path)
                raise
        except OSError as error:
            raise files.storage_error("create file", path, error) from error
        old, self._file = self._file, _OpenFile(number, path, descriptor, size, size)
        self._next_number = number + 1
        if old is not None:
            os.close(old.descriptor)
            with self._lock:
                self._closed.append(_ClosedFile(old.number, self._last_begin))
        return self._file

    def _preamble(self) -> list[bytes]:
        """Return types before relations, each in order of first appearance; then definitions of
        open streams, as blocks without rows; then the open block."""
        definitions = self._definitions
        keys = sorted(definitions, key=lambda key: not key[0])
        payloads = [definitions[key].payload for key in keys]
        for xid, of_subxids in self._of_streams.items():
            mine = [
                definition for of in of_subxids.values() for definition in of.values()
            ]
            mine.sort(key=lambda definition: (definition.sent, not definition.is_type))
            payloads += block_of(xid, mine)
        return payloads if self._block is None else [*payloads, continued(self._block)]

    def _note(self, positions: TransactionPositions | None) -> None:
        """Update the positions and definitions in force with those of a record."""
        if positions is None:
            self._definitions.clear()
            self._of_streams.clear()
            self._block = None
            return
        self._block = positions.block
        for item in positions.definitions:
            if isinstance(item, LoggedDefinition):
                self._define(item)
                continue
            if item.subxid != item.xid:
                self._of_streams.get(item.xid, {}).pop(item.subxid, None)
                continue
            for mine in self._of_streams.pop(item.xid, {}).values():
                for definition in mine.values() if item.committed else ():
                    self._define(replace(definition, xid=0))
        self._last_begin = positions.last_begin or self._last_begin
        self._appended = max(self._appended, positions.last_end)

    def _define(self, definition: LoggedDefinition) -> None:
        """Remember a definition: for its stream, or for all transactions from now on."""
        key = definition.is_type, definition.oid
        if definition.xid:
            mine = self._of_streams.setdefault(definition.xid, {})
            mine.setdefault(definition.subxid, {})[key] = definition
            return
        previous = self._definitions.get(key)
        # A stream's definition is in force from its commit on, unless a later one was sent
        # outside of the stream.
        if (
            previous is None
            or not definition.subxid
            or definition.sent >= previous.sent
        ):
            self._definitions[key] = definition

    def _check_usable(self) -> None:
        if self._unusable:
            raise UnusableLogError(
                f'journal in "{self._directory}" must be opened again after an error',
                hint="Check the file system of the log directory.",
            )

    def _check_same_as_failed(
        self, kind: RecordKind, data: bytes, lengths: Lengths
    ) -> None:
        if self._failed is None:
            return
        failed_kind, failed_data, failed_lengths = self._failed
        if (
            kind is not failed_kind
            or data != failed_data
            or not np.array_equal(lengths, failed_lengths)
        ):
            raise InternalError(
                f'journal in "{self._directory}" is given something else'
                " after a failed append"
            )

    # ------------------------------------------------------------------ any thread

    def read(self, place: JournalPlace) -> JournalRecord:
        """Read a record back. Its file must not have been trimmed."""
        path = self._path(place.number)
        return journal_format.read_record_at(path, place.number, place.offset)

    def trim(self, sealed: Lsn, *, keep_from: int | None = None) -> int:
        """Remove closed files all of whose transactions end at or below ``sealed``.

        Files from number ``keep_from`` on stay, because their records may still be ``read``.
        Returns the number of removed files. Raises StorageError.
        """
        return self._remove(
            lambda file: (
                file.last_begin < sealed
                and (keep_from is None or file.number < keep_from)
            )
        )

    def clear(self) -> int:
        """Remove every closed file: all of their whole transactions are sealed."""
        return self._remove(lambda file: True)

    def _remove(self, may_go: Callable[[_ClosedFile], bool]) -> int:
        removed = 0
        with self._lock:
            while self._closed and may_go(self._closed[0]):
                path = self._path(self._closed[0].number)
                try:
                    path.unlink(missing_ok=True)
                    # Sync after each removal: a crash must never leave a gap between two files.
                    files.sync_directory(self._directory)
                    failpoint("log.trimmed")
                except OSError as error:
                    raise files.storage_error("remove file", path, error) from error
                del self._closed[0]
                removed += 1
        return removed

    def _path(self, number: int) -> Path:
        return self._directory / files.journal_name(number)

    def close(self) -> None:
        """Close the file without syncing it; the journal's thread only."""
        if self._file is not None:
            os.close(self._file.descriptor)
            self._file = None
        self._unusable = True


def _positions(
    kind: RecordKind, data: bytes, lengths: Lengths, block: bytes | None
) -> TransactionPositions | None:
    """Return the positions in a record; None: the record begins a connection, after which no
    definition is in force."""
    if kind is RecordKind.CONNECT:
        return None
    return find_positions(data, lengths, block)


def _write_all(descriptor: int, pieces: list[bytes], offset: int) -> int:
    """Write ``pieces`` at ``offset``, normally with one call; returns the end position."""
    rest = [memoryview(piece) for piece in pieces if piece]
    while rest:
        written = os.pwritev(descriptor, rest, offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]
    return offset
