"""pgoutput, protocols 1 to 4: decoding and encoding of one message.

In: the whole payload of one XLogData. Out: a frozen dataclass; or ProtocolViolation for
bytes that PostgreSQL would not send: unknown kinds, flags, lengths, trailing bytes.
``read_message(write_message(m))`` is ``m`` for every message.

The layouts are in transactions.py (B C O S E c A b P K r p) and datamessages.py (R Y I U D T M),
readers below writers. This module is the table of kinds: which protocol introduces a kind, and
whether the kind may occur inside a stream block. wire/stream.py has the rules between messages (a
change needs a Begin, a tuple needs its relation).

Sources: PostgreSQL manual 54.9 ("Logical Replication Message Formats"); proto.c;
worker.c for the texts about stream blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from wal2lake.errors import ProtocolViolation
from wal2lake.model import Xid
from wal2lake.wire.fields import FieldReader, violation, written
from wal2lake.wire.pgoutput import datamessages as changes
from wal2lake.wire.pgoutput import transactions
from wal2lake.wire.pgoutput.datamessages import (
    Delete,
    Insert,
    LogicalMessage,
    RelationMessage,
    Truncate,
    TypeMessage,
    Update,
)
from wal2lake.wire.pgoutput.transactions import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)

PROTOCOL_MAX: Final = 4
"""The newest proto_version (since PostgreSQL 16); PostgreSQL 19 has no newer one."""

Message: TypeAlias = (
    Begin
    | Commit
    | Origin
    | RelationMessage
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)


@dataclass(frozen=True, slots=True)
class _Change:
    """A kind that begins with its subtransaction's xid inside a stream block."""

    name: str
    read: Callable[[FieldReader, Xid | None], Message]


@dataclass(frozen=True, slots=True)
class _Control:
    """A kind that does not begin with an xid."""

    name: str
    protocol: int
    """The first protocol that has the kind."""
    read: Callable[[FieldReader], Message]
    in_stream: bool = False
    """The kind may occur inside a stream block."""


_CHANGES: Final = {
    ord("R"): _Change("RELATION", changes.read_relation),
    ord("Y"): _Change("TYPE", changes.read_type),
    ord("I"): _Change("INSERT", changes.read_insert),
    ord("U"): _Change("UPDATE", changes.read_update),
    ord("D"): _Change("DELETE", changes.read_delete),
    ord("T"): _Change("TRUNCATE", changes.read_truncate),
    ord("M"): _Change("MESSAGE", changes.read_logical_message),
}


def _read_stream_abort(fields: FieldReader) -> Message:
    return transactions.read_stream_abort(fields, parallel=False)


_CONTROLS: Final = {
    ord("B"): _Control("BEGIN", 1, transactions.read_begin),
    ord("C"): _Control("COMMIT", 1, transactions.read_commit),
    ord("O"): _Control("ORIGIN", 1, transactions.read_origin, in_stream=True),
    ord("S"): _Control("STREAM START", 2, transactions.read_stream_start),
    ord("E"): _Control("STREAM STOP", 2, transactions.read_stream_stop, in_stream=True),
    ord("c"): _Control("STREAM COMMIT", 2, transactions.read_stream_commit),
    ord("A"): _Control("STREAM ABORT", 2, _read_stream_abort),
    ord("b"): _Control("BEGIN PREPARE", 3, transactions.read_begin_prepare),
    ord("P"): _Control("PREPARE", 3, transactions.read_prepare),
    ord("K"): _Control("COMMIT PREPARED", 3, transactions.read_commit_prepared),
    ord("r"): _Control("ROLLBACK PREPARED", 3, transactions.read_rollback_prepared),
    ord("p"): _Control("STREAM PREPARE", 3, transactions.read_stream_prepare),
}

_WRITERS: Final[dict[type[Any], Callable[[Any], bytes]]] = {
    Begin: transactions.write_begin,
    Commit: transactions.write_commit,
    Origin: transactions.write_origin,
    RelationMessage: changes.write_relation,
    TypeMessage: changes.write_type,
    Insert: changes.write_insert,
    Update: changes.write_update,
    Delete: changes.write_delete,
    Truncate: changes.write_truncate,
    LogicalMessage: changes.write_logical_message,
    StreamStart: transactions.write_stream_start,
    StreamStop: transactions.write_stream_stop,
    StreamCommit: transactions.write_stream_commit,
    StreamAbort: transactions.write_stream_abort,
    BeginPrepare: transactions.write_begin_prepare,
    Prepare: transactions.write_prepare,
    CommitPrepared: transactions.write_commit_prepared,
    RollbackPrepared: transactions.write_rollback_prepared,
    StreamPrepare: transactions.write_stream_prepare,
}


def write_message(message: Message) -> bytes:
    """Encode one message; InternalError if a value does not fit its field."""
    return written(_WRITERS[type(message)], message)


def read_message(
    data: bytes,
    *,
    in_stream: bool = False,
    parallel: bool = False,
    protocol: int = PROTOCOL_MAX,
) -> Message:
    """Decode one whole message; raises ProtocolViolation with its name and the byte offset.

    ``in_stream``: the message is between Stream Start and Stream Stop, where changes begin with
    an xid. ``parallel``: streaming was started with ``streaming 'parallel'``, where Stream Abort
    has LSN and time. ``protocol``: the requested proto_version; kinds of newer ones are refused.
    """
    if not data:
        raise violation("insufficient data left in message", message="", offset=0)
    fields = FieldReader(data, "")
    fields.offset = 1
    message: Message
    if change := _CHANGES.get(data[0]):
        fields.name = change.name
        message = change.read(fields, _subxid(fields) if in_stream else None)
    elif (control := _CONTROLS.get(data[0])) and control.protocol <= protocol:
        fields.name = control.name
        if in_stream and not control.in_stream:
            raise fields.violation(
                "duplicate STREAM START message"
                if control.name == "STREAM START"
                else f"{control.name} message without STREAM STOP",
                position=0,
            )
        if control.name == "STREAM STOP" and not in_stream:
            raise fields.violation(
                "STREAM STOP message without STREAM START", position=0
            )
        if control.name == "STREAM ABORT" and parallel:
            message = transactions.read_stream_abort(fields, parallel=True)
        else:
            message = control.read(fields)
    else:
        raise _unknown(data[0])
    fields.end()
    return message


def _subxid(fields: FieldReader) -> Xid:
    xid = fields.xid()
    if not xid:
        raise fields.violation(
            "invalid transaction ID in streamed replication transaction",
            position=fields.offset - 4,
        )
    return xid


def message_name(kind: int) -> str:
    """Return the name of a message kind in PostgreSQL's error contexts."""
    entry = _CHANGES.get(kind) or _CONTROLS.get(kind)
    return entry.name if entry else f"??? ({kind})"


def _unknown(kind: int) -> ProtocolViolation:
    name = f"??? ({kind})"
    return violation(
        f'invalid logical replication message type "{name}"', message=name, offset=0
    )
