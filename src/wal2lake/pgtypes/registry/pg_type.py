"""Facts about PostgreSQL's built-in types: pg_type, and format_type().

Comes in: an OID or a name. Goes out: ``PgType`` with the facts of pg_type's columns, and a
type's text exactly as PostgreSQL prints it. Called by the SQL front end (system views,
RowDescription), by CREATE TABLE and by the mapping. Other types (enums, domains, types of
extensions) have no fixed OID; callers identify them by name, and their values are text.

Why this way: the facts are data (``builtin``). Array types are derived, because all of their facts
follow from their elements. A test compares each field of each type with a server's.

Sources: pg_type.dat; src/backend/utils/adt/format_type.c; the typmodout functions in
varchar.c, numeric.c, timestamp.c, varbit.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wal2lake.model import INVALID_OID, Oid
from wal2lake.pgtypes.registry.builtin import (
    BY_REFERENCE,
    NO_BINARY,
    PREFERRED,
    RANGES,
    ROWS,
    SQL_NAMES,
)

VARHDRSZ = 4
"""The typmod of char, varchar and numeric counts the length word of their values."""

INTERVAL_FULL_RANGE = 0x7FFF
INTERVAL_FULL_PRECISION = 0xFFFF
INTERVAL_MASKS: Mapping[str, int] = MappingProxyType(
    {
        "year": 1 << 2,
        "month": 1 << 1,
        "day": 1 << 3,
        "hour": 1 << 10,
        "minute": 1 << 11,
        "second": 1 << 12,
        "year to month": 1 << 2 | 1 << 1,
        "day to hour": 1 << 3 | 1 << 10,
        "day to minute": 1 << 3 | 1 << 10 | 1 << 11,
        "day to second": 1 << 3 | 1 << 10 | 1 << 11 | 1 << 12,
        "hour to minute": 1 << 10 | 1 << 11,
        "hour to second": 1 << 10 | 1 << 11 | 1 << 12,
        "minute to second": 1 << 11 | 1 << 12,
    }
)
"""The upper half of interval's typmod, by the declared fields."""

