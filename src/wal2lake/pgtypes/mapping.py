"""The Spark type of each PostgreSQL type, as data, and the alternatives that users may choose.

Comes in: a column's type (OID, typmod, name, dimensions) and the subscription's overrides.
Goes out: a ``TypeMapping``, which has all facts that the conversions need. Called when a
table is created, by ``wal2lake check``, and by the executors that convert (it is picklable).

Why this way (DESIGN 8): if Spark has the type, it is stored as Spark's; all other types are stored
as PostgreSQL's canonical text, because text loses nothing. So no default mapping rounds. A value
that the target type cannot hold (NaN in a decimal, a timestamp of the year 294260) is a located
error of the conversion, never another value.

DATE, TIMESTAMP and TIMESTAMP_NTZ hold PostgreSQL's whole range, including infinities (see
``moments``), except timestamps after January 294247, which do not fit in 64 bits of microseconds.
PostgreSQL and Spark both use the proleptic Gregorian calendar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

import pyarrow as pa

from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.model import Oid
from wal2lake.pgtypes.registry.lengths import Length
from wal2lake.pgtypes.registry.pg_type import (
    PgType,
    format_type,
    numeric_precision_scale,
    type_by_name,
    type_by_oid,
)
from wal2lake.pgtypes.registry.type_names import parse_type_name
from wal2lake.pgtypes.spark_ddl import (
    arrow_from_ddl,
    ddl_from_arrow,
    list_of,
    map_of,
)

MAX_DECIMAL_PRECISION = 38
"""Spark's DecimalType.MAX_PRECISION, and the precision of Arrow's decimal128."""


class ConversionKind(Enum):
    """The conversion of a column."""

    BOOL = "bool"
    """From t and f."""
    INTEGER = "integer"
    """From decimal digits to an integer of the Arrow type's width."""
    FLOAT = "float"
    """Shortest round-trip digits, NaN, Infinity."""
    DECIMAL = "decimal"
    """numeric to a fixed scale."""
    DATE = "date"
    """ISO date."""
    TIMESTAMP = "timestamp"
    """ISO timestamp, no zone, microseconds."""
    TIMESTAMPTZ = "timestamptz"
    """ISO timestamp with its zone's offset, to an instant in microseconds UTC."""
    TEXT = "text"
    """UTF-8 text, stored byte for byte."""
    BYTEA = "bytea"
    """Bytes, from the hex or escape format."""
    ARRAY = "array"
    """One-dimensional array of a scalar mapping (``element``)."""
    HSTORE = "hstore"
    """hstore to a map of text."""


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """The storage of one column."""

    kind: ConversionKind
    arrow_type: pa.DataType
    spark_ddl: str
    """Spark's name of the type, in upper case."""
    type_name: str
    """PostgreSQL's name of the type, from format_type, for the conversion's messages."""
    lossless_text: bool = False
    """True if the canonical text of a type other than text is stored."""
    note: str | None = None
    """Note of ``wal2lake check`` about such a column; None: none."""
    element: TypeMapping | None = None
    """Mapping of an array's elements."""
    delimiter: str = ","
    """Delimiter of an array's elements."""
    exact: bool = False
    """FLOAT: a value with more digits than the type holds is refused, not rounded."""
    length: Length | None = None
    """TEXT: the declared length, if values may not have it yet; None: no check is needed."""
    reads: tuple[int, int] | None = None
    """TEXT, dates and times: type and typmod whose input function the texts must pass; None:
    the texts are from the type's output function."""


