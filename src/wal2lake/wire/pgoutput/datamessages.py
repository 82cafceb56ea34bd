"""pgoutput's messages about data: relations, types, rows, truncations, messages.

R Y I U D T M, all of protocol 1. Inside a stream block (protocol 2) each of them begins with the
xid of its subtransaction; outside, ``xid`` is None. Each ``write_x`` stands directly above its
``read_x``; readers get the cursor behind the kind byte and the xid.

A tuple is a Python tuple of *values*: None is NULL, UNCHANGED stands for a TOASTed value
that the update did not change and that is not sent, ``bytes`` is the type's text form and
BinaryValue its binary form. Types are not known here: values stay as sent.

This is the scalar, cold path, written for clarity; wire/columnar is the hot path and must agree
with it. Called by messages.py only.

Sources: PostgreSQL manual 54.9 ("Logical Replication Message Formats");
src/backend/replication/logical/proto.c, from which the texts of violations are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from wal2lake.errors import InternalError
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.wire.fields import (
    FieldReader,
    int32,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
)

CATALOG_NAMESPACE: Final = "pg_catalog"
"""The namespace that is sent as an empty string."""


class Unchanged(Enum):
    """The type of UNCHANGED. An enum keeps its identity in type narrowing and in pickling."""

    UNCHANGED = "u"
    """A TOASTed value that the update did not change; it is not sent."""


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class BinaryValue:
    """A value in its type's binary send format (option ``binary``)."""

    data: bytes


Value: TypeAlias = bytes | BinaryValue | Unchanged | None
TupleData: TypeAlias = tuple[Value, ...]


