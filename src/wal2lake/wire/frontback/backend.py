"""Messages from the backend (the server), with writers and readers.

Our own sessions write these messages; tests and our client read them. ``datarow`` writes DataRow
in bulk.

    kind  message                    kind  message
    R     Authentication...          T     RowDescription
    S     ParameterStatus            D     DataRow
    K     BackendKeyData             C     CommandComplete
    Z     ReadyForQuery              E     ErrorResponse
    v     NegotiateProtocolVersion   N     NoticeResponse
    A     NotificationResponse       t     ParameterDescription
    V     FunctionCallResponse       G H W CopyIn-, CopyOut-, CopyBothResponse
    1 2 3 Parse-, Bind-, CloseComplete     d c  CopyData, CopyDone
    I s n EmptyQueryResponse, PortalSuspended, NoData

Text is UTF-8 unless an encoding is given.

Source: PostgreSQL manual, sections 54.7 and 54.8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.frontback.fields import (
    FieldDescription,
    TransactionStatus,
    read_row_description,
    write_row_description,
)
from wal2lake.wire.frontback.frames import (
    LARGE_MESSAGE_BYTES,
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
from wal2lake.wire.frontback.frontend import CopyData, CopyDone


class AuthenticationKind(Enum):
    """Kinds of requests whose data, if any, is opaque to the protocol."""

    OK = 0
    """Authenticated."""
    CLEARTEXT_PASSWORD = 3
    """Requests the plain password."""
    SASL_CONTINUE = 11
    """Data of a SASL mechanism."""
    SASL_FINAL = 12
    """Last data of a SASL mechanism."""


@dataclass(frozen=True, slots=True)
class AuthenticationRequest:
    """A request of one AuthenticationKind."""

    kind: AuthenticationKind
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class AuthenticationMD5Password:
    """Requests the password's MD5 hash with this salt."""

    salt: bytes


@dataclass(frozen=True, slots=True)
class AuthenticationSASL:
    """Offers these mechanisms."""

    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParameterStatus:
    """The new value of a reported setting."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class BackendKeyData:
    """The secret that a CancelRequest must have."""

    pid: int
    secret: bytes


@dataclass(frozen=True, slots=True)
class ReadyForQuery:
    """The server waits for a command."""

    status: TransactionStatus


@dataclass(frozen=True, slots=True)
class NegotiateProtocolVersion:
    """The newest protocol version of the server, and the options that it does not support."""

    major: int
    minor: int
    unrecognized: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class NotificationResponse:
    """A notification for a channel of LISTEN."""

    pid: int
    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class FunctionCallResponse:
    """Result of a FunctionCall."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class RowDescription:
    """The fields of the following rows."""

    fields: tuple[FieldDescription, ...]
    formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row."""

    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class CommandComplete:
    """The command tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """Types of a statement's parameters."""

    oids: tuple[int, ...]


class CopyMode(Enum):
    """Direction of a copy."""

    IN = b"G"
    """Frontend to backend."""
    OUT = b"H"
    """Backend to frontend."""
    BOTH = b"W"
    """Replication."""


@dataclass(frozen=True, slots=True)
class CopyResponse:
    """The start of a copy. ``overall``: 0 for text lines, 1 for binary."""

    mode: CopyMode
    overall: int
    formats: tuple[int, ...] = ()


class Signal(Enum):
    """Messages without a body."""

    PARSE_COMPLETE = b"1"
    """Answers Parse."""
    BIND_COMPLETE = b"2"
    """Answers Bind."""
    CLOSE_COMPLETE = b"3"
    """Answers Close."""
    EMPTY_QUERY = b"I"
    """EmptyQueryResponse, in place of CommandComplete."""
    PORTAL_SUSPENDED = b"s"
    """Execute's row limit was reached."""
    NO_DATA = b"n"
    """The statement returns no rows."""


FIELD_LETTERS: Final = {
    "severity": b"S",
    "severity_nonlocalized": b"V",
    "sqlstate": b"C",
    "message": b"M",
    "detail": b"D",
    "hint": b"H",
    "position": b"P",
    "internal_position": b"p",
    "internal_query": b"q",
    "where": b"W",
    "schema": b"s",
    "table": b"t",
    "column": b"c",
    "datatype": b"d",
    "constraint": b"n",
    "file": b"F",
    "line": b"L",
    "routine": b"R",
}
"""Letters of the fields (section 54.8), in the order in which PostgreSQL sends them."""

