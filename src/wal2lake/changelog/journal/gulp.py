"""What the journal must know of the messages that it stores, found without decoding.

A *gulp* is what one read of the socket brought: CopyData payloads back to back, each a whole
XLogData ("w", 24 bytes, one pgoutput message), and their lengths. NumPy looks at one byte of
each message; only Begin, Commit, Relation, Type and logical messages are looked into, of the
first two only the last. A logical message outside of transactions is to the journal a
transaction of its own, whose end is its LSN. A kind that protocol 1 does not have is only
reported: the journal refuses it, recovery meets it in journals of versions that did not.

Called by the journal's thread for each append and by recovery.

Source: PostgreSQL manual, "Streaming Replication Protocol" (XLogData) and "Logical
Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.stream import StreamReader, StreamState

Lengths = npt.NDArray[np.uint32]

KINDS: Final = b"BCORYIUDTM"
"""What a message can be in protocol 1."""

_XLOGDATA: Final = ord("w")
_BEGIN: Final = ord("B")
_COMMIT: Final = ord("C")
_RELATION: Final = ord("R")
_TYPE: Final = ord("Y")
_MESSAGE: Final = ord("M")

_FOREIGN: Final = np.ones(256, np.bool_)
_FOREIGN[list(KINDS)] = False


@dataclass(frozen=True, slots=True)
class Definition:
    """A Relation or Type message, whole, as it came."""

    is_type: bool
    oid: Oid
    payload: bytes


@dataclass(frozen=True, slots=True)
class Positions:
    """Where transactions begin and end in a gulp."""

    last_begin: Lsn
    """Commit LSN announced by the last Begin; 0: no Begin here. Of a later message outside
    of transactions: below its LSN."""
    last_end: Lsn
    """End LSN in the last Commit, or LSN of a later message outside of transactions; 0:
    neither is here."""
    definitions: tuple[Definition, ...]
    """In the order of arrival."""
    foreign: int | None = None
    """The first payload that is no message of protocol 1; None: all are."""


def find_positions(data: bytes, lengths: Lengths) -> Positions:
    """Look through one gulp; raises ProtocolViolation for a message cut short."""
    kinds, bodies = _kinds(data, lengths)
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
        # Int8 flags, Int64 LSN. What begins later commits at this LSN or above.
        lsn = _lsn(data, int(bodies[outside[-1]]) + 2)
        last_begin = max(last_begin, Lsn(max(lsn - 1, 0)))
        last_end = max(last_end, lsn)
    strange = np.flatnonzero(_FOREIGN[kinds])
    foreign = int(strange[0]) if strange.size else None
    marks = np.flatnonzero((kinds == _RELATION) | (kinds == _TYPE))
    if not marks.size:
        return Positions(last_begin, last_end, (), foreign)
    ends = np.cumsum(lengths, dtype=np.int64)
    definitions = []
    for i in marks.tolist():
        body, end = int(bodies[i]), int(ends[i])
        definitions.append(
            Definition(
                is_type=kinds[i] == _TYPE,
                oid=Oid(int.from_bytes(data[body + 1 : body + 5], "big")),
                payload=data[end - int(lengths[i]) : end],
            )
        )
    return Positions(last_begin, last_end, tuple(definitions), foreign)


def foreign_message(
    data: bytes, lengths: Lengths, number: int
) -> ProtocolViolation | InternalError:
    """The error for a payload that ``find_positions`` has found to be foreign or too short:
    it names the message, the byte and the LSN."""
    end = int(lengths[: number + 1].sum(dtype=np.int64))
    try:
        StreamReader(StreamState()).read(data[end - int(lengths[number]) : end])
    except ProtocolViolation as error:
        return error
    return InternalError("the journal refuses what the scalar reader accepts")


def drop_headless(data: bytes, lengths: Lengths) -> tuple[bytes, Lengths, bool]:
    """Remove what belongs to a transaction whose Begin is not in the journal any more.

    Returns the gulp without the messages before its first Begin, of which only Relation and
    Type stay (they hold for later transactions too) and logical messages that belong to no
    transaction, and whether there was a Begin.
    """
    kinds, bodies = _kinds(data, lengths)
    begins = np.flatnonzero(kinds == _BEGIN)
    first = int(begins[0]) if begins.size else len(kinds)
    keep = (kinds == _RELATION) | (kinds == _TYPE) | _outside(data, kinds, bodies)
    keep[first:] = True
    ends = np.cumsum(lengths, dtype=np.int64)
    pieces = [
        data[int(ends[i]) - int(lengths[i]) : int(ends[i])]
        for i in np.flatnonzero(keep[:first]).tolist()
    ]
    if begins.size:
        pieces.append(data[int(ends[first]) - int(lengths[first]) :])
    return b"".join(pieces), lengths[keep], bool(begins.size)


def _kinds(
    data: bytes, lengths: Lengths
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The type byte of each message (0: none), and where it is in ``data``."""
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
    # Everything looked into below has at least a type byte and four more (R and Y), eight
    # (B), nine (M), or seventeen (C).
    need = np.full(count, -XLOGDATA_HEADER, np.int64)
    need[(kinds == _RELATION) | (kinds == _TYPE)] = 5
    need[kinds == _BEGIN] = 9
    need[kinds == _MESSAGE] = 10
    need[kinds == _COMMIT] = 18
    short = np.flatnonzero(sizes - XLOGDATA_HEADER < need)
    if short.size:
        raise foreign_message(data, lengths, int(short[0]))
    return kinds, bodies


def _outside(
    data: bytes, kinds: npt.NDArray[np.uint8], bodies: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which messages are logical ones that belong to no transaction."""
    found: npt.NDArray[np.bool_] = kinds == _MESSAGE
    at = np.flatnonzero(found)
    found[at] = np.frombuffer(data, np.uint8)[bodies[at] + 1] == 0
    return found


def _last(kinds: npt.NDArray[np.uint8], kind: int) -> int | None:
    found = np.flatnonzero(kinds == kind)
    return int(found[-1]) if found.size else None


def _lsn(data: bytes, at: int) -> Lsn:
    return Lsn(int.from_bytes(data[at : at + 8], "big"))
