"""Can the tables of a batch take what it holds for them? If not, from which commit on?

In: the parts of a batch, their tables. Out: the first failure of each file that does not
fit, at the commit LSN of the first row that needs what is missing: any row of a
relation whose target lacks a column, the first UPDATE or DELETE where there is no key. Rows
below the table's position have been applied or copied, and are nobody's business any more.

The log is read only for a file that does not fit.

Source: apply_handle_insert and its kin in worker.c: a relation is checked when a row of it
comes, and its key when an UPDATE or DELETE does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from wal2lake.apply.batch import TableChanges
from wal2lake.apply.relationmap import RelationUse, check_target, error_context
from wal2lake.catalog import Catalog
from wal2lake.changelog import LogReader, RowsFile
from wal2lake.errors import ApplyError, Wal2LakeError
from wal2lake.model import Lsn

_NEED_A_KEY: Final = (ord("U"), ord("D"))


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a batch has to be cut, and why."""

    cut: Lsn
    """Commit LSN of the transaction that cannot be applied."""
    error: Wal2LakeError


def check_targets(
    catalog: Catalog,
    reader: LogReader,
    parts: Sequence[TableChanges],
    *,
    origin: str,
    cut: Lsn | None,
) -> list[Failure]:
    """Failures below ``cut``. Raises CorruptLogError, StorageError."""
    found = []
    for part in parts:
        table = catalog.table_by_oid(part.relid)
        for file in part.files:
            for use in _uses(file):
                try:
                    check_target(use, table)
                    continue
                except ApplyError as refused:
                    error = refused
                at = _first_row(reader, file, part.position, use)
                if at is None or (cut is not None and at >= cut):
                    continue
                error.context = error_context(
                    origin=origin, relation=file.relation.qualified, finish_lsn=at
                )
                found.append(Failure(at, error))
    return found


def _uses(file: RowsFile) -> Iterator[RelationUse]:
    yield RelationUse(file.relation, changes_rows=False)
    if file.updates or file.deletes:
        yield RelationUse(file.relation, changes_rows=True)


def _first_row(
    reader: LogReader, file: RowsFile, position: Lsn, use: RelationUse
) -> Lsn | None:
    """Commit LSN of the first row at or above ``position`` that makes this use of it."""
    lsns, ops = reader.operations(file)
    counts = lsns >= int(position)
    if use.changes_rows:
        counts &= np.isin(ops, _NEED_A_KEY)
    first = np.flatnonzero(counts)[:1]
    return Lsn(int(lsns[first[0]])) if len(first) else None
