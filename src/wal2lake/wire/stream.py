"""The rules between messages of one connection, and the scalar reader that checks them.

In: CopyData payloads of one START_REPLICATION, in order, each a whole XLogData. Out: the
messages, or ProtocolViolation at the first one that breaks a rule. The state between two
messages is a StreamState: the relation cache, the names of user types, the open
transaction, and the end of the last commit or message outside of transactions.

    message      needs                             then
    B            no open transaction; final LSN    open
                 not 0, not below the last end
    O            to follow its B at once           open
    I U D        open; a known relation with as    open, next ordinal
                 many columns as the tuples
    T            open; known relations             open, next ordinal
    M            open, if transactional            unchanged
    M            no open transaction, if it is     the last end is its LSN
                 not; an LSN behind the last end
    R Y          nothing (a journal's preamble     unchanged; cache replaced
                 is outside of transactions)
    C            open; the Begin's final LSN;      closed
                 an end LSN behind it

wire/columnar decodes whole buffers by these rules without looking at single messages. It calls
StreamReader only to find out *which* rule the bytes that it refuses break. So both must agree;
tests/pure/test_wire_columnar.py compares them.

Sources: worker.c (texts of the violations); reference 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn, Oid, Relation, Xid
from wal2lake.wire.copyboth import XLogData, read_from_server
from wal2lake.wire.fields import violation
from wal2lake.wire.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    RelationMessage,
    Truncate,
    TupleData,
    TypeMessage,
    Update,
    message_name,
    read_message,
)

PROTOCOL: Final = 1
"""The proto_version of these rules."""

LSN_LIMIT: Final = 1 << 63
"""Positions are stored as signed 64-bit integers; no real server reaches this limit."""

_ROW_KINDS: Final = b"IUDT"


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """A relation and the names of its user-defined types, as of one Relation message."""

    relation: Relation
    type_names: Mapping[Oid, str]
    """``schema.name`` of the column types that a Type message has named."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose Commit has not arrived."""

    xid: Xid
    final_lsn: Lsn
    """The transaction's commit LSN."""
    commit_time: int
    """Microseconds since 2000-01-01 UTC."""
    origin: str | None
    origin_lsn: Lsn | None
    next_ordinal: int
    """Number of row changes and truncates so far."""
    just_begun: bool
    """The Begin was the last message: an Origin may follow."""


@dataclass(slots=True)
class StreamState:
    """The state between two messages. One reader owns and changes it."""

    relations: dict[Oid, RelationVersion] = field(default_factory=dict)
    types: dict[Oid, str] = field(default_factory=dict)
    transaction: OpenTransaction | None = None
    last_end_lsn: Lsn = INVALID_LSN
    """End of the last Commit on this connection, or of a later message outside of
    transactions; 0 before the first."""

    def copy(self) -> StreamState:
        """Return an independent copy."""
        return StreamState(
            dict(self.relations), dict(self.types), self.transaction, self.last_end_lsn
        )

    def describe(self, message: RelationMessage | TypeMessage) -> None:
        """Add a description to the caches. An equal one does not change its entry: the version
        stays the same however often the publisher repeats it."""
        if isinstance(message, TypeMessage):
            self.types[message.type_oid] = f"{message.namespace}.{message.name}"
            return
        relation = message.relation
        names = {
            column.type_oid: self.types[column.type_oid]
            for column in relation.columns
            if column.type_oid in self.types
        }
        version = RelationVersion(relation, names)
        if self.relations.get(relation.relid) != version:
            self.relations[relation.relid] = version


def read_header(payload: bytes) -> XLogData:
    """Read the payload as XLogData; any other kind is a violation."""
    header = read_from_server(payload)
    if not isinstance(header, XLogData):
        name = type(header).__name__
        raise violation(f"expected XLogData, got {name}", message=name, offset=0)
    return header


