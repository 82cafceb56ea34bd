"""Can the tables of a batch take what it holds for them? If not, from which commit on?

In: the parts of a batch, their tables. Out: the first failure of each file that does not
fit, at the commit LSN of the first row that needs what is missing: any row of a
relation whose target lacks a column, the first UPDATE or DELETE where there is no key. Rows
below the table's position have been applied or copied, and are nobody's business any more.

Files of relations whose table takes no part are skipped where PostgreSQL's subscriber skips
them: the table waits for its copy, or is there but not in pg_subscription_rel. Where there is no
such table the first row fails; to skip it would lose it.

Whether the subscription may do it is looked at here, too, with the privileges of this moment: a
REVOKE stops the first transaction of the next batch that needs what was revoked.

The log is read only for a file that does not fit.

Source: apply_handle_insert and its kin in worker.c: a relation is checked when a row of it
comes, and its key when an UPDATE or DELETE does; should_apply_changes_for_rel.
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
) -> list[BatchFailure]:
    """Failures below ``cut``. Raises CorruptLogError, StorageError."""
    found: list[BatchFailure] = []
    for part in parts:
        table = catalog.table_by_oid(part.relid)
        for file in part.files:
            if table is not None:
                found += _denied(reader, part, file, table, rights, cut)
            for use in _uses(file):
                try:
                    check_target(use, table)
                    continue
                except ApplyError as refused:
                    error = refused
                if table is not None:
                    _tell_who(catalog, error, file.relation, table, origin)
                ops = _NEED_A_KEY if use.changes_rows else None
                first = _first_change(reader, file, part.position, ops)
                if first is None or (cut is not None and first[0] >= cut):
                    continue
                named = file.relation.qualified if use.changes_rows else None
                at, op = first
                found.append(BatchFailure(at, error, message=MessageContext(op, named)))
    return found


def _tell_who(
    catalog: Catalog,
    error: ApplyError,
    relation: Relation,
    table: TableDef,
    origin: str,
) -> None:
    """Name the other subscription in an error about a dropped column. If two subscriptions fill a
    table, one may follow its publisher further than the other has come: rows of the latter still
    have a column that the table has no more. Nobody knows whether their publisher will drop it, so
    the column's values are not removed from them."""
    missing = set(missing_columns(relation, table))
    if not missing:
        return
    names = {f"pg_{s.oid}": s.name for s in catalog.subscriptions()}
    places = catalog.sharing(table)
    for change in reversed(catalog.schema_history()):
        other = names.get(f"pg_{change.subid}")
        if change.relid not in places or f"pg_{change.subid}" == origin or not other:
            continue
        gone = next((c for c in missing if _takes_away(change.change, c)), None)
        if gone is None or change.outcome not in ("dropped", "renamed"):
            continue
        error.detail = (
            f'Subscription "{other}" fills the table, too, and has followed its publisher:'
            f" {change.change}."
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
    """Has a step of wal2lake.schema_history taken the name?"""
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
        at = first_row(reader, file, part.position, (ord(op),))
        if at is not None and (cut is None or at < cut):
            message = MessageContext(ord(op), file.relation.qualified)
            yield BatchFailure(at, error, message=message)


def check_others(
    catalog: Catalog,
    reader: LogReader,
    files: Sequence[RowsFile],
    *,
    subid: Oid,
    position: Lsn,
    cut: Lsn | None,
) -> list[BatchFailure]:
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
        first = _first_change(reader, file, position)
        if first is None or (cut is not None and first[0] >= cut):
            continue
        at, op = first
        error = missing_target(file.relation)
        found.append(BatchFailure(at, error, message=MessageContext(op, None)))
    return found


def first_change_of_columns(
    catalog: Catalog, reader: LogReader, parts: Sequence[TableChanges]
) -> Lsn | None:
    """Where a batch must end because a table without a primary key, or with a deferrable one,
    gets rows of other columns than before: a row is named by all that is sent of it. None: nowhere.

    Raises CorruptLogError, StorageError."""
    found: list[Lsn] = []
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
            at = first_row(reader, file, part.position)
            if at is not None:
                starts[names] = min(at, starts.get(names, at))
        first = min(starts.values(), default=None)
        # What changes within the first transaction is for staging to refuse.
        found += [at for at in starts.values() if first is not None and at > first]
    return min(found, default=None)


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
    """Commit LSN of the first row at or above ``position`` (of one of these kinds)."""
    found = _first_change(reader, file, position, ops)
    return None if found is None else found[0]


def _first_change(
    reader: LogReader,
    file: RowsFile,
    position: Lsn,
    ops: Sequence[int] | None = None,
) -> tuple[Lsn, int] | None:
    """That LSN, and what the row is."""
    lsns, kinds = reader.operations(file)
    counts = lsns >= int(position)
    if ops is not None:
        counts &= np.isin(kinds, ops)
    first = np.flatnonzero(counts)[:1]
    return (Lsn(int(lsns[first[0]])), int(kinds[first[0]])) if len(first) else None
