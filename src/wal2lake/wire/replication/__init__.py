"""Replication commands, text to values and back, and the server's side of CopyBoth.

Takes: the text of a simple query; a client's frames. Gives: a frozen dataclass, or the error that a
walsender raises, and the text again; the client's positions and the answers. Owns: nothing. Never:
carries a command out. A text for which ``is_replication_command`` is false is SQL.

    commands         the grammar; start here
    scanner          its tokens
    slotoptions, pgoutputoptions   the options in parentheses
    conversation     a client's frames while changes are sent to the client
"""

from __future__ import annotations

from wal2lake.wire.replication.commands import (
    AlterReplicationSlot,
    BaseBackup,
    Command,
    CreateReplicationSlot,
    DropReplicationSlot,
    IdentifySystem,
    ReadReplicationSlot,
    Show,
    StartLogical,
    StartPhysical,
    TimelineHistory,
    UploadManifest,
    is_replication_command,
    read_command,
    write_command,
)
from wal2lake.wire.replication.conversation import (
    FAREWELL,
    TIMEOUT_TEXT,
    ClientPositions,
    Conversation,
    ConversationEvent,
)
from wal2lake.wire.replication.pgoutputoptions import (
    OriginFilter,
    PgoutputOptions,
    Streaming,
    read_pgoutput_options,
    write_pgoutput_options,
)
from wal2lake.wire.replication.slotoptions import (
    CreateOptions,
    Option,
    SnapshotAction,
    validate_slot_name,
)

__all__ = [
    "FAREWELL",
    "TIMEOUT_TEXT",
    "AlterReplicationSlot",
    "BaseBackup",
    "ClientPositions",
    "Command",
    "Conversation",
    "ConversationEvent",
    "CreateOptions",
    "CreateReplicationSlot",
    "DropReplicationSlot",
    "IdentifySystem",
    "Option",
    "OriginFilter",
    "PgoutputOptions",
    "ReadReplicationSlot",
    "Show",
    "SnapshotAction",
    "StartLogical",
    "StartPhysical",
    "Streaming",
    "TimelineHistory",
    "UploadManifest",
    "is_replication_command",
    "read_command",
    "read_pgoutput_options",
    "validate_slot_name",
    "write_command",
    "write_pgoutput_options",
]