class StreamReader:
    """Reads one payload after the other. After a violation its state must not be used.

    ``skip_below``: rows of transactions with a lower commit LSN are counted but
    neither read nor returned.
    """

    def __init__(self, state: StreamState, *, skip_below: Lsn = INVALID_LSN) -> None:
        self.state = state
        self._skip_below = skip_below

    def read(self, payload: bytes) -> Message | None:
        """Return the message, or None for a skipped row. A violation's context has the LSN."""
        header = read_header(payload)
        try:
            return self._read(header.message)
        except ProtocolViolation as error:
            error.context = f"{error.context}, in XLogData at {header.start_lsn}"
            raise

    def _read(self, data: bytes) -> Message | None:
        transaction = self.state.transaction
        if (
            transaction is not None
            and transaction.final_lsn < self._skip_below
            and data[:1]
            and data[0] in _ROW_KINDS
        ):
            self._count(transaction)
            return None
        message = read_message(data, protocol=PROTOCOL)
        try:
            self._follow(message)
        except _Broken as broken:
            raise violation(
                broken.problem, message=message_name(data[0]), offset=broken.offset
            ) from None
        return message

    def _follow(self, message: Message) -> None:
        transaction = self.state.transaction
        match message:
            case Begin():
                self._begin(message)
                return
            case RelationMessage() | TypeMessage():
                self.state.describe(message)
            case LogicalMessage(transactional=False):
                self._message_outside(message)
                return
            case _ if transaction is None:
                raise _Broken("message outside of a transaction")
            case Commit():
                self._commit(transaction, message)
                return
            case Origin():
                if not transaction.just_begun:
                    raise _Broken("ORIGIN message sent out of order")
                _check_range(message.origin_lsn, "origin LSN", 1)
                transaction = replace(
                    transaction, origin=message.name, origin_lsn=message.origin_lsn
                )
            case Insert():
                self._check_tuple(message.relid, message.new)
            case Update():
                if message.old is not None:
                    self._check_tuple(message.relid, message.old.values)
                self._check_tuple(message.relid, message.new)
            case Delete():
                self._check_tuple(message.relid, message.old.values)
            case Truncate():
                for i, relid in enumerate(message.relids):
                    self._relation(relid, 6 + 4 * i)
            case LogicalMessage():
                _check_range(message.lsn, "LSN", 2)
        if transaction is not None:
            counts = isinstance(message, Insert | Update | Delete | Truncate)
            self.state.transaction = replace(
                transaction,
                next_ordinal=transaction.next_ordinal + counts,
                just_begun=False,
            )

    def _begin(self, message: Begin) -> None:
        if self.state.transaction is not None:
            raise _Broken("BEGIN message inside of a transaction")
        _check_range(message.final_lsn, "final_lsn", 1)
        if message.final_lsn < self.state.last_end_lsn:
            raise _Broken(
                f"final_lsn {message.final_lsn} in begin message is before the end "
                f"of the previous transaction, {self.state.last_end_lsn}",
                1,
            )
        self.state.transaction = OpenTransaction(
            message.xid, message.final_lsn, message.commit_time, None, None, 0, True
        )

    def _commit(self, transaction: OpenTransaction, message: Commit) -> None:
        if message.commit_lsn != transaction.final_lsn:
            raise _Broken(
                f"incorrect commit LSN {message.commit_lsn} in commit message "
                f"(expected {transaction.final_lsn})",
                2,
            )
        _check_range(message.end_lsn, "end_lsn", 10)
        if message.end_lsn <= message.commit_lsn:
            raise _Broken(
                f"end_lsn {message.end_lsn} in commit message is not after "
                f"commit_lsn {message.commit_lsn}",
                10,
            )
        self.state.transaction = None
        self.state.last_end_lsn = message.end_lsn

    def _message_outside(self, message: LogicalMessage) -> None:
        if self.state.transaction is not None:
            raise _Broken("non-transactional message inside of a transaction", 1)
        _check_range(message.lsn, "LSN", 2)
        if message.lsn <= self.state.last_end_lsn:
            raise _Broken(
                f"LSN {message.lsn} of a non-transactional message is not after the "
                f"previous end, {self.state.last_end_lsn}",
                2,
            )
        self.state.last_end_lsn = message.lsn

    def _count(self, transaction: OpenTransaction) -> None:
        self.state.transaction = replace(
            transaction, next_ordinal=transaction.next_ordinal + 1, just_begun=False
        )

    def _relation(self, relid: Oid, offset: int) -> Relation:
        version = self.state.relations.get(relid)
        if version is None:
            raise _Broken(
                f"no relation map entry for remote relation ID {int(relid)}", offset
            )
        return version.relation

    def _check_tuple(self, relid: Oid, values: TupleData) -> None:
        expected = len(self._relation(relid, 1).columns)
        if len(values) < expected:
            raise _Broken(
                f"logical replication column {len(values)} not found in tuple: "
                f"only {len(values)} column(s) received"
            )
        if len(values) > expected:
            raise _Broken(
                f"{len(values)} columns received for a relation of {expected}"
            )


class _Broken(Exception):
    """A broken rule; StreamReader adds the message's name."""

    def __init__(self, problem: str, offset: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset


def _check_range(lsn: Lsn, what: str, offset: int) -> None:
    if lsn >= LSN_LIMIT:
        raise _Broken(f"{what} {lsn} is out of range", offset)
