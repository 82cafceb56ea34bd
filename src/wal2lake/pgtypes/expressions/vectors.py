"""Row filters that Arrow computes, a column at a time.

Comes in: the tree, and the types that its columns are stored as. Goes out: a function of the
columns, or nothing: the tree has something that fails for some values, or that Arrow compares
otherwise than PostgreSQL does, and is for ``evaluate``. What is here:

    columns beside columns and constants of the same kind: integers, texts byte by byte, booleans,
      bytea, dates, timestamps, numeric with a declared scale
    = <> < <= > >= IN, IS DISTINCT FROM, IS NULL, IS TRUE ..., AND, OR, NOT
    LIKE with % at the ends of a constant only
    the remainder of integers by a positive constant

A moment counts from 1970 here, as Arrow's do. Called by ``stored``.
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
"""An array, or a scalar: the same for every row."""


def vector(expression: Expression, types: Sequence[pa.DataType]) -> Vector | None:
    """``types``: of the columns."""
    try:
        return _Compiler(types).boolean(expression)
    except _Other:
        return None


class _Other(Exception):
    """It is computed row by row."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column's values or a constant, as they are compared."""

    kind: pa.DataType
    compute: Vector
    padded: bool = False
    """True for char: the blanks at the end are still there."""


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

    def boolean(self, one: Expression) -> Vector:
        if _is_constant(one):
            answer = pa.scalar(_constant(one), pa.bool_())
            return lambda row: answer
        match one.node:
            case ExpressionNode.COLUMN:
                return self._operand(one).compute
            case ExpressionNode.AND | ExpressionNode.OR:
                both = pc.and_kleene if one.node is ExpressionNode.AND else pc.or_kleene
                parts = [self.boolean(arg) for arg in one.args]
                return _folded(both, parts)
            case ExpressionNode.NOT:
                inner = self.boolean(one.args[0])
                return lambda row: pc.invert(inner(row))
            case ExpressionNode.TEST:
                return self._test(str(one.value), one.args[0])
            case ExpressionNode.DISTINCT:
                return self._distinct(*one.args)
            case ExpressionNode.ANY | ExpressionNode.ALL:
                return self._listed(one)
            case ExpressionNode.OPERATOR if (
                one.value in COMPARISONS and len(one.args) == 2
            ):
                left, right = self._pair(*one.args)
                compare = _COMPARES[str(one.value)]
                return lambda row: compare(left(row), right(row))
            case ExpressionNode.OPERATOR if one.value in LIKES:
                return self._like(one)
        raise _Other

    def _like(self, one: Expression) -> Vector:
        """Match a text by its beginning, its end or a part."""
        text = self._operand(one.args[0]).compute
        constant = _constant(one.args[1])
        if constant is None:
            raise _Other
        pattern = constant.decode()
        wanted = pattern.strip("%")
        if set("%_\\") & set(wanted):
            raise _Other
        before, behind = pattern.startswith("%"), pattern.endswith("%")

        def like(row: Sequence[pa.Array]) -> Any:
            if before and behind:
                return pc.match_substring(text(row), wanted)
            if before:
                return pc.ends_with(text(row), wanted)
            if behind:
                return pc.starts_with(text(row), wanted)
            return pc.equal(text(row), wanted)

        if one.value == "~~":
            return like
        return lambda row: pc.invert(like(row))

    def _test(self, word: str, arg: Expression) -> Vector:
        if word.endswith("NULL"):
            # Of any type.
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

    def _distinct(self, one: Expression, other: Expression) -> Vector:
        left, right = self._pair(one, other)

        def distinct(row: Sequence[pa.Array]) -> Any:
            a, b = left(row), right(row)
            nulls = pc.not_equal(pc.is_null(a), pc.is_null(b))
            return pc.coalesce(pc.not_equal(a, b), nulls)

        return distinct

    def _listed(self, one: Expression) -> Vector:
        """A column in a list, or not in it."""
        among = one.node is ExpressionNode.ANY
        one = spread(one)
        if one.value != ("=" if among else "<>"):
            raise _Other
        left, *items = one.args
        known = [item for item in items if _constant(item) is not None]
        if not known:
            raise _Other
        pairs = [self._pair(left, item) for item in known]
        constants = [pair[1](()) for pair in pairs]
        values = pa.array([one.as_py() for one in constants], constants[0].type)
        has_null = len(known) < len(items)
        column = pairs[0][0]

        def listed(row: Sequence[pa.Array]) -> Any:
            value = column(row)
            found = pc.is_in(value, values)
            unknown = pc.is_null(value)
            if has_null:
                unknown = pc.or_(unknown, pc.invert(found))
            found = pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)
            return found if among else pc.invert(found)

        return listed

    # ---- operands --------------------------------------------------------------------

    def _pair(self, one: Expression, other: Expression) -> tuple[Vector, Vector]:
        """Two that are compared."""
        if _is_constant(one) and not _is_constant(other):
            right, left = self._pair(other, one)
            return left, right
        first = self._operand(one)
        second = self._operand(other, first.kind)
        if first.kind != second.kind:
            raise _Other
        if first.padded and second.padded:
            return _trimmed(first.compute), _trimmed(second.compute)
        return first.compute, second.compute

    def _operand(self, one: Expression, beside: pa.DataType | None = None) -> _Operand:
        """``beside``: what a constant is compared with."""
        if _is_constant(one):
            return _scalar(_constant(one), one.type_oid, beside)
        match one.node:
            case ExpressionNode.COLUMN:
                return self._stored(one)
            case ExpressionNode.CAST if one.typmod < 0:
                return self._cast(one)
            case ExpressionNode.COLLATE:
                return self._operand(one.args[0])
            case ExpressionNode.OPERATOR | ExpressionNode.FUNCTION if one.value in (
                "%",
                "mod",
            ):
                return self._remainder(one)
            case ExpressionNode.OPERATOR if one.type_oid == BOOL:
                return _Operand(pa.bool_(), self.boolean(one))
        raise _Other

    def _stored(self, one: Expression) -> _Operand:
        value, kind, arrow = _column(one), one.type_oid, self._types[_number(one)]
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
        raise _Other

    def _cast(self, one: Expression) -> _Operand:
        """Cast where the cast changes nothing, or blanks at the end."""
        arg = one.args[0]
        source, target = arg.type_oid, one.type_oid
        if source in TEXTS and target in TEXTS:
            found = self._operand(arg)
            compute = _trimmed(found.compute) if source == BPCHAR else found.compute
            return _Operand(found.kind, compute, padded=target == BPCHAR)
        if INTEGERS.get(source, 99) <= INTEGERS.get(target, 0):
            return self._operand(arg)
        raise _Other

    def _remainder(self, one: Expression) -> _Operand:
        if one.type_oid not in INTEGERS or len(one.args) != 2:
            raise _Other
        divisor = _constant(one.args[1])
        if divisor is None or divisor <= 0:
            raise _Other
        dividend = self._operand(one.args[0])

        def remainder(row: Sequence[pa.Array]) -> Any:
            value = dividend.compute(row)
            return pc.subtract(value, pc.multiply(pc.divide(value, divisor), divisor))

        return _Operand(pa.int64(), remainder)