_DATETIME_NOTE = "timestamps after 294247-01-10 04:00:54 cannot be stored"
_SCALARS: Mapping[str, tuple[ConversionKind, pa.DataType, str | None]] = (
    MappingProxyType(
        {
            "bool": (ConversionKind.BOOL, pa.bool_(), None),
            "int2": (ConversionKind.INTEGER, pa.int16(), None),
            "int4": (ConversionKind.INTEGER, pa.int32(), None),
            "int8": (ConversionKind.INTEGER, pa.int64(), None),
            "float4": (ConversionKind.FLOAT, pa.float32(), None),
            "float8": (ConversionKind.FLOAT, pa.float64(), None),
            "date": (ConversionKind.DATE, pa.date32(), None),
            "timestamp": (ConversionKind.TIMESTAMP, pa.timestamp("us"), _DATETIME_NOTE),
            "timestamptz": (
                ConversionKind.TIMESTAMPTZ,
                pa.timestamp("us", "UTC"),
                _DATETIME_NOTE,
            ),
            "bytea": (ConversionKind.BYTEA, pa.binary(), None),
            "text": (ConversionKind.TEXT, pa.string(), None),
            "varchar": (ConversionKind.TEXT, pa.string(), None),
            "bpchar": (ConversionKind.TEXT, pa.string(), None),
            "name": (ConversionKind.TEXT, pa.string(), None),
            "char": (ConversionKind.TEXT, pa.string(), None),
            "uuid": (ConversionKind.TEXT, pa.string(), None),
        }
    )
)
"""The default mapping by pg_type.typname; that of numeric depends on its typmod."""

_INTEGRAL = frozenset((ConversionKind.INTEGER, ConversionKind.DECIMAL))
_CHOICES: Mapping[str, frozenset[ConversionKind]] = MappingProxyType(
    {
        "int2": _INTEGRAL,
        "int4": _INTEGRAL,
        "int8": _INTEGRAL,
        "oid": _INTEGRAL,
        "xid": _INTEGRAL,
        "cid": _INTEGRAL,
        "xid8": _INTEGRAL,
        "float4": frozenset((ConversionKind.FLOAT,)),
        "float8": frozenset((ConversionKind.FLOAT,)),
        "numeric": frozenset((ConversionKind.DECIMAL, ConversionKind.FLOAT)),
    }
)
"""Conversions that an override may choose for a type, in addition to STRING, which every type
allows."""

_CHOICE_NAMES: Mapping[ConversionKind, str] = MappingProxyType(
    {
        ConversionKind.INTEGER: "SMALLINT, INT, BIGINT",
        ConversionKind.DECIMAL: "DECIMAL(p,s)",
        ConversionKind.FLOAT: "DOUBLE",
    }
)

_TEXT_EXTENSIONS = frozenset(("citext",))


def mapping_for(
    type_oid: int,
    typmod: int = -1,
    *,
    type_name: str | None = None,
    attndims: int = 0,
    overrides: Mapping[str, str] | None = None,
) -> TypeMapping:
    """Return the mapping of one column.

    ``type_name`` is the publisher's name of a type that is not built in, with or without schema.
    It identifies hstore and citext; all other such types are stored as text. ``attndims`` is
    pg_attribute's: more than 1 declares a multi-dimensional array, which is stored as text.
    ``overrides`` maps PostgreSQL type names (in any spelling; a name with a modifier means only
    that modifier) to Spark DDL types. An override of an element type also applies to its
    arrays. Raises UsageError (22023) for an override that is not possible.
    """
    pg_type = type_by_oid(type_oid)
    if pg_type is None:
        return _foreign(type_name, overrides)
    name = format_type(type_oid, typmod)
    chosen = _override(pg_type, typmod, name, overrides)
    if pg_type.is_array:
        return _array(pg_type, typmod, name, attndims, chosen, overrides)
    default = _scalar(pg_type, typmod, name)
    return default if chosen is None else _choose(pg_type.name, default, chosen)


def _scalar(pg_type: PgType, typmod: int, name: str) -> TypeMapping:
    row = _SCALARS.get(pg_type.name)
    if row is not None:
        kind, arrow, note = row
        return TypeMapping(kind, arrow, ddl_from_arrow(arrow), name, note=note)
    if pg_type.name == "numeric":
        return _numeric(typmod, name)
    return _as_text(name, f"kept as text: Spark has no type for {name}")


def _numeric(typmod: int, name: str) -> TypeMapping:
    limits = numeric_precision_scale(typmod)
    if limits is None:
        return _as_text(
            name,
            "kept as text: numeric without precision has no Spark type; type_mappings "
            "can make it decimal(p,s)",
        )
    precision, scale = limits
    if precision > MAX_DECIMAL_PRECISION or not 0 <= scale <= precision:
        return _as_text(name, f"kept as text: {name} has no Spark type")
    arrow = pa.decimal128(precision, scale)
    return TypeMapping(
        ConversionKind.DECIMAL,
        arrow,
        ddl_from_arrow(arrow),
        name,
        note="NaN cannot be stored",
    )


