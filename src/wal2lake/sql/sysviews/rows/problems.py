"""Rows of views about what is wrong: problems, entries in catalogs, differences from the source.

Comes in: the problems that every surface shows (``health``), the tables that are registered in a
catalog of others, and the results of VERIFY. Goes out: a row for each. Errors may quote values of
rows, and a path is no user's business, so that a role without pg_read_all_stats sees the problems
of its own subscriptions only. Differences are values of rows (``GUARDED``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.rows.replication import Moment, Replication


def problems(moment: Moment) -> Iterator[Row]:
    """Yield the present problems, errors first, then the oldest."""
    sees_all = moment.sees_all("problems")
    state = moment.state if sees_all else moment.guarded()
    subscriptions = {sub.name: sub.oid for sub in state.subscriptions}
    tables = {table.qualified: table for table in state.tables.values()}
    for problem in moment.source.problems():
        if not sees_all and problem.subscription not in subscriptions:
            continue
        table = tables.get(problem.table or "")
        yield {
            "kind": str(problem.kind),
            "severity": str(problem.severity),
            "subid": subscriptions.get(problem.subscription or ""),
            "subname": problem.subscription,
            "schemaname": None if table is None else table.namespace,
            "tablename": None if table is None else table.name,
            "subject": problem.subject,
            "stage": problem.stage,
            "since": problem.since,
            "message": problem.message,
            "detail": problem.detail,
            "sqlstate": problem.sqlstate,
            "concern": str(problem.concern),
            "remedy": problem.remedy,
            "hint": problem.hint,
        }


def catalog_tables(moment: Moment) -> Iterator[Row]:
    """Yield the tables with their entries. A role without pg_read_all_stats sees no errors, which
    may name servers."""
    sees_all = moment.sees_all("catalog_tables")
    for form, table in moment.source.registered():
        yield {
            "schemaname": table.schema,
            "tablename": table.table,
            "registered_name": table.registered_name,
            "state": str(table.state),
            "since": datetime.fromtimestamp(table.since, UTC),
            "error": table.error if sees_all else None,
            "sqlstate": table.sqlstate,
            "hint": table.hint if sees_all else None,
            "format": form,
        }


def verification(state: Replication) -> Iterator[Row]:
    """Yield the last result of VERIFY for each table."""
    results = {(result.subid, result.relid): result for result in state.verifications}
    for rel in state.rels:
        table, result = state.tables.get(rel.relid), results.get((rel.subid, rel.relid))
        row: dict[str, object] = {
            "subid": rel.subid,
            "subname": state.name(rel.subid),
            "schemaname": rel.remote_namespace if table is None else table.namespace,
            "tablename": rel.remote_name if table is None else table.name,
        }
        if result is not None:
            row |= {
                "verified_through": result.verified_lsn,
                "verified_at": _moment(result.verified_at),
                "compared_lsn": result.compared_lsn,
                "compared_at": _moment(result.compared_at),
                "blocks": result.blocks,
                "rows": result.rows,
                "differing_rows": result.differing_rows,
                "last_difference_lsn": result.different_lsn,
                "last_difference_at": _moment(result.different_at),
                "repaired_rows": result.repaired_rows,
            }
        yield row


def differences(state: Replication) -> Iterator[Row]:
    """Yield each differing column of changed rows, and each missing and each extra row."""
    for noted in state.differences:
        table, difference = state.tables.get(noted.relid), noted.difference
        names = ", ".join(name for name, _ in difference.key)
        values = ", ".join(
            "null" if value is None else value for _, value in difference.key
        )
        for name, there, here in difference.columns or ((None, None, None),):
            yield {
                "subid": noted.subid,
                "subname": state.name(noted.subid),
                "schemaname": None if table is None else table.namespace,
                "tablename": None if table is None else table.name,
                "kind": difference.kind,
                "key": f"({names})=({values})",
                "columnname": name,
                "source_value": there,
                "local_value": here,
                "lsn": noted.lsn,
                "since": _moment(noted.since),
            }


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


PROBLEM_ROWS: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    "problems": problems,
    "catalog_tables": catalog_tables,
}

VERIFICATION_ROWS: Final[Mapping[str, Callable[[Replication], Iterator[Row]]]] = {
    "verification": verification,
    "differences": differences,
}
