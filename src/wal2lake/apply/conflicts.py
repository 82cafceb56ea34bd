"""Conflicts of a batch as the catalog keeps them and as the server log tells them.

In: what staging has found in a table's rows, the segments that they are from. Out: ``Conflict``
values with the transaction's xid, origin and time; lines in PostgreSQL 18's words. Called by
``worker``.

Source: reference 5.1; src/backend/replication/logical/conflict.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow.compute as pc

from wal2lake.apply.relationmap import error_context
from wal2lake.catalog import TableDef
from wal2lake.changelog import LogReader
from wal2lake.changelog.manifest import Manifest
from wal2lake.errors import ApplyError
from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.staging.changes import RowConflict
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
"""The message whose change meets it."""

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
"""Whether the subscription of that OID is there still."""

_TOLD: Final = 100
"""Conflicts of one table in one batch that have a line each."""


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """Facts that the change log has of one transaction."""

    xid: int
    origin: str | None
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class FoundConflict:
    """A conflict, its table, and what only the server log is told."""

    conflict: Conflict
    table: TableDef
    row: str | None
    local: str | None = None
    """The row that it met, as ``row``."""
    modified: Modified | None = None
    """Writer of the existing row; None: not known."""


class Transactions:
    """Transactions of some segments; they are read when the first one is asked for."""

    def __init__(self, reader: LogReader, manifests: Sequence[Manifest]) -> None:
        self._reader = reader
        self._manifests = manifests

    def at(self, commit_lsns: Iterable[int]) -> dict[int, LoggedTransaction]:
        """Return the transactions that commit at these positions."""
        wanted = sorted(set(commit_lsns))
        found: dict[int, LoggedTransaction] = {}
        for one in self._manifests:
            mine = [
                lsn
                for lsn in wanted
                if one.first_commit_lsn <= lsn <= one.last_commit_lsn
            ]
            if not mine:
                continue
            table = self._reader.read(
                one.transactions_file, ["xid", "commit_lsn", "commit_time", "origin"]
            )
            chosen = table.filter(
                pc.is_in(table["commit_lsn"], pc.cast(mine, table["commit_lsn"].type))
            )
            for row in chosen.to_pylist():
                found[row["commit_lsn"]] = LoggedTransaction(
                    row["xid"],
                    row["origin"],
                    _POSTGRES_EPOCH + timedelta(microseconds=row["commit_time"]),
                )
        return found

    def end_below(self, reached: Lsn) -> Lsn | None:
        """Where the last one that commits below ``reached`` ends; None: there is none. One
        without a change does not count, as in PostgreSQL."""
        for one in reversed(self._manifests):
            if not one.transactions or one.first_commit_lsn >= reached:
                continue
            table = self._reader.read(
                one.transactions_file, ["commit_lsn", "end_lsn", "changes"]
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

    def commits(self, subid: Oid) -> BatchCommits:
        """All of them, as the subscription's that applies them."""
        names = ["commit_lsn", "xid", "commit_time"]
        parts = [
            self._reader.read(one.transactions_file, names).select(names)
            for one in self._manifests
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


def met(
    parts: Sequence[tuple[TableDef, Sequence[RowConflict]]], transactions: Transactions
) -> list[FoundConflict]:
    """Changes that met another row, or none, and did not stop the batch; table by table."""
    known = transactions.at(
        one.commit_lsn for _, conflicts in parts for one in conflicts
    )
    return [
        FoundConflict(
            conflict(
                table.oid,
                one.type,
                one.resolution,
                one.commit_lsn,
                one.key,
                known.get(one.commit_lsn) if one.count == 1 else None,
                one.count,
            ),
            table,
            one.row,
            one.local,
            one.modified,
        )
        for table, conflicts in parts
        for one in conflicts
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
    """Build a conflict as the catalog keeps it."""
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
    """PostgreSQL's first sentence; ``index``: the name of the primary key."""
    if kind in _MISSING:
        return _MISSING[kind]
    unique = kind in _UNIQUE
    if modified is None:
        who = ""
    elif not modified.origin:
        who = " locally"
    elif not exists(modified.origin):
        who = " by a non-existent origin"
    else:
        who = f' by {"" if unique else "a different "}origin "pg_{modified.origin}"'
    when = ""
    if modified is not None:
        when = f" in transaction {modified.xid} at {_shown(modified.time_us)}"
    if unique:
        by = "" if modified is None else f", modified{who}{when}"
        return f'Key already exists in unique index "{index}"{by}.'
    doing = "Updating" if kind is ConflictType.UPDATE_ORIGIN_DIFFERS else "Deleting"
    return f"{doing} the row that was modified{who}{when}."


def _shown(time_us: int) -> str:
    """A moment as PostgreSQL writes it, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    text = moment.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{text}+00"


def tell(
    origin: str,
    found: Sequence[FoundConflict],
    *,
    quotes: Callable[[TableDef], bool],
    exists: OriginExists,
) -> None:
    """A line each, up to a number for each table, then one for the rest. ``quotes``: whether a
    table's rows may be quoted."""
    events = get_logger()
    told: dict[Oid, int] = {}
    rest: dict[tuple[Oid, ConflictType], tuple[FoundConflict, int]] = {}
    for one in found:
        here = one.conflict
        told[here.relid] = told.get(here.relid, 0) + 1
        if here.count > 1 or told[here.relid] > _TOLD:
            _, before = rest.get((here.relid, here.type), (one, 0))
            rest[here.relid, here.type] = one, before + here.count
            continue
        error = _described(origin, one, values=quotes(one.table), exists=exists)
        events.info(error.message, error=error)
    for one, count in rest.values():
        events.info(
            f"{_message(one)} happened {count} times more",
            hint="wal2lake.conflicts lists them.",
        )


def _message(found: FoundConflict) -> str:
    return (
        f'conflict detected on relation "{found.table.qualified}":'
        f" conflict={found.conflict.type}"
    )


def rows_told(
    table: TableDef,
    kind: ConflictType,
    key: str,
    *,
    local: str | None,
    row: str | None,
    identity: str | None = None,
) -> str:
    """The line with values, as PostgreSQL writes it. ``identity``: of an UPDATE to a key that is
    taken, the key that its row had."""
    unique = kind in _UNIQUE
    named = identity if unique else key
    # FULL is the row's values, without the columns' names.
    if named is not None and not table.key:
        named = f"full ({named.partition(')=(')[2]}"
    shown = [
        f"key {key}" if unique else None,
        None if local is None else f"existing local row {local}",
        None if row is None else f"remote row {row}",
        None if named is None else f"replica identity {named}",
    ]
    text = "; ".join(one for one in shown if one is not None)
    return f"{text[0].upper()}{text[1:]}."


def _described(
    origin: str, found: FoundConflict, *, values: bool, exists: OriginExists
) -> ApplyError:
    here = found.conflict
    unique = here.type in _UNIQUE
    index = found.table.index_name
    detail = explanation(here.type, index, found.modified, exists)
    if values and here.key is not None:
        detail += "\n" + rows_told(
            found.table, here.type, here.key, local=found.local, row=found.row
        )
    as_usual = (here.type, here.resolution) in _AS_POSTGRESQL
    return ApplyError(
        _message(found),
        sqlstate="23505" if unique else "40001",
        detail=detail,
        context=error_context(
            origin=origin,
            message_type=MESSAGE_TYPES[here.type],
            relation=found.table.qualified,
            xid=here.xid,
            finish_lsn=here.commit_lsn,
        ),
        hint=None if as_usual else f"It was resolved: {here.resolution}.",
    )