def _as_text(name: str, note: str) -> TypeMapping:
    return TypeMapping(
        ConversionKind.TEXT, pa.string(), "STRING", name, lossless_text=True, note=note
    )


def _foreign(name: str | None, overrides: Mapping[str, str] | None) -> TypeMapping:
    shown = name or "unknown"
    bare = shown.rpartition(".")[2].strip('"')
    chosen = None
    for key, ddl in (overrides or {}).items():
        if key in (shown, bare):
            chosen = arrow_from_ddl(ddl)
    if chosen is not None and chosen != pa.string():
        raise _impossible(shown, chosen)
    if bare in _TEXT_EXTENSIONS:
        return TypeMapping(ConversionKind.TEXT, pa.string(), "STRING", shown)
    if bare == "hstore" and chosen is None:
        arrow = map_of(pa.string(), pa.string())
        return TypeMapping(ConversionKind.HSTORE, arrow, ddl_from_arrow(arrow), shown)
    return _as_text(shown, f"kept as text: Spark has no type for {shown}")


def _array(
    pg_type: PgType,
    typmod: int,
    name: str,
    attndims: int,
    chosen: pa.DataType | None,
    overrides: Mapping[str, str] | None,
) -> TypeMapping:
    if chosen is not None:
        if chosen != pa.string():
            raise _impossible(name, chosen)
        return _as_text(name, "kept as text by choice")
    if attndims > 1:
        return _as_text(name, "kept as text: declared with several dimensions")
    element = mapping_for(pg_type.element_oid, typmod, overrides=overrides)
    arrow = list_of(element.arrow_type)
    note = "only one-dimensional values with lower bound 1 can be stored"
    if element.note is not None:
        note = f"{note}; elements: {element.note}"
    return TypeMapping(
        ConversionKind.ARRAY,
        arrow,
        ddl_from_arrow(arrow),
        name,
        note=note,
        element=element,
        delimiter=pg_type.delimiter,
    )


def _override(
    pg_type: PgType, typmod: int, name: str, overrides: Mapping[str, str] | None
) -> pa.DataType | None:
    """Return the Arrow type that the user chose; an entry with a modifier takes precedence."""
    if not overrides:
        return None
    general: pa.DataType | None = None
    for key, ddl in overrides.items():
        try:
            oid, key_typmod = parse_type_name(key)
        except Wal2LakeError:
            continue
        bare = "(" not in key
        if oid != pg_type.oid:
            continue
        if not bare and key_typmod == typmod:
            return arrow_from_ddl(ddl)
        if bare:
            general = arrow_from_ddl(ddl)
    return general


_CHOSEN_NOTES = MappingProxyType(
    {
        ConversionKind.DECIMAL: "NaN, and values that do not fit {ddl} exactly, cannot be stored",
        ConversionKind.FLOAT: "values that {ddl} does not hold to the last digit cannot be stored",
        ConversionKind.INTEGER: "stored as {ddl} by choice",
    }
)


def _choose(typname: str, default: TypeMapping, chosen: pa.DataType) -> TypeMapping:
    if chosen == default.arrow_type:
        return default
    name = default.type_name
    if chosen == pa.string():
        return _as_text(name, "kept as text by choice")
    kind = _kind_of(chosen)
    narrower = chosen == pa.float32() and typname != "float4"
    if kind is None or narrower or kind not in _CHOICES.get(typname, frozenset()):
        pg_type = type_by_name(typname)
        raise _impossible(name, chosen, None if pg_type is None else int(pg_type.oid))
    ddl = ddl_from_arrow(chosen)
    return replace(
        default,
        kind=kind,
        arrow_type=chosen,
        spark_ddl=ddl,
        lossless_text=False,
        note=_CHOSEN_NOTES[kind].format(ddl=ddl),
    )


