"""Every error that wal2lake raises on purpose.

    Wal2LakeError                 sqlstate, detail, hint, context, retry verdict
     |- UsageError                what the user asked for is wrong; asking again is the remedy
     |   |- SqlSyntaxError            42601
     |   |- UndefinedObjectError      42704 (and its kin: 42P01, 3F000, 42703, 3D000)
     |   |- DuplicateObjectError      42710 (and 42P07, 42P06)
     |   |- FeatureNotSupportedError  0A000
     |   `- ConfigurationError        F0000: settings, ports, directories, prerequisites
     |       `- LogInUseError             55006: another process has the change log
     |- PublisherError            the other server refused or cannot be reached
     |   `- DivergedHistory           55000: another source, or one that has lost WAL
     |- ProtocolViolation         the peer's bytes break the protocol, 08P01
     |- ApplyError                a transaction cannot be applied; stops its subscription there
     |- CorruptLogError           XX001: the change log fails its checksum
     |- StorageError              53100 and kin: disk full, warehouse unreachable
     |   |- CommitConflict            40001: another writer of the table came first
     |   `- UnusableLogError          58030: what is durable of the change log is not known
     `- InternalError             XX000: our own bug

PostgreSQL's fields keep PostgreSQL's names. Values of rows never appear in an error unless
PostgreSQL's own text has them. All are picklable, for they cross process borders.

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
    """Whether trying again may help. A worker does, after wal_retrieve_retry_interval, in either
    case: somebody may have acted on the hint. Only disable_on_error tells them apart."""

    LATER = "later"
    """The cause may pass by itself."""
    NEVER = "never"
    """Trying again cannot help before somebody acts on the hint."""


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
    """In the statement's text, from 1, in characters; 0: unknown."""
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
    """Return the SQLSTATE of any error: XX000 for one outside of this tree, which is a bug."""
    return error.sqlstate if isinstance(error, Wal2LakeError) else "XX000"


def description_of(error: BaseException) -> str:
    """Describe any error as views show it. The text of an error outside of this tree is left
    out."""
    if isinstance(error, Wal2LakeError):
        return error.describe()
    return "internal error\nHINT:  The server log has the details."


def words_of(error: BaseException) -> str:
    """``original`` of an error that stands for this one."""
    first = str(error).strip().partition("\n")[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read or written, as PostgreSQL would put it."""
    if isinstance(error, UnicodeDecodeError):
        wrong = error.object[error.start : error.end]
        shown = " ".join(f"0x{byte:02x}" for byte in wrong)
        return f'invalid byte sequence for encoding "UTF8": {shown}'
    # A library that has no errno has words of its own only.
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
    """Valid PostgreSQL that this node does not do; the message names what."""

    sqlstate = "0A000"


class ConfigurationError(UsageError):
    """Settings, ports, directories or prerequisites are not as they must be."""

    sqlstate = "F0000"


class LogInUseError(ConfigurationError):
    """Another process has the change log; it may end."""

    sqlstate = "55006"
    retry = Retry.LATER


class PublisherError(Wal2LakeError):
    """The publisher refused a command, or cannot be reached (08006)."""

    sqlstate = "08006"
    retry = Retry.LATER


class ProtocolViolation(Wal2LakeError):
    """The peer's bytes break the protocol. ``offset`` is in bytes into the message."""

    sqlstate = "08P01"
    retry = Retry.LATER
    _fields = (*Wal2LakeError._fields, "offset")
    offset: int = 0


class ApplyError(Wal2LakeError):
    """A transaction of the log cannot be applied. The subscription stops exactly there."""

    sqlstate = "22000"


RESTORE_HINT: Final = (
    "Restore the file from a backup, or have the subscription's tables copied anew: ALTER"
    " SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)."
)
"""The remedy for a file of a subscription's log that is not what was written, whoever reads it."""


DAMAGED: Final = "Its content is damaged: it cannot be read as Parquet."
"""DETAIL for a file of the change log or of a table."""


class CorruptLogError(Wal2LakeError):
    """A file of the change log is not what was written."""

    sqlstate = "XX001"


class StorageError(Wal2LakeError):
    """Disk full (53100), or the warehouse cannot be written."""

    sqlstate = "53100"
    retry = Retry.LATER


class UnusableLogError(StorageError):
    """The change log must be opened again: what of it is durable is not known."""

    sqlstate = "58030"


class InternalError(Wal2LakeError):
    """A broken promise of our own code."""

    sqlstate = "XX000"


_RAISED: Final = re.compile(r"wal2lake-([0-9A-Z]{5}):(.*)", re.DOTALL)


def as_raised(sqlstate: str, message: str) -> str:
    """An error as the one text that an engine's own ``raise_error`` can carry."""
    return f"wal2lake-{sqlstate}:{message}"


def from_raised(text: str) -> UsageError | None:
    """The error in such a text; None: somebody else's."""
    found = _RAISED.search(text)
    return None if found is None else UsageError(found[2], sqlstate=found[1])
