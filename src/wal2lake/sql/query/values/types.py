"""Defines the types of expressions: PostgreSQL's type and Spark's representation.

Comes in: a column's definition, or the name of a type in a cast. Goes out: ``Type``, and
``Operand``, an expression with its type. Every other module of this package works on them.

Why both are kept: most types are the same in PostgreSQL and Spark, but ``numeric`` without
precision is text in the lake (its scale is part of the value), ``numeric(p,s)`` is a decimal, and
types that Spark lacks are text. A rule that knew only one side would compare digits as letters.

Source: PostgreSQL manual, chapter 8, and 10.5 (UNION, CASE and related constructs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from wal2lake.catalog import ColumnDef
from wal2lake.errors import (
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
    as_raised,
)
from wal2lake.pgtypes.mapping import ConversionKind, mapping_for
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    numeric_precision_scale,
    type_by_oid,
)

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR, NAME = 700, 701, 705, 1042, 1043, 19
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1114, 1184, 1186
TIMETZ = 1266
NUMERIC, UUID, JSON, JSONB, RECORD, MONEY = 1700, 2950, 114, 3802, 2249, 790
INET, CIDR, MACADDR, BIT, VARBIT = 869, 650, 829, 1560, 1562

INTEGERS: Final = frozenset((INT2, INT4, INT8))
FLOATS: Final = frozenset((FLOAT4, FLOAT8))
STRINGS: Final = frozenset((TEXT, VARCHAR, BPCHAR, NAME))
MOMENTS: Final = frozenset((DATE, TIMESTAMP, TIMESTAMPTZ))
INTEGER_BITS: Final = {INT2: 16, INT4: 32, INT8: 64}
BIT_STRINGS: Final = frozenset((BIT, VARBIT))
LENGTH_HEADER: Final = 4
"""VARHDRSZ: the difference between the typmod of a character type and its length."""
ORDERED: Final = (
    INTEGERS
    | FLOATS
    | STRINGS
    | MOMENTS
    | frozenset((BOOL, BYTEA, NUMERIC, UUID, TIME))
)
"""Types whose values Spark orders as PostgreSQL does, after ``casts.order_operand``."""
MAX_DIGITS: Final = 38
_DIGITS: Final = {INT2: 5, INT4: 10, INT8: 19}


@dataclass(frozen=True, slots=True)
class Type:
    """The type of one expression."""

    oid: int
    """PostgreSQL's type OID. 0: not known, because a table's columns are not known."""
    typmod: int = -1
    precision: int | None = None
    """The precision of a numeric that is a decimal in Spark. None: it is text."""
    scale: int = 0
    element: Type | None = None
    """The type of an array's elements."""
    foreign: str | None = None
    """The name of a user-defined type, whose values are opaque text to the node."""
    duration: bool = False
    """True for an interval that Spark has computed; other intervals are text."""
    fields: tuple[Type, ...] | None = None
    """The types of the values of a row expression, which is text in a result."""

    @property
    def name(self) -> str:
        """The type's name in PostgreSQL's messages."""
        if self.foreign is not None:
            return self.foreign
        return format_type(self.oid) if self.oid else "unknown"

    @property
    def known(self) -> bool:
        """Whether the type is known."""
        return self.oid != 0

    @property
    def exact_text(self) -> bool:
        """Whether the type is a numeric that Spark holds as text."""
        return self.oid == NUMERIC and self.precision is None

    @property
    def number(self) -> bool:
        """Whether the type is an integer, float or numeric type."""
        return self.oid in INTEGERS or self.oid in FLOATS or self.oid == NUMERIC

    @property
    def string(self) -> bool:
        """Whether the type is text, varchar, bpchar or name."""
        return self.oid in STRINGS and self.foreign is None

    def computed(self) -> Type:
        """The type of an expression of this type: only columns and casts have a typmod."""
        return replace(self, typmod=-1)


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression in Spark's terms with PostgreSQL's type."""

    node: exp.Expression
    type: Type


NOTHING: Final = Type(0)
LITERAL: Final = Type(UNKNOWN)


def plain(oid: int) -> Type:
    """The type of an OID, without modifiers."""
    pg_type = type_by_oid(oid)
    if pg_type is not None and pg_type.is_array:
        return Type(oid, element=plain(pg_type.element_oid))
    return Type(oid)


def decimal(precision: int, scale: int) -> Type:
    """The type of a numeric that Spark holds as a decimal."""
    return Type(NUMERIC, -1, min(precision, MAX_DIGITS), scale)


def declared(oid: int, typmod: int, foreign: str | None = None) -> Type:
    """The type of a column or a cast, with its typmod."""
    if foreign is not None and oid == TEXT:
        return Type(oid, typmod, foreign=foreign)
    if oid == NUMERIC:
        limits = numeric_precision_scale(typmod)
        if (
            mapping_for(oid, typmod).kind is ConversionKind.DECIMAL
            and limits is not None
        ):
            return Type(NUMERIC, typmod, *limits)
        return Type(NUMERIC, typmod)
    pg_type = type_by_oid(oid)
    if pg_type is not None and pg_type.is_array:
        if mapping_for(oid, typmod).kind is not ConversionKind.ARRAY:
            return Type(oid, typmod)
        return Type(oid, typmod, element=declared(pg_type.element_oid, typmod))
    return Type(oid, typmod)


def of_column(column: ColumnDef) -> Type:
    """The type of a table's column."""
    return declared(int(column.type_oid), column.typmod, column.type_name)


