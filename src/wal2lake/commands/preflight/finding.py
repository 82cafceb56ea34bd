"""Findings: a sentence, a severity, a remedy. Pure.

    level     wal2lake check    CREATE SUBSCRIPTION
    OK        ok                nothing: the publisher is as it should be
    INFO      info              nothing: most publishers are like that
    NOTE      note              NOTICE
    PROBLEM   problem           WARNING

Each finding about a table concerns one table, and ``check`` shows it with the table. For a client,
similar findings are merged into one; otherwise 500 tables would be 500 messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.sql.backend import Notice

_SHOWN_TABLES: Final = 10
"""Number of names in a DETAIL. Chosen arbitrarily."""


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    """The publisher is as it should be."""
    INFO = "info"
    """Replication works; most publishers are like that."""
    NOTE = "note"
    """Replication works, but not as one might expect."""
    PROBLEM = "problem"
    """Replication does not work until this is changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement."""

    level: Level
    text: str
    hint: str | None = None
    detail: str | None = None
    blocks: PublisherError | None = None
    """The error with which the server refuses CREATE_REPLICATION_SLOT; None if it does not."""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """One judgement about one table."""

    level: Level
    table: str
    """``schema.name``, as PostgreSQL's messages name it."""
    singular: str
    """Text that follows ``table "schema.name"`` in the sentence."""
    plural: str
    """Text that follows ``3 tables``; findings of equal texts are merged."""
    hint: str | None = None
    hint_for_many: str | None = None
    refused: bool = False
    """True if CREATE SUBSCRIPTION itself raises ``message``."""
    message: str | None = None
    """The whole sentence, if it names the table itself."""

    def alone(self) -> Finding:
        """Return the finding as a sentence that names its table."""
        text = self.message or f'table "{self.table}" {self.singular}'
        return Finding(self.level, text, self.hint)


def merge_findings(findings: Iterable[TableFinding]) -> list[Finding]:
    """Merge similar findings, in the order of the first of each group."""
    alike: dict[tuple[Level, str], list[TableFinding]] = {}
    for finding in findings:
        alike.setdefault((finding.level, finding.plural), []).append(finding)
    return [_merged(group) for group in alike.values()]


def _merged(findings: Sequence[TableFinding]) -> Finding:
    first = findings[0]
    if len(findings) == 1:
        return first.alone()
    names = [f'"{finding.table}"' for finding in findings]
    hidden = len(names) - _SHOWN_TABLES
    shown = ", ".join(names[:_SHOWN_TABLES])
    return Finding(
        first.level,
        f"{len(findings)} tables {first.plural}",
        first.hint_for_many,
        f"Tables: {shown}{f', and {hidden} more' if hidden > 0 else ''}.",
    )


def notices(findings: Iterable[Finding]) -> list[Notice]:
    """Return the notices for a client, the worst first."""
    messages = []
    for level, severity, sqlstate in (
        (Level.PROBLEM, "WARNING", "01000"),
        (Level.NOTE, "NOTICE", "00000"),
    ):
        messages += [
            Notice(f.text, severity, sqlstate, f.detail, f.hint)
            for f in findings
            if f.level is level and f.blocks is None
        ]
    return messages
