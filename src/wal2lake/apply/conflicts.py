"""Builds the conflicts of a batch for the catalog and for the server log.

In: conflicts that staging found in a table's rows, and the segments of the rows. Out: ``Conflict``
values with the transaction's xid, origin and time; log lines in PostgreSQL 18's words. Called by
``step.applier``.

Source: reference 5.1; src/backend/replication/logical/conflict.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.apply.relationmap import error_context
from wal2lake.catalog import TableDef
from wal2lake.changelog import LogReader
from wal2lake.changelog.manifest import Manifest
from wal2lake.errors import ApplyError
from wal2lake.lake import BatchCommits
from wal2lake.lake.staging import NO_COMMITS, HistoryCommits, RowConflict
from wal2lake.model import Conflict, ConflictType, Lsn, Modified, Oid, Resolution
from wal2lake.observe import get_logger

_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_UNIX_TO_POSTGRES_US: Final = 946_684_800_000_000

MESSAGE_TYPES: Final = {
    ConflictType.INSERT_EXISTS: "INSERT",
    ConflictType.UPDATE_ORIGIN_DIFFERS: "UPDATE",
    ConflictType.UPDATE_EXISTS: "UPDATE",
    ConflictType.UPDATE_MISSING: "UPDATE",
    ConflictType.DELETE_ORIGIN_DIFFERS: "DELETE",
    ConflictType.DELETE_MISSING: "DELETE",
}
"""Message type whose change causes the conflict."""

_MISSING: Final = {
    ConflictType.UPDATE_MISSING: "Could not find the row to be updated.",
    ConflictType.DELETE_MISSING: "Could not find the row to be deleted.",
}

_UNIQUE: Final = (ConflictType.INSERT_EXISTS, ConflictType.UPDATE_EXISTS)

_AS_POSTGRESQL: Final = {
    *((kind, Resolution.SKIP) for kind in _MISSING),
    (ConflictType.UPDATE_ORIGIN_DIFFERS, Resolution.APPLY_REMOTE),
    (ConflictType.DELETE_ORIGIN_DIFFERS, Resolution.APPLY_REMOTE),
}

OriginExists = Callable[[int], bool]
"""Whether the subscription with this OID still exists."""

_LOGGED_EACH: Final = 100
"""Conflicts of one table in one batch that get a log line each."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """Facts of one transaction from the change log."""

    xid: int
    origin: str | None
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class FoundConflict:
    """A conflict, its table, and values that go to the server log only."""

    conflict: Conflict
    table: TableDef
    row: str | None
    local: str | None = None
    """Text of the existing local row, in the form of ``row``."""
    modified: Modified | None = None
    """Writer of the existing row. None if it is not known."""


class Transactions:
    """The transactions of some segments, read on demand."""

    def __init__(self, reader: LogReader, manifests: Sequence[Manifest]) -> None:
        self._reader = reader
        self._manifests = manifests

    def at(self, commit_lsns: Iterable[int]) -> dict[int, LoggedTransaction]:
        """Return the transactions with these commit LSNs."""
        positions = sorted(set(commit_lsns))
        transactions: dict[int, LoggedTransaction] = {}
        for manifest in self._manifests:
            inside = [
                lsn
                for lsn in positions
                if manifest.first_commit_lsn <= lsn <= manifest.last_commit_lsn
            ]
            if not inside:
                continue
            table = self._reader.read(
                manifest.transactions_file,
                ["xid", "commit_lsn", "commit_time", "origin"],
            )
            chosen = table.filter(
                pc.is_in(table["commit_lsn"], pc.cast(inside, table["commit_lsn"].type))
            )
            for row in chosen.to_pylist():
                transactions[row["commit_lsn"]] = LoggedTransaction(
                    row["xid"],
                    row["origin"],
                    _POSTGRES_EPOCH + timedelta(microseconds=row["commit_time"]),
                )
        return transactions

    def end_below(self, reached: Lsn) -> Lsn | None:
        """Return the end LSN of the last transaction that commits below ``reached``; None if there
        is none. As in PostgreSQL, a transaction without a change does not count."""
        for manifest in reversed(self._manifests):
            if not manifest.transactions or manifest.first_commit_lsn >= reached:
                continue
            table = self._reader.read(
                manifest.transactions_file, ["commit_lsn", "end_lsn", "changes"]
            )
            chosen = table.filter(
                pc.and_(
                    pc.less(table["commit_lsn"], int(reached)),
                    pc.greater(table["changes"], 0),
                )
            )
            if chosen.num_rows:
                return Lsn(pc.max(chosen["end_lsn"]).as_py())
        return None

    def facts(self) -> HistoryCommits:
        """Return all transactions with their origins at the publisher, for history tables."""
        names = ["commit_lsn", "xid", "commit_time", "origin"]
        parts = [
            self._reader.read(manifest.transactions_file, names).select(names)
            for manifest in self._manifests
        ]
        if not parts:
            return NO_COMMITS
        table = pa.concat_tables(parts)
        table = table.take(pc.sort_indices(table["commit_lsn"]))
        return HistoryCommits(
            table["commit_lsn"].to_numpy().astype(np.int64),
            table["xid"].to_numpy().astype(np.int64),
            table["commit_time"].to_numpy().astype(np.int64) + _UNIX_TO_POSTGRES_US,
            tuple(table["origin"].to_pylist()),
        )

    def commits(self, subid: Oid) -> BatchCommits:
        """Return all transactions as commits of the subscription ``subid``."""
        names = ["commit_lsn", "xid", "commit_time"]
        parts = [
            self._reader.read(manifest.transactions_file, names).select(names)
            for manifest in self._manifests
        ]
        lsn, xid, time = (
            np.concatenate(
                [
                    np.zeros(0, np.int64),
                    *(part.column(name).to_numpy() for part in parts),
                ]
            ).astype(np.int64)
            for name in names
        )
        order = np.argsort(lsn, kind="stable")
        return BatchCommits(
            int(subid), lsn[order], xid[order], time[order] + _UNIX_TO_POSTGRES_US
        )


def batch_conflicts(
    parts: Sequence[tuple[TableDef, Sequence[RowConflict]]], transactions: Transactions
) -> list[FoundConflict]:
    """Return the conflicts that did not stop the batch, table by table."""
    by_commit_lsn = transactions.at(
        row_conflict.commit_lsn for _, conflicts in parts for row_conflict in conflicts
    )
    return [
        FoundConflict(
            conflict(
                table.oid,
                row_conflict.type,
                row_conflict.resolution,
                row_conflict.commit_lsn,
                row_conflict.key,
                by_commit_lsn.get(row_conflict.commit_lsn)
                if row_conflict.count == 1
                else None,
                row_conflict.count,
            ),
            table,
            row_conflict.row,
            row_conflict.local,
            row_conflict.modified,
        )
        for table, conflicts in parts
        for row_conflict in conflicts
    ]


def conflict(
    relid: Oid,
    kind: ConflictType,
    resolution: Resolution,
    commit_lsn: int,
    key: str | None,
    transaction: LoggedTransaction | None,
    count: int = 1,
) -> Conflict:
    """Build a conflict for the catalog."""
    return Conflict(
        relid,
        kind,
        resolution,
        Lsn(commit_lsn),
        key,
        None if transaction is None else transaction.xid,
        None if transaction is None else transaction.origin,
        None if transaction is None else transaction.committed_at,
        count,
    )


def explanation(
    kind: ConflictType, index: str, modified: Modified | None, exists: OriginExists
) -> str:
    """Return PostgreSQL's explanation; ``index`` is the name of the primary key."""
    if kind in _MISSING:
        return _MISSING[kind]
    unique = kind in _UNIQUE
    if modified is None:
        writer = ""
    elif not modified.origin:
        writer = " locally"
    elif not exists(modified.origin):
        writer = " by a non-existent origin"
    else:
        writer = f' by {"" if unique else "a different "}origin "pg_{modified.origin}"'
    transaction = ""
    if modified is not None:
        transaction = f" in transaction {modified.xid} at {_shown(modified.time_us)}"
    if unique:
        by = "" if modified is None else f", modified{writer}{transaction}"
        return f'Key already exists in unique index "{index}"{by}.'
    verb = "Updating" if kind is ConflictType.UPDATE_ORIGIN_DIFFERS else "Deleting"
    return f"{verb} the row that was modified{writer}{transaction}."


