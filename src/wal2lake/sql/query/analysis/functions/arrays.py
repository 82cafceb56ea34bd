"""Translates functions and operators of one-dimensional arrays.

Comes in: operands. Goes out: an operand. Called by ``rules``, ``calls`` and ``expressions``.
Elements are compared by the rules of their type.

Source: PostgreSQL manual 9.19; array_userfuncs.c, arrayfuncs.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.query.analysis.functions.strings import (
    constant_number,
    constant_text,
    no_function,
    text,
)
from wal2lake.sql.query.values import casts, output
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.output import element_of, over_elements
from wal2lake.sql.query.values.types import Operand, Type, plain

_BOOL: Final = plain(t.BOOL)


def array_type(element: Type) -> Type:
    """The array type of an element type; raises 0A000 if there is none."""
    pg_type = type_by_oid(element.oid)
    is_row = element.oid == t.RECORD
    if (
        is_row
        or element.foreign is not None
        or pg_type is None
        or not pg_type.array_oid
    ):
        raise t.refuse(f"an array of {element.name}")
    return Type(int(pg_type.array_oid), element=element.computed())


def _array(name: str, operand: Operand) -> Operand:
    if operand.type.element is None:
        if operand.type.oid == t.UNKNOWN:
            raise UsageError(
                "could not determine polymorphic type because input has type unknown",
                sqlstate="42804",
            )
        raise no_function(name, operand.type)
    return operand


def length(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate array_length(); the result is NULL for an empty array."""
    array = _array(name, operands[0])
    if constant_number(name, operands[1]) != 1:
        return Operand(t.cast(exp.Null(), "INT"), plain(t.INT4))
    return Operand(spark("nullif(size(:x), 0)", x=array.node), plain(t.INT4))