def write_tuple(values: TupleData) -> bytes:
    parts = [uint16(len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        elif isinstance(value, BinaryValue):
            parts.append(b"b" + int32(len(value.data)) + value.data)
        else:
            parts.append(b"t" + int32(len(value)) + value)
    return b"".join(parts)


def read_tuple(fields: FieldReader, *, old: bool = False) -> TupleData:
    """Read one TupleData. An old tuple never has unchanged values: PostgreSQL expands them."""
    return tuple(_read_value(fields, old=old) for _ in range(fields.uint16()))


def _read_value(fields: FieldReader, *, old: bool) -> Value:
    kind = fields.raw(1)
    if kind == b"t":
        return fields.raw(fields.int32())
    if kind == b"n":
        return None
    if kind == b"u" and not old:
        return UNCHANGED
    if kind == b"b":
        return BinaryValue(fields.raw(fields.int32()))
    where = " in an old tuple" if kind == b"u" else ""
    raise fields.violation(
        f"unrecognized data representation type {_char(kind)}{where}",
        position=fields.offset - 1,
    )


def _char(kind: bytes) -> str:
    """Return a byte as PostgreSQL prints it if it is printable, otherwise its number."""
    return f"'{kind.decode('ascii')}'" if 32 < kind[0] < 127 else str(kind[0])


def _head(kind: bytes, xid: Xid | None) -> bytes:
    return kind if xid is None else kind + uint32(xid)


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """R: the columns of later tuples of ``relation.relid``."""

    relation: Relation
    xid: Xid | None = None


def write_relation(message: RelationMessage) -> bytes:
    relation = message.relation
    parts = [
        _head(b"R", message.xid),
        uint32(relation.relid),
        _write_namespace(relation.namespace),
        string(relation.name),
        relation.identity.value.encode(),
        uint16(len(relation.columns)),
    ]
    for column in relation.columns:
        parts.append(uint8(column.is_key))
        parts.append(string(column.name))
        parts.append(uint32(column.type_oid) + int32(column.typmod))
    return b"".join(parts)


def read_relation(fields: FieldReader, xid: Xid | None) -> RelationMessage:
    relid = fields.oid()
    namespace = _read_namespace(fields)
    name = fields.string()
    identity = fields.raw(1)
    try:
        replica_identity = ReplicaIdentity(identity.decode("latin-1"))
    except ValueError:
        raise fields.violation(
            f"unrecognized replica identity {_char(identity)}",
            position=fields.offset - 1,
        ) from None
    columns = tuple(_read_column(fields) for _ in range(fields.uint16()))
    return RelationMessage(
        Relation(relid, namespace, name, replica_identity, columns), xid
    )


def _read_column(fields: FieldReader) -> Column:
    is_key = fields.flag()
    return Column(fields.string(), fields.oid(), fields.int32(), is_key)


def _write_namespace(namespace: str) -> bytes:
    return string("" if namespace == CATALOG_NAMESPACE else namespace)


def _read_namespace(fields: FieldReader) -> str:
    return fields.string() or CATALOG_NAMESPACE


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """Y: the name of a user-defined type; sent before the first R that needs it.

    For a domain the OID is the domain's and the name is that of its base type.
    """

    type_oid: Oid
    namespace: str
    name: str
    xid: Xid | None = None


def write_type(message: TypeMessage) -> bytes:
    return (
        _head(b"Y", message.xid)
        + uint32(message.type_oid)
        + _write_namespace(message.namespace)
        + string(message.name)
    )


def read_type(fields: FieldReader, xid: Xid | None) -> TypeMessage:
    return TypeMessage(fields.oid(), _read_namespace(fields), fields.string(), xid)


@dataclass(frozen=True, slots=True)
class Insert:
    """I: a new row."""

    relid: Oid
    new: TupleData
    xid: Xid | None = None


def write_insert(message: Insert) -> bytes:
    return (
        _head(b"I", message.xid)
        + uint32(message.relid)
        + b"N"
        + write_tuple(message.new)
    )


def read_insert(fields: FieldReader, xid: Xid | None) -> Insert:
    relid = fields.oid()
    return Insert(relid, _read_new(fields), xid)


def _read_new(fields: FieldReader) -> TupleData:
    action = fields.uint8()
    if action != ord("N"):
        raise fields.violation(
            f"expected new tuple but got {action}", position=fields.offset - 1
        )
    return read_tuple(fields)


class OldKind(Enum):
    """Contents of an old tuple."""

    KEY = "K"
    """The replica identity's columns; the others are sent as NULL."""
    FULL = "O"
    """The whole row (REPLICA IDENTITY FULL)."""


@dataclass(frozen=True, slots=True)
class OldTuple:
    """The old row, or the columns of its replica identity."""

    kind: OldKind
    values: TupleData


def _write_old(old: OldTuple) -> bytes:
    return old.kind.value.encode() + write_tuple(old.values)


def _read_old(fields: FieldReader, action: bytes) -> OldTuple:
    return OldTuple(OldKind(action.decode()), read_tuple(fields, old=True))


@dataclass(frozen=True, slots=True)
class Update:
    """U: a row changed. Without an old tuple its key is unchanged."""

    relid: Oid
    old: OldTuple | None
    new: TupleData
    xid: Xid | None = None


def write_update(message: Update) -> bytes:
    return (
        _head(b"U", message.xid)
        + uint32(message.relid)
        + (b"" if message.old is None else _write_old(message.old))
        + b"N"
        + write_tuple(message.new)
    )


def read_update(fields: FieldReader, xid: Xid | None) -> Update:
    relid = fields.oid()
    action = fields.raw(1)
    if action == b"N":
        return Update(relid, None, read_tuple(fields), xid)
    if action not in (b"K", b"O"):
        raise fields.violation(
            f"expected action 'N', 'O' or 'K', got {_char(action)}",
            position=fields.offset - 1,
        )
    old = _read_old(fields, action)
    return Update(relid, old, _read_new(fields), xid)


@dataclass(frozen=True, slots=True)
class Delete:
    """D: a row was deleted."""

    relid: Oid
    old: OldTuple
    xid: Xid | None = None


def write_delete(message: Delete) -> bytes:
    return _head(b"D", message.xid) + uint32(message.relid) + _write_old(message.old)


def read_delete(fields: FieldReader, xid: Xid | None) -> Delete:
    relid = fields.oid()
    action = fields.raw(1)
    if action not in (b"K", b"O"):
        raise fields.violation(
            f"expected action 'O' or 'K', got {_char(action)}",
            position=fields.offset - 1,
        )
    return Delete(relid, _read_old(fields, action), xid)


_CASCADE: Final = 1
_RESTART_IDENTITY: Final = 2


@dataclass(frozen=True, slots=True)
class Truncate:
    """T: one statement emptied these relations; each is named once."""

    relids: tuple[Oid, ...]
    cascade: bool
    restart_identity: bool
    xid: Xid | None = None

    @property
    def options(self) -> int:
        """The option bits as sent: 1 CASCADE, 2 RESTART IDENTITY."""
        return self.cascade * _CASCADE | self.restart_identity * _RESTART_IDENTITY


def write_truncate(message: Truncate) -> bytes:
    if not message.relids or len(set(message.relids)) != len(message.relids):
        raise InternalError("a TRUNCATE message names each of its relations once")
    return b"".join(
        (
            _head(b"T", message.xid),
            int32(len(message.relids)),
            uint8(message.options),
            *map(uint32, message.relids),
        )
    )


def read_truncate(fields: FieldReader, xid: Xid | None) -> Truncate:
    count = fields.int32()
    if count < 1:
        raise fields.violation(
            f"invalid number of relations {count} in truncate message",
            position=fields.offset - 4,
        )
    options = fields.uint8()
    if options > _CASCADE | _RESTART_IDENTITY:
        raise fields.violation(
            f"unrecognized flags {options} in truncate message",
            position=fields.offset - 1,
        )
    # Check the length before the loop, so that a count of two billion costs nothing.
    if len(fields.data) - fields.offset != 4 * count:
        raise fields.violation("insufficient data left in message")
    relids = tuple(fields.oid() for _ in range(count))
    if len(set(relids)) != count:
        raise fields.violation("a relation is named twice in truncate message")
    return Truncate(
        relids, bool(options & _CASCADE), bool(options & _RESTART_IDENTITY), xid
    )


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """M: pg_logical_emit_message. If it is not transactional, a rollback does not undo it."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: Xid | None = None


def write_logical_message(message: LogicalMessage) -> bytes:
    return (
        _head(b"M", message.xid)
        + uint8(message.transactional)
        + uint64(message.lsn)
        + string(message.prefix)
        + int32(len(message.content))
        + message.content
    )


def read_logical_message(fields: FieldReader, xid: Xid | None) -> LogicalMessage:
    transactional = fields.flag()
    lsn = fields.lsn()
    prefix = fields.string()
    return LogicalMessage(transactional, lsn, prefix, fields.raw(fields.int32()), xid)
