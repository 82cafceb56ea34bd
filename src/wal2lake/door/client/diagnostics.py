"""Turns errors and notices into the fields of messages.

Comes in: exceptions and Notices. Goes out: fields of ErrorResponse and NoticeResponse. An exception
that is no Wal2LakeError is a bug of wal2lake. It becomes XX000 without its text, which could
contain anything and belongs in the log.

Source: PostgreSQL manual, section 54.8 and appendix A.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import About, InternalError, Wal2LakeError
from wal2lake.sql.backend import Notice
from wal2lake.wire.frontback import Diagnostic

_LEVELS: Final = (
    "DEBUG5",
    "DEBUG4",
    "DEBUG3",
    "DEBUG2",
    "DEBUG1",
    "LOG",
    "NOTICE",
    "WARNING",
    "ERROR",
)


_NOTHING: Final = About("", "")


class SessionEnd(Exception):
    """Raised to end the session; ``error`` is sent to the client as FATAL."""

    def __init__(self, error: Wal2LakeError) -> None:
        super().__init__(error.message)
        self.error = error


def as_ours(error: Exception) -> Wal2LakeError:
    """The error itself, or an InternalError in place of a bug."""
    if isinstance(error, Wal2LakeError):
        return error
    return InternalError("internal error", hint="The server log has the details.")


def error_fields(
    error: Wal2LakeError, *, severity: str = "ERROR", offset: int = 0
) -> Diagnostic:
    """Fields of an ErrorResponse; ``offset`` is that of the statement in the query string."""
    position = str(error.position + offset) if error.position > 0 else ""
    about = error.about or _NOTHING
    return Diagnostic(
        severity=severity,
        sqlstate=error.sqlstate,
        message=error.message,
        detail=error.detail or "",
        hint=error.hint or "",
        position=position,
        where=error.context or "",
        schema=about.schema,
        table=about.table,
        column=about.column,
        constraint=about.constraint,
    )


def notice_fields(notice: Notice) -> Diagnostic:
    """Fields of a NoticeResponse."""
    sqlstate = notice.sqlstate
    if sqlstate == "00000" and notice.severity == "WARNING":
        sqlstate = "01000"
    return Diagnostic(
        severity=notice.severity,
        sqlstate=sqlstate,
        message=notice.message,
        detail=notice.detail or "",
        hint=notice.hint or "",
        where=notice.context or "",
    )


def is_wanted(severity: str, client_min_messages: str) -> bool:
    """Whether client_min_messages lets a notice pass; INFO always passes."""
    if severity == "INFO":
        return True
    level = "DEBUG1" if severity == "DEBUG" else severity
    return _LEVELS.index(level) >= _LEVELS.index(client_min_messages.upper())
