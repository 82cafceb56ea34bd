"""Checks CHECK constraints of the rows that a statement has written, or of all rows of a table.

Comes in: files of a version of a table or branch. Goes out: the first row that violates a
constraint, in PostgreSQL's words. Delta does not know these constraints, so each writer must
check. Called by transactions of the front door and by ALTER TABLE. Memory is that of a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.branch.lookup import Files, opened
from wal2lake.lake.branch.netchange import Action
from wal2lake.lake.port import TablePort, TableState
from wal2lake.lake.staging.rowchecks import Violation, first_violation, violating
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import is_readable
from wal2lake.model import CheckConstraint

_ROWS: Final = 1 << 16
_BYTES: Final = 8 << 20
"""Rows and bytes that are checked at once; guesses."""


def rows_of(
    tables: TablePort, state: TableState, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield some columns of all rows of a version."""
    return rows_in(state, tables.files(state) or (), columns)


def added_violation(
    state: TableState,
    added: Sequence[Action],
    checks: Sequence[CheckConstraint],
    relation: str,
) -> Violation | None:
    """Return the first violation among the rows of ``added``, ``add`` objects of the version's
    log."""
    files = [DataFile(add) for add in added]
    read_columns = sorted({name for check in checks for name in check.columns})
    if not any(
        violating(checks, rows).any() for rows in rows_in(state, files, read_columns)
    ):
        return None
    names = [field.name for field in state.fields]
    for rows in rows_in(state, files, names):
        violation = first_violation(checks, relation, state.fields, rows)
        if violation is not None:
            return violation[1]
    return None


def row_violation(
    state: TableState,
    rows: pa.Table,
    checks: Sequence[CheckConstraint],
    relation: str,
) -> Violation | None:
    """Return the first violation among rows in a version's columns."""
    violation = first_violation(checks, relation, state.fields, rows)
    return None if violation is None else violation[1]


def rows_in(
    state: TableState, files: Sequence[DataFile], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield some columns of all rows of files of a version. 0A000 if only Spark can read them."""
    if not is_readable(state):
        raise FeatureNotSupportedError(
            "CHECK constraints and generated columns of the table at"
            f' "{state.location}" are not supported',
            detail="It has columns or features that only Spark reads.",
        )
    names = [field.name for field in state.fields]
    # An expression without columns is evaluated for each row, too.
    places = [names.index(name) for name in columns] or [0]
    rows = opened(Files(state, files))
    for batch in rows.live_batches(places, _ROWS, _BYTES):
        yield pa.Table.from_batches([batch])
