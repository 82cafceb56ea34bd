"""Generated columns of the rows that a statement writes, with PostgreSQL's errors.

Comes in: a table, and rows or the branch that has them. Goes out: the rows with what is computed.
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
from wal2lake.lake.branch.branches import Branch
from wal2lake.lake.branch.changes import Action
from wal2lake.lake.branch.generated import RowRefused, generate, generated_rows
from wal2lake.local.node import EngineParts


def _required(table: TableDef) -> frozenset[str]:
    return frozenset(c.name for c in table.columns if c.not_null or c.name in table.key)


@contextmanager
def _told(table: TableDef) -> Iterator[None]:
    try:
        yield
    except RowRefused as refused:
        why = refused.why
        raise UsageError(
            why.message,
            sqlstate=why.sqlstate,
            about=About(table.namespace, table.name, column=why.column)
            if why.hint is None
            else None,
        ) from None


def with_generated(table: TableDef, state: TableState, rows: pa.Table) -> pa.Table:
    """Rows of a statement that writes them itself."""
    refuse_altered(table, state)
    with _told(table):
        return generated_rows(
            state, table.generated, _required(table), table.name, rows
        )


def generate_added(
    node: EngineParts,
    table: TableDef,
    branch: Branch,
    version: int,
    added: Sequence[Action],
) -> Sequence[Action]:
    """The same of files that a statement of Spark's has added behind ``version`` of its branch; the
    files that are there now."""
    refuse_altered(table, node.branches.state(branch))
    with _told(table):
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
    """40001 if the version's columns are not those that the table's expressions read."""
    names = {field.name for field in state.fields}
    read = {c for check in table.checks for c in check.columns}
    read |= {c for name, one in table.generated for c in (name, *one.columns)}
    if not names.issuperset(read):
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'Table "{table.name}" has been altered since the transaction began.',
            hint="The transaction might succeed if retried.",
        )
