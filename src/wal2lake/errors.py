"""Every error that wal2lake raises on purpose.

    Wal2LakeError                 sqlstate, detail, hint, context, retry verdict
     |- UsageError                the request is wrong; the user must change it
     |   |- SqlSyntaxError            42601
     |   |- UndefinedObjectError      42704 (and 42P01, 3F000, 42703, 3D000)
     |   |- DuplicateObjectError      42710 (and 42P07, 42P06)
     |   |- FeatureNotSupportedError  0A000
     |   `- ConfigurationError        F0000: settings, ports, directories, prerequisites
     |       `- LogInUseError             55006: another process has the change log
     |- PublisherError            the other server refused a command or cannot be reached
     |   `- DivergedHistory           55000: another source, or one that has lost WAL
     |- ProtocolViolation         the peer's bytes break the protocol, 08P01
     |- ApplyError                a transaction cannot be applied; stops its subscription there
     |- CorruptLogError           XX001: the change log fails its checksum
     |- StorageError              53100 etc.: disk full, warehouse unreachable
     |   |- CommitConflict            40001: another writer of the table came first
     |   `- UnusableLogError          58030: the durable end of the change log is not known
     `- InternalError             XX000: our own bug

PostgreSQL's fields keep PostgreSQL's names. Values of rows never appear in an error unless
PostgreSQL's own text has them. All errors are picklable because they cross process borders.

Source: PostgreSQL manual, appendix A (SQLSTATE) and section 55.8 (error fields).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final


class Retry(Enum):
    """Whether another attempt may help. A worker tries again in either case, after
    wal_retrieve_retry_interval, because the operator may have acted on the hint. Only
    disable_on_error distinguishes the two."""

    LATER = "later"
    """The cause may be temporary."""
    NEVER = "never"
    """Another attempt cannot help before the operator acts on the hint."""


@dataclass(frozen=True, slots=True)
class About:
    """The objects that an error names, for programs."""

    schema: str
    table: str
    column: str = ""
    constraint: str = ""


class Wal2LakeError(Exception):
    """The root. ``str()`` is the primary message, as PostgreSQL would write it."""

    sqlstate: str = "XX000"
    retry: Retry = Retry.NEVER
    about: About | None = None
    position: int = 0
    """Cursor position in the statement's text, in characters from 1; 0: unknown."""
    _fields: ClassVar[tuple[str, ...]] = (
        *("sqlstate", "detail", "hint", "context", "about", "position", "original"),
    )

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
        context: str | None = None,
        about: About | None = None,
        original: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if sqlstate is not None:
            self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.context = context
        self.about = about
        self.original = original
        """The message of an engine or a library, on one line. Only the server log shows it, never a
        client or a view."""

    def __reduce__(self) -> tuple[object, ...]:
        fields = {name: getattr(self, name) for name in self._fields}
        return (_rebuild, (type(self), self.message, fields))

    def describe(self) -> str:
        """All fields that a user may see, one per line."""
        lines = [self.message]
        for label, text in (
            ("DETAIL", self.detail),
            ("HINT", self.hint),
            ("CONTEXT", self.context),
        ):
            if text:
                lines.append(f"{label}:  {text}")
        return "\n".join(lines)


def sqlstate_of(error: BaseException) -> str:
    """Return the SQLSTATE of any error. An error outside this tree is a bug: XX000."""
    return error.sqlstate if isinstance(error, Wal2LakeError) else "XX000"


def description_of(error: BaseException) -> str:
    """Describe any error as views show it, without the text of an error outside this tree."""
    if isinstance(error, Wal2LakeError):
        return error.describe()
    return "internal error\nHINT:  The server log has the details."


def words_of(error: BaseException) -> str:
    """Return the ``original`` field for an error that replaces this one."""
    first = str(error).strip().partition("\n")[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason why a file cannot be read or written, in PostgreSQL's words."""
    if isinstance(error, UnicodeDecodeError):
        wrong = error.object[error.start : error.end]
        shown = " ".join(f"0x{byte:02x}" for byte in wrong)
        return f'invalid byte sequence for encoding "UTF8": {shown}'
    # A library's own OSError may have no errno; its text is not PostgreSQL's.
    return os.strerror(error.errno or errno.EIO)


def _rebuild(
    kind: type[Wal2LakeError], message: str, fields: dict[str, object]
) -> Wal2LakeError:
    error = kind(message)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class UsageError(Wal2LakeError):
    """Reports that a request cannot be carried out as it was made."""

    sqlstate = "22023"


class SqlSyntaxError(UsageError):
    """The statement does not parse."""

    sqlstate = "42601"


class UndefinedObjectError(UsageError):
    """A named object does not exist."""

    sqlstate = "42704"


class DuplicateObjectError(UsageError):
    """A named object exists already."""

    sqlstate = "42710"


class FeatureNotSupportedError(UsageError):
    """Valid PostgreSQL that this node does not support; the message names the feature."""

    sqlstate = "0A000"


class ConfigurationError(UsageError):
    """Settings, ports, directories or prerequisites do not allow the operation."""

    sqlstate = "F0000"


class LogInUseError(ConfigurationError):
    """Another process holds the change log; it may end."""

    sqlstate = "55006"
    retry = Retry.LATER


class PublisherError(Wal2LakeError):
    """The publisher refused a command, or cannot be reached (08006)."""

    sqlstate = "08006"
    retry = Retry.LATER


class ProtocolViolation(Wal2LakeError):
    """The peer's bytes break the protocol. ``offset`` is the byte position in the message."""

    sqlstate = "08P01"
    retry = Retry.LATER
    _fields = (*Wal2LakeError._fields, "offset")
    offset: int = 0


class ApplyError(Wal2LakeError):
    """A transaction of the log cannot be applied. The subscription stops at this transaction."""

    sqlstate = "22000"


RESTORE_HINT: Final = (
    "Restore the file from a backup, or have the subscription's tables copied anew: ALTER"
    " SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)."
)
"""HINT of every error about a file of a subscription's log that differs from what was written."""


DAMAGED: Final = "Its content is damaged: it cannot be read as Parquet."
"""DETAIL for a file of the change log or of a table."""


class CorruptLogError(Wal2LakeError):
    """A file of the change log differs from what was written."""

    sqlstate = "XX001"


class StorageError(Wal2LakeError):
    """Disk full (53100), or the warehouse cannot be written."""

    sqlstate = "53100"
    retry = Retry.LATER


class UnusableLogError(StorageError):
    """The change log must be opened again because its durable end is not known."""

    sqlstate = "58030"


class InternalError(Wal2LakeError):
    """Our own code broke an invariant."""

    sqlstate = "XX000"


_RAISED: Final = re.compile(r"wal2lake-([0-9A-Z]{5}):(.*)", re.DOTALL)


def as_raised(sqlstate: str, message: str) -> str:
    """Encode an error as one text, which is all that an engine's ``raise_error`` can carry."""
    return f"wal2lake-{sqlstate}:{message}"


def from_raised(text: str) -> UsageError | None:
    """Decode the error from ``as_raised`` in a text; None if the text has none."""
    match = _RAISED.search(text)
    return None if match is None else UsageError(match[2], sqlstate=match[1])