def _shown(time_us: int) -> str:
    """Format a time as PostgreSQL does, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    text = moment.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{text}+00"


def log_conflicts(
    origin: str,
    conflicts: Sequence[FoundConflict],
    *,
    quotes: Callable[[TableDef], bool],
    exists: OriginExists,
) -> None:
    """Log a line for each conflict up to a limit for each table, then one line for the rest.
    ``quotes``: whether a table's rows may be quoted."""
    events = get_logger()
    logged: dict[Oid, int] = {}
    rest: dict[tuple[Oid, ConflictType], tuple[FoundConflict, int]] = {}
    for conflict_found in conflicts:
        conflict = conflict_found.conflict
        logged[conflict.relid] = logged.get(conflict.relid, 0) + 1
        if conflict.count > 1 or logged[conflict.relid] > _LOGGED_EACH:
            _, before = rest.get((conflict.relid, conflict.type), (conflict_found, 0))
            rest[conflict.relid, conflict.type] = (
                conflict_found,
                before + conflict.count,
            )
            continue
        error = _described(
            origin, conflict_found, values=quotes(conflict_found.table), exists=exists
        )
        events.info(error.message, error=error)
    for conflict_found, count in rest.values():
        events.info(
            f"{_message(conflict_found)} happened {count} more times",
            hint="wal2lake.conflicts lists them.",
        )


