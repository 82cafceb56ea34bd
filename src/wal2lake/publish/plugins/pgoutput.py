"""PostgreSQL's own plugin: what its subscribers read.

Sends what the publications named by the client have, in the columns that they have: Begin with the
first change (transactions without any are left out), Relation before a relation's first change and
whenever it is another one, the rows, Commit. Long runs of rows are written column by column
(``wire.encoder``).

Source: src/backend/replication/pgoutput/pgoutput.c; reference 4.3, 4.4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.model import Lsn, Oid, Relation
from wal2lake.publish.capture.positions import CHANGE_BYTES
from wal2lake.publish.decoding.transactions import Run, Transaction
from wal2lake.publish.plugins.port import Base, Change, Context, Sending, Values
from wal2lake.wire.encoder import RowsEncoder, frames
from wal2lake.wire.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
    OldTuple,
    Origin,
    RelationMessage,
    Truncate,
    Update,
    write_message,
)
from wal2lake.wire.replication import (
    Option,
    OriginFilter,
    PgoutputOptions,
    read_pgoutput_options,
)

_FEW: Final = 16
"""Rows that are written one by one sooner than together."""

_EPOCH_SECONDS: Final = 946_684_800

_OPERATIONS: Final = {"I": "insert", "U": "update", "D": "delete"}


class PgOutput(Base):
    """See the module."""

    is_text = False

    def __init__(self) -> None:
        self._options: PgoutputOptions | None = None
        self._sending: Mapping[Oid, Sending] = {}
        self._sent: dict[Oid, tuple[Relation, RelationMessage]] = {}
        """What the client knows of a relation, and the one it was made of."""
        self._begun = False

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Take the options; which tables are published is looked up with each transaction."""
        given = [Option(name, value) for name, value in options.items()]
        self._options = read_pgoutput_options(given, slot=context.slot)

    def filter_by_origin(self, origin: str | None) -> bool:
        """origin = none: only what began here."""
        assert self._options is not None
        return self._options.origin is OriginFilter.NONE and origin is not None

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Nothing yet: a transaction that changes nothing of interest is left out."""
        assert self._options is not None
        self._begun = False
        self._sending = context.sending(self._options.publication_names)

    def commit(self, context: Context, transaction: Transaction) -> None:
        """Commit, if there was a Begin."""
        if self._begun:
            end = transaction.end_lsn
            message = Commit(transaction.commit_lsn, end, transaction.commit_time)
            context.write(write_message(message), end, True)

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Rows together, if they are many and need no look at each."""
        sending = self._sending.get(run.relation.relid)
        if sending is None:
            return True
        if run.rows.num_rows < _FEW or sending.filters is not None:
            return False
        rows = run.rows
        ops = rows.column("op").to_numpy()
        if not sending.publishes >= {"insert", "update", "delete", "truncate"}:
            wanted = [
                ord(op) for op, word in _OPERATIONS.items() if word in sending.publishes
            ]
            rows = rows.filter(pa.array(np.isin(ops, [*wanted, ord("T")])))
            ops = rows.column("op").to_numpy()
        if (ops == ord("T")).any():
            return False
        if rows.num_rows:
            _, columns = self._describe(context, transaction, run.relation, sending)
            lsns = (
                int(transaction.first_lsn)
                + CHANGE_BYTES * rows.column("ordinal").to_numpy()
            )
            encoder = RowsEncoder(run.relation.relid, rows, columns, lsns=lsns)
            for piece in frames([encoder], _now()):
                context.write_frames(piece)
        return True

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: Change,
    ) -> None:
        """One row."""
        sending = self._sending[relation.relid]
        if _OPERATIONS[change.op] not in sending.publishes:
            return
        _, columns = self._describe(context, transaction, relation, sending)
        new = _some(change.new, columns)
        old = None
        if change.old is not None:
            kind = OldKind.KEY if change.is_key else OldKind.FULL
            old = OldTuple(kind, _some(change.old, columns) or ())
        message: Message
        if change.op == "I":
            message = Insert(relation.relid, new or ())
        elif change.op == "U":
            message = Update(relation.relid, old, new or ())
        elif old is not None:
            message = Delete(relation.relid, old)
        else:
            return
        context.write(write_message(message), change.lsn, True)

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """TRUNCATE of those that publish it."""
        published = []
        for relation in relations:
            sending = self._sending.get(relation.relid)
            if sending is not None and "truncate" in sending.publishes:
                self._describe(context, transaction, relation, sending)
                published.append(relation.relid)
        if published:
            message = Truncate(tuple(published), bool(options & 1), bool(options & 2))
            context.write(write_message(message), lsn, True)

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """If the client wants them."""
        assert self._options is not None
        if not self._options.messages:
            return
        if transaction is not None:
            self._begin(context, transaction)
        message = LogicalMessage(transaction is not None, lsn, prefix, content)
        context.write(write_message(message), lsn, True)

    def _begin(self, context: Context, transaction: Transaction) -> None:
        if self._begun:
            return
        self._begun = True
        message = Begin(
            transaction.commit_lsn, transaction.commit_time, transaction.xid
        )
        origin = transaction.origin
        context.write(write_message(message), transaction.first_lsn, origin is None)
        if origin is not None:
            context.write(
                write_message(Origin(transaction.origin_lsn, origin)),
                transaction.first_lsn,
                True,
            )

    def _describe(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        sending: Sending,
    ) -> tuple[RelationMessage, tuple[int, ...]]:
        """Begin and Relation, if the client does not have them; the columns that are sent."""
        self._begin(context, transaction)
        columns = tuple(
            i
            for i, column in enumerate(relation.columns)
            if sending.columns is None or column.name in sending.columns
        )
        sent = replace(relation, columns=tuple(relation.columns[i] for i in columns))
        known = self._sent.get(relation.relid)
        if known is None or known[0] != sent:
            known = sent, RelationMessage(sent)
            self._sent[relation.relid] = known
            context.write(write_message(known[1]), transaction.first_lsn, False)
        return known[1], columns


def _some(values: Values | None, columns: tuple[int, ...]) -> Values | None:
    return None if values is None else tuple(values[i] for i in columns)


def _now() -> int:
    return time.time_ns() // 1000 - _EPOCH_SECONDS * 1_000_000
