"""Finds the facts that the journal needs of its messages, without decoding them.

A *gulp* is the result of one read of the socket: CopyData payloads back to back, each a whole
XLogData ("w", 24 bytes, one pgoutput message), and their lengths. NumPy looks at one byte of
each message. The bodies of Relation, Type and logical messages are read, of the last Begin and
the last Commit, and of the messages that protocols 2 to 4 add. The journal treats a logical message
outside of transactions as a transaction of its own that ends at its LSN, and likewise a message
that ends a streamed or prepared transaction. A kind that was not requested is only reported: the
journal refuses it, but recovery can find it in journals of versions that did not.

Called by the journal's thread for each append and by recovery.

Source: PostgreSQL manual, "Streaming Replication Protocol" (XLogData) and "Logical
Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wal2lake.errors import ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.fields import violation
from wal2lake.wire.stream import StreamReader, StreamState, read_header

Lengths = npt.NDArray[np.uint32]

KINDS: Final = b"BCORYIUDTM"
"""Kinds of messages in protocol 1."""
STREAM_KINDS: Final = b"SEcA"
"""Kinds that ``streaming`` adds; together with ``two_phase`` also p."""
TWO_PHASE_KINDS: Final = b"bPKr"
"""Kinds that ``two_phase`` adds."""

_XLOGDATA: Final = ord("w")
_BEGIN: Final = ord("B")
_COMMIT: Final = ord("C")
_RELATION: Final = ord("R")
_TYPE: Final = ord("Y")
_MESSAGE: Final = ord("M")
_START: Final = ord("S")
_STOP: Final = ord("E")

_XID_BYTES: Final = 4
_SEND_TIME: Final = 17
_ABORT: Final = ord("A")
_STREAM_COMMIT: Final = ord("c")

_END_LSN: Final = {ord("c"): 14, ord("P"): 10, ord("p"): 10, ord("K"): 10, ord("r"): 10}
"""Byte position of the end LSN in messages that end a streamed or prepared transaction."""
_NEED: Final = {
    ord("S"): 6,
    ord("c"): 30,
    ord("A"): 9,
    ord("b"): 30,
    ord("P"): 31,
    ord("p"): 31,
    ord("K"): 31,
    ord("r"): 39,
}
"""Minimum length in bytes of each kind."""

_LATER: Final = np.zeros(256, np.bool_)
_LATER[list(b"SEcAbPpKr")] = True
"""Kinds that protocol 1 does not have."""

Foreign = npt.NDArray[np.bool_]


def foreign_kinds(*, streaming: bool = True, two_phase: bool = True) -> Foreign:
    """Return by kind whether a publisher must not send it with these options."""
    foreign = np.ones(256, np.bool_)
    foreign[list(KINDS)] = False
    if streaming:
        foreign[list(STREAM_KINDS)] = False
    if two_phase:
        foreign[list(TWO_PHASE_KINDS)] = False
    foreign[ord("p")] = not (streaming and two_phase)
    return foreign


_FOREIGN: Final = foreign_kinds()


@dataclass(frozen=True, slots=True)
class LoggedDefinition:
    """A whole Relation or Type message."""

    is_type: bool
    oid: Oid
    payload: bytes
    """The message in its form outside of a stream block: without the xid."""
    xid: int = 0
    """The streamed transaction of the message; 0: none."""
    subxid: int = 0
    """The subtransaction of the message."""

    @property
    def sent(self) -> bytes:
        """The publisher's clock when it sent the message; comparable with other messages."""
        return self.payload[_SEND_TIME:XLOGDATA_HEADER]


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a streamed transaction or of one of its subtransactions."""

    xid: int
    subxid: int
    """Equal to ``xid`` for the whole transaction."""
    committed: bool
    """True if its definitions are in force from now on; otherwise they are dropped."""


@dataclass(frozen=True, slots=True)
class TransactionPositions:
    """Positions at which transactions begin and end in a gulp."""

    last_begin: Lsn
    """Commit LSN announced by the last Begin; 0: there is no Begin. For a later message outside
    of transactions, or the end of a streamed or prepared one, a position just below its LSN."""
    last_end: Lsn
    """End LSN in the last Commit, or LSN of a later message outside of transactions; 0:
    there is neither."""
    definitions: tuple[LoggedDefinition | StreamEnd, ...]
    """Definitions, and the ends of streams, in the order of arrival."""
    foreign: int | None = None
    """Number of the first payload that is not a requested message; None: there is none."""
    block: bytes | None = None
    """Payload of the Stream Start whose block is open at the end of the gulp."""


def find_positions(
    data: bytes,
    lengths: Lengths,
    block: bytes | None = None,
    refused: Foreign = _FOREIGN,
) -> TransactionPositions:
    """Find the positions in one gulp; raises ProtocolViolation for a truncated message.

    ``block`` is the payload of the Stream Start whose block is open before the gulp. ``refused``
    has the foreign kinds.
    """
    kinds, bodies = _kinds(data, lengths, refused)
    strange = np.flatnonzero(refused[kinds])
    foreign = int(strange[0]) if strange.size else None
    if foreign is None and (block is not None or bool(_LATER[kinds].any())):
        return _find_with_streams(data, lengths, kinds, bodies, block)
    begin = _last(kinds, _BEGIN)
    commit = _last(kinds, _COMMIT)
    last_begin = last_end = INVALID_LSN
    if begin is not None:
        last_begin = _lsn(data, int(bodies[begin]) + 1)
    if commit is not None:
        # Int8 flags, Int64 commit LSN, Int64 end LSN
        last_end = _lsn(data, int(bodies[commit]) + 10)
    outside = np.flatnonzero(_outside(data, kinds, bodies))
    if outside.size:
        # Int8 flags, Int64 LSN. A transaction that begins later commits at this LSN or above.
        lsn = _lsn(data, int(bodies[outside[-1]]) + 2)
        last_begin = max(last_begin, Lsn(max(lsn - 1, 0)))
        last_end = max(last_end, lsn)
    marks = np.flatnonzero((kinds == _RELATION) | (kinds == _TYPE))
    if not marks.size:
        return TransactionPositions(last_begin, last_end, (), foreign)
    ends = np.cumsum(lengths, dtype=np.int64)
    definitions = []
    for i in marks.tolist():
        body, end = int(bodies[i]), int(ends[i])
        definitions.append(
            LoggedDefinition(
                is_type=kinds[i] == _TYPE,
                oid=Oid(int.from_bytes(data[body + 1 : body + 5], "big")),
                payload=data[end - int(lengths[i]) : end],
            )
        )
    return TransactionPositions(last_begin, last_end, tuple(definitions), foreign)


def _find_with_streams(
    data: bytes,
    lengths: Lengths,
    kinds: npt.NDArray[np.uint8],
    bodies: npt.NDArray[np.int64],
    block: bytes | None,
) -> TransactionPositions:
    """``find_positions`` for gulps with stream messages, whose order matters."""
    last_begin = last_end = INVALID_LSN
    notes: list[LoggedDefinition | StreamEnd] = []
    wanted = _LATER.copy()
    wanted[[_BEGIN, _COMMIT, _RELATION, _TYPE, _MESSAGE]] = True
    ends = np.cumsum(lengths, dtype=np.int64)
    for i in np.flatnonzero(wanted[kinds]).tolist():
        kind, body, end = int(kinds[i]), int(bodies[i]), int(ends[i])
        payload = data[end - int(lengths[i]) : end]
        if kind == _START:
            block = payload
        elif kind == _STOP:
            block = None
        elif kind in (_RELATION, _TYPE):
            notes.append(_definition(payload, block))
        elif kind == _MESSAGE:
            if block is None and data[body + 1] == 0:
                lsn = _lsn(data, body + 2)
                last_begin = max(last_begin, Lsn(max(lsn - 1, 0)))
                last_end = max(last_end, lsn)
        elif kind == _BEGIN:
            last_begin = max(last_begin, _lsn(data, body + 1))
        elif kind == _COMMIT:
            last_end = max(last_end, _lsn(data, body + 10))
        elif kind == _ABORT:
            xid, subxid = _xid(data, body + 1), _xid(data, body + 5)
            notes.append(StreamEnd(xid, subxid, committed=False))
        elif kind in _END_LSN:
            lsn = _lsn(data, body + _END_LSN[kind])
            last_begin = max(last_begin, Lsn(max(lsn - 1, 0)))
            last_end = max(last_end, lsn)
            if kind == _STREAM_COMMIT:
                xid = _xid(data, body + 1)
                notes.append(StreamEnd(xid, xid, committed=True))
            elif kind == ord("p"):
                xid = _xid(data, body + 26)
                notes.append(StreamEnd(xid, xid, committed=False))
    return TransactionPositions(last_begin, last_end, tuple(notes), None, block)


def _definition(payload: bytes, block: bytes | None) -> LoggedDefinition:
    xid = subxid = 0
    if block is not None:
        xid = _xid(block, XLOGDATA_HEADER + 1)
        subxid = _xid(payload, XLOGDATA_HEADER + 1)
        after = XLOGDATA_HEADER + 1 + _XID_BYTES
        payload = payload[: XLOGDATA_HEADER + 1] + payload[after:]
    return LoggedDefinition(
        is_type=payload[XLOGDATA_HEADER] == _TYPE,
        oid=Oid(_xid(payload, XLOGDATA_HEADER + 1)),
        payload=payload,
        xid=xid,
        subxid=subxid,
    )


def continued(block: bytes) -> bytes:
    """Return the Stream Start for a reader that begins in its block: not marked as the first
    block of the transaction."""
    return block[:-1] + b"\0"


def block_of(xid: int, definitions: Sequence[LoggedDefinition]) -> list[bytes]:
    """Return a stream block of these messages; empty if there are none."""
    if not definitions:
        return []
    head = definitions[0].payload[:XLOGDATA_HEADER]
    body = XLOGDATA_HEADER + 1
    return [
        head + b"S" + xid.to_bytes(4, "big") + b"\0",
        *(
            definition.payload[:body]
            + definition.subxid.to_bytes(4, "big")
            + definition.payload[body:]
            for definition in definitions
        ),
        head + b"E",
    ]


def _xid(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")


def foreign_message(data: bytes, lengths: Lengths, number: int) -> ProtocolViolation:
    """Build the error for a payload that ``find_positions`` reports as foreign or too short. It
    names the message, the byte and the LSN."""
    end = int(lengths[: number + 1].sum(dtype=np.int64))
    payload = data[end - int(lengths[number]) : end]
    try:
        StreamReader(StreamState()).read(payload)
    except ProtocolViolation as error:
        return error
    # The message is well-formed, but this connection has not requested its kind.
    header = read_header(payload)
    kind = header.message[0] if header.message else 0
    name = f"??? ({kind})"
    refused = violation(
        f'invalid logical replication message type "{name}"', message=name, offset=0
    )
    refused.context = f"{refused.context}, in XLogData at {header.start_lsn}"
    return refused


def drop_headless(
    data: bytes, lengths: Lengths, *, inside: bool = False
) -> tuple[bytes, Lengths, bool]:
    """Remove messages of a transaction whose Begin is no longer in the journal.

    Returns the gulp without the messages before its first Begin, and whether there was a Begin.
    Relation and Type messages stay, because later transactions use them, and logical messages
    outside of transactions. Stream messages stay: like a Begin, they prove that no such
    transaction is open. ``inside``: a stream block is open before the gulp.
    """
    kinds, bodies = _kinds(data, lengths)
    begins = np.flatnonzero((kinds == _BEGIN) | _LATER[kinds])
    first = 0 if inside else int(begins[0]) if begins.size else len(kinds)
    keep = (kinds == _RELATION) | (kinds == _TYPE) | _outside(data, kinds, bodies)
    keep[first:] = True
    ends = np.cumsum(lengths, dtype=np.int64)
    pieces = [
        data[int(ends[i]) - int(lengths[i]) : int(ends[i])]
        for i in np.flatnonzero(keep[:first]).tolist()
    ]
    if first < len(kinds):
        pieces.append(data[int(ends[first]) - int(lengths[first]) :])
    return b"".join(pieces), lengths[keep], inside or bool(begins.size)


def _kinds(
    data: bytes, lengths: Lengths, refused: Foreign = _FOREIGN
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the type byte of each message (0: none) and its position in ``data``."""
    count = len(lengths)
    view = np.frombuffer(data, np.uint8)
    sizes = lengths.astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    if int(sizes.sum()) != len(data):
        raise ProtocolViolation("message lengths do not add up to the data received")
    if not len(data):
        return np.zeros(count, np.uint8), starts
    last = len(data) - 1
    bodies = starts + XLOGDATA_HEADER
    present = sizes > XLOGDATA_HEADER
    present &= view[np.minimum(starts, last)] == _XLOGDATA
    kinds = np.where(present, view[np.minimum(bodies, last)], 0).astype(np.uint8)
    # Messages that are read later need a type byte and at least four bytes (R and Y), eight
    # (B), nine (M), or seventeen (C).
    need = np.full(count, -XLOGDATA_HEADER, np.int64)
    need[(kinds == _RELATION) | (kinds == _TYPE)] = 5
    need[kinds == _BEGIN] = 9
    need[kinds == _MESSAGE] = 10
    need[kinds == _COMMIT] = 18
    if bool(_LATER[kinds].any()):
        for kind, least in _NEED.items():
            need[(kinds == kind) & ~refused[kinds]] = least
    short = np.flatnonzero(sizes - XLOGDATA_HEADER < need)
    if short.size:
        raise foreign_message(data, lengths, int(short[0]))
    return kinds, bodies


def _outside(
    data: bytes, kinds: npt.NDArray[np.uint8], bodies: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which messages are logical messages outside of transactions."""
    outside: npt.NDArray[np.bool_] = kinds == _MESSAGE
    positions = np.flatnonzero(outside)
    outside[positions] = np.frombuffer(data, np.uint8)[bodies[positions] + 1] == 0
    return outside


def _last(kinds: npt.NDArray[np.uint8], kind: int) -> int | None:
    positions = np.flatnonzero(kinds == kind)
    return int(positions[-1]) if positions.size else None


def _lsn(data: bytes, offset: int) -> Lsn:
    return Lsn(int.from_bytes(data[offset : offset + 8], "big"))