def _message(conflict_found: FoundConflict) -> str:
    return (
        f'conflict detected on relation "{conflict_found.table.qualified}":'
        f" conflict={conflict_found.conflict.type}"
    )


def quoted_rows(
    table: TableDef,
    kind: ConflictType,
    key: str,
    *,
    local: str | None,
    row: str | None,
    identity: str | None = None,
) -> str:
    """Return PostgreSQL's line with the values. ``identity``: for an UPDATE to an existing key, the
    old key of the updated row."""
    unique = kind in _UNIQUE
    named = identity if unique else key
    # For FULL, PostgreSQL lists the row's values without column names.
    if named is not None and not table.key:
        named = f"full ({named.partition(')=(')[2]}"
    shown = [
        f"key {key}" if unique else None,
        None if local is None else f"existing local row {local}",
        None if row is None else f"remote row {row}",
        None if named is None else f"replica identity {named}",
    ]
    text = "; ".join(part for part in shown if part is not None)
    return f"{text[0].upper()}{text[1:]}."


def _described(
    origin: str, conflict_found: FoundConflict, *, values: bool, exists: OriginExists
) -> ApplyError:
    conflict = conflict_found.conflict
    unique = conflict.type in _UNIQUE
    index = conflict_found.table.index_name
    detail = explanation(conflict.type, index, conflict_found.modified, exists)
    if values and conflict.key is not None:
        detail += "\n" + quoted_rows(
            conflict_found.table,
            conflict.type,
            conflict.key,
            local=conflict_found.local,
            row=conflict_found.row,
        )
    as_usual = (conflict.type, conflict.resolution) in _AS_POSTGRESQL
    return ApplyError(
        _message(conflict_found),
        sqlstate="23505" if unique else "40001",
        detail=detail,
        context=error_context(
            origin=origin,
            message_type=MESSAGE_TYPES[conflict.type],
            relation=conflict_found.table.qualified,
            xid=conflict.xid,
            finish_lsn=conflict.commit_lsn,
        ),
        hint=None if as_usual else f"It was resolved: {conflict.resolution}.",
    )
