"""Conflicts of a batch as the catalog keeps them and as the server log tells them.

In: what staging has found in a table's rows, the segments that they are from. Out: ``Conflict``
values with the transaction's xid, origin and time; lines in PostgreSQL 18's words. Called by
``worker``.

Source: reference 5.1; src/backend/replication/logical/conflict.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from wal2lake.apply.relationmap import error_context
from wal2lake.catalog import TableDef
from wal2lake.changelog import LogReader
from wal2lake.changelog.manifest import Manifest
from wal2lake.errors import ApplyError
from wal2lake.lake.staging.changes import RowConflict
from wal2lake.model import Conflict, ConflictType, Lsn, Oid, Resolution
from wal2lake.observe import get_logger

_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_EXPLANATIONS: Final = {
    ConflictType.UPDATE_MISSING: ("UPDATE", "Could not find the row to be updated."),
    ConflictType.DELETE_MISSING: ("DELETE", "Could not find the row to be deleted."),
}

_TOLD: Final = 100
"""Conflicts of one table in one batch that have a line each."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the change log knows of one."""

    xid: int
    origin: str | None
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Found:
    """A conflict, its table, and what only the server log is told."""

    conflict: Conflict
    table: TableDef
    row: str | None


class Transactions:
    """Of some segments; they are read when the first one is asked for."""

    def __init__(self, reader: LogReader, manifests: Sequence[Manifest]) -> None:
        self._reader = reader
        self._manifests = manifests

    def at(self, commit_lsns: Iterable[int]) -> dict[int, Transaction]:
        """Those that commit there."""
        wanted = sorted(set(commit_lsns))
        found: dict[int, Transaction] = {}
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
                found[row["commit_lsn"]] = Transaction(
                    row["xid"],
                    row["origin"],
                    _POSTGRES_EPOCH + timedelta(microseconds=row["commit_time"]),
                )
        return found


def left_out(
    parts: Sequence[tuple[TableDef, Sequence[RowConflict]]], transactions: Transactions
) -> list[Found]:
    """Changes that a batch leaves out, table by table."""
    known = transactions.at(
        one.commit_lsn for _, conflicts in parts for one in conflicts
    )
    return [
        Found(
            conflict(
                table.oid,
                one.type,
                Resolution.SKIP,
                one.commit_lsn,
                one.key,
                known.get(one.commit_lsn) if one.count == 1 else None,
                one.count,
            ),
            table,
            one.row,
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
    transaction: Transaction | None,
    count: int = 1,
) -> Conflict:
    """As the catalog keeps it."""
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


def tell(origin: str, found: Sequence[Found], *, values: bool) -> None:
    """A line each, up to a number for each table, then one for the rest."""
    events = get_logger()
    told: dict[Oid, int] = {}
    rest: dict[tuple[Oid, ConflictType], tuple[Found, int]] = {}
    for one in found:
        here = one.conflict
        told[here.relid] = told.get(here.relid, 0) + 1
        if here.count > 1 or told[here.relid] > _TOLD:
            _, before = rest.get((here.relid, here.type), (one, 0))
            rest[here.relid, here.type] = one, before + here.count
            continue
        error = _described(origin, one, values=values)
        events.info(error.message, error=error)
    for one, count in rest.values():
        events.info(
            f"{_message(one)} happened {count} times more",
            hint="wal2lake.conflicts lists them.",
        )


def _message(found: Found) -> str:
    return (
        f'conflict detected on relation "{found.table.qualified}":'
        f" conflict={found.conflict.type}"
    )


def _described(origin: str, found: Found, *, values: bool) -> ApplyError:
    command, detail = _EXPLANATIONS[found.conflict.type]
    if values and found.conflict.key is not None:
        name = "identity" if found.table.key else "identity full"
        shown = [] if found.row is None else [f"remote row {found.row}"]
        text = "; ".join([*shown, f"replica {name} {found.conflict.key}"])
        detail += f"\n{text[0].upper()}{text[1:]}."
    return ApplyError(
        _message(found),
        sqlstate="40001",
        detail=detail,
        context=error_context(
            origin=origin,
            message_type=command,
            relation=found.table.qualified,
            xid=found.conflict.xid,
            finish_lsn=found.conflict.commit_lsn,
        ),
    )