_INTERVAL_FIELDS = {mask: fields for fields, mask in INTERVAL_MASKS.items()}


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of pg_type; the fields have the meanings of its columns."""

    oid: Oid
    name: str
    """typname: ``int4``, ``_int4``."""
    sql_name: str
    """The name that format_type prints without modifier; for an array, that of its element."""
    array_oid: Oid
    """typarray; 0: no array type."""
    element_oid: Oid
    """typelem; set for arrays and for types that can be subscripted (name, point)."""
    length: int
    """typlen: bytes; -1 variable, -2 a C string."""
    by_value: bool
    category: str
    preferred: bool
    kind: str
    """typtype: b base, r range, m multirange, p pseudo-type."""
    delimiter: str
    """typdelim: delimiter of elements in arrays of this type."""
    align: str
    storage: str
    collation: Oid
    """950 "C" for name, 100 "default" for other text types, otherwise 0."""
    io_stem: str
    has_typmod: bool

    @property
    def is_array(self) -> bool:
        """True for array types, except ``int2vector`` and ``oidvector``."""
        return self.io_stem == "array_"

    @property
    def input_function(self) -> str:
        """typinput."""
        return self.io_stem + "in"

    @property
    def output_function(self) -> str:
        """typoutput."""
        return self.io_stem + "out"

    @property
    def receive_function(self) -> str | None:
        """typreceive; None: the type has no binary form."""
        return None if self.name in NO_BINARY else self.io_stem + "recv"

    @property
    def send_function(self) -> str | None:
        """typsend; None: the type has no binary form."""
        return None if self.name in NO_BINARY else self.io_stem + "send"


_TYPMOD_TYPES = frozenset(
    (
        "bpchar",
        "varchar",
        "time",
        "timestamp",
        "timestamptz",
        "interval",
        "timetz",
        "bit",
        "varbit",
        "numeric",
    )
)
_DEFAULT_COLLATED = frozenset(("text", "bpchar", "varchar", "pg_node_tree"))


def _collation(name: str, category: str) -> Oid:
    if name == "name":
        return Oid(950)
    if name in _DEFAULT_COLLATED or (category == "Z" and name != "char"):
        return Oid(100)
    return INVALID_OID


def _build() -> dict[int, PgType]:
    types: dict[int, PgType] = {}
    for oid, name, array, element, length, category, kind, align, storage, io in ROWS:
        types[oid] = base = PgType(
            oid=Oid(oid),
            name=name,
            sql_name=SQL_NAMES.get(name, name),
            array_oid=Oid(array),
            element_oid=Oid(element),
            length=length,
            by_value=length in (1, 2, 4, 8) and name not in BY_REFERENCE,
            category=category,
            preferred=name in PREFERRED,
            kind=kind,
            delimiter=";" if name == "box" else ",",
            align=align,
            storage=storage,
            collation=_collation(name, category),
            io_stem=io,
            has_typmod=name in _TYPMOD_TYPES,
        )
        if array:
            types[array] = _array_of(base)
    return types


def _array_of(element: PgType) -> PgType:
    return PgType(
        oid=element.array_oid,
        name="_" + element.name,
        sql_name=element.sql_name,
        array_oid=INVALID_OID,
        element_oid=element.oid,
        length=-1,
        by_value=False,
        category="P" if element.kind == "p" and element.name == "record" else "A",
        preferred=False,
        kind="p" if element.kind == "p" and element.name == "record" else "b",
        delimiter=element.delimiter,
        align="d" if element.align == "d" else "i",
        storage="x",
        collation=element.collation,
        io_stem="array_",
        has_typmod=element.has_typmod,
    )


BUILT_IN: Mapping[int, PgType] = MappingProxyType(_build())
"""All types of this registry by OID, including array types."""

_BY_NAME: Mapping[str, PgType] = MappingProxyType(
    {t.name: t for t in BUILT_IN.values()}
)


def type_by_oid(oid: int) -> PgType | None:
    """Return a built-in type; None: not built in, or the row type of a system catalog."""
    return BUILT_IN.get(oid)


def type_by_name(typname: str) -> PgType | None:
    """Return a type by pg_type.typname (``int4``, ``_int4``), not by its SQL spelling."""
    return _BY_NAME.get(typname)


def range_subtype(oid: int) -> Oid | None:
    """Return pg_range.rngsubtype of a built-in range type."""
    entry = RANGES.get(oid)
    return None if entry is None else Oid(entry[0])


def multirange_range(oid: int) -> Oid | None:
    """Return the range type of a built-in multirange type."""
    return next((Oid(r) for r, (_, m) in RANGES.items() if m == oid), None)


def numeric_typmod(precision: int, scale: int = 0) -> int:
    """Return the typmod of numeric(precision, scale); scale may be -1000..1000."""
    return (precision << 16 | scale & 0x7FF) + VARHDRSZ


def numeric_precision_scale(typmod: int) -> tuple[int, int] | None:
    """Return (precision, scale) of a numeric typmod; None: unconstrained.

    The scale has 11 bits, signed, since PostgreSQL 15.
    """
    if typmod < VARHDRSZ:
        return None
    packed = typmod - VARHDRSZ
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def format_type(oid: int, typmod: int | None = None) -> str:
    """Print a type as PostgreSQL does: ``numeric(10,2)``, ``timestamp(3)[]`` ...

    Equal to SQL's format_type(oid, typmod), with None for NULL. As in SQL, char and bit with
    typmod -1 print as ``bpchar`` and ``"bit"``: these are the types without limit, while the
    words character and bit mean length 1. An OID that is not built in gives ``???``.
    """
    if oid == INVALID_OID:
        return "-"
    pg_type = BUILT_IN.get(oid)
    if pg_type is None:
        return "???"
    if pg_type.is_array and pg_type.element_oid:
        return _format_scalar(BUILT_IN[pg_type.element_oid], typmod) + "[]"
    return _format_scalar(pg_type, typmod)


def _format_scalar(pg_type: PgType, typmod: int | None) -> str:
    if typmod is not None and pg_type.name in ("bpchar", "bit") and typmod < 0:
        return "bpchar" if pg_type.name == "bpchar" else '"bit"'
    if typmod is None or typmod < 0 or not pg_type.has_typmod:
        return pg_type.sql_name
    return _with_typmod(pg_type, typmod)


def _with_typmod(pg_type: PgType, typmod: int) -> str:
    match pg_type.name:
        case "bpchar" | "varchar":
            if typmod <= VARHDRSZ:
                return pg_type.sql_name
            return f"{pg_type.sql_name}({typmod - VARHDRSZ})"
        case "numeric":
            limits = numeric_precision_scale(typmod)
            if limits is None:
                return "numeric"
            return f"numeric({limits[0]},{limits[1]})"
        case "interval":
            fields = _INTERVAL_FIELDS.get(typmod >> 16 & INTERVAL_FULL_RANGE)
            precision = typmod & INTERVAL_FULL_PRECISION
            text = "interval" if fields is None else f"interval {fields}"
            if precision == INTERVAL_FULL_PRECISION:
                return text
            return f"{text}({precision})"
        case "bit" | "varbit":
            return f"{pg_type.sql_name}({typmod})"
        case _:
            head, _, tail = pg_type.sql_name.partition(" ")
            return f"{head}({typmod}) {tail}"
