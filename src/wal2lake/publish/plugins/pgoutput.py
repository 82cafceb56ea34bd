"""PostgreSQL's own plugin, for its subscribers.

Sends the rows and columns of the client's publications: Begin with the first change (transactions
without changes are left out), Relation before a relation's first change and whenever the relation
changes, the rows, Commit. Long runs of rows, and all rows in binary format, are written column by
column (``wire.encoder``).

A large transaction is sent in blocks if the client requests that: Stream Start with a block's first
change, and the xid in every message. Each such transaction has its own Relation messages, because a
parallel worker knows no others. Blocks without published changes are left out, too.

As in PostgreSQL, a prepared transaction is sent even without published changes, and so is its end.

Source: src/backend/replication/pgoutput/pgoutput.c; reference 4.3, 4.4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn, Oid, Relation, Xid
from wal2lake.observe import get_logger
from wal2lake.pgtypes import text_to_binary
from wal2lake.publish.capture.positions import CHANGE_BYTES
from wal2lake.publish.decoding.decoded import Run, Transaction, changes_of
from wal2lake.publish.decoding.groups import Group
from wal2lake.publish.plugins.port import Base, Context, DecodedChange, Values
from wal2lake.publish.sending import Sending, published_rows
from wal2lake.wire.encoder import (
    MessageSource,
    RowsEncoder,
    begins,
    commits,
    frames,
    messages,
    origins,
)
from wal2lake.wire.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
    OldTuple,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
    write_message,
)
from wal2lake.wire.replication import (
    Option,
    OriginFilter,
    PgoutputOptions,
    Streaming,
    read_pgoutput_options,
)

_PLACE: Final = ("commit_lsn", "ordinal")

_FEW: Final = 16
"""Number of rows below which writing them one by one is faster."""

_EPOCH_SECONDS: Final = 946_684_800


@dataclass(slots=True)
class _EncodedGroup:
    """The published rows of a group's transactions."""

    present: npt.NDArray[np.bool_]
    """Whether each transaction has published rows."""
    rows: list[RowsEncoder] = field(default_factory=list)
    relations: list[tuple[Lsn, int, Relation]] = field(default_factory=list)
    """Relations to describe, each with commit LSN and ordinal of its first row."""


