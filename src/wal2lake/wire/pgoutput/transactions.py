"""pgoutput's messages about transactions: begin, end, stream blocks, two-phase and origin.

B C O (protocol 1), S E c A (2: streamed before their end), b P K r (3: two-phase), p (3
and streamed). Each ``write_x`` stands directly above its ``read_x``; readers get the
cursor behind the kind byte. All times are microseconds since 2000-01-01 UTC, as sent.

Called by messages.py only. Texts of violations are PostgreSQL's.

Sources: PostgreSQL manual 54.9 ("Logical Replication Message Formats");
src/backend/replication/logical/proto.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.errors import InternalError
from wal2lake.model import Lsn, Xid
from wal2lake.wire.fields import FieldReader, int64, string, uint8, uint32, uint64


def _nonzero_lsn(fields: FieldReader, what: str, message: str) -> Lsn:
    """Read an LSN that must not be 0."""
    lsn = fields.lsn()
    if not lsn:
        raise fields.violation(
            f"{what} not set in {message} message", position=fields.offset - 8
        )
    return lsn


def _no_flags(fields: FieldReader, message: str) -> None:
    flags = fields.uint8()
    if flags:
        raise fields.violation(
            f"unrecognized flags {flags} in {message} message",
            position=fields.offset - 1,
        )


def _top_xid(fields: FieldReader) -> Xid:
    xid = fields.xid()
    if not xid:
        raise fields.violation(
            "invalid transaction ID in streamed replication transaction",
            position=fields.offset - 4,
        )
    return xid


@dataclass(frozen=True, slots=True)
class Begin:
    """B: a transaction begins. It has committed, so it is sent whole."""

    final_lsn: Lsn
    """Start of the commit record, equal to the Commit's ``commit_lsn``."""
    commit_time: int
    xid: Xid


def write_begin(message: Begin) -> bytes:
    return (
        b"B"
        + uint64(message.final_lsn)
        + int64(message.commit_time)
        + uint32(message.xid)
    )


def read_begin(fields: FieldReader) -> Begin:
    return Begin(
        _nonzero_lsn(fields, "final_lsn", "begin"), fields.int64(), fields.xid()
    )


@dataclass(frozen=True, slots=True)
class Commit:
    """C: the transaction is complete."""

    commit_lsn: Lsn
    end_lsn: Lsn
    """End of the commit record + 1: the position to confirm, and to continue from."""
    commit_time: int


def write_commit(message: Commit) -> bytes:
    return (
        b"C\0"
        + uint64(message.commit_lsn)
        + uint64(message.end_lsn)
        + int64(message.commit_time)
    )


def read_commit(fields: FieldReader) -> Commit:
    _no_flags(fields, "commit")
    return Commit(fields.lsn(), fields.lsn(), fields.int64())


@dataclass(frozen=True, slots=True)
class Origin:
    """O: the publisher itself received this transaction from elsewhere."""

    origin_lsn: Lsn
    """Commit LSN on the origin; 0 inside a stream block."""
    name: str


def write_origin(message: Origin) -> bytes:
    return b"O" + uint64(message.origin_lsn) + string(message.name)


def read_origin(fields: FieldReader) -> Origin:
    return Origin(fields.lsn(), fields.string())


@dataclass(frozen=True, slots=True)
class StreamStart:
    """S: a block of changes of a transaction in progress follows."""

    xid: Xid
    first_segment: bool


def write_stream_start(message: StreamStart) -> bytes:
    return b"S" + uint32(message.xid) + uint8(message.first_segment)


def read_stream_start(fields: FieldReader) -> StreamStart:
    return StreamStart(_top_xid(fields), fields.flag())


@dataclass(frozen=True, slots=True)
class StreamStop:
    """E: the block ends; blocks of other transactions may follow."""


def write_stream_stop(message: StreamStop) -> bytes:
    return b"E"


def read_stream_stop(fields: FieldReader) -> StreamStop:
    return StreamStop()


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """c: a transaction that was streamed in blocks has committed."""

    xid: Xid
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


def write_stream_commit(message: StreamCommit) -> bytes:
    return (
        b"c"
        + uint32(message.xid)
        + b"\0"
        + uint64(message.commit_lsn)
        + uint64(message.end_lsn)
        + int64(message.commit_time)
    )


