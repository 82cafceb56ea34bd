"""Expressions that Arrow computes, column by column.

Comes in: the tree, and the stored types of its columns. Goes out: a function of the columns, or
None if part of the tree fails for some values, or is compared differently by Arrow; ``evaluate``
then computes the tree. Supported are:

    comparisons of columns with columns and constants of the same kind: integers, texts byte by
      byte, booleans, bytea, dates, timestamps, numeric with a declared scale
    = <> < <= > >= IN, IS DISTINCT FROM, IS NULL, IS TRUE ..., AND, OR, NOT
    LIKE with % only at the ends of a constant
    the remainder of integers by a positive constant

Dates and timestamps count from 1970 here, as in Arrow. Called by ``stored``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.expressions.evaluate import spread, value_of
from wal2lake.pgtypes.expressions.operators import COMPARISONS, INTEGERS, LIKES, TEXTS
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    DAY_MICROSECONDS,
    EPOCH_DAYS,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    Value,
)
from wal2lake.pgtypes.moments import INFINITE_DAY, INFINITE_MICROSECOND

Vector = Callable[[Sequence[pa.Array]], Any]
"""A function that returns an array, or a scalar for all rows."""


def vector(expression: Expression, types: Sequence[pa.DataType]) -> Vector | None:
    """Compile an expression; ``types`` are the columns' types. None: not supported."""
    try:
        return _Compiler(types).boolean(expression)
    except _Unsupported:
        return None


class _Unsupported(Exception):
    """The expression must be computed row by row."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column's values or a constant, in the form for comparisons."""

    kind: pa.DataType
    compute: Vector
    padded: bool = False
    """True for char, whose trailing blanks are still present."""


