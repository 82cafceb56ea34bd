"""PostgreSQL's scalar identifiers: LSN, OID and XID.

Each is a subclass of int, so that a signature says which number it takes and ``repr`` in a log
line is readable. Arithmetic returns a plain int on purpose: the caller must convert the result
back to an Lsn.

Source: PostgreSQL manual, sections 8.20 (pg_lsn) and 8.19 (oid, xid).
"""

from __future__ import annotations

import re

_LSN_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


class Lsn(int):
    """A byte position in the write-ahead log, 0 <= value < 2**64; 0 is invalid."""

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Lsn:
        """Take an int; raises ValueError outside 64 bits."""
        if not 0 <= value < 1 << 64:
            raise ValueError(f"LSN out of range: {int(value)}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read ``XXXXXXXX/XXXXXXXX``; raises ValueError with PostgreSQL's words."""
        match = _LSN_TEXT.match(text.strip())
        if match is None:
            raise ValueError(f'invalid input syntax for type pg_lsn: "{text}"')
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Oid(int):
    """An object identifier, 32 bits unsigned; 0 is InvalidOid."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Oid({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


class Xid(int):
    """A transaction identifier, 32 bits unsigned; 0 is InvalidTransactionId."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Xid({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


INVALID_LSN = Lsn(0)
INVALID_OID = Oid(0)
