"""A problem: one thing that is wrong, in words that every surface shows alike.

Surfaces are the view ``wal2lake.problems``, the page, ``wal2lake status``, ``wal2lake top``, the
metrics and the alerts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Severity(StrEnum):
    """How bad a problem is."""

    WARNING = "warning"
    """Something will fail, or is late."""
    ERROR = "error"
    """Something has stopped."""


class Concern(StrEnum):
    """Person who can end a problem."""

    OPERATOR = "operator"
    """The operator of this node."""
    SOURCE = "source"
    """The administrator of the source."""
    NOBODY = "nobody"
    """It passes by itself."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Problems with the same ``key`` are the same problem at different times."""

    kind: str
    """Identifier from a closed list: late, errored, paused, log_limit ..."""
    severity: Severity
    message: str
    """One sentence, in PostgreSQL's style: no capital letter, no full stop."""
    concern: Concern
    since: datetime | None = None
    subscription: str | None = None
    table: str | None = None
    """``schema.table``; None if the problem is not a table's."""
    subject: str | None = None
    """Worker, slot, disk or process, if the kind can occur more than once."""
    stage: str | None = None
    """Stage of the pipeline that is late: source, received, durable, applied or visible."""
    sqlstate: str | None = None
    detail: str | None = None
    remedy: str | None = None
    """SQL that repairs it; None if there is none."""
    hint: str | None = None
    """Advice in one sentence."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identity of the problem."""
        return (
            self.kind,
            self.subscription or "",
            self.table or "",
            self.subject or "",
        )
