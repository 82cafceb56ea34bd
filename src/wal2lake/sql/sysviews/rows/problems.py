"""Rows of wal2lake.problems and wal2lake.catalog_tables: what is wrong, and what is registered.

Comes in: the problems that every surface shows (``health``), and the tables that are registered in
a catalog of others. Goes out: a row for each. Errors may
quote values of rows, and a path is no user's business, so that a role without pg_read_all_stats
sees the problems of its own subscriptions only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from wal2lake.sql.sysviews.rows.relations import Row
from wal2lake.sql.sysviews.rows.replication import Moment


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
    for table in moment.source.registered():
        yield {
            "schemaname": table.schema,
            "tablename": table.table,
            "registered_name": table.registered_name,
            "state": str(table.state),
            "since": datetime.fromtimestamp(table.since, UTC),
            "error": table.error if sees_all else None,
            "sqlstate": table.sqlstate,
            "hint": table.hint if sees_all else None,
        }


PROBLEM_ROWS: Final[Mapping[str, Callable[[Moment], Iterator[Row]]]] = {
    "problems": problems,
    "catalog_tables": catalog_tables,
}