def cardinality(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate cardinality()."""
    array = _array(name, operands[0])
    return Operand(let("if(:x is null, null, size(:x))", x=array.node), plain(t.INT4))


def tested(
    array: Operand, name: str, operator: type[exp.Binary], value: Operand, zone: str
) -> exp.Expression:
    """The lambda body ``element operator value``, with both sides made comparable."""
    a, b = casts.comparable(element_of(array.type), name, value, zone)
    return operator(this=a.copy(), expression=b.copy())


def quantified(
    value: Operand,
    name: str,
    operator: type[exp.Binary],
    array: Operand,
    every: bool,
    zone: str,
) -> exp.Expression:
    """Translate ``value operator ANY (array)`` and ALL, with SQL's rules for NULL."""
    a, b = casts.comparable(value, name, element_of(array.type), zone)
    test = operator(this=a.copy(), expression=b.copy())
    return _lambda("forall" if every else "exists", array, test)


def _lambda(function: str, array: Operand, body: exp.Expression) -> exp.Expression:
    whole = over_elements(array, body)
    return exp.Anonymous(this=function, expressions=[whole.this, whole.expression])


def position(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate array_position(): the first element that is not distinct from the value."""
    array = _array(name, operands[0])
    is_equal = tested(array, "=", exp.NullSafeEQ, operands[1], zone)
    node = spark(
        "cast(nullif(array_position(:a, true), 0) as int)",
        a=over_elements(array, is_equal),
    )
    return Operand(node, plain(t.INT4))


def of_string(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate string_to_array(); an empty text gives an empty array."""
    separator = constant_text(name, operands[1])
    if not separator:
        raise t.refuse("string_to_array() with an empty separator")
    escaped = "".join(f"\\x{{{ord(c):x}}}" for c in separator)
    node = let(
        "if(:x = '', cast(array() as array<string>), split(:x, :p, -1))".replace(
            ":p", "'" + escaped.replace("\\", "\\\\") + "'"
        ),
        x=text(name, operands[0], zone),
    )
    if len(operands) == 3:
        absent = exp.Literal.string(constant_text(name, operands[2]))
        node = spark("transform(:x, e -> nullif(e, :n))", x=node, n=absent)
    return Operand(node, plain(1009))


def to_string(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate array_to_string(), with the texts of the elements' output functions."""
    array = _array(name, operands[0])
    items = over_elements(array, output.item_text(array.type, zone))
    parts = [items, *(text(name, o, zone) for o in operands[1:])]
    node = exp.Anonymous(this="array_join", expressions=parts)
    return Operand(node, plain(t.TEXT))


def append(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate array_append() and array_cat()."""
    left, right = operands
    if name == "array_append" and left.type.element is not None:
        right = casts.settled(right, left.type.element.computed(), zone)
    return joined(left, right, zone)


def joined(left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``||`` of arrays, or of an array and an element."""
    kind = (left if left.type.element is not None else right).type
    parts = []
    for operand in (left, right):
        if operand.type.oid == t.UNKNOWN:
            # A literal next to an array is an array, too.
            operand = casts.settled(operand, kind.computed(), zone)
        if operand.type.element is None:
            settled = casts.as_common(
                operand, _common_element(kind.element, operand.type), zone
            )
            if settled.type.computed() != (kind.element or t.NOTHING).computed():
                raise t.no_operator(left.type, "||", right.type)
            parts.append(spark("array(:x)", x=settled.node))
            continue
        if operand.type.computed() != kind.computed():
            raise t.no_operator(left.type, "||", right.type)
        parts.append(operand.node)
    ddl = t.spark_name(kind)
    arrays = [spark(f"coalesce(:x, cast(array() as {ddl}))", x=p) for p in parts]
    nulls = [p.copy() for p in parts]
    node = spark(
        "if(:a is null and :b is null, null, concat(:c, :d))",
        a=nulls[0],
        b=nulls[1],
        c=arrays[0],
        d=arrays[1],
    )
    return Operand(node, kind.computed())


def _common_element(element: Type | None, kind: Type) -> Type:
    assert element is not None
    return casts.common_type([element, kind], "||")


_INNER: Final = "wal2lake_other"


def _member_test(left: Operand, right: Operand, zone: str) -> exp.Expression:
    """The lambda body that tests whether an element of ``right`` is in ``left``."""
    assert left.type.element is not None
    left_element = Operand(exp.column(_INNER), left.type.element)
    a, b = casts.comparable(left_element, "=", element_of(right.type), zone)
    is_member = exp.Anonymous(
        this="exists",
        expressions=[
            left.node.copy(),
            exp.Lambda(
                this=exp.EQ(this=a.copy(), expression=b.copy()),
                expressions=[exp.to_identifier(_INNER)],
            ),
        ],
    )
    return spark("coalesce(:x, false)", x=is_member)


def contains(left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``left @> right``; a NULL element is contained in nothing."""
    left, right = _same_type(left, right, zone)
    node = _lambda("forall", right, _member_test(left, right, zone))
    return Operand(_unless_null(left, right, node), _BOOL)


def overlaps(left: Operand, right: Operand, zone: str) -> Operand:
    """Translate ``left && right``."""
    left, right = _same_type(left, right, zone)
    node = _lambda("exists", right, _member_test(left, right, zone))
    return Operand(_unless_null(left, right, node), _BOOL)


def _unless_null(left: Operand, right: Operand, node: exp.Expression) -> exp.Expression:
    return spark(
        "if(:a is null or :b is null, null, :x)", a=left.node, b=right.node, x=node
    )


def _same_type(left: Operand, right: Operand, zone: str) -> tuple[Operand, Operand]:
    left, right = (
        casts.settled(left, right.type, zone),
        casts.settled(right, left.type, zone),
    )
    if left.type.element is None or right.type.element is None:
        raise t.refuse(f"this operator on {left.type.name} and {right.type.name}")
    if left.type.oid != right.type.oid:
        raise t.no_operator(left.type, "@>", right.type)
    return left, right


def unnest(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate unnest(): one row for each element."""
    array = _array(name, operands[0])
    assert array.type.element is not None
    return Operand(spark("explode(:x)", x=array.node), array.type.element.computed())


def sliced(
    array: Operand, low: exp.Expression | None, high: exp.Expression | None
) -> Operand:
    """Translate ``array[low:high]``."""
    a = low if low is not None else exp.Literal.number(1)
    b = high if high is not None else spark("size(:x)", x=array.node)
    node = let(
        "if(:x is null or :a is null or :b is null, null, slice(:x, greatest(:a, 1),"
        " greatest(least(:b, size(:x)) - greatest(:a, 1) + 1, 0)))",
        x=array.node,
        a=a,
        b=b,
    )
    return Operand(node, array.type.computed())
