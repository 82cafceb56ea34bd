"""Formats, field descriptions and the transaction's state.

In and out: RowDescription's body and the small enumerations of the protocol.

Source: PostgreSQL manual, section 54.7 (RowDescription, ReadyForQuery).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum

from wal2lake.wire.frontback.frames import (
    Body,
    int16,
    int32,
    string,
    uint16,
    uint32,
)


class Format(IntEnum):
    """Format of a value."""

    TEXT = 0
    """Result of the type's output function, in client_encoding."""
    BINARY = 1
    """Result of the type's send function."""


class TransactionStatus(Enum):
    """State that ReadyForQuery reports."""

    IDLE = b"I"
    """Not in a transaction block."""
    BLOCK = b"T"
    """In a transaction block."""
    FAILED = b"E"
    """In a failed transaction block: statements are refused until it ends."""


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One column of a result, without its format, which the client chooses later."""

    name: str
    type_oid: int
    typlen: int = -1
    """pg_type.typlen; negative: variable width."""
    typmod: int = -1
    table_oid: int = 0
    attnum: int = 0


def write_row_description(
    fields: Sequence[FieldDescription],
    formats: Sequence[int],
    *,
    encoding: str = "utf-8",
) -> bytes:
    """Encode RowDescription's body. Characters that the encoding lacks become question marks."""
    parts = [uint16(len(fields))]
    for field, code in zip(fields, formats, strict=True):
        # A PostgreSQL identifier cannot contain NUL, but the name of a Spark column can.
        name = field.name.replace("\0", "").encode(encoding, "replace")
        parts.append(
            string(name)
            + uint32(field.table_oid)
            + int16(field.attnum)
            + uint32(field.type_oid)
            + int16(field.typlen)
            + int32(field.typmod)
            + int16(code)
        )
    return b"".join(parts)


def read_row_description(
    body: bytes, *, encoding: str = "utf-8"
) -> tuple[tuple[FieldDescription, ...], tuple[int, ...]]:
    """Read the fields and their format codes; raises ProtocolViolation."""
    cursor = Body(body)
    fields: list[FieldDescription] = []
    formats: list[int] = []
    for _ in range(cursor.uint16()):
        name = cursor.string().decode(encoding, "replace")
        table_oid = cursor.uint32()
        attnum = cursor.int16()
        type_oid = cursor.uint32()
        typlen = cursor.int16()
        typmod = cursor.int32()
        fields.append(
            FieldDescription(name, type_oid, typlen, typmod, table_oid, attnum)
        )
        formats.append(cursor.int16())
    cursor.end()
    return tuple(fields), tuple(formats)
