"""Errors about files of tables.

Comes in: an OSError, or the facts of a failed request. Goes out: StorageError with PostgreSQL's
text and SQLSTATE. Called by the stores and by everything that writes files of tables.
"""

from __future__ import annotations

import errno
from pathlib import Path

from wal2lake.errors import Retry, StorageError, reason_of, words_of


class MissingFileError(StorageError):
    """A file is not there (58P01)."""

    sqlstate = "58P01"


class NoPutIfAbsent(StorageError):
    """The storage cannot create a file only if there is none of its name (0A000). Nothing was
    written."""

    sqlstate = "0A000"
    retry = Retry.NEVER


class UnknownOutcome(StorageError):
    """A file may have been written, or may still be: no answer told (58030). Files that it names
    must stay."""

    sqlstate = "58030"


def storage_error(action: str, path: str | Path, error: OSError) -> StorageError:
    """Build the error of a failed call, with PostgreSQL's text and SQLSTATE."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f'could not {action} "{path}": {reason_of(error)}',
        sqlstate="53100" if full else "58030",
        hint="Free space on the file system of the warehouse." if full else None,
        original=None if error.errno else words_of(error),
    )
