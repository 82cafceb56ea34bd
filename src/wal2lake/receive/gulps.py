"""Divides the messages of one read of the socket into changes and keepalives. Pure.

In: CopyData payloads. Out: the changes, for the log, with the facts that the reader needs before
the changes are decoded; the keepalives.

Called by the reader for each read. Only keepalives are handled one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.errors import ProtocolViolation
from wal2lake.model import Relation
from wal2lake.pg import CopyDataPayloads
from wal2lake.wire.copyboth import (
    XLOGDATA_HEADER,
    Keepalive,
    XLogData,
    read_from_server,
)
from wal2lake.wire.fields import violation
from wal2lake.wire.pgoutput import RelationMessage, read_message
from wal2lake.wire.stream import read_header

_XLOGDATA: Final = ord("w")

_ENDS: Final = b"CEcAPpKr"
"""Kinds of messages after which no transaction is open. A transaction between two blocks of its
stream does not count as open: the publisher will send it again."""
_MESSAGE: Final = ord("M")
_START: Final = ord("S")
_STOP: Final = ord("E")

_DESCRIBES: Final = np.zeros(256, np.bool_)
_DESCRIBES[list(b"RSE")] = True
"""Relation, and the messages that determine whether a Relation has an xid."""


@dataclass(frozen=True, slots=True)
class Gulp:
    """Concatenated payloads of changes."""

    data: bytes
    lengths: Lengths
    open_at_end: bool
    """Whether a transaction has begun on the wire and not ended."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The contents of one read."""

    gulp: Gulp | None
    newest: XLogData | None
    """Header of the gulp's last message, without the message itself."""
    keepalives: tuple[Keepalive, ...]


def divide(payloads: CopyDataPayloads, *, is_open: bool) -> Taken:
    """Divide payloads. ``is_open``: whether a transaction is open before them.

    Raises ProtocolViolation for an empty payload, and for one that is neither a keepalive nor
    XLogData. Other violations are detected when the gulp is decoded."""
    lengths = np.array(payloads.sizes, np.uint32)
    if not lengths.all():
        raise violation("insufficient data left in message", message="", offset=0)
    ends = np.cumsum(lengths, dtype=np.int64)
    view = memoryview(payloads.data)
    first = np.frombuffer(view, np.uint8)[ends - lengths]
    special = np.flatnonzero(first != _XLOGDATA)
    keepalives, changes, begin = [], [], 0
    for i in special.tolist():
        end = int(ends[i])
        start = end - int(lengths[i])
        message = read_from_server(bytes(view[start:end]))
        if isinstance(message, Keepalive):
            keepalives.append(message)
        changes.append(view[begin:start])
        begin = end
    # The only copy of data that may be megabytes.
    data = b"".join((*changes, view[begin:]))
    lengths = np.delete(lengths, special)
    if not len(lengths):
        return Taken(None, None, tuple(keepalives))
    last = len(data) - int(lengths[-1])
    newest = read_header(data[last : last + XLOGDATA_HEADER])
    gulp = Gulp(data, lengths, _open_at_end(data, lengths, is_open))
    return Taken(gulp, newest, tuple(keepalives))


def _open_at_end(data: bytes, lengths: Lengths, before: bool) -> bool:
    """Whether a transaction is open after a gulp. Only the messages in ``_ENDS``, such as Commit,
    end one. Logical messages may be inside or between transactions and change nothing."""
    end = len(data)
    # Usually one step, so numbers are taken from the array one by one.
    for length in lengths[::-1]:
        end -= int(length)
        kind = data[end + XLOGDATA_HEADER] if length > XLOGDATA_HEADER else None
        if kind != _MESSAGE:
            return kind is None or kind not in _ENDS
    return before


def read_relations(gulp: Gulp, *, in_block: bool) -> tuple[list[Relation], bool]:
    """Read the gulp's Relation messages. Return them, and whether a stream block is open after the
    gulp. ``in_block``: whether one is open before the gulp. Malformed messages are left out: the
    decoder reports them."""
    sizes = gulp.lengths.astype(np.int64)
    ends = np.cumsum(sizes)
    whole = np.flatnonzero(sizes > XLOGDATA_HEADER)
    bodies = (ends - sizes)[whole] + XLOGDATA_HEADER
    kinds = np.frombuffer(gulp.data, np.uint8)[bodies]
    relations = []
    for i in np.flatnonzero(_DESCRIBES[kinds]).tolist():
        if kinds[i] in (_START, _STOP):
            in_block = bool(kinds[i] == _START)
            continue
        body = gulp.data[int(bodies[i]) : int(ends[whole[i]])]
        try:
            message = read_message(body, in_stream=in_block)
        except ProtocolViolation:
            continue
        if isinstance(message, RelationMessage):
            relations.append(message.relation)
    return relations, in_block
