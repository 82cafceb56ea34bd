"""PostgreSQL's own plugin: what its subscribers read.

Sends what the publications named by the client have, in the columns that they have: Begin with the
first change (transactions without any are left out), Relation before a relation's first change and
whenever it is another one, the rows, Commit. Long runs of rows are written column by column
(``wire.encoder``), and so are all whose values go in binary.

A large transaction goes in blocks if the client asked for that: Stream Start with a block's first
change, and every message with the xid. Each such transaction brings its own Relation messages, for
a parallel worker knows no others. Blocks without a change of interest are left out too.

What is prepared is sent whatever is in it, as by PostgreSQL: its end is, too.

Source: src/backend/replication/pgoutput/pgoutput.c; reference 4.3, 4.4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.errors import Wal2LakeError
from wal2lake.model import Lsn, Oid, Relation, Xid
from wal2lake.observe import get_logger
from wal2lake.pgtypes import text_to_binary
from wal2lake.publish.capture.positions import CHANGE_BYTES
from wal2lake.publish.decoding.changes import Run, Transaction, changes_of
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
"""Rows that are written one by one sooner than together."""

_EPOCH_SECONDS: Final = 946_684_800


class PgOutput(Base):
    """The plugin pgoutput; the module describes it."""

    is_text = False
    two_phase = True

    def __init__(self) -> None:
        self._options: PgoutputOptions | None = None
        self._sending: Mapping[Oid, Sending] = {}
        self._sent: dict[Oid, Relation] = {}
        """Relations as the client knows them."""
        self._begun = False
        """True if this transaction, or this block of it, has begun."""
        self._xid: Xid | None = None
        """The large transaction of the present block."""
        self._described: dict[Oid, Relation] = {}
        """Relations as the client knows them by the blocks of this transaction."""
        self._streamed = False
        """This transaction has sent a block."""
        self._noted: set[Oid] = set()
        """Tables without a replica identity of which changes were left out."""

    def startup(self, context: Context, options: Mapping[str, str | None]) -> None:
        """Take the options; which tables are published is looked up with each transaction."""
        given = [Option(name, value) for name, value in options.items()]
        self._options = read_pgoutput_options(given, slot=context.slot)
        self.streams = self._options.streaming is not Streaming.OFF
        context.two_phase = self._options.two_phase

    def filter_by_origin(self, origin: str | None) -> bool:
        """origin = none: only what began here."""
        assert self._options is not None
        return self._options.origin is OriginFilter.NONE and origin is not None

    def begin(self, context: Context, transaction: Transaction) -> None:
        """Nothing yet: a transaction that changes nothing of interest is left out."""
        self._begun = False
        self._look_up(context, transaction)

    def _look_up(self, context: Context, transaction: Transaction) -> None:
        """Look up the publications as they were when the transaction committed."""
        assert self._options is not None
        names = self._options.publication_names
        self._sending = context.sending(names, transaction.commit_lsn)

    def commit(self, context: Context, transaction: Transaction) -> None:
        """Commit, if there was a Begin."""
        if self._begun:
            end = transaction.end_lsn
            message = Commit(transaction.commit_lsn, end, transaction.commit_time)
            context.write(write_message(message), end, True)

    def stream_start(
        self, context: Context, transaction: Transaction, first: bool
    ) -> None:
        """Nothing yet, as with ``begin``."""
        self._begun = False
        self._xid = transaction.xid
        if first:
            self._streamed = False
            self._described = {}
            self._look_up(context, transaction)

    def stream_stop(self, context: Context, transaction: Transaction) -> None:
        """Stream Stop, if there was a Stream Start."""
        self._xid = None
        if self._begun:
            context.write(write_message(StreamStop()), transaction.first_lsn, False)

    def stream_commit(self, context: Context, transaction: Transaction) -> None:
        """Stream Commit, if there was a block; what it has described holds from here on."""
        if not self._streamed:
            return
        self._sent.update(self._described)
        end = transaction.end_lsn
        message = StreamCommit(
            transaction.xid, transaction.commit_lsn, end, transaction.commit_time
        )
        context.write(write_message(message), end, True)

    def begin_prepare(self, context: Context, transaction: Transaction) -> None:
        """Begin Prepare."""
        self._begun = True
        self._look_up(context, transaction)
        message = BeginPrepare(*_prepared(transaction))
        origin = transaction.origin
        context.write(write_message(message), transaction.first_lsn, origin is None)
        self._origin(context, transaction, origin, transaction.origin_lsn)

    def prepare(self, context: Context, transaction: Transaction) -> None:
        """Prepare."""
        message = Prepare(*_prepared(transaction))
        context.write(write_message(message), transaction.prepared.prepare_end, True)

    def stream_prepare(self, context: Context, transaction: Transaction) -> None:
        """Stream Prepare; what the blocks have described holds from here on."""
        self._sent.update(self._described)
        message = StreamPrepare(*_prepared(transaction))
        context.write(write_message(message), transaction.prepared.prepare_end, True)

    def commit_prepared(self, context: Context, transaction: Transaction) -> None:
        """Commit Prepared."""
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
        """Rollback Prepared."""
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
        """Rows together if they are many, else one by one."""
        sending = self._sending.get(run.relation.relid)
        if sending is None:
            return True
        if sending.contradicted is not None:
            # An error of the change with which it begins.
            return False
        self._rows(context, transaction, run, sending)
        return True

    def _rows(
        self, context: Context, transaction: Transaction, run: Run, sending: Sending
    ) -> None:
        """Write the published changes of a run."""
        self._note_unsent(run, sending)
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
        """All of them column by column, if what is published is the same from the first to the
        last, and no table has changed meanwhile."""
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
        commit, first = group.numbers("commit_lsn"), group.first_lsns()
        new, rows_of = [], []
        present = np.zeros(len(commit), np.bool_)
        for run, (sent, columns) in zip(runs, shown, strict=True):
            one = sending[run.relation.relid]
            try:
                rows = published_rows(one, run.relation, run.rows)
                if self._options.binary:
                    rows = _binary(rows, run.relation, columns)
                at_commit, ordinal = (rows.column(n).to_numpy() for n in _PLACE)
                number = np.searchsorted(commit, at_commit)
                lsns = first[number] + CHANGE_BYTES * ordinal
                encoder = RowsEncoder(sent.relid, rows, columns, lsns=lsns)
            except Wal2LakeError:
                # Those before the one that it is of are sent all the same.
                return False
            self._note_unsent(run, one)
            if not rows.num_rows:
                continue
            present[number] = True
            rows_of.append(encoder)
            if self._sent.get(sent.relid) != sent:
                new.append((Lsn(int(at_commit[0])), int(ordinal[0]), sent))
        if not present.any():
            return True
        told = group.transactions.filter(pa.array(present))
        commit, first = commit[present], first[present]
        time_of, end = (told.column(n).to_numpy() for n in ("commit_time", "end_lsn"))
        sources: list[MessageSource] = [
            # The last message of a callback has a position.
            begins(
                commit,
                time_of,
                told.column("xid").to_numpy(),
                lsns=first if group.origin is None else np.zeros_like(first),
            )
        ]
        if group.origin is not None:
            at_origin = told.column("origin_lsn").fill_null(0).to_numpy()
            sources.append(origins(commit, at_origin, group.origin, lsns=first))
        # Partitions may share one.
        first_of = {
            sent.relid: (at, nth, Lsn(0), RelationMessage(sent, None))
            for at, nth, sent in sorted(new, key=itemgetter(0, 1), reverse=True)
        }
        described = sorted(first_of.values(), key=itemgetter(0, 1))
        sources += [messages(described), *rows_of]
        sources.append(commits(commit[:-1], end[:-1], time_of[:-1]))
        self._sent |= {sent.relid: sent for *_, sent in new}
        for piece in frames(sources, _now()):
            context.write_frames(piece)
        last = Commit(Lsn(int(commit[-1])), Lsn(int(end[-1])), int(time_of[-1]))
        context.write(write_message(last), last.end_lsn, True)
        return True

    def _note_unsent(self, run: Run, sending: Sending) -> None:
        """Note changes that cannot be sent. Writers through the node are refused an UPDATE without
        a replica identity; others are not, and a copy that goes its own way must be reported."""
        relation = run.relation
        if relation.key_positions or relation.relid in self._noted:
            return
        ops = {chr(op) for op in np.unique(run.rows.column("op").to_numpy())}
        if ops & {"U", "D"} & sending.operations:
            self._noted.add(relation.relid)
            said = Wal2LakeError(
                "rows that were updated or deleted in table"
                f' "{relation.namespace}.{relation.name}" are not sent',
                detail="The table does not have a replica identity.",
                hint="Set REPLICA IDENTITY using ALTER TABLE, and have subscribers copy the"
                " table again.",
            )
            get_logger().warning(said.message, error=said)

    def change(
        self,
        context: Context,
        transaction: Transaction,
        relation: Relation,
        change: DecodedChange,
    ) -> None:
        """Rows come by runs, but for those that cannot be sent."""
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
        """TRUNCATE of those that publish it."""
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
        """If the client wants them."""
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
            # PostgreSQL does not know it before the commit; once is enough.
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
        """Begin and Relation, if the client does not have them; the columns that are sent."""
        self._begin(context, transaction)
        sent, columns = _shown(relation, sending)
        known = self._sent if self._xid is None else self._described
        if known.get(sent.relid) != sent:
            known[sent.relid] = sent
            message = RelationMessage(sent, self._xid)
            context.write(write_message(message), transaction.first_lsn, False)
        return columns


def _prepared(transaction: Transaction) -> tuple[Lsn, Lsn, int, Xid, str]:
    """Return the fields of a PREPARE's messages."""
    one = transaction.prepared
    xid = Xid(one.xid)
    return one.prepare_lsn, one.prepare_end, one.prepare_time, xid, one.gid


def _shown(relation: Relation, sending: Sending) -> tuple[Relation, tuple[int, ...]]:
    """A relation as the client knows it, and which of its columns these are."""
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
    """The rows with binary values in the columns whose type has them here; the others stay
    text, which subscribers take as well."""
    for prefix, flags in (("c", "b"), ("o", "ob")):
        for i in columns:
            at = rows.schema.get_field_index(f"{prefix}{i}")
            if at < 0:
                continue
            values = rows.column(at).cast(pa.binary())
            sent = text_to_binary(values, relation.columns[i].type_oid)
            if sent is not None:
                rows = rows.set_column(at, f"{prefix}{i}", sent).append_column(
                    f"{flags}{i}", sent.is_valid()
                )
    return rows


def _now() -> int:
    return time.time_ns() // 1000 - _EPOCH_SECONDS * 1_000_000
