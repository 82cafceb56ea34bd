"""Reads the rows that a batch ends, for tables that keep them.

Comes in: a loaded batch, and where the values of the rows are. Goes out: the rows as they stay in
the table, marked. Called by ``plan``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.keys import Index
from wal2lake.lake.upsert.lives.steps import RowRefs
from wal2lake.lake.upsert.locating import LoadedRun
from wal2lake.lake.upsert.recorded import MetRows, inserted_rows, rows_of_refs


def kept_rows(
    loaded: LoadedRun, rows: RowRefs, lsn: Index, met: MetRows, rules: ConflictRules
) -> pa.Table:
    """Return rows that all exist, as deleted by the transactions that committed at ``lsn``."""
    if not len(lsn):
        return inserted_rows(loaded.shape, loaded.table.slice(0, 0))
    held = rows_of_refs(loaded, rows, met)
    return marked_rows(loaded.shape.fields, held, lsn, rules)


def marked_rows(
    fields: Sequence[FieldSpec], rows: pa.Table, lsn: Index, rules: ConflictRules
) -> pa.Table:
    """Mark rows, and compute their generated columns, which may read the mark."""
    if rules.soft is None:
        raise InternalError("deleted rows of this table are removed")
    marked = rules.soft.marked(rows, lsn)
    return rules.computed(fields, marked)[0]
