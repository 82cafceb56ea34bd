"""Describes a transaction that arrives before it commits, and its outcome.

In: from streams.py, the Relation and Type messages of a stream and which of its
subtransactions are rolled back. Out: an OpenStream, the relation cache of one stream; and the
events that a StreamDecoder makes of a run, in stream order:

    Decoded                what committed in the usual way (decoder.py)
    Streamed               rows and messages of a transaction whose end is to come
    StreamAborted          one of its subtransactions, or all of it, is rolled back
    StreamCommitted        it has committed
    Prepared               it, or a transaction that came whole, is prepared
    PreparedCommitted      COMMIT PREPARED
    PreparedRolledBack     ROLLBACK PREPARED

A Relation message belongs to the subtransaction whose xid it carries: when that is rolled back,
what was valid before it holds again (the publisher sends a new one, too). A relation that is
described by several subtransactions in the same words is kept once, with all their xids.

Everything here is immutable: a feed that is refused leaves nothing behind.

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
"""Object that a message describes: (it is a type, OID)."""

_TYPE: Final = ord("Y")


@dataclass(frozen=True, slots=True)
class StreamedDefinition:
    """A Relation or Type message of a stream."""

    message: bytes
    """From its kind on, without the xid."""
    sent: int
    """The publisher's clock when it was sent."""
    xids: frozenset[int]
    """The subtransactions that have sent it."""

    @property
    def described(self) -> Described:
        """The object that the definition describes."""
        oid = Oid(int.from_bytes(self.message[1:5], "big"))
        return self.message[0] == _TYPE, oid

    def read(self) -> RelationMessage | TypeMessage:
        """The message as a value."""
        found = read_message(self.message)
        if not isinstance(found, RelationMessage | TypeMessage):
            raise InternalError("a description was read as something else")
        return found


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
    """True if the first block is missing: only the descriptions count, which are the connection's
    once the transaction commits."""
    next_ordinal: int = 0
    """Row changes and truncates seen so far, those rolled back included."""
    latest: tuple[int, ...] = ()
    """The subtransactions of the last changes, none rolled back, the last one last."""
    definitions: Definitions = field(default_factory=dict)
    state: StreamState = field(default_factory=StreamState)
    """The caches that follow from ``definitions``."""

    def defined(
        self, added: list[StreamedDefinition], state: StreamState
    ) -> OpenStream:
        """With these descriptions behind the others; ``state`` has them already."""
        if not added:
            return self
        definitions = dict(self.definitions)
        for one in added:
            before = definitions.get(one.described, ())
            if before and before[-1].message == one.message:
                xids = before[-1].xids | one.xids
                before, one = before[:-1], replace(one, xids=xids)
            definitions[one.described] = (*before, one)
        return replace(self, definitions=definitions, state=state)

    def without(self, xid: Xid) -> OpenStream:
        """After a subtransaction was rolled back."""
        if xid in self.latest:
            latest = tuple(x for x in self.latest if x != xid)
            return replace(self, latest=latest).without(xid)
        definitions: dict[Described, tuple[StreamedDefinition, ...]] = {}
        changed = False
        for described, versions in self.definitions.items():
            left = versions
            if any(xid in one.xids for one in versions):
                changed = True
                left = tuple(
                    replace(one, xids=one.xids - {xid})
                    for one in versions
                    if one.xids != {xid}
                )
            if left:
                definitions[described] = left
        if not changed:
            return self
        return replace(self, definitions=definitions, state=caches(definitions))


def caches(definitions: Definitions) -> StreamState:
    """The relation and type caches that hold after these descriptions."""
    state = StreamState()
    for _, versions in sorted(definitions.items(), key=lambda item: not item[0][0]):
        state.describe(versions[-1].read())
    return state


@dataclass(frozen=True, slots=True)
class Streamed:
    """Rows and messages of one transaction, in stream order. The first has none: it says
    that the transaction has begun."""

    stream: OpenStream
    """The stream behind these rows."""
    blocks: list[ChangeBlock]
    """The log layout with ``xid`` (int64, the subtransaction) in place of commit_lsn."""
    messages: Any
    """None, or a pyarrow.RecordBatch of STREAMED_MESSAGES_SCHEMA."""
    whole: bool
    """They stand between Begin Prepare and Prepare: the rest follows at once."""


@dataclass(frozen=True, slots=True)
class StreamAborted:
    """A subtransaction is rolled back; ``subxid == xid``: all of it."""

    xid: Xid
    subxid: Xid
    stream: OpenStream | None
    """The stream as it is now; None: it is over, or nothing of it is known."""


@dataclass(frozen=True, slots=True)
class StreamCommitted:
    """A streamed transaction has committed."""

    xid: Xid
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    stream: OpenStream | None
    """The stream that has ended; None: its blocks are not here."""


@dataclass(frozen=True, slots=True)
class StreamPrepared:
    """A transaction is prepared, streamed before or not."""

    xid: Xid
    gid: str
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    stream: OpenStream | None
    """The stream that has ended; None: its changes are not here."""


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
