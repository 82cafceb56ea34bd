"""The length that a declaration sets: varchar(n), char(n), bit(n), varbit(n), and arrays of them.

In: OID and typmod. Out: ``Length``, or None where there is none. Called where values of
another declaration come in; values of the same one have been fitted by the publisher.

Source: varchar_input(), bpchar_input(), bit_in(), varbit_in().
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid

_BPCHAR: Final = 1042
_VARCHAR: Final = 1043
_BIT: Final = 1560
_VARBIT: Final = 1562
_HEADER: Final = 4
"""Bytes that the typmod of a character type has above its length (VARHDRSZ)."""


@dataclass(frozen=True, slots=True)
class Length:
    """How long a value may be."""

    limit: int
    """Characters, or bits."""
    type_name: str
    """The type's name as format_type prints it."""
    bits: bool = False
    """Otherwise characters: spaces beyond the limit are cut off."""
    fixed: bool = False
    """Shorter is not allowed (bits), or filled up with spaces (characters)."""


def declared_length(type_oid: int, typmod: int) -> Length | None:
    """Return the declared length of the type, or of an array's elements; None: any length."""
    if typmod < 0:
        return None
    known = type_by_oid(type_oid)
    if known is None:
        return None
    oid = int(known.element_oid) if known.is_array else int(type_oid)
    name = format_type(oid, typmod)
    if oid in (_BPCHAR, _VARCHAR):
        return Length(typmod - _HEADER, name, fixed=oid == _BPCHAR)
    if oid in (_BIT, _VARBIT):
        return Length(typmod, name, bits=True, fixed=oid == _BIT)
    return None