def _kind_of(arrow: pa.DataType) -> ConversionKind | None:
    if pa.types.is_integer(arrow):
        # PostgreSQL has no one-byte integer type.
        return None if arrow == pa.int8() else ConversionKind.INTEGER
    if pa.types.is_decimal(arrow):
        return ConversionKind.DECIMAL
    if pa.types.is_floating(arrow):
        return ConversionKind.FLOAT
    return None


def choose(type_oid: int, typmod: int, default: TypeMapping, ddl: str) -> TypeMapping:
    """Return the mapping of a type with the default mapping ``default`` that is stored as ``ddl``.

    Raises UsageError (22023), with the possible types, if it cannot be stored so.
    """
    chosen = arrow_from_ddl(ddl)
    pg_type = type_by_oid(type_oid)
    if chosen == default.arrow_type:
        return default
    if pg_type is None or chosen == pa.string():
        if chosen != pa.string():
            raise _impossible(default.type_name, chosen)
        return _as_text(default.type_name, "kept as text by choice")
    if not pg_type.is_array:
        return _choose(pg_type.name, default, chosen)
    if not pa.types.is_list(chosen):
        raise _impossible(default.type_name, chosen, type_oid)
    inner = ddl_from_arrow(chosen.value_type)
    element = mapping_for(pg_type.element_oid, typmod)
    choose(pg_type.element_oid, typmod, element, inner)
    of_element = {format_type(pg_type.element_oid, typmod): inner}
    return mapping_for(type_oid, typmod, overrides=of_element)


def possible_choices(type_oid: int) -> str:
    """List the types that a type may be stored as by choice, for messages."""
    pg_type = type_by_oid(type_oid)
    if pg_type is None:
        return "STRING"
    if pg_type.is_array:
        return f"STRING, or ARRAY<...> of {possible_choices(pg_type.element_oid)}"
    kinds = sorted(_CHOICES.get(pg_type.name, ()), key=lambda kind: kind.value)
    natural = _SCALARS.get(pg_type.name)
    names = ["STRING", *(_CHOICE_NAMES[kind] for kind in kinds)]
    if (
        natural is not None
        and natural[0] not in kinds
        and natural[0] is not ConversionKind.TEXT
    ):
        names.append(ddl_from_arrow(natural[1]))
    return ", ".join(names)


def _impossible(
    name: str, chosen: pa.DataType, type_oid: int | None = None
) -> UsageError:
    possible = "STRING" if type_oid is None else possible_choices(type_oid)
    return UsageError(
        f"type {name} cannot be stored as {ddl_from_arrow(chosen)}",
        hint=f"Possible: {possible}.",
    )


def result_type(type_or_ddl: pa.DataType | str) -> tuple[Oid, int]:
    """Return PostgreSQL's (type OID, typmod) for a query result without metadata.

    Takes an Arrow type or Spark DDL. Structs are records (2249); maps, and arrays of types without
    an array type, are text (25). Raises UndefinedObjectError for an unknown DDL.
    """
    arrow = arrow_from_ddl(type_or_ddl) if isinstance(type_or_ddl, str) else type_or_ddl
    types = pa.types
    if types.is_list(arrow) or types.is_large_list(arrow):
        oid, typmod = result_type(arrow.value_type)
        element = type_by_oid(oid)
        if element is None or element.is_array or not element.array_oid:
            return Oid(25), -1
        return element.array_oid, typmod
    if types.is_decimal(arrow):
        return parse_type_name(f"numeric({arrow.precision},{arrow.scale})")
    if types.is_timestamp(arrow):
        return Oid(1114 if arrow.tz is None else 1184), -1
    if types.is_struct(arrow):
        return Oid(2249), -1
    return Oid(_RESULT_OIDS.get(arrow.id, 25)), -1


_RESULT_OIDS: Mapping[int, int] = MappingProxyType(
    {
        pa.bool_().id: 16,
        pa.binary().id: 17,
        pa.large_binary().id: 17,
        pa.int8().id: 21,
        pa.int16().id: 21,
        pa.int32().id: 23,
        pa.int64().id: 20,
        pa.float32().id: 700,
        pa.float64().id: 701,
        pa.date32().id: 1082,
        pa.date64().id: 1082,
        pa.time32("s").id: 1083,
        pa.time64("us").id: 1083,
        pa.duration("us").id: 1186,
    }
)