def digits_of(kind: Type) -> tuple[int, int]:
    """The precision and scale of an exact number type as a decimal."""
    if kind.oid in _DIGITS:
        return _DIGITS[kind.oid], 0
    assert kind.precision is not None
    return kind.precision, kind.scale


def spark_name(kind: Type) -> str:
    """Spark's name of the type that holds values of this type."""
    if kind.oid == NUMERIC and kind.precision is not None:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind.element is not None:
        return f"ARRAY<{spark_name(kind.element)}>"
    return mapping_for(kind.oid, -1).spark_ddl


def cast(node: exp.Expression, ddl: str) -> exp.Expression:
    """Build Spark's CAST."""
    # exp.cast() takes DECIMAL(10,2) for DECIMAL(5,0), and leaves the cast out.
    return exp.Cast(this=node.copy(), to=exp.DataType.build(ddl, dialect="spark"))


def failure(sqlstate: str, *parts: str) -> str:
    """Spark SQL that fails the statement with this error at a row for which it is evaluated.

    The ``parts`` of the message are alternately constant text and Spark SQL.
    """
    texts = [as_raised(sqlstate, parts[0]), *parts[1:]]
    arguments = [
        part if place % 2 else "'" + part.replace("\\", r"\\").replace("'", r"\'") + "'"
        for place, part in enumerate(texts)
    ]
    message = arguments[0] if len(arguments) == 1 else f"concat({', '.join(arguments)})"
    return f"raise_error({message})"


def refuse(operation: str, hint: str | None = None) -> FeatureNotSupportedError:
    """The error for an operation that a node cannot do exactly as PostgreSQL does."""
    return FeatureNotSupportedError(
        f"{operation} is not supported on lake tables", hint=hint
    )


def no_operator(left: Type | None, name: str, right: Type) -> UndefinedObjectError:
    """PostgreSQL's error for an operator that does not exist for these types.

    ``left``: None for an operator before its only operand."""
    before, kinds = (f"{left.name} ", "types") if left is not None else ("", "type")
    return UndefinedObjectError(
        f"operator does not exist: {before}{name} {right.name}",
        sqlstate="42883",
        hint=f"No operator matches the given name and argument {kinds}. You might need"
        f" to add {'explicit type casts' if left is not None else 'an explicit type cast'}.",
    )


def not_unique(left: Type, name: str, right: Type) -> UsageError:
    """PostgreSQL's error for operands that fit several operators."""
    return UsageError(
        f"operator is not unique: {left.name} {name} {right.name}",
        sqlstate="42725",
        hint="Could not choose a best candidate operator. You might need to add"
        " explicit type casts.",
    )
