"""23514: a row that a statement has written violates a CHECK constraint.

Comes in: a branch and the files that a statement has added to it. Goes out: nothing, or
PostgreSQL's error, with the row for those who may read the table. Source: ExecConstraints() and
ExecBuildSlotValueDescription() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wal2lake.catalog import TableDef
from wal2lake.errors import About, UsageError
from wal2lake.lake import TableState
from wal2lake.lake.branch.changes import Action
from wal2lake.lake.branch.checks import added_violation
from wal2lake.lake.staging.checks import CHECK_VIOLATION
from wal2lake.local.access import check_tables
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.transaction.generation import refuse_altered


def refuse_violations(
    table: TableDef, state: TableState, added: Sequence[Action]
) -> None:
    """Raise if one of the rows in ``added`` violates a constraint; ``state``: of the branch."""
    refuse_altered(table, state)
    found = added_violation(state, added, table.checks, table.name)
    if found is not None:
        raise UsageError(
            found.message,
            sqlstate=found.sqlstate,
            detail=found.detail,
            about=About(table.namespace, table.name, constraint=found.constraint or ""),
        )


@contextmanager
def told_to(node: EngineParts, caller: Caller, table: TableDef) -> Iterator[None]:
    """Hide the values of rows in errors from a caller who may not read the table."""
    try:
        yield
    except UsageError as error:
        if error.sqlstate == CHECK_VIOLATION and error.detail is not None:
            try:
                check_tables(node.catalog, caller, {table.oid: (table, "r")})
            except UsageError:
                error.detail = None
        raise
