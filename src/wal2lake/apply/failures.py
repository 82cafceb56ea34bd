"""Locates the failure that keeps a batch from being applied whole, and builds its error.

In: rows that a table could not take, as staging found them. Out: the first failure, with
PostgreSQL's context (message type, relation, column, transaction, finish LSN) and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.conflicts import (
    MESSAGE_TYPES,
    OriginExists,
    explanation,
    quoted_rows,
)
from wal2lake.apply.relationmap import error_context
from wal2lake.catalog import TableDef
from wal2lake.errors import ApplyError, Wal2LakeError
from wal2lake.lake.staging import COMMIT, DELETE, INSERT, TRUNCATE, UPDATE, RowFailure
from wal2lake.model import ConflictType, Lsn, Oid
from wal2lake.pgtypes import CHECKED_HERE, COPIED_ANEW, remedy

_TAKEN: Final = (ConflictType.INSERT_EXISTS, ConflictType.UPDATE_EXISTS)


_NOT_NULL: Final = "23502"

_CHECK: Final = "23514"

_MESSAGE_TYPES: Final = {
    INSERT: "INSERT",
    UPDATE: "UPDATE",
    DELETE: "DELETE",
    TRUNCATE: "TRUNCATE",
    COMMIT: "COMMIT",
}


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The part of PostgreSQL's error context that names a message."""

    op: int
    """Code point of the operation's letter in staging."""
    relation: str | None
    """None if the relation could not be opened: PostgreSQL does not name it then."""

    def context(self, subid: Oid, xid: int | None, finish_lsn: Lsn) -> str:
        """Build the error context; ``xid`` is None if the transaction is not known."""
        return error_context(
            origin=f"pg_{subid}",
            message_type=_MESSAGE_TYPES.get(self.op),
            relation=self.relation,
            xid=xid,
            finish_lsn=finish_lsn,
        )


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """A transaction below which a batch must be cut, and the reason."""

    cut: Lsn
    """Commit LSN of the transaction that cannot be applied."""
    error: Wal2LakeError
    row: tuple[TableDef, RowFailure] | None = None
    """Table and row that failed. None if the failure does not concern a single row."""
    message: MessageContext | None = None
    """The message that could not be applied, if ``row`` is None."""
    resumes: bool = False
    """This is no error: the next batch begins with this transaction."""

    @property
    def divides(self) -> bool:
        """Whether this is no error: the next batch continues here once everything below is
        applied."""
        return self.resumes or (self.row is not None and self.row[1].divides)


def first_failure(failures: Iterable[BatchFailure]) -> BatchFailure | None:
    """Return the failure of the earliest transaction."""
    return min(failures, key=lambda f: f.cut, default=None)


def row_failure(
    subid: Oid,
    table: TableDef,
    failure: RowFailure,
    xid: int | None = None,
    exists: OriginExists = lambda subid: True,
    *,
    values: bool = False,
) -> BatchFailure:
    """Build the failure of a row that ``table`` cannot take. ``xid``: the transaction at the
    publisher, if known. ``values``: whether the error of a conflict shows its key and rows."""
    commit_lsn = Lsn(failure.seq.commit_lsn)
    kind, detail = failure.conflict, failure.detail
    if kind is not None and (detail is None or failure.modified is not None):
        index = table.index_name
        detail = explanation(kind, index, failure.modified, exists)
    if values and kind is not None and failure.key is not None:
        rows = quoted_rows(
            table,
            kind,
            failure.key,
            local=failure.local,
            row=failure.row,
            identity=failure.identity,
        )
        detail = f"{detail}\n{rows}"
    if kind is None and failure.sqlstate == _CHECK and not values:
        # The detail quotes the row.
        detail = None
    error = ApplyError(
        failure.message,
        sqlstate=failure.sqlstate,
        detail=detail,
        context=error_context(
            origin=f"pg_{subid}",
            message_type=(
                _MESSAGE_TYPES.get(failure.op or 0)
                if kind is None
                else MESSAGE_TYPES[kind]
            ),
            relation=None if failure.op == COMMIT else table.qualified,
            # PostgreSQL names a column only while it converts a value of the column.
            column=None if failure.sqlstate == _NOT_NULL else failure.column,
            xid=xid,
            finish_lsn=commit_lsn,
        ),
        hint=_hint(table, failure),
    )
    return BatchFailure(commit_lsn, error, (table, failure))


def _hint(table: TableDef, failure: RowFailure) -> str:
    return f"Transactions before this one have been applied. {_remedy(table, failure)}"


def _remedy(table: TableDef, failure: RowFailure) -> str:
    if failure.hint is not None:
        return failure.hint
    finish = Lsn(failure.seq.commit_lsn)
    skip = f"(ALTER SUBSCRIPTION ... SKIP (lsn = '{finish}'))"
    if failure.conflict not in (None, *_TAKEN):
        return (
            f"Skip this one {skip}, choose another conflict_resolution (ALTER"
            f" SUBSCRIPTION ... SET), or {COPIED_ANEW}."
        )
    column = None if failure.column is None else table.column(failure.column)
    if failure.sqlstate == _CHECK:
        return CHECKED_HERE
    if column is None and failure.conflict is None:
        return f"Skip this one {skip}, or {COPIED_ANEW}."
    if column is None:
        return (
            "Delete the row that has this key here (wal2lake.conflicts names it), skip"
            f" this transaction {skip}, choose a conflict_resolution (ALTER SUBSCRIPTION"
            f" ... SET), or {COPIED_ANEW}."
        )
    return remedy(
        failure.sqlstate,
        (table.namespace, table.name, column.name),
        nullable=not column.not_null,
        in_key=column.name in table.key,
    )
