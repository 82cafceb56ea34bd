"""Errors and notices as the client gets them.

In: exceptions and Notices. Out: ErrorResponse and NoticeResponse fields. What is no
Wal2LakeError is our own bug and becomes XX000 with nothing of its text: that could hold
anything, and belongs in the log.

Source: PostgreSQL manual, section 54.8 and appendix A.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import About, InternalError, Wal2LakeError
from wal2lake.frontend.backend import Notice
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
    """The session cannot go on: a FATAL error. ``error`` is what the client is told."""

    def __init__(self, error: Wal2LakeError) -> None:
        super().__init__(error.message)
        self.error = error


def as_ours(error: Exception) -> Wal2LakeError:
    """The error itself, or what stands in for a bug of ours."""
    if isinstance(error, Wal2LakeError):
        return error
    return InternalError("internal error", hint="The server log has the details.")


def error_fields(
    error: Wal2LakeError, *, severity: str = "ERROR", offset: int = 0
) -> Diagnostic:
    """Fields of an ErrorResponse; ``offset``: of the statement in the query string."""
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
    """Whether a client that set this minimum wants the notice; INFO always goes."""
    if severity == "INFO":
        return True
    level = "DEBUG1" if severity == "DEBUG" else severity
    return _LEVELS.index(level) >= _LEVELS.index(client_min_messages.upper())
