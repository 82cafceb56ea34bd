"""The types of a query's expressions: PostgreSQL's, and how Spark holds their values.

Comes in: a column's definition, a type's name in a cast. Goes out: ``Type`` and ``Operand``,
an expression that has one. Every other module of this room works on these.

Why two sides. Most types mean the same in both. Three do not: ``numeric`` without precision
is text in the lake (``EXACT`` text; its digits after the point are part of the value),
``numeric(p,s)`` is a decimal, and types that Spark lacks are text. A rule that forgets which
one it has would compare digits as letters.

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
    as_raised,
)
from wal2lake.pgtypes.mapping import Kind, mapping_for
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
"""VARHDRSZ: what the typmod of a character type is longer than its length."""
ORDERED: Final = (
    INTEGERS
    | FLOATS
    | STRINGS
    | MOMENTS
    | frozenset((BOOL, BYTEA, NUMERIC, UUID, TIME))
)
"""Types whose values Spark orders as PostgreSQL does, once they are prepared."""
MAX_DIGITS: Final = 38
_DIGITS: Final = {INT2: 5, INT4: 10, INT8: 19}


@dataclass(frozen=True, slots=True)
class Type:
    """One expression's."""

    oid: int
    """PostgreSQL's; 0: not known, because a table of the query is not known here."""
    typmod: int = -1
    precision: int | None = None
    """Of a numeric that is a decimal in Spark; None: it is text."""
    scale: int = 0
    element: Type | None = None
    """Of an array."""
    foreign: str | None = None
    """A user-defined type's name: values are text that means nothing to the node."""
    duration: bool = False
    """An interval that Spark computed; others are text."""
    fields: tuple[Type, ...] | None = None
    """Of a row that an expression makes; as a column of a result it is text."""

    @property
    def name(self) -> str:
        """As PostgreSQL's messages have it."""
        if self.foreign is not None:
            return self.foreign
        return format_type(self.oid) if self.oid else "unknown"

    @property
    def known(self) -> bool:
        """Whether there are rules for it."""
        return self.oid != 0

    @property
    def exact_text(self) -> bool:
        """A numeric that Spark has as text."""
        return self.oid == NUMERIC and self.precision is None

    @property
    def number(self) -> bool:
        """Any of PostgreSQL's number types."""
        return self.oid in INTEGERS or self.oid in FLOATS or self.oid == NUMERIC

    @property
    def string(self) -> bool:
        """text and its kin."""
        return self.oid in STRINGS and self.foreign is None

    def computed(self) -> Type:
        """Of an expression: declared limits belong to columns and casts alone."""
        return replace(self, typmod=-1)


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression in Spark's terms with PostgreSQL's type."""

    node: exp.Expression
    type: Type


NOTHING: Final = Type(0)
LITERAL: Final = Type(UNKNOWN)


def plain(oid: int) -> Type:
    """A type without modifiers."""
    known = type_by_oid(oid)
    if known is not None and known.is_array:
        return Type(oid, element=plain(known.element_oid))
    return Type(oid)


def decimal(precision: int, scale: int) -> Type:
    """numeric that Spark has as a decimal."""
    return Type(NUMERIC, -1, min(precision, MAX_DIGITS), scale)


def declared(oid: int, typmod: int, foreign: str | None = None) -> Type:
    """A column's, or a cast's."""
    if foreign is not None and oid == TEXT:
        return Type(oid, typmod, foreign=foreign)
    if oid == NUMERIC:
        limits = numeric_precision_scale(typmod)
        if mapping_for(oid, typmod).kind is Kind.DECIMAL and limits is not None:
            return Type(NUMERIC, typmod, *limits)
        return Type(NUMERIC, typmod)
    known = type_by_oid(oid)
    if known is not None and known.is_array:
        if mapping_for(oid, typmod).kind is not Kind.ARRAY:
            return Type(oid, typmod)
        return Type(oid, typmod, element=declared(known.element_oid, typmod))
    return Type(oid, typmod)


def of_column(column: ColumnDef) -> Type:
    """A table's column."""
    return declared(int(column.type_oid), column.typmod, column.type_name)


def digits_of(kind: Type) -> tuple[int, int]:
    """(precision, scale) of an exact number as a decimal."""
    if kind.oid in _DIGITS:
        return _DIGITS[kind.oid], 0
    assert kind.precision is not None
    return kind.precision, kind.scale


def spark_name(kind: Type) -> str:
    """Spark's type for values of this one."""
    if kind.oid == NUMERIC and kind.precision is not None:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if kind.element is not None:
        return f"ARRAY<{spark_name(kind.element)}>"
    return mapping_for(kind.oid, -1).spark_ddl


def cast(node: exp.Expression, ddl: str) -> exp.Expression:
    """Spark's CAST."""
    # sqlglot's own takes DECIMAL(10,2) for DECIMAL(5,0), and leaves the cast out.
    return exp.Cast(this=node.copy(), to=exp.DataType.build(ddl, dialect="spark"))


def failure(sqlstate: str, *parts: str) -> str:
    """Spark SQL that fails the statement with that error when a row comes to it.

    ``parts`` of the message are alternately constant and Spark SQL.
    """
    texts = [as_raised(sqlstate, parts[0]), *parts[1:]]
    shown = [
        part if place % 2 else "'" + part.replace("\\", r"\\").replace("'", r"\'") + "'"
        for place, part in enumerate(texts)
    ]
    message = shown[0] if len(shown) == 1 else f"concat({', '.join(shown)})"
    return f"raise_error({message})"


def refuse(what: str, hint: str | None = None) -> FeatureNotSupportedError:
    """What the node cannot answer as PostgreSQL does, it does not answer."""
    return FeatureNotSupportedError(
        f"{what} is not supported on lake tables", hint=hint
    )


def no_operator(left: Type, name: str, right: Type) -> UndefinedObjectError:
    """PostgreSQL's words for operands that do not go together."""
    return UndefinedObjectError(
        f"operator does not exist: {left.name} {name} {right.name}",
        sqlstate="42883",
        hint="No operator matches the given name and argument types. You might need to"
        " add explicit type casts.",
    )
