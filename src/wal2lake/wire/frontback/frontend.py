"""Messages from the frontend (the client), each writer above its reader.

In: a client's bytes. Out: messages, through ``FrontendReader``: first startup packets
(``next_packet``), then frames (``next_frame``), each of which ``read_frontend`` reads. The
two steps are separate because their errors differ: a broken frame ends the session, a broken
body is an ordinary error (see ``frames``).

Text stays bytes, because it is in the session's client_encoding, which can change between two
messages.

    kind  message                limit   answered with
    Q     Query                  large   rows, CommandComplete ..., ReadyForQuery
    P     Parse                  large   ParseComplete
    B     Bind                   large   BindComplete
    D     Describe               small   ParameterDescription, RowDescription | NoData
    E     Execute                small   rows, CommandComplete | PortalSuspended
    C     Close                  small   CloseComplete
    H     Flush                  small   -
    S     Sync                   small   ReadyForQuery
    F     FunctionCall           large   FunctionCallResponse, ReadyForQuery
    d c f CopyData, Done, Fail   large, small, small
    p     AuthenticationData     64 KiB  the next step of the exchange
    X     Terminate              small   -

Source: PostgreSQL manual, section 54.7; limits from src/backend/tcop/postgres.c
(SocketBackend) and src/include/libpq/auth.h (PG_MAX_AUTH_TOKEN_LENGTH).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.frontback.frames import (
    LARGE_MESSAGE_BYTES,
    SMALL_MESSAGE_BYTES,
    Body,
    Frame,
    FrameReader,
    int16,
    int32,
    string,
    uint16,
    uint32,
    value,
    write_frame,
)
from wal2lake.wire.frontback.startup import (
    MAX_STARTUP_PACKET_BYTES,
    StartupMessage,
    StartupPacket,
    read_startup,
)

_AUTH_TOKEN_BYTES: Final = 65_535


class DescribeTarget(Enum):
    """Kind of object of Describe and Close."""

    STATEMENT = b"S"
    """A prepared statement."""
    PORTAL = b"P"
    """A bound statement, ready to run."""


@dataclass(frozen=True, slots=True)
class Query:
    """A string of statements."""

    sql: bytes


@dataclass(frozen=True, slots=True)
class Parse:
    """Prepare one statement; an OID of 0 leaves the type to the server."""

    name: bytes
    sql: bytes
    param_oids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    """Create a portal from a statement. No formats: all text; one format: it applies to all."""

    portal: bytes
    statement: bytes
    param_formats: tuple[int, ...] = ()
    params: tuple[bytes | None, ...] = ()
    result_formats: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Describe:
    """Request the parameters and fields of a statement, or the fields of a portal."""

    target: DescribeTarget
    name: bytes


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a portal for at most ``max_rows`` rows; 0 or less: all."""

    portal: bytes
    max_rows: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """Close a statement or portal; not an error if there is none."""

    target: DescribeTarget
    name: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """Send all buffered output."""


@dataclass(frozen=True, slots=True)
class Sync:
    """End of a series of extended messages, and of skipping after an error."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """The client ends the connection."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A fast-path call. It is decoded only so that it can be refused with an ordinary error."""

    function_oid: int
    arg_formats: tuple[int, ...]
    args: tuple[bytes | None, ...]
    result_format: int


@dataclass(frozen=True, slots=True)
class CopyData:
    """A piece of copy data, in either direction."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The end of a copy, in either direction."""


@dataclass(frozen=True, slots=True)
class CopyFail:
    """The client aborts a copy."""

    reason: bytes


@dataclass(frozen=True, slots=True)
class AuthenticationData:
    """Kind p: a password or a SASL step, depending on the server's request."""

    data: bytes


FrontendMessage = (
    Query
    | Parse
    | Bind
    | Describe
    | Execute
    | Close
    | Flush
    | Sync
    | Terminate
    | FunctionCall
    | CopyData
    | CopyDone
    | CopyFail
    | AuthenticationData
)


def _write_int16s(numbers: tuple[int, ...]) -> bytes:
    return uint16(len(numbers)) + b"".join(map(int16, numbers))


def _read_int16s(cursor: Body) -> tuple[int, ...]:
    return tuple([cursor.int16() for _ in range(cursor.uint16())])


def _write_values(values: tuple[bytes | None, ...]) -> bytes:
    return uint16(len(values)) + b"".join(map(value, values))


def _read_values(cursor: Body) -> tuple[bytes | None, ...]:
    return tuple([cursor.value() for _ in range(cursor.uint16())])


def _write_parse(message: Parse) -> bytes:
    oids = b"".join(map(uint32, message.param_oids))
    head = string(message.name) + string(message.sql)
    return head + uint16(len(message.param_oids)) + oids


def _read_parse(cursor: Body) -> Parse:
    name, sql = cursor.string(), cursor.string()
    return Parse(name, sql, tuple([cursor.uint32() for _ in range(cursor.uint16())]))


def _write_bind(message: Bind) -> bytes:
    return (
        string(message.portal)
        + string(message.statement)
        + _write_int16s(message.param_formats)
        + _write_values(message.params)
        + _write_int16s(message.result_formats)
    )


def _read_bind(cursor: Body) -> Bind:
    portal, statement = cursor.string(), cursor.string()
    formats = _read_int16s(cursor)
    params = _read_values(cursor)
    return Bind(portal, statement, formats, params, _read_int16s(cursor))


def _write_target(message: Describe | Close) -> bytes:
    return message.target.value + string(message.name)


def _read_target(cursor: Body, command: str) -> tuple[DescribeTarget, bytes]:
    kind = cursor.byte()
    try:
        target = DescribeTarget(kind)
    except ValueError:
        raise cursor.violation(f"invalid {command} message subtype {kind[0]}") from None
    return target, cursor.string()


