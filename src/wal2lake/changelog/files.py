"""Names of the log's files, and how a file becomes durable.

One directory per subscription holds everything, flat, so that ``ls`` shows the state:

    journal-<n>                       raw messages of the publisher, n from 1
    seg-<n>.json                      manifest of segment n: the segment exists iff this file does
    seg-<n>-<relid>-<k>.parquet       rows of one relation version
    seg-<n>-transactions.parquet      one row per transaction
    seg-<n>-messages-<k>.parquet      logical messages
    spool-<n>.json                    checkpoint of the transaction in spool n
    spool-<n>-<relid>-<k>.parquet     rows of a transaction that has not committed
    spool-<n>-messages-<k>.parquet    logical messages of one
    confirmed                         position reported to the publisher (see ``confirmed``)
    held-spool-...                    second name of a file that the log's store has not got yet
    <any of these>.tmp                being written, or left by a crash

``<n>`` has 20 decimal digits, so that names sort like numbers. A file other than a journal
is written whole under its temporary name, fsynced and renamed; then the directory is fsynced
(invariant 7). Errors of the operating system are raised as StorageError with PostgreSQL's
text and SQLSTATE.

Sources: open(2), rename(2), fsync(2); src/backend/storage/file/fd.c (durable_rename).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError, StorageError, reason_of, words_of
from wal2lake.model import Oid

TEMPORARY: Final = ".tmp"
HELD: Final = "held-"

_MANIFEST = re.compile(r"seg-(\d{20})\.json\Z")
_JOURNAL = re.compile(r"journal-(\d{20})\Z")
_SEGMENT_DATA = re.compile(
    r"seg-(\d{20})-(?:transactions|(?:\d+|messages)-\d+)\.parquet\Z"
)
_CHECKPOINT = re.compile(r"spool-(\d{20})\.json\Z")
_SPOOL = re.compile(r"spool-(\d{20})(?:-(?:\d+|messages)-\d+\.parquet|\.json)\Z")

# A file of the log is as private as the table data in it (PostgreSQL: pg_file_create_mode).
_MODE: Final = 0o600

# Readers need size and content; fdatasync does not write the times. Systems without it have fsync,
# which guarantees no less.
sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def journal_name(number: int) -> str:
    """The name of journal file ``number``."""
    return f"journal-{number:020d}"


def manifest_name(number: int) -> str:
    """The name of segment ``number``'s manifest."""
    return f"seg-{number:020d}.json"


def rows_name(number: int, relid: Oid, k: int) -> str:
    """The name of file ``k`` of segment ``number``, with rows of one relation."""
    return f"seg-{number:020d}-{int(relid)}-{k}.parquet"


def transactions_name(number: int) -> str:
    """The name of segment ``number``'s transactions file."""
    return f"seg-{number:020d}-transactions.parquet"


def messages_name(number: int, k: int) -> str:
    """The name of segment ``number``'s file ``k`` of logical messages."""
    return f"seg-{number:020d}-messages-{k}.parquet"


def checkpoint_name(number: int) -> str:
    """The name of spool ``number``'s checkpoint."""
    return f"spool-{number:020d}.json"


def spool_rows_name(number: int, relid: Oid, k: int) -> str:
    """The name of piece ``k`` of spool ``number``, with rows of one relation."""
    return f"spool-{number:020d}-{int(relid)}-{k}.parquet"


def spool_messages_name(number: int, k: int) -> str:
    """The name of spool ``number``'s piece ``k`` of logical messages."""
    return f"spool-{number:020d}-messages-{k}.parquet"


def held_name(name: str) -> str:
    """The second name of a spool's file, under which it waits for the log's store."""
    return f"{HELD}{name}"


def journal_numbers(directory: Path) -> list[int]:
    """Return the numbers of the existing journal files, ascending."""
    return _numbers(directory, _JOURNAL)


def manifest_numbers(directory: Path) -> list[int]:
    """Return the numbers of the existing sealed segments, ascending."""
    return _numbers(directory, _MANIFEST)


def checkpoint_numbers(directory: Path) -> list[int]:
    """Return the numbers of the spools that have a checkpoint, ascending."""
    return _numbers(directory, _CHECKPOINT)


def spool_of(name: str) -> int | None:
    """Return the number of the spool that a file belongs to; None: it is no spool's file."""
    match = _SPOOL.match(name)
    return int(match[1]) if match else None


def segment_of(name: str) -> int | None:
    """Return the number of the segment that a Parquet file belongs to; None: it is no segment's."""
    match = _SEGMENT_DATA.match(name)
    return int(match[1]) if match else None


def segment_number(name: str) -> int | None:
    """Return the number of the segment that a file or manifest belongs to; None: none."""
    match = _MANIFEST.match(name)
    return int(match[1]) if match else segment_of(name)


def is_manifest(name: str) -> bool:
    """Return whether a name is that of a segment's manifest."""
    return _MANIFEST.match(name) is not None


def is_log_file(name: str) -> bool:
    """Return whether a file counts for the log's size: it has a log file's name, or will get
    one."""
    return name.startswith(("journal-", "seg-", "spool-"))


def is_temporary(name: str) -> bool:
    """Return whether a name is the temporary name of an unfinished write."""
    return name.startswith(("seg-", "spool-")) and name.endswith(TEMPORARY)


def _numbers(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise storage_error("open directory", directory, error) from error
    return sorted(int(m[1]) for m in map(pattern.match, names) if m)


def storage_error(action: str, path: Path, error: OSError) -> StorageError:
    """Build PostgreSQL's error for a failed call; ``action`` is, for example, "fsync file"."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f'could not {action} "{path}": {reason_of(error)}',
        sqlstate="53100" if full else "58030",
        hint="Free space on the file system of the log directory; "
        "the node then continues by itself."
        if full
        else "Check the file system of the log directory.",
        original=None if error.errno else words_of(error),
    )


def unsupported_version(
    path: Path, version: object, supported: int
) -> ConfigurationError:
    """Build the error for a file that another version of wal2lake wrote."""
    return ConfigurationError(
        f'unsupported log format version {version} in file "{path}"',
        detail=f"This version of wal2lake reads log format version {supported}.",
        hint="Use the version of wal2lake that wrote the log, or a newer one.",
    )


def create(path: Path) -> int:
    """Create or empty a file and open it for writing; returns its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.open(path, flags, _MODE)


def sync_directory(directory: Path) -> None:
    """Make additions and removals of names in ``directory`` durable; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of a file durable; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_temporary(path: Path, data: bytes | memoryview, *, sync: bool = True) -> Path:
    """Write and fsync ``data`` under ``path``'s temporary name, which is returned.

    Without ``sync`` the file is not durable before ``sync_file``. On StorageError nothing is left
    behind.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        descriptor = create(temporary)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        remove(temporary)
        raise storage_error("write to file", temporary, error) from error
    return temporary


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """Return the CRC-32 that manifests state; ``before`` is the CRC-32 of the bytes before
    ``data``."""
    return zlib.crc32(data, before)


def remove(path: Path) -> None:
    """Unlink a file and ignore errors: the next open removes leftovers."""
    with contextlib.suppress(OSError):
        path.unlink()