class PgOutput(Base):
    """The plugin pgoutput; the module describes it."""

    is_text = False
    two_phase = True

    def __init__(self) -> None:
        self._options: PgoutputOptions | None = None
        self._sending: Mapping[Oid, Sending] = {}
        self._sent: dict[Oid, Relation] = {}
        """Relations as last sent to the client."""
        self._begun = False
        """Whether the Begin of this transaction, or of its present block, was sent."""
        self._xid: Xid | None = None
        """Transaction of the present block."""
        self._described: dict[Oid, Relation] = {}
        """Relations as last sent in the blocks of this transaction."""
        self._streamed = False
        """Whether this transaction has sent a block."""
        self._reported: set[Oid] = set()
        """Tables whose unsent changes were reported."""

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Read the options. Published tables are looked up for each transaction."""
        parsed_options = [Option(name, value) for name, value in options.items()]
        self._options = read_pgoutput_options(parsed_options, slot=context.slot)
        self.streams = self._options.streaming is not Streaming.OFF
        context.two_phase = self._options.two_phase

    def filter_by_origin(self, origin: str | None) -> bool:
        """Leave out transactions with an origin if origin = none."""
        assert self._options is not None
        return self._options.origin is OriginFilter.NONE and origin is not None

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Write nothing yet: a transaction without published changes is left out."""
        self._begun = False
        self._look_up(context, transaction)

    def _look_up(self, context: Context, transaction: Transaction) -> None:
        """Look up the publications as defined when the transaction committed."""
        assert self._options is not None
        names = self._options.publication_names
        self._sending = context.sending(names, transaction.commit_lsn)

    def commit(self, context: Context, transaction: Transaction) -> None:
        """Write Commit, if there was a Begin."""
        if self._begun:
            end = transaction.end_lsn
            message = Commit(transaction.commit_lsn, end, transaction.commit_time)
            context.write(write_message(message), end, True)

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """Write nothing yet, as in ``begin``."""
        self._begun = False
        self._xid = transaction.xid
        if first:
            self._streamed = False
            self._described = {}
            self._look_up(context, transaction)

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """Write Stream Stop, if there was a Stream Start."""
        self._xid = None
        if self._begun:
            context.write(write_message(StreamStop()), transaction.first_lsn, False)

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Write Stream Commit, if there was a block. Its Relation messages are valid from here
        on."""
        if not self._streamed:
            return
        self._sent.update(self._described)
        end = transaction.end_lsn
        message = StreamCommit(
            transaction.xid, transaction.commit_lsn, end, transaction.commit_time
        )
        context.write(write_message(message), end, True)

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """Write Begin Prepare."""
        self._begun = True
        self._look_up(context, transaction)
        message = BeginPrepare(*_prepared(transaction))
        origin = transaction.origin
        context.write(write_message(message), transaction.first_lsn, origin is None)
        self._origin(context, transaction, origin, transaction.origin_lsn)

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """Write Prepare."""
        message = Prepare(*_prepared(transaction))
        context.write(write_message(message), transaction.prepared.prepare_end, True)

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """Write Stream Prepare. The blocks' Relation messages are valid from here on."""
        self._sent.update(self._described)
        message = StreamPrepare(*_prepared(transaction))
        context.write(write_message(message), transaction.prepared.prepare_end, True)

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """Write Commit Prepared."""
        end = transaction.end_lsn
        message = CommitPrepared(
            transaction.commit_lsn,
            end,
            transaction.commit_time,
            transaction.xid,
            transaction.prepared.gid,
        )
        context.write(write_message(message), end, True)

    def rollback_prepared(self, context: Context, transaction: Transaction) -> None:
        """Write Rollback Prepared."""
        prepared, end = transaction.prepared, transaction.end_lsn
        message = RollbackPrepared(
            prepared.prepare_end,
            end,
            prepared.prepare_time,
            transaction.commit_time,
            transaction.xid,
            prepared.gid,
        )
        context.write(write_message(message), end, True)

    def run(self, context: Context, transaction: Transaction, run: Run) -> bool:
        """Write the rows of a run: many at once, few one by one."""
        sending = self._sending.get(run.relation.relid)
        if sending is None:
            return True
        if sending.contradicted is not None:
            # ``change`` raises the error for the first change.
            return False
        self._rows(context, transaction, run, sending)
        return True

    def _rows(
        self, context: Context, transaction: Transaction, run: Run, sending: Sending
    ) -> None:
        """Write the published changes of a run."""
        self._warn_of_unsent(run, sending)
        rows = published_rows(sending, run.relation, run.rows)
        if not rows.num_rows:
            return
        columns = self._describe(context, transaction, run.relation, sending)
        relid = sending.shown(run.relation).relid
        assert self._options is not None
        if self._options.binary:
            rows = _binary(rows, run.relation, columns)
        elif rows.num_rows < _FEW:
            for change in changes_of(transaction, Run(run.relation, rows)):
                self._change(context, relid, change, columns)
            return
        lsns = (
            int(transaction.first_lsn)
            + CHANGE_BYTES * rows.column("ordinal").to_numpy()
        )
        if self._xid is not None:
            xids = np.full(rows.num_rows, int(self._xid), np.int64)
            rows = rows.append_column("xid", pa.array(xids))
        encoder = RowsEncoder(
            relid,
            rows,
            columns,
            streamed=self._xid is not None,
            lsns=lsns,
        )
        for piece in frames([encoder], _now()):
            context.write_frames(piece)

    def group(self, context: Context, group: Group) -> bool:
        """Write a group column by column, if publications and tables are the same for all its
        transactions."""
        assert self._options is not None
        names = self._options.publication_names
        sending = context.sending(names, group.first_commit)
        if context.sending(names, group.last_commit) is not sending:
            return False
        runs = [run for run in group.runs if run.relation.relid in sending]
        if any(sending[run.relation.relid].contradicted is not None for run in runs):
            return False
        shown = [_shown(run.relation, sending[run.relation.relid]) for run in runs]
        if len({sent.relid for sent, _ in shown}) < len({sent for sent, _ in shown}):
            return False
        encoded = self._encode(group, runs, shown, sending)
        if encoded is None:
            return False
        if encoded.present.any():
            self._write_group(context, group, encoded)
        return True

    def _encode(
        self,
        group: Group,
        runs: Sequence[Run],
        shown: Sequence[tuple[Relation, tuple[int, ...]]],
        sending: Mapping[Oid, Sending],
    ) -> _EncodedGroup | None:
        """Encode the published rows of a group; None if a row has an error, because transactions
        before the row's must be sent."""
        assert self._options is not None
        commit, first = group.numbers("commit_lsn"), group.first_lsns()
        encoded = _EncodedGroup(np.zeros(len(commit), np.bool_))
        for run, (sent, columns) in zip(runs, shown, strict=True):
            published = sending[run.relation.relid]
            try:
                rows = published_rows(published, run.relation, run.rows)
                if self._options.binary:
                    rows = _binary(rows, run.relation, columns)
                at_commit, ordinal = (rows.column(n).to_numpy() for n in _PLACE)
                number = np.searchsorted(commit, at_commit)
                lsns = first[number] + CHANGE_BYTES * ordinal
                encoder = RowsEncoder(sent.relid, rows, columns, lsns=lsns)
            except Wal2LakeError:
                return None
            self._warn_of_unsent(run, published)
            if not rows.num_rows:
                continue
            encoded.present[number] = True
            encoded.rows.append(encoder)
            if self._sent.get(sent.relid) != sent:
                place = Lsn(int(at_commit[0])), int(ordinal[0])
                encoded.relations.append((*place, sent))
        return encoded

    def _write_group(
        self, context: Context, group: Group, encoded: _EncodedGroup
    ) -> None:
        """Write the messages of a group's transactions that have published rows."""
        present = encoded.present
        transactions = group.transactions.filter(pa.array(present))
        commit, first = (
            group.numbers("commit_lsn")[present],
            group.first_lsns()[present],
        )
        time_of, end = (
            transactions.column(n).to_numpy() for n in ("commit_time", "end_lsn")
        )
        sources: list[MessageSource] = [
            # The last message of a callback has a position.
            begins(
                commit,
                time_of,
                transactions.column("xid").to_numpy(),
                lsns=first if group.origin is None else np.zeros_like(first),
            )
        ]
        if group.origin is not None:
            at_origin = transactions.column("origin_lsn").fill_null(0).to_numpy()
            sources.append(origins(commit, at_origin, group.origin, lsns=first))
        # Partitions may be sent as the same relation, which is described once.
        first_of = {
            sent.relid: (commit_lsn, ordinal, Lsn(0), RelationMessage(sent, None))
            for commit_lsn, ordinal, sent in sorted(
                encoded.relations, key=itemgetter(0, 1), reverse=True
            )
        }
        described = sorted(first_of.values(), key=itemgetter(0, 1))
        sources += [messages(described), *encoded.rows]
        sources.append(commits(commit[:-1], end[:-1], time_of[:-1]))
        self._sent |= {sent.relid: sent for *_, sent in encoded.relations}
        for piece in frames(sources, _now()):
            context.write_frames(piece)
        last = Commit(Lsn(int(commit[-1])), Lsn(int(end[-1])), int(time_of[-1]))
        context.write(write_message(last), last.end_lsn, True)

    def _warn_of_unsent(self, run: Run, sending: Sending) -> None:
        """Warn of changes that cannot be sent, once for each table. Sessions cannot UPDATE a
        published table without a replica identity, but other writers can, and subscribers' copies
        then diverge."""
        relation = run.relation
        if relation.key_positions or relation.relid in self._reported:
            return
        ops = {chr(op) for op in np.unique(run.rows.column("op").to_numpy())}
        if ops & {"U", "D"} & sending.operations:
            self._reported.add(relation.relid)
            warning = Wal2LakeError(
                "rows that were updated or deleted in table"
                f' "{relation.namespace}.{relation.name}" are not sent',
                detail="The table does not have a replica identity.",
                hint="Set REPLICA IDENTITY using ALTER TABLE, and have subscribers copy the"
                " table again.",
            )
            get_logger().warning(warning.message, error=warning)

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """Raise the error of a change that cannot be sent. Other changes come in runs."""
        self._sending[relation.relid].check()
        raise AssertionError

    def _change(
        self,
        context: Context,
        relid: Oid,
        change: DecodedChange,
        columns: tuple[int, ...],
    ) -> None:
        old = None
        if change.old is not None:
            kind = OldKind.KEY if change.is_key else OldKind.FULL
            old = OldTuple(kind, _some(change.old, columns))
        message: Message
        if change.op == "I":
            message = Insert(relid, _some(change.new, columns), self._xid)
        elif change.op == "U":
            message = Update(relid, old, _some(change.new, columns), self._xid)
        else:
            assert old is not None
            message = Delete(relid, old, self._xid)
        context.write(write_message(message), change.lsn, True)

    def truncate(
        self,
        context: Context,
        transaction: Transaction,
        relations: tuple[Relation, ...],
        options: int,
        lsn: Lsn,
    ) -> None:
        """Write TRUNCATE of the tables that publish it."""
        published = []
        for relation in relations:
            sending = self._sending.get(relation.relid)
            if sending is None:
                continue
            sending.check()
            if "T" in sending.operations:
                self._describe(context, transaction, relation, sending)
                published.append(sending.shown(relation).relid)
        if published:
            message = Truncate(
                tuple(published), bool(options & 1), bool(options & 2), self._xid
            )
            context.write(write_message(message), lsn, True)

    def message(
        self,
        context: Context,
        transaction: Transaction | None,
        lsn: Lsn,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message, if the client requests messages."""
        assert self._options is not None
        if not self._options.messages:
            return
        if transaction is not None:
            self._begin(context, transaction)
        message = LogicalMessage(
            transaction is not None, lsn, prefix, content, self._xid
        )
        context.write(write_message(message), lsn, True)

    def _begin(self, context: Context, transaction: Transaction) -> None:
        if self._begun:
            return
        self._begun = True
        message: Message
        origin, origin_lsn = transaction.origin, transaction.origin_lsn
        if self._xid is None:
            message = Begin(
                transaction.commit_lsn, transaction.commit_time, transaction.xid
            )
        else:
            message = StreamStart(self._xid, not self._streamed)
            # PostgreSQL does not know the origin's LSN before the commit. The first block has the
            # origin.
            origin_lsn = Lsn(0)
            origin = None if self._streamed else origin
            self._streamed = True
        context.write(write_message(message), transaction.first_lsn, origin is None)
        self._origin(context, transaction, origin, origin_lsn)

    def _origin(
        self,
        context: Context,
        transaction: Transaction,
        origin: str | None,
        origin_lsn: Lsn,
    ) -> None:
        if origin is not None:
            message = Origin(origin_lsn, origin)
            context.write(write_message(message), transaction.first_lsn, True)

    def _describe(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        sending: Sending,
    ) -> tuple[int, ...]:
        """Write Begin and Relation, unless the client has them. Return the columns to send."""
        self._begin(context, transaction)
        sent, columns = _shown(relation, sending)
        last_sent = self._sent if self._xid is None else self._described
        if last_sent.get(sent.relid) != sent:
            last_sent[sent.relid] = sent
            message = RelationMessage(sent, self._xid)
            context.write(write_message(message), transaction.first_lsn, False)
        return columns


def _prepared(transaction: Transaction) -> tuple[Lsn, Lsn, int, Xid, str]:
    """Return the fields of a PREPARE's messages."""
    two_phase = transaction.prepared
    xid = Xid(two_phase.xid)
    return (
        two_phase.prepare_lsn,
        two_phase.prepare_end,
        two_phase.prepare_time,
        xid,
        two_phase.gid,
    )


def _shown(relation: Relation, sending: Sending) -> tuple[Relation, tuple[int, ...]]:
    """Return the relation as sent to the client, and the indexes of its columns."""
    columns = tuple(
        i for i, column in enumerate(relation.columns) if sending.has(column.name)
    )
    shown = sending.shown(relation)
    return replace(shown, columns=tuple(shown.columns[i] for i in columns)), columns


def _some(values: Values | None, columns: tuple[int, ...]) -> Values:
    assert values is not None
    return tuple(values[i] for i in columns)


def _binary(
    rows: pa.RecordBatch, relation: Relation, columns: tuple[int, ...]
) -> pa.RecordBatch:
    """Convert columns to binary values if their type is supported. The others stay text, which
    subscribers accept."""
    for prefix, flags in (("c", "b"), ("o", "ob")):
        for i in columns:
            index = rows.schema.get_field_index(f"{prefix}{i}")
            if index < 0:
                continue
            values = rows.column(index).cast(pa.binary())
            sent = text_to_binary(values, relation.columns[i].type_oid)
            if sent is not None:
                rows = rows.set_column(index, f"{prefix}{i}", sent).append_column(
                    f"{flags}{i}", sent.is_valid()
                )
    return rows


def _now() -> int:
    return time.time_ns() // 1000 - _EPOCH_SECONDS * 1_000_000
