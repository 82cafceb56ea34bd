"""The highest position that may have been reported to the publisher's slot as durable.

    confirmed     one page: two records of 92 bytes, at 0 and at 512, written in turn

In: positions, before they are reported. Out: the highest position that may have been reported.
The log's end does not replace it: while nothing is pending, the confirmed position follows the
publisher's keepalives and is above the log's end. A slot that starts above both was recreated
or advanced by hand: changes in between will never be sent.

The older of the two records is overwritten in place and fdatasynced, so a crash during the write
leaves the other record, which has the position that was reported last. A record names the slot,
because a position confirmed to one slot says nothing about another. It does not name the timeline.
The catalog has the timeline, and stores a new one only after the record has been lowered to the
position at which the old timeline was left. A log of an older version has no such file.

Called by the receiver: its reader opens and closes the file, and a separate thread calls
``record`` in between.

Source: docs/formats/confirmed.md; open(2), fdatasync(2).
"""

from __future__ import annotations

import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.changelog import files
from wal2lake.errors import CorruptLogError, StorageError
from wal2lake.model import Lsn
from wal2lake.observe import failpoint

_NAME: Final = "confirmed"
_MAGIC: Final = b"w2lconf\x01"
_RECORD: Final = struct.Struct(">8sQQ64sI")
"""Magic and version, number of the write, LSN, slot's name (at most 63 bytes), CRC-32 of the
preceding bytes."""

_APART: Final = 512
"""Distance of the records. A sector is written as a whole or not at all, so they never share
one."""

_SIZE: Final = 4096


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Contents of the file."""

    slot_name: str
    position: Lsn


class ConfirmedFile:
    """The file of one log directory, a context manager. Use ``open``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use ``open``."""
        self._path = path
        self._descriptor = descriptor
        self._guard = threading.Lock()
        """Guards the descriptor: after a close another file may have its number."""
        self._number = 0
        self._last: Confirmed | None = None

    @classmethod
    def open(cls, directory: Path) -> ConfirmedFile:
        """Read the file, or create it if it is missing. Raises StorageError, and CorruptLogError
        if neither record is valid."""
        path = directory / _NAME
        try:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                files.write_temporary(path, bytes(_SIZE)).rename(path)
                files.sync_directory(directory)
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            made = cls(path, descriptor)
            try:
                made._read()
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise files.storage_error("open file", path, error) from error
        return made

    @property
    def last(self) -> Confirmed | None:
        """The last recorded position; None: none yet."""
        return self._last

    def record(self, slot_name: str, position: Lsn) -> None:
        """Record a position, durable on return. After a StorageError it must not be reported."""
        number = self._number + 1
        fields = (_MAGIC, number, int(position), slot_name.encode())
        body = _RECORD.pack(*fields, 0)[:-4]
        data = body + files.checksum(body).to_bytes(4, "big")
        with self._guard:
            if self._descriptor < 0:
                raise StorageError(f'file "{self._path}" is closed', sqlstate="58030")
            try:
                os.pwrite(self._descriptor, data, number % 2 * _APART)
                files.sync_data(self._descriptor)
            except OSError as error:
                raise files.storage_error("write to file", self._path, error) from error
            # After a failure the same record is written again, because the other one is valid.
            self._number, self._last = number, Confirmed(slot_name, position)
        failpoint("confirmed.recorded")

    def content(self) -> bytes:
        """Return the file's content, for a copy of the file elsewhere."""
        with self._guard:
            if self._descriptor < 0:
                raise StorageError(f'file "{self._path}" is closed', sqlstate="58030")
            try:
                return os.pread(self._descriptor, _SIZE, 0)
            except OSError as error:
                raise files.storage_error("read file", self._path, error) from error

    def close(self) -> None:
        """Close the descriptor; the file stays. May be called twice, and during ``record``."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> ConfirmedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        content = os.pread(self._descriptor, _SIZE, 0)
        if not any(content) and len(content) == _SIZE:
            return
        others = set()
        for place in (0, _APART):
            data = content[place : place + _RECORD.size]
            if len(data) < _RECORD.size:
                continue
            magic, number, position, name, checksum = _RECORD.unpack(data)
            if magic != _MAGIC or checksum != files.checksum(data[:-4]):
                if magic[:-1] == _MAGIC[:-1]:
                    others.add(magic[-1])
                continue
            if number > self._number:
                self._number = number
                slot_name = name.rstrip(b"\0").decode()
                self._last = Confirmed(slot_name, Lsn(position))
        for version in others - {_MAGIC[-1]}:
            if self._last is None:
                raise files.unsupported_version(self._path, version, _MAGIC[-1])
        if self._last is None:
            # The remedy differs from that of other log files: this file has no changes.
            raise CorruptLogError(
                f'invalid checksum in file "{self._path}"',
                detail="It has the position that was last confirmed to the publisher's"
                " replication slot. The changes themselves are not in it.",
                hint=f'Remove "{self._path}". The position of the slot is then trusted once:'
                " if the slot was dropped and created again meanwhile, changes committed in"
                " between are missing.",
            )
