"""Problems of the catalogs of others in which tables are registered.

Called by ``problems``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog import EntryState, RegisteredTable
from wal2lake.health.facts import NodeFacts
from wal2lake.health.problem import Concern, Problem, ProblemKind, Severity


@dataclass(frozen=True, slots=True)
class _CatalogWords:
    """Words about one of the two catalogs."""

    behind: ProblemKind
    entry: ProblemKind
    name: str
    detail: str


_DELTA: Final = _CatalogWords(
    ProblemKind.CATALOG,
    ProblemKind.CATALOG_ENTRY,
    "catalog",
    "Readers that ask it for tables see earlier definitions, or none. Replication goes on, and the"
    " catalog is brought up to date when it answers.",
)

_ICEBERG: Final = _CatalogWords(
    ProblemKind.ICEBERG_CATALOG,
    ProblemKind.ICEBERG_CATALOG_ENTRY,
    "Iceberg catalog",
    "Readers that ask it for tables see earlier rows, or none. Replication and mirrors go on, and"
    " the catalog is brought up to date when it answers.",
)


def catalog_problems(facts: NodeFacts) -> Iterator[Problem]:
    """Yield a problem for each catalog that is behind, and one for each entry that is not as it
    should be."""
    for registered, words in ((facts.registered, _DELTA), (facts.mirrored, _ICEBERG)):
        tables = registered.tables.values()
        yield from _behind(registered.shown, [t for t in tables if _is_late(t)], words)
        for table in tables:
            if table.state in (EntryState.CONFLICT, EntryState.REFUSED):
                yield Problem(
                    words.entry,
                    Severity.WARNING,
                    f'table "{table.qualified}" is not in the {words.name}: {table.error}',
                    Concern.OPERATOR,
                    since=_time(table),
                    table=table.qualified,
                    subject=table.registered_name,
                    sqlstate=table.sqlstate,
                    hint=table.hint,
                )


def _is_late(table: RegisteredTable) -> bool:
    due = table.state in (EntryState.PENDING, EntryState.LEAVING)
    return due and table.error is not None


def _behind(
    shown: str, late: list[RegisteredTable], words: _CatalogWords
) -> Iterator[Problem]:
    if not late:
        return
    first = min(late, key=lambda table: table.since)
    many = "1 table" if len(late) == 1 else f"{len(late)} tables"
    yield Problem(
        words.behind,
        Severity.WARNING,
        f"the {words.name} {shown} is behind by {many}: {first.error}",
        Concern.OPERATOR,
        since=_time(first),
        detail=words.detail,
        sqlstate=first.sqlstate,
        hint=first.hint,
    )


def _time(table: RegisteredTable) -> datetime:
    return datetime.fromtimestamp(table.since, UTC)
