"""The form in which a column's values enter the image of a row, at both sides.

Comes in: the Arrow type with which the node stores a column, and the column's PostgreSQL type.
Goes out: a ``ColumnForm``: the SQL expression that gives this form at a server, and the OID that
record_send() writes before the value. ``images`` makes the same bytes of an Arrow column.

The stored type decides, because the image proves what the node promises for the column: integers
of any width are sent as bigint, real as double precision (both exact), numeric in a decimal as the
text of its declared digits. Whatever is stored as text is compared as the text that the type's
output function writes.

Called by ``images`` and ``statements``. Sources: record_send(); the casts to text in pg_cast.dat,
which are not the output functions for the types of ``_CAST_DIFFERS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.pgtypes import format_type


class NotComparable(FeatureNotSupportedError):
    """A table whose two sides have no common form."""


class ValueForm(Enum):
    """How a value is written into the image of its row."""

    BOOL = ("boolean", 16, 1)
    INTEGER = ("bigint", 20, 8)
    FLOAT = ("double precision", 701, 8)
    DATE = ("date", 1082, 4)
    TIMESTAMP = ("timestamp without time zone", 1114, 8)
    TIMESTAMPTZ = ("timestamp with time zone", 1184, 8)
    BYTES = ("bytea", 17, None)
    TEXT = ("text", 25, None)

    def __init__(self, type_name: str, oid: int, width: int | None) -> None:
        self.type_name = type_name
        self.oid = oid
        """The type's OID, which record_send() writes before each value."""
        self.width = width
        """Bytes of a value in binary format; None if it varies."""


_BPCHAR, _BYTEA, _NUMERIC, _MONEY = 1042, 17, 1700, 790
_VARCHAR, _TEXT = 1043, 25

_CAST_DIFFERS: Final = frozenset({16, 18, 142, 650, 869, _BPCHAR})
"""boolean, "char", xml, cidr, inet, character: a cast to text is not the output function."""

_FIRST_NORMAL_OID: Final = 16384


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """The form of one column."""

    value: ValueForm
    type_oid: int
    """The column's type at the server; for a domain, its base type."""
    typmod: int = -1
    digits: tuple[int, int] | None = None
    """Precision and scale of the decimal in which the node stores the column."""

    def expression(self, column: str) -> str:
        """Return the SQL expression that gives this form of ``column``, a quoted name."""
        match self.value:
            case ValueForm.TEXT if self.digits is not None:
                precision, scale = self.digits
                return f"{column}::pg_catalog.numeric({precision},{scale})::text"
            case ValueForm.TEXT if self._casts_to_text:
                return f"{column}::text"
            case ValueForm.TEXT:
                return (
                    f"CASE WHEN ({column}) IS NOT DISTINCT FROM NULL THEN NULL"
                    f" ELSE pg_catalog.concat({column}) END"
                )
            case ValueForm.FLOAT:
                # A NaN may have a sign, which a comparison does not see.
                return (
                    f"CASE WHEN {column} = 'NaN' THEN 'NaN' ELSE {column} END"
                    "::double precision"
                )
            case _:
                return f"{column}::{self.value.type_name}"

    @property
    def _casts_to_text(self) -> bool:
        return self.type_oid not in _CAST_DIFFERS and self.type_oid < _FIRST_NORMAL_OID


def form_of(stored: pa.DataType, type_oid: int, typmod: int = -1) -> ColumnForm:
    """Return the form of a column that is stored as ``stored``.

    Raises NotComparable, with the reason, if the two sides have no common form.
    """
    types = pa.types
    if type_oid == _MONEY:
        raise NotComparable("the text of type money depends on lc_monetary")
    if types.is_decimal(stored):
        if type_oid != _NUMERIC:
            raise _no_form(stored, type_oid)
        return ColumnForm(
            ValueForm.TEXT, type_oid, typmod, (stored.precision, stored.scale)
        )
    if types.is_string(stored) or types.is_large_string(stored):
        return ColumnForm(ValueForm.TEXT, type_oid, typmod)
    if types.is_nested(stored):
        return ColumnForm(ValueForm.TEXT, type_oid, typmod)
    for is_stored, value, oids in _STORED:
        if is_stored(stored):
            if type_oid in oids:
                return ColumnForm(value, type_oid, typmod)
            break
    raise _no_form(stored, type_oid)


def _no_form(stored: pa.DataType, type_oid: int) -> NotComparable:
    return NotComparable(
        f"a column of type {format_type(type_oid)} is stored as {stored}"
    )


def _is_zoned(stored: pa.DataType) -> bool:
    return pa.types.is_timestamp(stored) and stored.tz is not None


def _is_local(stored: pa.DataType) -> bool:
    return pa.types.is_timestamp(stored) and stored.tz is None


_STORED: Final = (
    (pa.types.is_boolean, ValueForm.BOOL, frozenset({16})),
    (pa.types.is_integer, ValueForm.INTEGER, frozenset({20, 21, 23, 26})),
    (pa.types.is_floating, ValueForm.FLOAT, frozenset({700, 701})),
    (pa.types.is_date, ValueForm.DATE, frozenset({1082})),
    (_is_local, ValueForm.TIMESTAMP, frozenset({1114})),
    (_is_zoned, ValueForm.TIMESTAMPTZ, frozenset({1184})),
    (pa.types.is_binary, ValueForm.BYTES, frozenset({_BYTEA})),
)
"""For each Arrow type, the form of its values, and the types of columns that have this form."""
