"""Problems of the catalog of others in which the tables are registered.

Called by ``problems``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from wal2lake.catalog import EntryState, RegisteredTable
from wal2lake.health.facts import NodeFacts
from wal2lake.health.problem import Concern, Problem, ProblemKind, Severity


def catalog_problems(facts: NodeFacts) -> Iterator[Problem]:
    """Yield a problem if the catalog is behind, and one for each entry that it cannot have."""
    tables = facts.registered.tables.values()
    yield from _behind(facts.registered.shown, [t for t in tables if _is_late(t)])
    for table in tables:
        if table.state in (EntryState.CONFLICT, EntryState.REFUSED):
            yield Problem(
                ProblemKind.CATALOG_ENTRY,
                Severity.WARNING,
                f'table "{table.qualified}" is not in the catalog: {table.error}',
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


def _behind(shown: str, late: list[RegisteredTable]) -> Iterator[Problem]:
    if not late:
        return
    first = min(late, key=lambda table: table.since)
    many = "1 table" if len(late) == 1 else f"{len(late)} tables"
    yield Problem(
        ProblemKind.CATALOG,
        Severity.WARNING,
        f"the catalog {shown} is behind by {many}: {first.error}",
        Concern.OPERATOR,
        since=_time(first),
        detail="Readers that ask it for tables see earlier definitions, or none. Replication goes"
        " on, and the catalog is brought up to date when it answers.",
        sqlstate=first.sqlstate,
        hint=first.hint,
    )


def _time(table: RegisteredTable) -> datetime:
    return datetime.fromtimestamp(table.since, UTC)
