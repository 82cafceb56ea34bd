"""The result of a statement with RETURNING.

Takes the rows that a statement is about to write; computes the clause's list before they are
written, so that an error in it undoes nothing; returns fields and values. Called by
``lakebackend``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wal2lake.local.ports import HasQueries
from wal2lake.local.transaction.rowwrites import ChangedRows, computed_values
from wal2lake.sql.backend import Outcome
from wal2lake.sql.query.changes.returning import Returning
from wal2lake.sql.query.changes.stored import SparkWrite
from wal2lake.sql.query.results import Rendering, columns_in, known_fields
from wal2lake.wire.frontback import FieldDescription, Format


def returned_fields(returning: Returning) -> tuple[FieldDescription, ...]:
    """Return the fields of the result."""
    return known_fields(returning.columns, [returning.table])


class ReturnedRows:
    """The rows that one statement returns, if it has RETURNING."""

    def __init__(
        self, node: HasQueries, formats: Sequence[Format], rendering: Rendering
    ) -> None:
        self._node = node
        self._formats = formats
        self._rendering = rendering
        self._rows: pa.Table | None = None

    def take(self, write: SparkWrite, changed: ChangedRows, job_group: str) -> None:
        """Compute the result of the rows."""
        returning = None if write.by_rows is None else write.by_rows.returning
        if returning is None:
            return
        self._rows = computed_values(
            self._node, returning.table, returning.values, changed, job_group
        )

    def outcome(self, tag: str, write: SparkWrite) -> Outcome:
        """Return the outcome of the statement, which has been executed."""
        if write.by_rows is None or write.by_rows.returning is None:
            return Outcome(tag)
        fields = returned_fields(write.by_rows.returning)
        rows = [] if self._rows is None else self._rows.to_batches()
        batches = (
            columns_in(batch, fields, self._formats, self._rendering)
            for batch in rows
            if batch.num_rows
        )
        return Outcome(tag, fields, batches)
