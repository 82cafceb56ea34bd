"""Divides the messages of one read of the socket by their readers. Pure. Pure.

In: CopyData payloads. Out: the changes among them, for the log, with what the reader must know of
them before anybody decodes them; keepalives.

Called by the reader for each read: no step for a single message but where it is a keepalive.
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
"""Kinds behind which nothing is open that would come to an end with later messages. A
transaction between two blocks of its stream is none: it will be sent again."""
_MESSAGE: Final = ord("M")
_START: Final = ord("S")
_STOP: Final = ord("E")

_DESCRIBES: Final = np.zeros(256, np.bool_)
_DESCRIBES[list(b"RSE")] = True
"""Relation, and what says whether one has an xid."""


@dataclass(frozen=True, slots=True)
class Gulp:
    """Payloads of changes, one after the other."""

    data: bytes
    lengths: Lengths
    open_at_end: bool
    """A transaction has begun on the wire and not ended."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One read."""

    gulp: Gulp | None
    newest: XLogData | None
    """Header of the gulp's last message; its message is left out."""
    keepalives: tuple[Keepalive, ...]


def divide(payloads: CopyDataPayloads, *, is_open: bool) -> Taken:
    """``is_open``: a transaction is open before them. ProtocolViolation for what is empty, and
    for what is neither a keepalive nor begins as XLogData; more is found out when the gulp is
    decoded."""
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
    # The one copy of what may be megabytes.
    data = b"".join((*changes, view[begin:]))
    lengths = np.delete(lengths, special)
    if not len(lengths):
        return Taken(None, None, tuple(keepalives))
    last = len(data) - int(lengths[-1])
    newest = read_header(data[last : last + XLOGDATA_HEADER])
    gulp = Gulp(data, lengths, _open_at_end(data, lengths, is_open))
    return Taken(gulp, newest, tuple(keepalives))


def _open_at_end(data: bytes, lengths: Lengths, before: bool) -> bool:
    """Whether a transaction is open behind a gulp. Only a Commit ends one, or what else
    ``_ENDS`` has, and logical messages, inside and between transactions, change nothing."""
    end = len(data)
    # One step as a rule: numbers are taken out of the array one by one.
    for length in lengths[::-1]:
        end -= int(length)
        kind = data[end + XLOGDATA_HEADER] if length > XLOGDATA_HEADER else None
        if kind != _MESSAGE:
            return kind is None or kind not in _ENDS
    return before


def described(gulp: Gulp, *, in_block: bool) -> tuple[list[Relation], bool]:
    """Read the gulp's Relation messages. Return them, and whether a stream block is open behind the
    gulp; ``in_block``: whether one is open before it. A message that is not well-formed is left
    out: the decoder reports it."""
    sizes = gulp.lengths.astype(np.int64)
    ends = np.cumsum(sizes)
    whole = np.flatnonzero(sizes > XLOGDATA_HEADER)
    bodies = (ends - sizes)[whole] + XLOGDATA_HEADER
    kinds = np.frombuffer(gulp.data, np.uint8)[bodies]
    found = []
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
            found.append(message.relation)
    return found, in_block
