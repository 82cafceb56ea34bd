"""The value of an expression for rows of a lake table.

Comes in: the tree, its columns, record batches of the table's files. Goes out: the rows for which
it is true. Called for the initial COPY of a subscriber; the same tree filters its changes.

An expression that cannot fail, and whose comparisons are the same in Arrow, is computed column by
column (``vectors``), so that a subscriber does not wait longer for some of the rows than for all
of them. All other expressions are computed row by row, as for changes (``evaluate``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from wal2lake.pgtypes.encode.text import arrow_to_text, plain_text
from wal2lake.pgtypes.expressions.evaluate import Filter, spread, values_of_texts
from wal2lake.pgtypes.expressions.operators import COMPARISONS, INTEGERS, TEXTS
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    DATE,
    DAY_MICROSECONDS,
    EPOCH_DAYS,
    FLOAT4,
    FLOAT8,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    Value,
)
from wal2lake.pgtypes.expressions.vectors import Vector, vector
from wal2lake.pgtypes.moments import INFINITE_DAY, INFINITE_MICROSECOND

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class StoredFilter:
    """One compiled expression for the rows of one table."""

    def __init__(self, expression: Expression, columns: Sequence[str]) -> None:
        """``columns`` has the names for the tree's numbers."""
        self.columns = tuple(columns)
        self._expression = expression
        self._filter = Filter(expression, columns, stored_values)
        self._known: dict[tuple[pa.DataType, ...], Vector | None] = {}
        """Functions by the column types of a file."""

    def matches(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether the expression is true, without nulls."""
        arrays = [batch.column(name) for name in self.columns]
        types = tuple(array.type for array in arrays)
        if types not in self._known:
            self._known[types] = vector(self._expression, types)
        compute = self._known[types]
        if compute is None:
            answers = self._filter.matches(arrays, batch.num_rows)
            return pa.array(answers, pa.bool_())
        answer = compute(arrays)
        if isinstance(answer, pa.Scalar):
            return pa.array([answer.as_py() is True] * batch.num_rows, pa.bool_())
        return answer.fill_null(False)

    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """Return the range (lowest, highest), both included, of integer columns in matching
        rows."""
        limits_by_number = _bounds(self._expression)
        return {
            self.columns[number]: limits for number, limits in limits_by_number.items()
        }


# ---- values of arrays --------------------------------------------------------------------


def stored_values(array: pa.Array, type_oid: int) -> list[Value]:
    """Convert a stored column to the values that ``values`` makes of its texts."""
    types, arrow = pa.types, array.type
    match type_oid:
        case kind if kind in INTEGERS and types.is_integer(arrow):
            return list(array.to_pylist())
        case kind if kind in TEXTS and types.is_string(arrow):
            return list(array.cast(pa.binary()).to_pylist())
        case kind if kind == BOOL and types.is_boolean(arrow):
            return list(array.to_pylist())
        case kind if kind == NUMERIC and types.is_decimal(arrow):
            return list(array.to_pylist())
        case kind if (kind, arrow) in _FLOATS:
            return list(array.to_pylist())
        case kind if kind == DATE and types.is_date32(arrow):
            return _counted(array.cast(pa.int32()), EPOCH_DAYS, INFINITE_DAY)
        case kind if kind in (TIMESTAMP, TIMESTAMPTZ) and types.is_timestamp(arrow):
            micros = array.cast(pa.timestamp("us", arrow.tz), safe=False)
            epoch = EPOCH_DAYS * DAY_MICROSECONDS
            return _counted(micros.cast(pa.int64()), epoch, INFINITE_MICROSECOND)
    texts = plain_text(array, type_oid)
    if texts is None:
        texts = pa.array(arrow_to_text(array, type_oid), pa.large_binary())
    return values_of_texts(texts, type_oid)


_FLOATS: Final = ((FLOAT4, pa.float32()), (FLOAT8, pa.float64()))


def _counted(array: pa.Array, epoch: int, infinite: int) -> list[Value]:
    special: dict[int | None, Value] = {
        None: None,
        infinite: math.inf,
        -infinite: -math.inf,
    }
    return [special[n] if n in special else n - epoch for n in array.to_pylist()]


# ---- which files -------------------------------------------------------------------------


def _bounds(expression: Expression) -> dict[int, tuple[int, int]]:
    """Return the ranges by column number."""
    limits: dict[int, tuple[int, int]] = {}
    if expression.node is ExpressionNode.AND:
        for arg in expression.args:
            for number, (low, high) in _bounds(arg).items():
                before = limits.get(number, (_LOWEST, _HIGHEST))
                limits[number] = max(before[0], low), min(before[1], high)
        return limits
    is_any = expression.node is ExpressionNode.ANY and expression.value == "="
    if not is_any and not (
        expression.node is ExpressionNode.OPERATOR and expression.value in COMPARISONS
    ):
        return {}
    args = spread(expression).args if is_any else expression.args
    if not args:
        # ANY of a NULL array.
        return {}
    operator, (column, *others) = expression.value, map(_uncast, args)
    if column.node is ExpressionNode.CONST and len(others) == 1:
        operator = _TURNED.get(str(operator), operator)
        column, others = others[0], [column]
    if column.node is not ExpressionNode.COLUMN or column.type_oid not in INTEGERS:
        return {}
    if any(
        x.node is not ExpressionNode.CONST or x.type_oid not in INTEGERS for x in others
    ):
        return {}
    assert isinstance(column.value, int)
    values = [int(str(x.value)) for x in others if x.value is not None]
    if not values:
        return {}
    low, high = _LOWEST, _HIGHEST
    if operator in ("=", ">", ">="):
        low = min(values)
    if operator in ("=", "<", "<="):
        high = max(values)
    return {column.value: (low, high)}


def _uncast(expression: Expression) -> Expression:
    """Remove casts of integers to another size, which do not change the value, or fail."""
    while expression.node is ExpressionNode.CAST and expression.type_oid in INTEGERS:
        if expression.args[0].type_oid not in INTEGERS:
            break
        expression = expression.args[0]
    return expression


_TURNED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Operators for exchanged operands."""
