"""Finds the first transactions of a batch that its tables cannot take.

In: the parts of a batch, their tables. Out: the first failure of each file that does not fit its
table. The failure has the commit LSN of the first row that needs what is missing: the first row if
the target lacks a column, the first UPDATE or DELETE if the target has no key. Rows below the
table's position have been applied or copied and are not checked.

If the table of a relation takes no part, its files are skipped where PostgreSQL's subscriber skips
them: the table waits for its copy, or exists without an entry in pg_subscription_rel. If there is
no such table, the first row fails: to skip the row would lose it.

Privileges of the subscription's owner are checked here, too, as they are now: a REVOKE stops the
first transaction of the next batch that needs the revoked privilege.

The log is read only for files that do not fit.

Source: apply_handle_insert and related functions in worker.c: a relation is checked when a row of
the relation arrives, its key when an UPDATE or DELETE arrives; should_apply_changes_for_rel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from wal2lake.apply.batch import TableChanges
from wal2lake.apply.failures import BatchFailure, MessageContext
from wal2lake.apply.relationmap import (
    RelationUse,
    check_target,
    missing_columns,
    missing_target,
)
from wal2lake.catalog import Catalog, TableDef, TargetRights
from wal2lake.catalog.access.targets import DELETE, INSERT, TRUNCATE, UPDATE
from wal2lake.changelog import LogReader, RowsFile
from wal2lake.errors import ApplyError
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.pg.quoting import quote_ident

_NEED_A_KEY: Final = (ord("U"), ord("D"))

_PRIVILEGES: Final = {"I": INSERT, "U": UPDATE, "D": DELETE, "T": TRUNCATE}
"""Privilege that a row needs, by its letter in the log."""


def check_targets(
    catalog: Catalog,
    reader: LogReader,
    parts: Sequence[TableChanges],
    *,
    rights: TargetRights,
    origin: str,
    cut: Lsn | None,
    keeps_deleted: bool = False,
) -> list[BatchFailure]:
    """Return the failures below ``cut``. ``keeps_deleted``: deleted rows are marked.

    Raises CorruptLogError, StorageError."""
    failures: list[BatchFailure] = []
    for part in parts:
        table = catalog.table_by_oid(part.relid)
        for file in part.files:
            if table is not None:
                failures += _denied(reader, part, file, table, rights, cut)
            for use in _uses(file):
                try:
                    check_target(use, table, keeps_deleted=keeps_deleted)
                    continue
                except ApplyError as refused:
                    error = refused
                if table is not None:
                    _name_other_subscription(
                        catalog, error, file.relation, table, origin
                    )
                ops = _NEED_A_KEY if use.changes_rows else None
                first = _first_change(reader, file, part.position, ops)
                if first is None or (cut is not None and first[0] >= cut):
                    continue
                relation_name = file.relation.qualified if use.changes_rows else None
                commit_lsn, op = first
                failures.append(
                    BatchFailure(
                        commit_lsn, error, message=MessageContext(op, relation_name)
                    )
                )
    return failures


def _name_other_subscription(
    catalog: Catalog,
    error: ApplyError,
    relation: Relation,
    table: TableDef,
    origin: str,
) -> None:
    """Name the other subscription in an error about a dropped column.

    If two subscriptions fill a table, one may have followed an ALTER TABLE that the other has not
    reached: rows of the latter still have a column that the table has lost. Its publisher may never
    drop the column, so the values are not silently removed."""
    missing = set(missing_columns(relation, table))
    if not missing:
        return
    names = {f"pg_{s.oid}": s.name for s in catalog.subscriptions()}
    places = catalog.sharing(table)
    for change in reversed(catalog.schema_history()):
        subscription_name = names.get(f"pg_{change.subid}")
        if (
            change.relid not in places
            or f"pg_{change.subid}" == origin
            or not subscription_name
        ):
            continue
        lost_column = next((c for c in missing if _takes_away(change.change, c)), None)
        if lost_column is None or change.outcome not in ("dropped", "renamed"):
            continue
        error.detail = (
            f'Subscription "{subscription_name}" fills the table, too, and has followed'
            f" its publisher: {change.change}."
        )
        error.hint = (
            "Rows that were sent before the same ALTER TABLE at this subscription's"
            " publisher need the column: ALTER TABLE ... ADD COLUMN on the target lets it"
            " go on. "
        ) + (
            "When that ALTER TABLE comes the column is dropped again."
            if change.outcome == "dropped"
            else "When that ALTER TABLE has come, UPDATE moves their values to the new name."
        )
        return


def _takes_away(change: str, column: str) -> bool:
    """Whether a step of wal2lake.schema_history removed the column name."""
    name = quote_ident(column)
    return change == f"DROP COLUMN {name}" or change.startswith(
        f"RENAME COLUMN {name} TO "
    )


def _denied(
    reader: LogReader,
    part: TableChanges,
    file: RowsFile,
    table: TableDef,
    rights: TargetRights,
    cut: Lsn | None,
) -> Iterator[BatchFailure]:
    counts = {
        "I": file.inserts,
        "U": file.updates,
        "D": file.deletes,
        "T": file.truncates,
    }
    for op, letters in _PRIVILEGES.items():
        error = rights.denied(table, letters) if counts[op] else None
        if error is None:
            continue
        commit_lsn = first_row(reader, file, part.position, (ord(op),))
        if commit_lsn is not None and (cut is None or commit_lsn < cut):
            message = MessageContext(ord(op), file.relation.qualified)
            yield BatchFailure(commit_lsn, error, message=message)


def check_others(
    catalog: Catalog,
    reader: LogReader,
    files: Sequence[RowsFile],
    *,
    subid: Oid,
    position: Lsn,
    cut: Lsn | None,
) -> list[BatchFailure]:
    """Return the failures below ``cut`` of files whose relation has no local table.

    ``position``: rows below it have been skipped already. With auto_refresh there are none: if
    the table joins the subscription, the snapshot of its copy is newer than everything that has
    been received by now, and if it does not (it may have been dropped since), its rows are of no
    concern.
    """
    if not files:
        return []
    subscription = catalog.subscription(subid)
    if subscription is not None and subscription.auto_refresh:
        return []
    waiting = {(r.remote_namespace, r.remote_name) for r in catalog.rels(subid)}
    failures = []
    for file in files:
        name = (file.relation.namespace, file.relation.name)
        if name in waiting or catalog.table(*name) is not None:
            continue
        first = _first_change(reader, file, position)
        if first is None or (cut is not None and first[0] >= cut):
            continue
        commit_lsn, op = first
        error = missing_target(file.relation)
        failures.append(
            BatchFailure(commit_lsn, error, message=MessageContext(op, None))
        )
    return failures


def first_change_of_columns(
    catalog: Catalog, reader: LogReader, parts: Sequence[TableChanges]
) -> Lsn | None:
    """Find where the rows of a table without a primary key, or with a deferrable one, change their
    columns.

    The batch must end there, because such a row is identified by all columns that are sent. None if
    no rows change.

    Raises CorruptLogError, StorageError."""
    changes: list[Lsn] = []
    for part in parts:
        sent = [
            frozenset(c.name for c in f.relation.columns if c.name) for f in part.files
        ]
        if len(set(sent)) < 2 or not any(f.updates or f.deletes for f in part.files):
            continue
        table = catalog.table_by_oid(part.relid)
        if table is None or (table.key and not table.key_deferral.deferrable):
            continue
        starts: dict[frozenset[str], Lsn] = {}
        for names, file in zip(sent, part.files, strict=True):
            commit_lsn = first_row(reader, file, part.position)
            if commit_lsn is not None:
                starts[names] = min(commit_lsn, starts.get(names, commit_lsn))
        first = min(starts.values(), default=None)
        # Staging refuses a change within the first transaction.
        changes += [
            commit_lsn
            for commit_lsn in starts.values()
            if first is not None and commit_lsn > first
        ]
    return min(changes, default=None)


def _uses(file: RowsFile) -> Iterator[RelationUse]:
    yield RelationUse(file.relation, changes_rows=False)
    if file.updates or file.deletes:
        yield RelationUse(file.relation, changes_rows=True)


def first_row(
    reader: LogReader,
    file: RowsFile,
    position: Lsn,
    ops: Sequence[int] | None = None,
) -> Lsn | None:
    """Return the commit LSN of the first row at or above ``position`` (with one of ``ops``)."""
    change = _first_change(reader, file, position, ops)
    return None if change is None else change[0]


def _first_change(
    reader: LogReader,
    file: RowsFile,
    position: Lsn,
    ops: Sequence[int] | None = None,
) -> tuple[Lsn, int] | None:
    """Return the commit LSN and the operation of the first such row."""
    lsns, kinds = reader.operations(file)
    counts = lsns >= int(position)
    if ops is not None:
        counts &= np.isin(kinds, ops)
    first = np.flatnonzero(counts)[:1]
    return (Lsn(int(lsns[first[0]])), int(kinds[first[0]])) if len(first) else None