_LETTER_FIELDS: Final = {letter: name for name, letter in FIELD_LETTERS.items()}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The fields of an error or notice; empty ones are not sent."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    position: str = ""
    """1-based, in characters of the query string."""
    where: str = ""
    severity_nonlocalized: str = ""
    internal_position: str = ""
    internal_query: str = ""
    schema: str = ""
    table: str = ""
    column: str = ""
    datatype: str = ""
    constraint: str = ""
    file: str = ""
    line: str = ""
    routine: str = ""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error or, with ``notice``, a NoticeResponse, which differs only in the kind byte."""

    fields: Diagnostic
    notice: bool = False


BackendMessage = (
    AuthenticationRequest
    | AuthenticationMD5Password
    | AuthenticationSASL
    | ParameterStatus
    | BackendKeyData
    | ReadyForQuery
    | NegotiateProtocolVersion
    | NotificationResponse
    | FunctionCallResponse
    | RowDescription
    | DataRow
    | CommandComplete
    | ParameterDescription
    | CopyResponse
    | CopyData
    | CopyDone
    | Signal
    | ErrorResponse
)

_MD5_CODE: Final = 5
_SASL_CODE: Final = 10


def _read_authentication(cursor: Body, encoding: str) -> BackendMessage:
    code = cursor.int32()
    if code == _MD5_CODE:
        return AuthenticationMD5Password(cursor.take(4))
    if code == _SASL_CODE:
        mechanisms: list[str] = []
        while name := cursor.string():
            mechanisms.append(name.decode("ascii", "replace"))
        return AuthenticationSASL(tuple(mechanisms))
    try:
        kind = AuthenticationKind(code)
    except ValueError:
        raise cursor.violation(f"authentication method {code} not supported") from None
    return AuthenticationRequest(kind, cursor.rest())


def _write_negotiate(message: NegotiateProtocolVersion) -> bytes:
    # The manual says "minor version", but the server sends and libpq reads the whole version.
    version = uint16(message.major) + uint16(message.minor)
    options = b"".join(map(string, message.unrecognized))
    return version + int32(len(message.unrecognized)) + options


def _read_negotiate(cursor: Body, encoding: str) -> BackendMessage:
    major, minor = cursor.uint16(), cursor.uint16()
    count = cursor.int32()
    names: list[bytes] = []
    for _ in range(count):
        names.append(cursor.string())
    return NegotiateProtocolVersion(major, minor, tuple(names))


def _write_diagnostic(fields: Diagnostic, encoding: str) -> bytes:
    parts: list[bytes] = []
    for name, letter in FIELD_LETTERS.items():
        text: str = getattr(fields, name)
        if name == "severity_nonlocalized":
            text = text or fields.severity
        if text:
            # A message may quote a binary value, in which a NUL would end the field.
            encoded = text.replace("\0", "").encode(encoding, "replace")
            parts.append(letter + encoded + b"\0")
    return b"".join(parts) + b"\0"


def _read_diagnostic(cursor: Body, encoding: str) -> Diagnostic:
    texts = {"severity": "", "sqlstate": "", "message": ""}
    while (letter := cursor.byte()) != b"\0":
        text = cursor.string().decode(encoding, "replace")
        # Section 54.8: fields of unrecognized type must be silently ignored.
        if name := _LETTER_FIELDS.get(letter):
            texts[name] = text
    return Diagnostic(**texts)


def _read_ready(cursor: Body, encoding: str) -> BackendMessage:
    status = cursor.byte()
    try:
        return ReadyForQuery(TransactionStatus(status))
    except ValueError:
        raise cursor.violation(f"invalid transaction status {status!r}") from None


def _read_notification(cursor: Body, encoding: str) -> BackendMessage:
    pid = cursor.int32()
    channel, payload = cursor.string(), cursor.string()
    return NotificationResponse(
        pid, channel.decode(encoding, "replace"), payload.decode(encoding, "replace")
    )


def _read_copy(mode: CopyMode) -> Callable[[Body, str], BackendMessage]:
    def read(cursor: Body, encoding: str) -> BackendMessage:
        overall = cursor.uint8()
        count = cursor.uint16()
        return CopyResponse(
            mode, overall, tuple([cursor.int16() for _ in range(count)])
        )

    return read


def _read_parameter_status(cursor: Body, encoding: str) -> BackendMessage:
    name, text = cursor.string(), cursor.string()
    return ParameterStatus(
        name.decode(encoding, "replace"), text.decode(encoding, "replace")
    )


def _signal(signal: Signal) -> Callable[[Body, str], BackendMessage]:
    return lambda cursor, encoding: signal


_READERS: Final[dict[bytes, Callable[[Body, str], BackendMessage]]] = {
    b"R": _read_authentication,
    b"S": _read_parameter_status,
    b"K": lambda body, _: BackendKeyData(body.int32(), body.rest()),
    b"Z": _read_ready,
    b"v": _read_negotiate,
    b"A": _read_notification,
    b"V": lambda body, _: FunctionCallResponse(body.value()),
    b"T": lambda body, encoding: RowDescription(
        *read_row_description(body.rest(), encoding=encoding)
    ),
    b"D": lambda body, _: DataRow(tuple([body.value() for _ in range(body.uint16())])),
    b"C": lambda body, encoding: CommandComplete(
        body.string().decode(encoding, "replace")
    ),
    b"E": lambda body, encoding: ErrorResponse(_read_diagnostic(body, encoding)),
    b"N": lambda body, encoding: ErrorResponse(
        _read_diagnostic(body, encoding), notice=True
    ),
    b"t": lambda body, _: ParameterDescription(
        tuple([body.uint32() for _ in range(body.uint16())])
    ),
    b"d": lambda body, _: CopyData(body.rest()),
    b"c": lambda body, _: CopyDone(),
    **{mode.value: _read_copy(mode) for mode in CopyMode},
    **{signal.value: _signal(signal) for signal in Signal},
}


def write_backend(message: BackendMessage, *, encoding: str = "utf-8") -> bytes:
    """Encode a message as a frame. Characters that the encoding lacks become question marks."""
    kind, body = _encode(message, encoding)
    return write_frame(kind, body)


def _encode(message: BackendMessage, encoding: str) -> tuple[bytes, bytes]:
    def text(words: str) -> bytes:
        return string(words.encode(encoding, "replace"))

    match message:
        case AuthenticationRequest(kind, data):
            return b"R", int32(kind.value) + data
        case AuthenticationMD5Password(salt):
            return b"R", int32(_MD5_CODE) + salt
        case AuthenticationSASL(mechanisms):
            names = b"".join(string(name.encode("ascii")) for name in mechanisms)
            return b"R", int32(_SASL_CODE) + names + b"\0"
        case ParameterStatus(name, words):
            return b"S", text(name) + text(words)
        case BackendKeyData(pid, secret):
            return b"K", int32(pid) + secret
        case ReadyForQuery(status):
            return b"Z", status.value
        case NegotiateProtocolVersion():
            return b"v", _write_negotiate(message)
        case NotificationResponse(pid, channel, payload):
            return b"A", int32(pid) + text(channel) + text(payload)
        case FunctionCallResponse(data):
            return b"V", value(data)
        case RowDescription(fields, formats):
            return b"T", write_row_description(fields, formats, encoding=encoding)
        case DataRow(values):
            return b"D", uint16(len(values)) + b"".join(map(value, values))
        case CommandComplete(tag):
            return b"C", text(tag)
        case ParameterDescription(oids):
            return b"t", uint16(len(oids)) + b"".join(map(uint32, oids))
        case CopyResponse(mode, overall, formats):
            codes = b"".join(map(int16, formats))
            return mode.value, bytes([overall]) + uint16(len(formats)) + codes
        case CopyData(data):
            return b"d", data
        case CopyDone():
            return b"c", b""
        case Signal():
            return message.value, b""
        case ErrorResponse(fields, notice):
            return b"N" if notice else b"E", _write_diagnostic(fields, encoding)


def read_backend(frame: Frame, *, encoding: str = "utf-8") -> BackendMessage:
    """Read one whole frame; raises ProtocolViolation."""
    reader = _READERS.get(frame.kind)
    if reader is None:
        raise ProtocolViolation(f"invalid backend message type {frame.kind[0]}")
    cursor = Body(frame.body)
    message = reader(cursor, encoding)
    cursor.end()
    return message


class BackendReader:
    """Reads messages from a server's bytes, like FrontendReader without a startup phase."""

    __slots__ = ("_frames",)

    def __init__(self, *, max_message_bytes: int = LARGE_MESSAGE_BYTES) -> None:
        limits = dict.fromkeys(_READERS, max_message_bytes)
        self._frames = FrameReader(limits, peer="backend")

    def feed(self, data: bytes) -> None:
        """Append bytes from the socket."""
        self._frames.feed(data)

    def next_message(self) -> BackendMessage | None:
        """Return the next message, or None until more is fed; raises ProtocolViolation."""
        frame = self._frames.next_frame()
        return None if frame is None else read_backend(frame)