_DAYS: Final = pa.duration("s")
_MICROS: Final = pa.duration("us")
"""Type that stands for days and microseconds counted from 1970, so that a day is not compared with
a microsecond."""


def _folded(both: Callable[[Any, Any], Any], parts: Sequence[Vector]) -> Vector:
    def folded(row: Sequence[pa.Array]) -> Any:
        found = parts[0](row)
        for part in parts[1:]:
            found = both(found, part(row))
        return found

    return folded


def _is_constant(one: Expression) -> bool:
    return not any(True for _ in one.columns())


def _constant(one: Expression) -> Value:
    """None: NULL."""
    if not _is_constant(one):
        raise _Other
    try:
        return value_of(one)
    except Wal2LakeError:
        # Each row has it, if there is one.
        raise _Other from None


def _number(one: Expression) -> int:
    assert isinstance(one.value, int)
    return one.value


def _column(one: Expression) -> Vector:
    number = _number(one)
    return lambda row: row[number]


def _trimmed(compute: Vector) -> Vector:
    return lambda row: pc.utf8_rtrim(compute(row), characters=" ")


def _scalar(value: Value, type_oid: int, beside: pa.DataType | None) -> _Operand:
    kind: pa.DataType | None = None
    match type_oid:
        case _ if value is None:
            raise _Other
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
            raise _Other
    try:
        found = pa.scalar(value, stored)
    except pa.ArrowInvalid:
        # More zeros behind the point than the type has places.
        raise _Other from None
    return _Operand(kind or stored, lambda row: found, padded=type_oid == BPCHAR)


def _since_1970(value: int | float, epoch: int, infinite: int) -> int:
    """Return the value as it is stored, counted from 1970."""
    if math.isinf(value):
        return infinite if value > 0 else -infinite
    found = int(value) + epoch
    if abs(found) >= infinite:
        raise _Other
    return found


def _fits(value: Decimal, kind: pa.DataType | None) -> bool:
    """Whether a column of this kind could have the value."""
    if kind is None or not pa.types.is_decimal128(kind) or not value.is_finite():
        return False
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent >= -kind.scale and (
        not value or value.adjusted() < kind.precision - kind.scale
    )
