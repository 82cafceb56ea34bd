"""Converts a value to the type of the column that stores it (an assignment cast).

Comes in: an operand and the column. Goes out: the operand in the column's type, within the declared
length, precision or number of bits. Called for every value that INSERT and UPDATE write.

An assignment is stricter than a cast (``casts.convert``): it makes only the conversions that
PostgreSQL makes in an assignment, and a value that is too long is an error, while a cast cuts it.

Sources: PostgreSQL manual 10.4 (Value Storage); pg_cast.dat; parse_target.c
(transformAssignedExpr); varchar.c, numeric.c and timestamp.c for the declared limits.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.registry.pg_type import format_type, numeric_precision_scale
from wal2lake.sql.query.values import casts, moments, numeric
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let
from wal2lake.sql.query.values.types import Operand, Type, cast
from wal2lake.sql.query.values.undetermined import determine

_MOMENT_CASTS: Final = frozenset(
    (source, target) for source in t.MOMENTS for target in t.MOMENTS
)
_CASTS: Final = _MOMENT_CASTS | {
    (t.JSONB, t.JSON),
    (t.INT8, t.OID),
    (t.INT4, t.OID),
    (t.INT2, t.OID),
    (t.BIT, t.VARBIT),
    (t.VARBIT, t.BIT),
    (t.TIME, t.INTERVAL),
    (t.INTERVAL, t.TIME),
    (t.TIMESTAMP, t.TIME),
    (t.TIMESTAMPTZ, t.TIME),
}
"""The conversions of an assignment beyond those between numbers and those to text."""
_UNSUPPORTED_CASTS: Final = {
    (t.JSON, t.JSONB),
    (t.INET, t.CIDR),
    (t.CIDR, t.INET),
}
"""Conversions that PostgreSQL makes and a node does not."""


def assign(operand: Operand, column: str, kind: Type, zone: str) -> Operand:
    """Convert ``operand`` to ``kind``, the type of the column.

    Raises 42804 if there is no such conversion, and 22P02 or a similar error for a constant that
    is not valid for the type. The expression fails with 22001, 22003 or 22026 at a row whose value
    does not fit.
    """
    if operand.type.oid == t.UNKNOWN:
        return _constant(operand, kind, zone)
    source = operand.type
    if not source.known or not kind.known:
        return Operand(cast(operand.node, t.spark_name(kind)), kind)
    if source.foreign is not None or kind.foreign is not None:
        if source.foreign == kind.foreign:
            return operand
        if kind.foreign is None and kind.string:
            return _fitted(
                casts.convert(operand, _without_typmod(kind), zone), kind, zone
            )
        raise _mismatch(column, kind, source)
    if kind.element is not None or source.element is not None:
        return _array(operand, column, kind, zone)
    if source.oid == kind.oid:
        return _fitted(operand, kind, zone)
    if (source.oid, kind.oid) in _UNSUPPORTED_CASTS:
        raise t.refuse(f"a cast from {source.name} to {kind.name}")
    if kind.oid in t.INTEGERS and (constant := _integer_in(operand.node)):
        return _integer_constant(constant, kind)
    numbers = source.number and kind.number
    if not (numbers or kind.string or (source.oid, kind.oid) in _CASTS):
        raise _mismatch(column, kind, source)
    if kind.oid == t.NUMERIC:
        return _fitted(operand, kind, zone)
    return _fitted(casts.convert(operand, _without_typmod(kind), zone), kind, zone)


def _constant(operand: Operand, kind: Type, zone: str) -> Operand:
    """Read a literal by the input function of the column's type."""
    if isinstance(operand.node, exp.Null):
        if kind.foreign is None:
            determine(operand.node, kind.oid)
        return Operand(cast(exp.Null(), t.spark_name(kind)), kind)
    if kind.element is not None:
        return _fitted_items(casts.settled(operand, kind, zone), kind, zone)
    bare = kind if kind.foreign is not None else _without_typmod(kind)
    return _fitted(casts.settled(operand, bare, zone), kind, zone)


