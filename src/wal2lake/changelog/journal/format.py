"""The bytes of a journal file: every writer of bytes next to its reader.

    file   := header record*
    header := 32 bytes: magic, format version, file number, CRC-32
    record := 32 bytes of header, count x uint32 lengths, payload

Integers are little-endian. docs/formats/journal.md has every offset; this module is its only
implementation. A record states how much of its file was on disk when the record was written
(``synced``). This distinguishes a *torn tail* (a crash during a write: cut it off) from
*corruption* (bytes that had been on disk are wrong: stop). The last synced records of the newest
file are the exception, because no later record proves that they were on disk: PostgreSQL's own WAL
has the same limit.

The idea of a byte-level specification next to the code: litestream, docs/LTX_FORMAT.md.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from wal2lake.changelog.files import storage_error, unsupported_version
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.errors import RESTORE_HINT, CorruptLogError
from wal2lake.model import Lsn

FORMAT_VERSION: Final = 2

_WITHOUT_STREAMS: Final = 1
"""The format version before stream blocks; its records have the same meaning in this one."""

# magic, format version, reserved, file number, reserved, CRC-32 of the 28 bytes before it
_FILE = struct.Struct("<8sIIQII")
_FILE_MAGIC: Final = b"w2ljrnl\0"
FILE_HEADER_BYTES: Final = _FILE.size

# magic, CRC-32 (of the record's place and everything after the sum), kind, reserved,
# count, payload bytes, synced
_RECORD = struct.Struct("<4sIB3xIQQ")
_RECORD_MAGIC: Final = b"W2LR"
RECORD_HEADER_BYTES: Final = _RECORD.size
_CRC_FROM: Final = 8
_PLACE = struct.Struct("<QQ")


class RecordKind(Enum):
    """Contents of a record."""

    CONNECT = 1
    """A new connection begins. The one payload is the start LSN (uint64). The publisher sends
    the transaction that was open, and Relation messages, again."""
    PREAMBLE = 2
    """Relation and Type messages in force at the start of the file, then the Stream Start
    whose block is open there."""
    DATA = 3
    """Payloads as they arrived."""


_KINDS: Final = {kind.value: kind for kind in RecordKind}


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One whole record, verified."""

    number: int
    """The file's number."""
    offset: int
    """Byte position of the record in its file."""
    kind: RecordKind
    lengths: Lengths
    data: bytes

    @property
    def start_lsn(self) -> Lsn:
        """Position at which streaming starts; CONNECT records only."""
        return Lsn(int.from_bytes(self.data, "little"))


@dataclass(frozen=True, slots=True)
class Broken:
    """The position at which reading must stop, and the reason for the error message."""

    offset: int
    reason: str


def pack_file_header(number: int) -> bytes:
    """Encode the first 32 bytes of file ``number``."""
    head = _FILE.pack(_FILE_MAGIC, FORMAT_VERSION, 0, number, 0, 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little")


def check_file_header(head: bytes, path: Path, number: int) -> Broken | None:
    """Verify the first bytes of a file; raises ConfigurationError for a newer format."""
    if len(head) < FILE_HEADER_BYTES:
        return Broken(0, "the file header is incomplete")
    magic, version, _, stated, _, crc = _FILE.unpack(head[:FILE_HEADER_BYTES])
    if magic != _FILE_MAGIC or crc != zlib.crc32(head[: FILE_HEADER_BYTES - 4]):
        return Broken(0, "the file header fails its checksum")
    if version not in (_WITHOUT_STREAMS, FORMAT_VERSION):
        raise unsupported_version(path, version, FORMAT_VERSION)
    if stated != number:
        return Broken(0, f"the file header says number {stated}")
    return None


def pack_record_header(
    number: int,
    offset: int,
    kind: RecordKind,
    lengths: bytes,
    data: bytes,
    synced: int,
) -> bytes:
    """Encode the header that precedes ``lengths`` and ``data`` at ``offset`` of a file."""
    count = len(lengths) // 4
    head = _RECORD.pack(_RECORD_MAGIC, 0, kind.value, count, len(data), synced)
    crc = _checksum(number, offset, head, lengths, data)
    return head[:4] + crc.to_bytes(4, "little") + head[_CRC_FROM:]


def _checksum(
    number: int, offset: int, head: bytes, lengths: bytes, data: bytes
) -> int:
    # The place is part of the checksum. So a misplaced block, or a row's value that happens to
    # be a piece of a journal, is not taken for a record.
    crc = zlib.crc32(_PLACE.pack(number, offset))
    return zlib.crc32(data, zlib.crc32(lengths, zlib.crc32(head[_CRC_FROM:], crc)))


def read_record(
    file: BinaryIO, number: int, size: int
) -> JournalRecord | Broken | None:
    """Read and verify the record at the file's position; None at the file's end.

    ``size`` is the file's size; the reader ignores bytes beyond it.
    """
    offset = file.tell()
    if offset >= size:
        return None
    head = file.read(RECORD_HEADER_BYTES)
    if len(head) < RECORD_HEADER_BYTES:
        return Broken(offset, "a record header is incomplete")
    magic, crc, kind, count, payload_bytes, _ = _RECORD.unpack(head)
    if magic != _RECORD_MAGIC:
        return Broken(offset, "a record does not begin with its mark")
    if offset + RECORD_HEADER_BYTES + 4 * count + payload_bytes > size:
        return Broken(offset, "a record ends beyond the end of the file")
    raw = file.read(4 * count)
    data = file.read(payload_bytes)
    if crc != _checksum(number, offset, head, raw, data):
        return Broken(offset, "a record fails its checksum")
    lengths = np.frombuffer(raw, "<u4").astype(np.uint32, copy=False)
    if kind not in _KINDS or int(lengths.sum(dtype=np.int64)) != payload_bytes:
        return Broken(offset, "a record contradicts itself")
    return JournalRecord(number, offset, _KINDS[kind], lengths, data)


def read_record_at(path: Path, number: int, offset: int) -> JournalRecord:
    """Read the record at a given place; raises CorruptLogError, StorageError."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            record = read_record(file, number, size)
    except OSError as error:
        raise storage_error("read file", path, error) from error
    if not isinstance(record, JournalRecord):
        raise corrupt(path, record or Broken(offset, "the file ends before a record"))
    return record


def synced_beyond(path: Path, number: int, broken: int) -> bool:
    """Return whether a later record proves that the byte at ``broken`` had been on disk."""
    size = path.stat().st_size
    if size <= broken:
        return False
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        position = content.find(_RECORD_MAGIC, broken + 1)
        while position >= 0:
            file.seek(position)
            record = read_record(file, number, size)
            if isinstance(record, JournalRecord):
                synced = _RECORD.unpack(
                    content[position : position + RECORD_HEADER_BYTES]
                )[-1]
                if synced > broken:
                    return True
            position = content.find(_RECORD_MAGIC, position + 1)
    return False


def corrupt(path: Path, broken: Broken) -> CorruptLogError:
    """Build the error for a journal file that cannot be read."""
    return CorruptLogError(
        f'journal file "{path}" is corrupted',
        detail=f"At byte {broken.offset}, {broken.reason}.",
        hint=RESTORE_HINT,
    )
