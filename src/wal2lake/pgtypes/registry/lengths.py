"""Declared lengths: varchar(n), char(n), bit(n), varbit(n), and arrays of them.

In: OID and typmod. Out: ``Length``, or None if there is none. Called for values with another
declared length; the publisher has fitted values with the same length already.

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
"""Difference of a character type's typmod and its length (VARHDRSZ)."""


@dataclass(frozen=True, slots=True)
class Length:
    """A declared length."""

    limit: int
    """Number of characters or bits."""
    type_name: str
    """The type's name as format_type prints it."""
    bits: bool = False
    """True for bits; for characters, spaces beyond the limit are removed."""
    fixed: bool = False
    """A shorter value is refused (bits) or padded with spaces (characters)."""


def declared_length(type_oid: int, typmod: int) -> Length | None:
    """Return the declared length of the type, or of an array's elements; None: any length."""
    if typmod < 0:
        return None
    pg_type = type_by_oid(type_oid)
    if pg_type is None:
        return None
    oid = int(pg_type.element_oid) if pg_type.is_array else int(type_oid)
    name = format_type(oid, typmod)
    if oid in (_BPCHAR, _VARCHAR):
        return Length(typmod - _HEADER, name, fixed=oid == _BPCHAR)
    if oid in (_BIT, _VARBIT):
        return Length(typmod, name, bits=True, fixed=oid == _BIT)
    return None
