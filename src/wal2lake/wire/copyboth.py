"""Payloads of the CopyData messages of START_REPLICATION, both directions.

In: one whole CopyData payload. Out: a frozen dataclass, or ProtocolViolation. The server sends
w (XLogData), k (keepalive) and s (primary status, PostgreSQL 19); the client sends r (standby
status), h (hot standby feedback) and p (primary status request, 19). Each ``write_x`` stands
directly above its ``read_x``. All times are microseconds since 2000-01-01 UTC.

A server sends other messages only on request, so any other message is an error here;
PostgreSQL's own subscriber ignores it.

Sources: PostgreSQL manual 54.4 ("Streaming Replication Protocol"); walsender.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from wal2lake.model import Lsn, Xid
from wal2lake.wire.fields import (
    FieldReader,
    int64,
    uint8,
    uint32,
    uint64,
    violation,
    written,
)

XLOGDATA_HEADER: Final = 25
"""Bytes of an XLogData before its message: kind, start, end, time."""


@dataclass(frozen=True, slots=True)
class XLogData:
    """w: one pgoutput message."""

    start_lsn: Lsn
    """Position of the message's subject (reference 4.2). It is 0 for all but the last message of
    one callback (R, Y, and B if O follows)."""
    end_lsn: Lsn
    """Equal to ``start_lsn`` in logical replication."""
    send_time: int
    message: bytes


def write_xlogdata(payload: XLogData) -> bytes:
    return (
        b"w"
        + uint64(payload.start_lsn)
        + uint64(payload.end_lsn)
        + int64(payload.send_time)
        + payload.message
    )


def read_xlogdata(fields: FieldReader) -> XLogData:
    return XLogData(fields.lsn(), fields.lsn(), fields.int64(), fields.rest())


@dataclass(frozen=True, slots=True)
class Keepalive:
    """k: the end of the server's WAL."""

    end_lsn: Lsn
    send_time: int
    reply_requested: bool
    """The client must reply at once, or the server disconnects it."""


def write_keepalive(payload: Keepalive) -> bytes:
    return (
        b"k"
        + uint64(payload.end_lsn)
        + int64(payload.send_time)
        + uint8(payload.reply_requested)
    )


def read_keepalive(fields: FieldReader) -> Keepalive:
    return Keepalive(fields.lsn(), fields.int64(), fields.flag())


@dataclass(frozen=True, slots=True)
class PrimaryStatus:
    """s: the answer to a PrimaryStatusRequest."""

    write_lsn: Lsn
    oldest_xid: int
    """Oldest transaction that is being committed, with its epoch in the upper 32 bits."""
    next_xid: int
    """Next transaction, with its epoch in the upper 32 bits."""
    send_time: int


def write_primary_status(payload: PrimaryStatus) -> bytes:
    return (
        b"s"
        + uint64(payload.write_lsn)
        + uint64(payload.oldest_xid)
        + uint64(payload.next_xid)
        + int64(payload.send_time)
    )


def read_primary_status(fields: FieldReader) -> PrimaryStatus:
    return PrimaryStatus(fields.lsn(), fields.uint64(), fields.uint64(), fields.int64())


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """r: the client's positions. Each LSN is that of the last byte + 1; 0: unknown."""

    write_lsn: Lsn
    flush_lsn: Lsn
    """Durable position: the server may discard WAL below it."""
    apply_lsn: Lsn
    send_time: int
    reply_requested: bool


def write_standby_status(payload: StandbyStatus) -> bytes:
    return (
        b"r"
        + uint64(payload.write_lsn)
        + uint64(payload.flush_lsn)
        + uint64(payload.apply_lsn)
        + int64(payload.send_time)
        + uint8(payload.reply_requested)
    )


def read_standby_status(fields: FieldReader) -> StandbyStatus:
    # As in PostgreSQL, any number except 0 requests a reply.
    return StandbyStatus(
        fields.lsn(), fields.lsn(), fields.lsn(), fields.int64(), fields.uint8() != 0
    )


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback:
    """h: the oldest transactions that the client's queries need."""

    send_time: int
    xmin: Xid
    xmin_epoch: int
    catalog_xmin: Xid
    catalog_xmin_epoch: int


def write_hot_standby_feedback(payload: HotStandbyFeedback) -> bytes:
    return (
        b"h"
        + int64(payload.send_time)
        + uint32(payload.xmin)
        + uint32(payload.xmin_epoch)
        + uint32(payload.catalog_xmin)
        + uint32(payload.catalog_xmin_epoch)
    )


def read_hot_standby_feedback(fields: FieldReader) -> HotStandbyFeedback:
    return HotStandbyFeedback(
        fields.int64(), fields.xid(), fields.uint32(), fields.xid(), fields.uint32()
    )


@dataclass(frozen=True, slots=True)
class PrimaryStatusRequest:
    """p: requests a PrimaryStatus."""

    send_time: int


def write_primary_status_request(payload: PrimaryStatusRequest) -> bytes:
    return b"p" + int64(payload.send_time)


def read_primary_status_request(fields: FieldReader) -> PrimaryStatusRequest:
    return PrimaryStatusRequest(fields.int64())


FromServer: TypeAlias = XLogData | Keepalive | PrimaryStatus
FromClient: TypeAlias = StandbyStatus | HotStandbyFeedback | PrimaryStatusRequest
_Payload = TypeVar("_Payload")

_SERVER: Final[dict[int, tuple[str, Callable[[FieldReader], FromServer]]]] = {
    ord("w"): ("XLogData", read_xlogdata),
    ord("k"): ("keepalive", read_keepalive),
    ord("s"): ("primary status update", read_primary_status),
}
_CLIENT: Final[dict[int, tuple[str, Callable[[FieldReader], FromClient]]]] = {
    ord("r"): ("standby status update", read_standby_status),
    ord("h"): ("hot standby feedback", read_hot_standby_feedback),
    ord("p"): ("primary status request", read_primary_status_request),
}
_WRITERS: Final[dict[type[Any], Callable[[Any], bytes]]] = {
    XLogData: write_xlogdata,
    Keepalive: write_keepalive,
    PrimaryStatus: write_primary_status,
    StandbyStatus: write_standby_status,
    HotStandbyFeedback: write_hot_standby_feedback,
    PrimaryStatusRequest: write_primary_status_request,
}


def write_payload(payload: FromServer | FromClient) -> bytes:
    """Encode one CopyData payload; InternalError if a value does not fit."""
    return written(_WRITERS[type(payload)], payload)


def read_from_server(data: bytes) -> FromServer:
    """Read a message of a walsender; raise ProtocolViolation."""
    return _read(data, _SERVER, "invalid replication message type")


def read_from_client(data: bytes) -> FromClient:
    """Read a message of a walreceiver; raise ProtocolViolation."""
    return _read(data, _CLIENT, "invalid standby message type")


def _read(
    data: bytes,
    kinds: dict[int, tuple[str, Callable[[FieldReader], _Payload]]],
    unknown: str,
) -> _Payload:
    if not data:
        raise violation("insufficient data left in message", message="", offset=0)
    if data[0] not in kinds:
        name = f"??? ({data[0]})"
        raise violation(f'{unknown} "{name}"', message=name, offset=0)
    name, read = kinds[data[0]]
    fields = FieldReader(data, name)
    fields.offset = 1
    payload = read(fields)
    fields.end()
    return payload
