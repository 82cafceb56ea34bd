"""Can the tables of a batch take what it holds for them? If not, from which commit on?

In: the parts of a batch, their tables. Out: the first failure of each file that does not
fit, at the commit LSN of the first row that needs what is missing: any row of a
relation whose target lacks a column, the first UPDATE or DELETE where there is no key. Rows
below the table's position have been applied or copied, and are nobody's business any more.

Files of relations whose table takes no part are skipped where PostgreSQL's subscriber skips
them: the table waits for its copy, or is there but not in pg_subscription_rel. Where there is no
such table the first row fails; to skip it would lose it.

The log is read only for a file that does not fit.

Source: apply_handle_insert and its kin in worker.c: a relation is checked when a row of it
comes, and its key when an UPDATE or DELETE does; should_apply_changes_for_rel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from wal2lake.apply.batch import TableChanges
from wal2lake.apply.failures import Failure
from wal2lake.apply.relationmap import (
    RelationUse,
    check_target,
    error_context,
    missing_target,
)
from wal2lake.catalog import Catalog
from wal2lake.changelog import LogReader, RowsFile
from wal2lake.errors import ApplyError
from wal2lake.model import Lsn, Oid

_NEED_A_KEY: Final = (ord("U"), ord("D"))


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
                at = first_row(reader, file, part.position, use)
                if at is None or (cut is not None and at >= cut):
                    continue
                error.context = error_context(
                    origin=origin, relation=file.relation.qualified, finish_lsn=at
                )
                found.append(Failure(at, error))
    return found


def check_others(
    catalog: Catalog,
    reader: LogReader,
    files: Sequence[RowsFile],
    *,
    subid: Oid,
    position: Lsn,
    cut: Lsn | None,
) -> list[Failure]:
    """Failures below ``cut`` of files whose relation has no table at all.

    ``position``: rows below it were skipped already, by the rules of their time.
    """
    if not files:
        return []
    waiting = {(r.remote_namespace, r.remote_name) for r in catalog.rels(subid)}
    found = []
    for file in files:
        name = (file.relation.namespace, file.relation.name)
        if name in waiting or catalog.table(*name) is not None:
            continue
        at = first_row(reader, file, position)
        if at is None or (cut is not None and at >= cut):
            continue
        error = missing_target(file.relation)
        error.context = error_context(
            origin=f"pg_{subid}", relation=file.relation.qualified, finish_lsn=at
        )
        found.append(Failure(at, error))
    return found


def _uses(file: RowsFile) -> Iterator[RelationUse]:
    yield RelationUse(file.relation, changes_rows=False)
    if file.updates or file.deletes:
        yield RelationUse(file.relation, changes_rows=True)


def first_row(
    reader: LogReader, file: RowsFile, position: Lsn, use: RelationUse | None = None
) -> Lsn | None:
    """Commit LSN of the first row at or above ``position`` (that makes this use of it)."""
    lsns, ops = reader.operations(file)
    counts = lsns >= int(position)
    if use is not None and use.changes_rows:
        counts &= np.isin(ops, _NEED_A_KEY)
    first = np.flatnonzero(counts)[:1]
    return Lsn(int(lsns[first[0]])) if len(first) else None