def _fitted_items(array: Operand, kind: Type, zone: str) -> Operand:
    """Check the elements of a constant array against their declared length."""
    element, whole = kind.element, array.node
    if element is None or element.typmod == -1 or element.oid == t.NUMERIC:
        return array
    if not (isinstance(whole, exp.Cast) and isinstance(whole.this, exp.Array)):
        return array
    items = [
        item
        if isinstance(item, exp.Null)
        else _fitted(Operand(item, _without_typmod(element)), element, zone).node
        for item in whole.this.expressions
    ]
    return Operand(cast(exp.Array(expressions=items), t.spark_name(kind)), kind)


_ITEM: Final = "wal2lake_item"


def _array(operand: Operand, column: str, kind: Type, zone: str) -> Operand:
    source = operand.type
    if kind.element is None or source.element is None:
        if kind.string and source.element is not None:
            return _fitted(
                casts.convert(operand, _without_typmod(kind), zone), kind, zone
            )
        if source.oid == kind.oid:
            # The lake stores such arrays as text.
            return operand
        raise _mismatch(column, kind, source)
    try:
        item = assign(
            Operand(exp.column(_ITEM), source.element), column, kind.element, zone
        ).node
    except UsageError:
        raise _mismatch(column, kind, source) from None
    if item == exp.column(_ITEM):
        return operand
    node = exp.Transform(
        this=operand.node.copy(),
        expression=exp.Lambda(this=item, expressions=[exp.to_identifier(_ITEM)]),
    )
    return Operand(node, kind)


def _without_typmod(kind: Type) -> Type:
    return t.plain(kind.oid)


def _mismatch(column: str, kind: Type, source: Type) -> UsageError:
    return UsageError(
        f'column "{column}" is of type {kind.name} but expression is of type'
        f" {source.name}",
        sqlstate="42804",
        hint="You will need to rewrite or cast the expression.",
    )


# ---- declared limits -------------------------------------------------------------------


def _fitted(operand: Operand, kind: Type, zone: str) -> Operand:
    """Check or round a value of the column's type according to the column's type modifier."""
    if kind.oid == t.NUMERIC:
        return _numeric(operand, kind, zone)
    if kind.typmod == -1 or kind.typmod == operand.type.typmod:
        return Operand(operand.node, kind)
    if kind.oid in (t.VARCHAR, t.BPCHAR):
        return Operand(_fit_length(operand, kind), kind)
    if kind.oid in (t.TIMESTAMP, t.TIMESTAMPTZ):
        return moments.rounded(operand, kind)
    if kind.oid in t.BIT_STRINGS:
        return Operand(_fit_bits(operand.node, kind), kind)
    if kind.oid in (t.TIME, t.INTERVAL):
        return casts.limited(operand, kind)
    raise t.refuse(f"writing to a column of type {format_type(kind.oid, kind.typmod)}")


def _fit_length(operand: Operand, kind: Type) -> exp.Expression:
    length = kind.typmod - t.LENGTH_HEADER
    error = t.failure(
        "22001", f"value too long for type {format_type(kind.oid, kind.typmod)}"
    )
    node = operand.node
    if isinstance(node, exp.Literal):
        # Spaces beyond the length are cut off.
        text = node.name[:length]
        if node.name[length:].strip(" "):
            raise UsageError(
                f"value too long for type {format_type(kind.oid, kind.typmod)}",
                sqlstate="22001",
            )
        return exp.Literal.string(text.ljust(length) if kind.oid == t.BPCHAR else text)
    whole = (
        f"rpad(:v, {length}, ' ')" if kind.oid == t.BPCHAR else f"left(:v, {length})"
    )
    check = (
        f"if(char_length(:v) > {length} and rtrim(substring(:v, {length + 1})) <> '',"
        f" {error}, {whole})"
    )
    return let(check, v=node)


def _fit_bits(node: exp.Expression, kind: Type) -> exp.Expression:
    length = kind.typmod
    name = format_type(kind.oid, length)
    if kind.oid == t.VARBIT:
        error = t.failure("22001", f"bit string too long for type {name}")
        return let(f"if(length(:v) > {length}, {error}, :v)", v=node)
    error = t.failure(
        "22026", "bit string length ", "length(:v)", f" does not match type {name}"
    )
    return let(f"if(length(:v) <> {length}, {error}, :v)", v=node)


