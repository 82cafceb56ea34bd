"""pgoutput, protocols 1 to 4, message by message.

Takes: the payload of an XLogData. Gives: a frozen dataclass, and the reverse. Owns: nothing. Never:
the rules between messages, which wire/stream has. This is the scalar path, written for clarity;
wire/columnar decodes rows fast.

    messages      the table of kinds; start here
    transactions  the layouts of transactions, prepared and streamed ones too
    datamessages  the layouts of relations, types, rows, truncates and logical messages
"""

from __future__ import annotations

from wal2lake.wire.pgoutput.datamessages import (
    UNCHANGED,
    BinaryValue,
    Delete,
    Insert,
    LogicalMessage,
    OldKind,
    OldTuple,
    RelationMessage,
    Truncate,
    TupleData,
    TypeMessage,
    Unchanged,
    Update,
    Value,
)
from wal2lake.wire.pgoutput.messages import (
    PROTOCOL_MAX,
    Message,
    message_name,
    read_message,
    write_message,
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

__all__ = [
    "PROTOCOL_MAX",
    "UNCHANGED",
    "Begin",
    "BeginPrepare",
    "BinaryValue",
    "Commit",
    "CommitPrepared",
    "Delete",
    "Insert",
    "LogicalMessage",
    "Message",
    "OldKind",
    "OldTuple",
    "Origin",
    "Prepare",
    "RelationMessage",
    "RollbackPrepared",
    "StreamAbort",
    "StreamCommit",
    "StreamPrepare",
    "StreamStart",
    "StreamStop",
    "Truncate",
    "TupleData",
    "TypeMessage",
    "Unchanged",
    "Update",
    "Value",
    "message_name",
    "read_message",
    "write_message",
]