_COMPARES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class _Compiler:
    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = types

    # ---- conditions ------------------------------------------------------------------

    def boolean(self, expression: Expression) -> Vector:
        if _is_constant(expression):
            answer = pa.scalar(_constant(expression), pa.bool_())
            return lambda row: answer
        match expression.node:
            case ExpressionNode.COLUMN:
                return self._operand(expression).compute
            case ExpressionNode.AND | ExpressionNode.OR:
                both = (
                    pc.and_kleene
                    if expression.node is ExpressionNode.AND
                    else pc.or_kleene
                )
                parts = [self.boolean(arg) for arg in expression.args]
                return _folded(both, parts)
            case ExpressionNode.NOT:
                inner = self.boolean(expression.args[0])
                return lambda row: pc.invert(inner(row))
            case ExpressionNode.TEST:
                return self._test(str(expression.value), expression.args[0])
            case ExpressionNode.DISTINCT:
                return self._distinct(*expression.args)
            case ExpressionNode.ANY | ExpressionNode.ALL:
                return self._listed(expression)
            case ExpressionNode.OPERATOR if (
                expression.value in COMPARISONS and len(expression.args) == 2
            ):
                left, right = self._pair(*expression.args)
                compare = _COMPARES[str(expression.value)]
                return lambda row: compare(left(row), right(row))
            case ExpressionNode.OPERATOR if expression.value in LIKES:
                return self._like(expression)
        raise _Unsupported

    def _like(self, expression: Expression) -> Vector:
        """Match a text by its beginning, its end or a part."""
        text = self._operand(expression.args[0]).compute
        constant = _constant(expression.args[1])
        if constant is None:
            raise _Unsupported
        pattern = constant.decode()
        wanted = pattern.strip("%")
        if set("%_\\") & set(wanted):
            raise _Unsupported
        before, behind = pattern.startswith("%"), pattern.endswith("%")

        def like(row: Sequence[pa.Array]) -> Any:
            if before and behind:
                return pc.match_substring(text(row), wanted)
            if before:
                return pc.ends_with(text(row), wanted)
            if behind:
                return pc.starts_with(text(row), wanted)
            return pc.equal(text(row), wanted)

        if expression.value == "~~":
            return like
        return lambda row: pc.invert(like(row))

    def _test(self, word: str, arg: Expression) -> Vector:
        if word.endswith("NULL"):
            # The argument may have any type.
            is_column = arg.node is ExpressionNode.COLUMN
            value = _column(arg) if is_column else self.boolean(arg)
            if word == "IS NULL":
                return lambda row: pc.is_null(value(row))
            return lambda row: pc.is_valid(value(row))
        inner = self.boolean(arg)
        if word.endswith("UNKNOWN"):
            test = pc.is_null if word == "IS UNKNOWN" else pc.is_valid
            return lambda row: test(inner(row))
        wanted = word.endswith("TRUE")

        def is_so(row: Sequence[pa.Array]) -> Any:
            value = inner(row)
            same = value if wanted else pc.invert(value)
            return pc.coalesce(same, pa.scalar(False))

        if " NOT " not in word:
            return is_so
        return lambda row: pc.invert(is_so(row))

    def _distinct(self, first: Expression, second: Expression) -> Vector:
        left, right = self._pair(first, second)

        def distinct(row: Sequence[pa.Array]) -> Any:
            a, b = left(row), right(row)
            nulls = pc.not_equal(pc.is_null(a), pc.is_null(b))
            return pc.coalesce(pc.not_equal(a, b), nulls)

        return distinct

    def _listed(self, expression: Expression) -> Vector:
        """Compile a test whether a column is in a list, or is not."""
        among = expression.node is ExpressionNode.ANY
        expression = spread(expression)
        if expression.value != ("=" if among else "<>"):
            raise _Unsupported
        left, *items = expression.args
        not_null = [item for item in items if _constant(item) is not None]
        if not not_null:
            raise _Unsupported
        pairs = [self._pair(left, item) for item in not_null]
        constants = [pair[1](()) for pair in pairs]
        values = pa.array([item.as_py() for item in constants], constants[0].type)
        has_null = len(not_null) < len(items)
        column = pairs[0][0]

        def listed(row: Sequence[pa.Array]) -> Any:
            value = column(row)
            is_in = pc.is_in(value, values)
            unknown = pc.is_null(value)
            if has_null:
                unknown = pc.or_(unknown, pc.invert(is_in))
            is_in = pc.if_else(unknown, pa.scalar(None, pa.bool_()), is_in)
            return is_in if among else pc.invert(is_in)

        return listed

    # ---- operands --------------------------------------------------------------------

    def _pair(self, left: Expression, right: Expression) -> tuple[Vector, Vector]:
        """Compile two expressions that are compared."""
        if _is_constant(left) and not _is_constant(right):
            later, earlier = self._pair(right, left)
            return earlier, later
        first = self._operand(left)
        second = self._operand(right, first.kind)
        if first.kind != second.kind:
            raise _Unsupported
        if first.padded and second.padded:
            return _trimmed(first.compute), _trimmed(second.compute)
        return first.compute, second.compute

    def _operand(
        self, expression: Expression, beside: pa.DataType | None = None
    ) -> _Operand:
        """Compile an operand. ``beside`` is the type with which a constant is compared."""
        if _is_constant(expression):
            return _scalar(_constant(expression), expression.type_oid, beside)
        match expression.node:
            case ExpressionNode.COLUMN:
                return self._stored(expression)
            case ExpressionNode.CAST if expression.typmod < 0:
                return self._cast(expression)
            case ExpressionNode.COLLATE:
                return self._operand(expression.args[0])
            case ExpressionNode.OPERATOR | ExpressionNode.FUNCTION if (
                expression.value
                in (
                    "%",
                    "mod",
                )
            ):
                return self._remainder(expression)
            case ExpressionNode.OPERATOR if expression.type_oid == BOOL:
                return _Operand(pa.bool_(), self.boolean(expression))
        raise _Unsupported

    def _stored(self, expression: Expression) -> _Operand:
        value, kind, arrow = (
            _column(expression),
            expression.type_oid,
            self._types[_number(expression)],
        )
        types = pa.types
        if kind in INTEGERS and types.is_signed_integer(arrow):
            return _Operand(pa.int64(), lambda row: value(row).cast(pa.int64()))
        if kind in TEXTS and types.is_string(arrow):
            return _Operand(arrow, value, padded=kind == BPCHAR)
        if (kind == BOOL and types.is_boolean(arrow)) or (
            kind == BYTEA and types.is_binary(arrow)
        ):
            return _Operand(arrow, value)
        if kind == NUMERIC and types.is_decimal128(arrow):
            return _Operand(arrow, value)
        if kind == DATE and types.is_date32(arrow):
            return _Operand(
                _DAYS, lambda row: value(row).cast(pa.int32()).cast(pa.int64())
            )
        if kind in (TIMESTAMP, TIMESTAMPTZ) and types.is_timestamp(arrow):
            micros = pa.timestamp("us", arrow.tz)
            return _Operand(
                _MICROS,
                lambda row: value(row).cast(micros, safe=False).cast(pa.int64()),
            )
        raise _Unsupported

    def _cast(self, expression: Expression) -> _Operand:
        """Compile a cast that changes nothing, or only trailing blanks."""
        arg = expression.args[0]
        source, target = arg.type_oid, expression.type_oid
        if source in TEXTS and target in TEXTS:
            operand = self._operand(arg)
            compute = _trimmed(operand.compute) if source == BPCHAR else operand.compute
            return _Operand(operand.kind, compute, padded=target == BPCHAR)
        if INTEGERS.get(source, 99) <= INTEGERS.get(target, 0):
            return self._operand(arg)
        raise _Unsupported

    def _remainder(self, expression: Expression) -> _Operand:
        if expression.type_oid not in INTEGERS or len(expression.args) != 2:
            raise _Unsupported
        divisor = _constant(expression.args[1])
        if divisor is None or divisor <= 0:
            raise _Unsupported
        dividend = self._operand(expression.args[0])

        def remainder(row: Sequence[pa.Array]) -> Any:
            value = dividend.compute(row)
            return pc.subtract(value, pc.multiply(pc.divide(value, divisor), divisor))

        return _Operand(pa.int64(), remainder)


