"""Findings: a sentence, its severity, its remedy. Pure. Pure.

    level     wal2lake check    CREATE SUBSCRIPTION
    OK        ok                nothing: a publisher that is as it should be is told nothing
    INFO      info              nothing: most publishers are so
    NOTE      note              NOTICE
    PROBLEM   problem           WARNING

Findings about tables come one for each table. ``check`` shows them with the table; for a client
all that are alike become one, or 500 tables would be 500 messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.sql.backend import Notice

_SHOWN_TABLES: Final = 10
"""Names in a DETAIL; a guess at what is still read."""


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    """Nothing to remark."""
    INFO = "info"
    """Works; most publishers are so."""
    NOTE = "note"
    """Works, but not as everybody expects."""
    PROBLEM = "problem"
    """Does not work before it is changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgement."""

    level: Level
    text: str
    hint: str | None = None
    detail: str | None = None
    blocks: PublisherError | None = None
    """The server's refusal of CREATE_REPLICATION_SLOT; None: this is no reason for one."""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """One judgement about one table."""

    level: Level
    table: str
    """``schema.name``, as PostgreSQL's messages name it."""
    one: str
    """Text that follows ``table "schema.name"`` in the sentence."""
    many: str
    """Text that follows ``3 tables``; findings of equal texts are alike."""
    hint: str | None = None
    hint_for_many: str | None = None
    refused: bool = False
    """CREATE SUBSCRIPTION refuses it by itself, in the words of ``said``."""
    said: str | None = None
    """A sentence that names the table itself."""

    def alone(self) -> Finding:
        """Return the finding as one without its table."""
        text = self.said or f'table "{self.table}" {self.one}'
        return Finding(self.level, text, self.hint)


def together(findings: Iterable[TableFinding]) -> list[Finding]:
    """One for all that are alike, in the order of the first of each."""
    alike: dict[tuple[Level, str], list[TableFinding]] = {}
    for one in findings:
        alike.setdefault((one.level, one.many), []).append(one)
    return [_together(found) for found in alike.values()]


def _together(found: Sequence[TableFinding]) -> Finding:
    first = found[0]
    if len(found) == 1:
        return first.alone()
    names = [f'"{one.table}"' for one in found]
    more = len(names) - _SHOWN_TABLES
    shown = ", ".join(names[:_SHOWN_TABLES])
    return Finding(
        first.level,
        f"{len(found)} tables {first.many}",
        first.hint_for_many,
        f"Tables: {shown}{f', and {more} more' if more > 0 else ''}.",
    )


def notices(findings: Iterable[Finding]) -> list[Notice]:
    """Return the notices for a client, the worst first."""
    told = []
    for level, severity, sqlstate in (
        (Level.PROBLEM, "WARNING", "01000"),
        (Level.NOTE, "NOTICE", "00000"),
    ):
        told += [
            Notice(f.text, severity, sqlstate, f.detail, f.hint)
            for f in findings
            if f.level is level and f.blocks is None
        ]
    return told