def _numeric(operand: Operand, kind: Type, zone: str) -> Operand:
    """Convert to ``numeric`` or ``numeric(p,s)``, also with more digits than Spark's decimals."""
    source, node = operand.type, operand.node
    limits = numeric_precision_scale(kind.typmod)
    constant = numeric.exact_constant(node)
    if constant is not None and limits is not None:
        return _rounded_constant(constant, kind, limits)
    if kind.precision is not None:
        if source.exact_text:
            node = let(
                "case when :v = 'NaN' then "
                + t.failure(
                    "0A000",
                    "NaN in a column of type numeric(p,s) is not"
                    " supported on lake tables",
                )
                + " when :v in ('Infinity', '-Infinity') then "
                + t.failure("22003", "numeric field overflow")
                + " else :v end",
                v=node,
            )
            return Operand(cast(node, t.spark_name(kind)), kind)
        return casts.convert(operand, kind, zone)
    if limits is not None and source.exact_text and kind.typmod == source.typmod:
        return operand
    if limits is not None:
        if source.exact_text or source.oid in t.FLOATS:
            raise t.refuse(
                f"writing a computed value to a column of type"
                f" {format_type(kind.oid, kind.typmod)}",
                numeric.ROUND_HINT,
            )
        precision, scale = limits
        wide = t.decimal(min(precision, t.MAX_DIGITS), min(scale, t.MAX_DIGITS))
        node = cast(numeric.as_decimal(operand), t.spark_name(wide))
        return Operand(cast(node, "STRING"), kind)
    if source.oid in t.FLOATS:
        operand = casts.convert(operand, kind, zone)
    if operand.type.oid in t.INTEGERS:
        operand = Operand(numeric.as_decimal(operand), t.decimal(19, 0))
    return Operand(numeric.as_text(operand), kind)


_INTEGER: Final = re.compile("-?[0-9]+")

_BITS: Final = {
    exp.DataType.Type.SMALLINT: 16,
    exp.DataType.Type.INT: 32,
    exp.DataType.Type.BIGINT: 64,
}


def _integer_in(node: exp.Expression) -> str | None:
    """The digits of a constant number, also inside casts to integer types that hold it.

    For a number out of range in a list of VALUES, Spark's error does not name the cause, so the
    range is checked here.
    """
    if isinstance(node, exp.Paren):
        return _integer_in(node.this)
    if isinstance(node, exp.Neg) and isinstance(node.this.unnest(), exp.Cast):
        text = _integer_in(node.this)
        return None if text is None or text.startswith("-") else f"-{text}"
    if not (isinstance(node, exp.Cast) and node.to.this in _BITS):
        return numeric.exact_constant(node)
    text, limit = _integer_in(node.this), 1 << (_BITS[node.to.this] - 1)
    fits = text is not None and _INTEGER.fullmatch(text) is not None
    return text if fits and -limit <= int(text or 0) < limit else None


def _integer_constant(text: str, kind: Type) -> Operand:
    value = int(Decimal(text).to_integral_value(ROUND_HALF_UP))
    limit = 1 << (t.INTEGER_BITS[kind.oid] - 1)
    if not -limit <= value < limit:
        raise UsageError(f"{kind.name} out of range", sqlstate="22003")
    literal = exp.Literal.string(str(value))
    return Operand(cast(literal, t.spark_name(kind)), kind)


def _rounded_constant(text: str, kind: Type, limits: tuple[int, int]) -> Operand:
    precision, scale = limits
    value = Decimal(text)
    if value.is_infinite():
        raise _overflow(precision, scale, "an infinite value")
    if value.is_nan() and kind.precision is not None:
        raise t.refuse(f"NaN in a column of type numeric({precision},{scale})")
    if value.is_finite():
        with localcontext() as context:
            context.prec = 2000
            value = value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        if value and value.adjusted() >= precision - scale:
            raise _overflow(precision, scale, None)
        text = f"{value:f}".removeprefix("-") if value == 0 else f"{value:f}"
    literal = exp.Literal.string(text)
    if kind.precision is None:
        return Operand(literal, kind)
    return Operand(cast(literal, t.spark_name(kind)), kind)


def _overflow(precision: int, scale: int, value_name: str | None) -> UsageError:
    power = precision - scale
    limit = f"10^{power}" if power else "1"
    detail = (
        f"A field with precision {precision}, scale {scale} cannot hold {value_name}."
        if value_name
        else f"A field with precision {precision}, scale {scale} must round to an"
        f" absolute value less than {limit}."
    )
    return UsageError("numeric field overflow", sqlstate="22003", detail=detail)
