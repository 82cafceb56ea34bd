"""Raises 23514 for a written row that violates a CHECK constraint.

Takes a branch and the files that a statement has added to it; raises PostgreSQL's error, which
shows the row only to roles that may read the table. Source: ExecConstraints() and
ExecBuildSlotValueDescription() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.errors import About, UsageError
from wal2lake.lake import TableState
from wal2lake.lake.branch import Action, added_violation, row_violation
from wal2lake.lake.staging import CHECK_VIOLATION, Violation
from wal2lake.local.access import check_tables
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog
from wal2lake.local.transaction.generation import refuse_altered

_OF_ROWS: Final = (CHECK_VIOLATION, "23502")
"""SQLSTATEs of errors whose DETAIL may have the values of a row."""


def refuse_violations(
    table: TableDef, state: TableState, added: Sequence[Action]
) -> None:
    """Raise if a row in ``added`` violates a constraint; ``state``: the branch's."""
    refuse_altered(table, state)
    if (
        violation := added_violation(state, added, table.checks, table.name)
    ) is not None:
        raise _violated(table, violation)


def refuse_rows(table: TableDef, state: TableState, rows: pa.Table) -> None:
    """Raise if a row that a statement has proposed violates a constraint."""
    if not table.checks:
        return
    refuse_altered(table, state)
    violation = row_violation(state, rows, table.checks, table.name)
    if violation is not None:
        raise _violated(table, violation)


def _violated(table: TableDef, violation: Violation) -> UsageError:
    return UsageError(
        violation.message,
        sqlstate=violation.sqlstate,
        detail=violation.detail,
        about=About(table.namespace, table.name, constraint=violation.constraint or ""),
    )


@contextmanager
def values_hidden(node: HasCatalog, caller: Caller, table: TableDef) -> Iterator[None]:
    """Hide the values of rows in errors from a caller who may not read the table."""
    try:
        yield
    except UsageError as error:
        if error.sqlstate in _OF_ROWS and error.detail is not None:
            try:
                check_tables(node.catalog, caller, {table.oid: (table, "r")})
            except UsageError:
                error.detail = None
        raise