_DAYS: Final = pa.duration("s")
_MICROS: Final = pa.duration("us")
"""Types that mark days and microseconds since 1970, so that days are not compared with
microseconds."""


def _folded(both: Callable[[Any, Any], Any], parts: Sequence[Vector]) -> Vector:
    def folded(row: Sequence[pa.Array]) -> Any:
        combined = parts[0](row)
        for part in parts[1:]:
            combined = both(combined, part(row))
        return combined

    return folded


def _is_constant(expression: Expression) -> bool:
    return not any(True for _ in expression.columns())


def _constant(expression: Expression) -> Value:
    """Return the value of a constant expression; None: NULL."""
    if not _is_constant(expression):
        raise _Unsupported
    try:
        return value_of(expression)
    except Wal2LakeError:
        # The error is raised for each row, if there are rows.
        raise _Unsupported from None


def _number(expression: Expression) -> int:
    assert isinstance(expression.value, int)
    return expression.value


def _column(expression: Expression) -> Vector:
    number = _number(expression)
    return lambda row: row[number]


def _trimmed(compute: Vector) -> Vector:
    return lambda row: pc.utf8_rtrim(compute(row), characters=" ")


def _scalar(value: Value, type_oid: int, beside: pa.DataType | None) -> _Operand:
    kind: pa.DataType | None = None
    match type_oid:
        case _ if value is None:
            raise _Unsupported
        case _ if type_oid in TEXTS:
            stored, value = pa.string(), value.decode()
        case _ if type_oid in INTEGERS:
            stored = pa.int64()
        case _ if type_oid == BOOL:
            stored = pa.bool_()
        case _ if type_oid == BYTEA:
            stored = pa.binary()
        case _ if type_oid == DATE:
            kind, stored, value = (
                _DAYS,
                pa.int64(),
                _since_1970(value, EPOCH_DAYS, INFINITE_DAY),
            )
        case _ if type_oid in (TIMESTAMP, TIMESTAMPTZ):
            epoch = EPOCH_DAYS * DAY_MICROSECONDS
            value = _since_1970(value, epoch, INFINITE_MICROSECOND)
            kind, stored = _MICROS, pa.int64()
        case _ if type_oid == NUMERIC and _fits(value, beside):
            stored = beside
        case _:
            raise _Unsupported
    try:
        scalar = pa.scalar(value, stored)
    except pa.ArrowInvalid:
        # The constant has more zeros behind the point than the type has places.
        raise _Unsupported from None
    return _Operand(kind or stored, lambda row: scalar, padded=type_oid == BPCHAR)


def _since_1970(value: int | float, epoch: int, infinite: int) -> int:
    """Convert a value to the stored number, counted from 1970."""
    if math.isinf(value):
        return infinite if value > 0 else -infinite
    number = int(value) + epoch
    if abs(number) >= infinite:
        raise _Unsupported
    return number


def _fits(value: Decimal, kind: pa.DataType | None) -> bool:
    """Return whether a column of this kind could have the value."""
    if kind is None or not pa.types.is_decimal128(kind) or not value.is_finite():
        return False
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent >= -kind.scale and (
        not value or value.adjusted() < kind.precision - kind.scale
    )