def read_stream_commit(fields: FieldReader) -> StreamCommit:
    xid = _top_xid(fields)
    _no_flags(fields, "commit")
    return StreamCommit(xid, fields.lsn(), fields.lsn(), fields.int64())


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A: a streamed transaction (``subxid == xid``) or one subtransaction is rolled back.

    The two optional fields are sent only with ``streaming 'parallel'``; the option decides, not
    the protocol version.
    """

    xid: Xid
    subxid: Xid
    abort_lsn: Lsn | None = None
    abort_time: int | None = None


def write_stream_abort(message: StreamAbort) -> bytes:
    data = b"A" + uint32(message.xid) + uint32(message.subxid)
    if message.abort_lsn is None and message.abort_time is None:
        return data
    if message.abort_lsn is None or message.abort_time is None:
        raise InternalError("a STREAM ABORT message has both abort fields or neither")
    return data + uint64(message.abort_lsn) + int64(message.abort_time)


def read_stream_abort(fields: FieldReader, *, parallel: bool) -> StreamAbort:
    xid, subxid = _top_xid(fields), _top_xid(fields)
    if not parallel:
        return StreamAbort(xid, subxid)
    return StreamAbort(xid, subxid, fields.lsn(), fields.int64())


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """b: a prepared transaction begins; it is sent whole."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: Xid
    gid: str


def write_begin_prepare(message: BeginPrepare) -> bytes:
    return (
        b"b"
        + uint64(message.prepare_lsn)
        + uint64(message.end_lsn)
        + int64(message.prepare_time)
        + uint32(message.xid)
        + string(message.gid)
    )


def read_begin_prepare(fields: FieldReader) -> BeginPrepare:
    return BeginPrepare(
        _nonzero_lsn(fields, "prepare_lsn", "begin prepare"),
        _nonzero_lsn(fields, "end_lsn", "begin prepare"),
        fields.int64(),
        fields.xid(),
        fields.string(),
    )


@dataclass(frozen=True, slots=True)
class Prepare:
    """P: the transaction is prepared."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: Xid
    gid: str


def write_prepare(message: Prepare | StreamPrepare) -> bytes:
    """Write a Prepare or a StreamPrepare, which differ only in the kind."""
    return (
        (b"P\0" if isinstance(message, Prepare) else b"p\0")
        + uint64(message.prepare_lsn)
        + uint64(message.end_lsn)
        + int64(message.prepare_time)
        + uint32(message.xid)
        + string(message.gid)
    )


def _prepared(fields: FieldReader, message: str) -> tuple[Lsn, Lsn, int, Xid, str]:
    _no_flags(fields, message)
    prepare_lsn = _nonzero_lsn(fields, "prepare_lsn", message)
    end_lsn = _nonzero_lsn(fields, "end_lsn", message)
    time, xid = fields.int64(), fields.xid()
    if not xid:
        raise fields.violation(
            f"invalid two-phase transaction ID in {message} message",
            position=fields.offset - 4,
        )
    return prepare_lsn, end_lsn, time, xid, fields.string()


def read_prepare(fields: FieldReader) -> Prepare:
    return Prepare(*_prepared(fields, "prepare"))


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """p: a transaction that was streamed in blocks is prepared."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: Xid
    gid: str


write_stream_prepare = write_prepare


def read_stream_prepare(fields: FieldReader) -> StreamPrepare:
    return StreamPrepare(*_prepared(fields, "stream prepare"))


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """K: a prepared transaction commits."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    xid: Xid
    gid: str


def write_commit_prepared(message: CommitPrepared) -> bytes:
    return (
        b"K\0"
        + uint64(message.commit_lsn)
        + uint64(message.end_lsn)
        + int64(message.commit_time)
        + uint32(message.xid)
        + string(message.gid)
    )


def read_commit_prepared(fields: FieldReader) -> CommitPrepared:
    _no_flags(fields, "commit prepared")
    return CommitPrepared(
        _nonzero_lsn(fields, "commit_lsn", "commit prepared"),
        _nonzero_lsn(fields, "end_lsn", "commit prepared"),
        fields.int64(),
        fields.xid(),
        fields.string(),
    )


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """r: a prepared transaction is rolled back."""

    prepare_end_lsn: Lsn
    """``end_lsn`` of its Prepare, which identifies the Prepare."""
    rollback_end_lsn: Lsn
    prepare_time: int
    rollback_time: int
    xid: Xid
    gid: str


def write_rollback_prepared(message: RollbackPrepared) -> bytes:
    return (
        b"r\0"
        + uint64(message.prepare_end_lsn)
        + uint64(message.rollback_end_lsn)
        + int64(message.prepare_time)
        + int64(message.rollback_time)
        + uint32(message.xid)
        + string(message.gid)
    )


def read_rollback_prepared(fields: FieldReader) -> RollbackPrepared:
    _no_flags(fields, "rollback prepared")
    return RollbackPrepared(
        _nonzero_lsn(fields, "prepare_end_lsn", "rollback prepared"),
        _nonzero_lsn(fields, "rollback_end_lsn", "rollback prepared"),
        fields.int64(),
        fields.int64(),
        fields.xid(),
        fields.string(),
    )
