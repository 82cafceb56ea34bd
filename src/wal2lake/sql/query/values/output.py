"""Translates values to text, as output functions and casts to text do.

Comes in: an operand of any type. Goes out: a Spark expression for the text that PostgreSQL prints.
Called by ``casts``, and for operations that build texts: ``||``, string_agg(), arrays and rows.

Output functions and casts differ for two types only. The output function, which arrays and rows
use, prints a boolean as ``t`` and keeps the blanks of a bpchar; a cast gives ``true`` and removes
the blanks.

A float is printed with the fewest digits that read back as the same number. Java's conversion does
not guarantee that, so each number of digits is tried.

Sources: PostgreSQL manual 8.1.3, 8.15.6, 8.16.5; the output functions in
src/backend/utils/adt (float.c, d2s.c, arrayfuncs.c, rowtypes.c).
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.sql.query.values import intervals, moments, numeric
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, cast

_AS_TEXT: Final = frozenset(
    (
        t.UUID,
        t.JSON,
        t.JSONB,
        t.TIME,
        t.TEXT,
        t.VARCHAR,
        t.NAME,
        t.OID,
        t.INET,
        t.CIDR,
        t.MACADDR,
        t.BIT,
        t.VARBIT,
        t.RECORD,
    )
)
"""Types whose values Spark holds as text."""

_ELEMENT: Final = "wal2lake_element"
"""The parameter of lambdas over arrays; no column has this name."""


def text_of(operand: Operand, zone: str) -> exp.Expression:
    """Translate ``CAST(operand AS text)``."""
    source, node = operand.type, operand.node
    if source.oid == t.BPCHAR and source.foreign is None:
        if isinstance(node, exp.Literal):
            # A constant stays one: an INSERT of constants needs no Spark.
            return exp.Literal.string(node.name.rstrip(" "))
        return spark("rtrim(' ', :x)", x=node)
    if source.oid == t.BOOL:
        return cast(node, "STRING")
    return output_of(operand, zone)


def output_of(operand: Operand, zone: str) -> exp.Expression:
    """The text that the type's output function prints; raises 0A000 for an unsupported type."""
    source, node = operand.type, operand.node
    if source.fields is not None:
        return _row(operand, zone)
    if source.element is not None:
        return _array(operand, zone)
    if source.foreign is not None or source.oid in _AS_TEXT or not source.known:
        return node
    if source.oid == t.BPCHAR:
        return node
    if source.oid in t.INTEGERS or source.oid == t.NUMERIC:
        return numeric.as_text(operand)
    if source.oid in t.FLOATS:
        return _float(operand)
    if source.oid == t.INTERVAL:
        return intervals.text(operand)
    if source.oid == t.BOOL:
        return spark("left(cast(:x as string), 1)", x=node)
    if source.oid in (t.DATE, t.TIMESTAMP):
        return moments.text_of(operand)
    if source.oid == t.TIMESTAMPTZ:
        return moments.zoned_text(operand, zone)
    if source.oid == t.BYTEA:
        return spark(r"concat('\\x', lower(hex(:x)))", x=node)
    raise t.refuse(f"a cast from {source.name} to text")


# ---- floats --------------------------------------------------------------------------------