def _write_function_call(message: FunctionCall) -> bytes:
    return (
        uint32(message.function_oid)
        + _write_int16s(message.arg_formats)
        + _write_values(message.args)
        + int16(message.result_format)
    )


def _read_function_call(cursor: Body) -> FunctionCall:
    oid = cursor.uint32()
    formats = _read_int16s(cursor)
    return FunctionCall(oid, formats, _read_values(cursor), cursor.int16())


def write_frontend(message: FrontendMessage) -> bytes:
    """Encode a message as a frame."""
    kind, body = _encode(message)
    return write_frame(kind, body)


def _encode(message: FrontendMessage) -> tuple[bytes, bytes]:
    match message:
        case Query(sql):
            return b"Q", string(sql)
        case Parse():
            return b"P", _write_parse(message)
        case Bind():
            return b"B", _write_bind(message)
        case Describe():
            return b"D", _write_target(message)
        case Execute(portal, max_rows):
            return b"E", string(portal) + int32(max_rows)
        case Close():
            return b"C", _write_target(message)
        case Flush():
            return b"H", b""
        case Sync():
            return b"S", b""
        case Terminate():
            return b"X", b""
        case FunctionCall():
            return b"F", _write_function_call(message)
        case CopyData(data):
            return b"d", data
        case CopyDone():
            return b"c", b""
        case CopyFail(reason):
            return b"f", string(reason)
        case AuthenticationData(data):
            return b"p", data


_READERS: Final[dict[bytes, Callable[[Body], FrontendMessage]]] = {
    b"Q": lambda body: Query(body.string()),
    b"P": _read_parse,
    b"B": _read_bind,
    b"D": lambda body: Describe(*_read_target(body, "DESCRIBE")),
    b"E": lambda body: Execute(body.string(), body.int32()),
    b"C": lambda body: Close(*_read_target(body, "CLOSE")),
    b"H": lambda body: Flush(),
    b"S": lambda body: Sync(),
    b"X": lambda body: Terminate(),
    b"F": _read_function_call,
    b"d": lambda body: CopyData(body.rest()),
    b"c": lambda body: CopyDone(),
    b"f": lambda body: CopyFail(body.string()),
    b"p": lambda body: AuthenticationData(body.rest()),
}


def read_frontend(frame: Frame) -> FrontendMessage:
    """Read one whole frame; raises ProtocolViolation, after which reading can continue."""
    reader = _READERS.get(frame.kind)
    if reader is None:
        raise ProtocolViolation(f"invalid frontend message type {frame.kind[0]}")
    cursor = Body(frame.body)
    message = reader(cursor)
    cursor.end()
    return message


def _limits(max_message_bytes: int) -> dict[bytes, int]:
    small = min(SMALL_MESSAGE_BYTES, max_message_bytes)
    return {
        **dict.fromkeys((b"Q", b"P", b"B", b"F", b"d"), max_message_bytes),
        **dict.fromkeys(
            (b"D", b"E", b"C", b"H", b"S", b"X", b"c", b"f"),
            small,
        ),
        b"p": _AUTH_TOKEN_BYTES,
    }


class FrontendReader:
    """Reads startup packets, then frames, from a client's bytes."""

    __slots__ = ("_broken", "_frames", "_startup")

    def __init__(self, *, max_message_bytes: int = LARGE_MESSAGE_BYTES) -> None:
        self._startup: bytearray | None = bytearray()
        self._frames = FrameReader(_limits(max_message_bytes), peer="frontend")
        self._broken: ProtocolViolation | None = None

    @classmethod
    def after_startup(cls, *, max_message_bytes: int) -> FrontendReader:
        """Make a reader for a connection whose startup packet has been read already."""
        reader = cls(max_message_bytes=max_message_bytes)
        reader._startup = None
        return reader

    def take_rest(self) -> bytes:
        """Remove and return all buffered bytes, for the next reader."""
        return self._frames.take_rest()

    def feed(self, data: bytes) -> None:
        """Append bytes from the socket."""
        if self._startup is not None:
            self._startup += data
        else:
            self._frames.feed(data)

    @property
    def buffered(self) -> int:
        """Number of bytes that were fed and not yet returned."""
        return self._frames.buffered + len(self._startup or b"")

    @property
    def next_kind(self) -> bytes:
        """Kind of the next frame; empty if nothing is buffered."""
        return self._frames.next_kind

    def next_packet(self) -> StartupPacket | None:
        """Return the next startup packet, or None until more is fed.

        After a StartupMessage call ``next_frame``. Raises ProtocolViolation, and at every later
        call.
        """
        if self._startup is None:
            raise ValueError("the startup packet has been read")
        if self._broken is not None:
            raise self._broken
        buffer = self._startup
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "big") - 4
        if not 4 <= length <= MAX_STARTUP_PACKET_BYTES:
            raise self._break(ProtocolViolation("invalid length of startup packet"))
        if len(buffer) < length + 4:
            return None
        body = bytes(buffer[4 : length + 4])
        del buffer[: length + 4]
        try:
            packet = read_startup(body)
        except ProtocolViolation as error:
            raise self._break(error) from None
        if isinstance(packet, StartupMessage):
            self._startup = None
            self._frames.feed(bytes(buffer))
        return packet

    def _break(self, error: ProtocolViolation) -> ProtocolViolation:
        self._broken = error
        self._startup = bytearray()
        return error

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None until more is fed, as FrameReader does."""
        if self._startup is not None:
            raise ValueError("the startup packet has not been read")
        return self._frames.next_frame()

    def next_message(self) -> FrontendMessage | None:
        """Read the next frame with ``read_frontend``, for callers that treat errors alike."""
        frame = self.next_frame()
        return None if frame is None else read_frontend(frame)
