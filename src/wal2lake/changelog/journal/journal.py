"""The journal: what the publisher sent, raw, durable within milliseconds.

One thread of the receiver owns a Journal and does, for each gulp of the socket:

    append(gulp)      one pwritev: header, lengths, payloads
    sync()            fdatasync; returns the end LSN that may now be reported as flushed

The first append after opening, and every append once the file has reached ``file_bytes``,
begins a new file: the old one is synced first, so that only the newest file can have a torn
tail. A file starts with the Relation and Type messages in force, and with the Stream Start whose
block is open (PREAMBLE), so that the files before it can go. Files change in the middle of a
transaction too.

A file may go once every transaction that *begins* in it, or in one before it, is in a
sealed segment: each closed file remembers the commit LSN of the last Begin up to its end. Whoever
keeps streamed transactions says which files it still needs for them.

    append_*, sync, close   the journal's thread
    recover                 before the first append, any one thread
    trim, clear, read       any thread: they touch closed files and the list of them, which
                            a lock guards

A failed append leaves the file as it was and may be repeated. Nothing else may follow it: a
later gulp that fits would move ``logged`` beyond a transaction that is not here, and the
publisher would never send that one again. A failed fsync may have lost
data that a second fsync would not report ("fsyncgate"): the object refuses all further work,
and whoever opens the directory again must not trust the file but write its content anew,
which ``log.ChangeLog.open`` does by sealing it.
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

# As PostgreSQL's max WAL segment in common use: few files, and a trim frees disk soon.
DEFAULT_FILE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record was written."""

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
    """Commit LSN of the last transaction that begins in this file or before it."""


class Journal:
    """The journal files of one directory. See the module for who may call what."""

    def __init__(
        self, directory: Path, *, file_bytes: int = DEFAULT_FILE_BYTES
    ) -> None:
        """Read nothing, write nothing yet: call ``recover`` first."""
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
        """By streamed transaction and subtransaction: what holds from its commit on."""
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
        """Every record of every file, oldest first; a torn tail is cut off on the way.

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
        # Of a newest file that was nothing but a torn header, nothing is left.
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
                    # It says again what is known, and of a first file everything.
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
    ) -> Place:
        """A new connection begins, streaming from ``start``, with these options."""
        self._refused = foreign_kinds(streaming=streaming, two_phase=two_phase)
        data = int(start).to_bytes(8, "little")
        return self._append(RecordKind.CONNECT, data, np.array([8], np.uint32))

    def append(self, data: bytes, lengths: Lengths) -> Place:
        """One gulp of payloads. Not durable before ``sync``.

        On StorageError the journal is as before the call, which may be repeated.
        Raises ProtocolViolation, and writes nothing, for what can be seen to be none of
        the messages asked for without decoding it. After either only the same gulp may
        be appended: anything else is an InternalError.
        """
        return self._append(RecordKind.DATA, data, lengths)

    def sync(self) -> Lsn:
        """Make everything appended durable; returns ``logged``.

        On StorageError this object is unusable: open the directory anew.
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

    def _append(self, kind: RecordKind, data: bytes, lengths: Lengths) -> Place:
        self._check_usable()
        self._check_nothing_is_left_out(kind, data, lengths)
        self._failed = kind, data, lengths
        # Before anything is written: this also refuses a message cut short.
        positions = None
        if kind is not RecordKind.CONNECT:
            positions = find_positions(data, lengths, self._block, self._refused)
        if positions is not None and positions.foreign is not None:
            raise foreign_message(data, lengths, positions.foreign)
        file = self._file
        if file is None or file.size >= self._file_bytes:
            file = self._start_file(fresh=kind is RecordKind.CONNECT)
        place = Place(file.number, file.size)
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
            # What is behind the last record is unknown: only recovery can tell.
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
        """Types before relations, each in order of first appearance; those of open streams, as
        blocks without rows; then the open block."""
        found = self._definitions
        keys = sorted(found, key=lambda key: not key[0])
        known = [found[key].payload for key in keys]
        for xid, of_subxids in self._of_streams.items():
            mine = [one for of in of_subxids.values() for one in of.values()]
            mine.sort(key=lambda one: (one.sent, not one.is_type))
            known += block_of(xid, mine)
        return known if self._block is None else [*known, continued(self._block)]

    def _note(self, positions: TransactionPositions | None) -> None:
        """Follow the stream: where transactions are, which relations are known."""
        if positions is None:
            self._definitions.clear()
            self._of_streams.clear()
            self._block = None
            return
        self._block = positions.block
        for one in positions.definitions:
            if isinstance(one, LoggedDefinition):
                self._define(one)
                continue
            if one.subxid != one.xid:
                self._of_streams.get(one.xid, {}).pop(one.subxid, None)
                continue
            for mine in self._of_streams.pop(one.xid, {}).values():
                for definition in mine.values() if one.committed else ():
                    self._define(replace(definition, xid=0))
        self._last_begin = positions.last_begin or self._last_begin
        self._appended = max(self._appended, positions.last_end)

    def _define(self, one: LoggedDefinition) -> None:
        """A relation or type is described: for its stream, or for all from now on."""
        key = one.is_type, one.oid
        if one.xid:
            mine = self._of_streams.setdefault(one.xid, {})
            mine.setdefault(one.subxid, {})[key] = one
            return
        known = self._definitions.get(key)
        # What a stream has said holds from its commit on, unless something later was
        # said outside of it.
        if known is None or not one.subxid or one.sent >= known.sent:
            self._definitions[key] = one

    def _check_usable(self) -> None:
        if self._unusable:
            raise UnusableLogError(
                f'journal in "{self._directory}" must be opened again after an error',
                hint="Check the file system of the log directory.",
            )

    def _check_nothing_is_left_out(
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

    def read(self, place: Place) -> JournalRecord:
        """Read a record back. Its file must not have been trimmed."""
        path = self._path(place.number)
        return journal_format.read_record_at(path, place.number, place.offset)

    def trim(self, sealed: Lsn, *, keep_from: int | None = None) -> int:
        """Remove closed files all of whose transactions end at or below ``sealed``.

        Files from number ``keep_from`` on stay: somebody still wants to ``read`` them.
        Returns how many went. Raises StorageError.
        """
        return self._remove(
            lambda file: (
                file.last_begin < sealed
                and (keep_from is None or file.number < keep_from)
            )
        )

    def clear(self) -> int:
        """Remove every closed file: all that is worth keeping of them is sealed."""
        return self._remove(lambda file: True)

    def _remove(self, may_go: Callable[[_ClosedFile], bool]) -> int:
        removed = 0
        with self._lock:
            while self._closed and may_go(self._closed[0]):
                path = self._path(self._closed[0].number)
                try:
                    path.unlink(missing_ok=True)
                    # One by one: a crash must never leave a gap between two files.
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
        """Give the file back, unsynced; the journal's thread only."""
        if self._file is not None:
            os.close(self._file.descriptor)
            self._file = None
        self._unusable = True


def _positions(
    kind: RecordKind, data: bytes, lengths: Lengths, block: bytes | None
) -> TransactionPositions | None:
    """Return the positions that a record tells of the stream; None: the record begins a connection,
    so nothing is known."""
    if kind is RecordKind.CONNECT:
        return None
    return find_positions(data, lengths, block)


def _write_all(descriptor: int, pieces: list[bytes], offset: int) -> int:
    """Write ``pieces`` at ``offset``; returns where they end. Normally one call."""
    rest = [memoryview(piece) for piece in pieces if piece]
    while rest:
        written = os.pwritev(descriptor, rest, offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]
    return offset
