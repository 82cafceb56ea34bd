"""State and events of transactions that are sent before they commit.

In: from streams.py, the Relation and Type messages of a stream and the rollbacks of its
subtransactions. Out: an OpenStream, the relation cache of one stream; and the events that a
StreamDecoder makes of a run, in stream order:

    Decoded                changes of transactions sent after their commit (decoder.py)
    Streamed               rows and messages of a transaction that has not ended
    StreamAborted          one of its subtransactions, or all of it, is rolled back
    StreamCommitted        it has committed
    StreamPrepared         it, or a transaction that was sent whole, is prepared
    PreparedCommitted      COMMIT PREPARED
    PreparedRolledBack     ROLLBACK PREPARED

A Relation message belongs to the subtransaction whose xid it has. When that is rolled back, the
earlier description is in force again (the publisher sends a new one, too). If several
subtransactions describe a relation identically, the description is kept once, with all xids.

All values are immutable, so a feed that is refused changes nothing.

Sources: cleanup_rel_sync_cache() and get_schema_sent_in_streamed_txn() in
src/backend/replication/pgoutput/pgoutput.c; reference 4.4, 4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wal2lake.errors import InternalError
from wal2lake.model import Lsn, Oid, Xid
from wal2lake.wire.columnar.blocks import ChangeBlock
from wal2lake.wire.pgoutput import RelationMessage, TypeMessage, read_message
from wal2lake.wire.stream import StreamState

Described = tuple[bool, Oid]
"""Object that a message describes: (whether it is a type, OID)."""

_TYPE: Final = ord("Y")


@dataclass(frozen=True, slots=True)
class StreamedDefinition:
    """A Relation or Type message of a stream."""

    message: bytes
    """The message from its kind on, without the xid."""
    sent: int
    """The publisher's clock when it sent the message."""
    xids: frozenset[int]
    """The subtransactions that have the message."""

    @property
    def described(self) -> Described:
        """The object that the definition describes."""
        oid = Oid(int.from_bytes(self.message[1:5], "big"))
        return self.message[0] == _TYPE, oid

    def read(self) -> RelationMessage | TypeMessage:
        """Decode the message."""
        message = read_message(self.message)
        if not isinstance(message, RelationMessage | TypeMessage):
            raise InternalError("a description was read as something else")
        return message


Definitions = Mapping[Described, tuple[StreamedDefinition, ...]]
"""Definitions of each relation and type that are not rolled back, oldest first."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A transaction that is being streamed."""

    xid: Xid
    origin: str | None = None
    just_begun: bool = False
    """The first Stream Start was the last message: an Origin may follow."""
    lost: bool = False
    """True if the first block is missing. Then only descriptions count, which become the
    connection's when the transaction commits."""
    next_ordinal: int = 0
    """Number of row changes and truncates so far, including those rolled back."""
    latest: tuple[int, ...] = ()
    """The subtransactions of the last changes that are not rolled back, the latest one last."""
    definitions: Definitions = field(default_factory=dict)
    state: StreamState = field(default_factory=StreamState)
    """The caches that follow from ``definitions``."""

    def defined(
        self, added: list[StreamedDefinition], state: StreamState
    ) -> OpenStream:
        """Add descriptions after the others; ``state`` includes them already."""
        if not added:
            return self
        definitions = dict(self.definitions)
        for definition in added:
            before = definitions.get(definition.described, ())
            if before and before[-1].message == definition.message:
                xids = before[-1].xids | definition.xids
                before, definition = before[:-1], replace(definition, xids=xids)
            definitions[definition.described] = (*before, definition)
        return replace(self, definitions=definitions, state=state)

    def without(self, xid: Xid) -> OpenStream:
        """Return the stream after the rollback of a subtransaction."""
        if xid in self.latest:
            latest = tuple(x for x in self.latest if x != xid)
            return replace(self, latest=latest).without(xid)
        definitions: dict[Described, tuple[StreamedDefinition, ...]] = {}
        changed = False
        for described, versions in self.definitions.items():
            left = versions
            if any(xid in version.xids for version in versions):
                changed = True
                left = tuple(
                    replace(version, xids=version.xids - {xid})
                    for version in versions
                    if version.xids != {xid}
                )
            if left:
                definitions[described] = left
        if not changed:
            return self
        return replace(self, definitions=definitions, state=caches(definitions))


def caches(definitions: Definitions) -> StreamState:
    """Build the relation and type caches that are in force after these descriptions."""
    state = StreamState()
    for _, versions in sorted(definitions.items(), key=lambda item: not item[0][0]):
        state.describe(versions[-1].read())
    return state


@dataclass(frozen=True, slots=True)
class Streamed:
    """Rows and messages of one transaction, in stream order. The first event of a transaction has
    none: it marks the beginning."""

    stream: OpenStream
    """State of the stream after these rows."""
    blocks: list[ChangeBlock]
    """The log layout with ``xid`` (int64, the subtransaction) in place of commit_lsn."""
    messages: Any
    """None, or a pyarrow.RecordBatch of STREAMED_MESSAGES_SCHEMA."""
    whole: bool
    """The rows are between Begin Prepare and Prepare: the rest follows at once."""


@dataclass(frozen=True, slots=True)
class StreamAborted:
    """A subtransaction is rolled back; ``subxid == xid``: all of it."""

    xid: Xid
    subxid: Xid
    stream: OpenStream | None
    """State of the stream after the rollback; None: it has ended, or is not known."""


@dataclass(frozen=True, slots=True)
class StreamCommitted:
    """A streamed transaction has committed."""

    xid: Xid
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    stream: OpenStream | None
    """The stream that has ended; None: its blocks are not available."""


@dataclass(frozen=True, slots=True)
class StreamPrepared:
    """A transaction is prepared, whether it was streamed before or not."""

    xid: Xid
    gid: str
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    stream: OpenStream | None
    """The stream that has ended; None: its changes are not available."""


@dataclass(frozen=True, slots=True)
class PreparedCommitted:
    """COMMIT PREPARED."""

    xid: Xid
    gid: str
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class PreparedRolledBack:
    """ROLLBACK PREPARED."""

    xid: Xid
    gid: str
    prepare_end_lsn: Lsn
    end_lsn: Lsn