def _float(operand: Operand) -> exp.Expression:
    """The shortest digits, without an exponent from 1e-4 to 1e15 (1e6 for real)."""
    single = operand.type.oid == t.FLOAT4
    ddl, few, digits = ("FLOAT", 5, 6) if single else ("DOUBLE", 14, 15)
    most, tiny = (8, "1.2e-38D") if single else (16, "2.3e-308D")
    # ``p`` is the number of digits after the first. Only denormal numbers may need few.
    lengths = f"sequence(if(abs(:v) < {tiny}, 0, {few}), {most})"
    printed = "format_string(concat('%.', p, 'e'), cast(:v as double))"
    fits = f"cast({printed} as {ddl}) = :v"
    shortest = f"get(transform(filter({lengths}, p -> {fits}), p -> {printed}), 0)"
    scale = 4 + most
    plain = (
        f"trim(trailing '.' from trim(trailing '0' from"
        f" cast(cast(:s as DECIMAL({digits + scale},{scale})) as string)))"
    )
    power = "cast(split_part(:s, 'e', 2) as int)"
    mantissa = "split_part(:s, 'e', 1)"
    short = (
        f"if(instr({mantissa}, '.') = 0, {mantissa}, trim(trailing '.' from"
        f" trim(trailing '0' from {mantissa})))"
    )
    # PostgreSQL does not use digits that lie halfway between two numbers (1e23).
    exact_limit, neighbours = ("4194304D" if single else "4503599627370496D"), []
    for sign in "+-":
        neighbour = f"(cast({mantissa} as DECIMAL(30,28)) {sign} 1e-28BD)"
        neighbour_text = (
            f"concat(cast({neighbour} as string), 'e', split_part(:s, 'e', 2))"
        )
        neighbours.append(f"cast({neighbour_text} as {ddl}) = :v")
    halfway = t.failure("0A000", "this number's text is not supported on lake tables")
    exact_digits = let(
        f"if(abs(:v) < {exact_limit} or ({neighbours[0]} and {neighbours[1]}), :s,"
        f" cast({halfway} as string))",
        s=let(shortest, v=operand.node),
        v=operand.node,
    )
    formatted = let(
        f"if({power} between -4 and {digits - 1}, {plain},"
        f" concat({short}, 'e', split_part(:s, 'e', 2)))",
        s=exact_digits,
    )
    return spark(
        "case when :x is null then null when :x = 0"
        " then if(left(cast(:x as string), 1) = '-', '-0', '0')"
        " when isnan(:x) or abs(:x) = double('Infinity') then cast(:x as string)"
        " else :f end",
        x=operand.node,
        f=formatted,
    )


# ---- arrays and rows -----------------------------------------------------------------------

_QUOTED_ITEM: Final = (
    "case when :v is null then 'NULL' when :v = '' or lower(:v) = 'null'"
    r""" or :v rlike '[\\s"{},\\\\]' then concat('"', replace(replace("""
    r""":v, '\\', '\\\\'), '"', '\\"'), '"') else :v end"""
)
_QUOTED_FIELD: Final = (
    "case when :v is null then '' when :v = ''"
    r""" or :v rlike '[\\s"(),\\\\]' then concat('"', replace(replace("""
    r""":v, '\\', '\\\\'), '"', '""'), '"') else :v end"""
)


def over_elements(
    array: Operand, body: exp.Expression, name: str = _ELEMENT
) -> exp.Expression:
    """Apply ``of``, an expression of ``element_of``, to each element of an array."""
    return exp.Transform(
        this=array.node.copy(),
        expression=exp.Lambda(this=body, expressions=[exp.to_identifier(name)]),
    )


def element_of(kind: Type) -> Operand:
    """The element inside a lambda over an array of this type."""
    assert kind.element is not None
    return Operand(exp.column(_ELEMENT), kind.element)


def item_text(kind: Type, zone: str) -> exp.Expression:
    """The output text of an array's element; NULL for NULL."""
    return output_of(element_of(kind), zone)


def _array(operand: Operand, zone: str) -> exp.Expression:
    kind = operand.type
    assert kind.element is not None
    if kind.element.element is not None:
        raise t.refuse("an array of arrays as text")
    quoted = let(_QUOTED_ITEM, v=item_text(kind, zone))
    return spark(
        "concat('{', array_join(:i, ','), '}')", i=over_elements(operand, quoted)
    )


def row(operands: list[Operand]) -> Operand:
    """Translate ``ROW(...)``."""
    items = [
        exp.Alias(this=o.node, alias=exp.to_identifier(f"f{place}"))
        for place, o in enumerate(operands)
    ]
    node = exp.Anonymous(this="struct", expressions=items)
    return Operand(node, Type(t.RECORD, fields=tuple(o.type for o in operands)))


def fields_of(operand: Operand) -> list[Operand]:
    """The values of a row expression; raises 0A000 for a choice among rows."""
    assert operand.type.fields is not None
    inner = operand.node
    if isinstance(inner, exp.Case):
        inner = inner.args["default"]
    if not (isinstance(inner, exp.Anonymous) and inner.name == "struct"):
        raise t.refuse("an expression that chooses among rows")
    return [
        Operand(item.this, kind)
        for item, kind in zip(inner.expressions, operand.type.fields, strict=True)
    ]


def _row(operand: Operand, zone: str) -> exp.Expression:
    texts = [let(_QUOTED_FIELD, v=output_of(o, zone)) for o in fields_of(operand)]
    joined = exp.Anonymous(
        this="concat_ws", expressions=[exp.Literal.string(","), *texts]
    )
    text = spark("concat('(', :x, ')')", x=joined)
    if isinstance(operand.node, exp.Case):
        whole = operand.node.copy()
        whole.set("default", text)
        return whole
    return text
