"""Generated columns of the rows that a statement writes, with PostgreSQL's errors.

Takes a table, and rows or the branch that has them; returns the rows with computed values.
Source: ExecComputeStoredGenerated() and ExecConstraints().
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.catalog import local_writer as writer_of
from wal2lake.errors import About, UsageError
from wal2lake.lake import CommitConflict, TableState
from wal2lake.lake.branch import Action
from wal2lake.lake.spark import Branch, RowRefused, generate, generated_rows
from wal2lake.local.ports import HasBranches


def _required(table: TableDef) -> frozenset[str]:
    return frozenset(c.name for c in table.columns if c.not_null or c.name in table.key)


@contextmanager
def _errors_about(table: TableDef) -> Iterator[None]:
    try:
        yield
    except RowRefused as refused:
        failure = refused.why
        raise UsageError(
            failure.message,
            sqlstate=failure.sqlstate,
            about=About(table.namespace, table.name, column=failure.column)
            if failure.hint is None
            else None,
        ) from None


def with_generated(table: TableDef, state: TableState, rows: pa.Table) -> pa.Table:
    """Return the rows of a statement that writes files itself, with computed columns."""
    refuse_altered(table, state)
    with _errors_about(table):
        return generated_rows(
            state, table.generated, _required(table), table.name, rows
        )


def generate_added(
    node: HasBranches,
    table: TableDef,
    branch: Branch,
    version: int,
    added: Sequence[Action],
) -> Sequence[Action]:
    """Compute columns in files that a Spark statement has added after ``version`` of its branch.

    Returns the files that replace them."""
    refuse_altered(table, node.branches.state(branch))
    with _errors_about(table):
        return generate(
            node.branches,
            node.tables,
            branch,
            version,
            writer_of(node.catalog.system_identifier),
            added,
            table.generated,
            _required(table),
            table.name,
        )


def refuse_altered(table: TableDef, state: TableState) -> None:
    """Raise 40001 if the version lacks columns that the table's expressions read."""
    names = {field.name for field in state.fields}
    read = {c for check in table.checks for c in check.columns}
    read |= {
        c for name, generation in table.generated for c in (name, *generation.columns)
    }
    if not names.issuperset(read):
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'Table "{table.name}" has been altered since the transaction began.',
            hint="The transaction might succeed if retried.",
        )
