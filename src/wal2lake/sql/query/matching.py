"""Evaluates the conditions of plain statements on rows of files. Pure.

Comes in: a ``Condition`` and Arrow rows as Spark stores them. Goes out: the condition's value for
each row, or whether it can be evaluated here at all. Called for the results of plain queries and
for plain changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.sql.query.plain import Condition, Operator

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def can_compare(schema: pa.Schema, condition: Condition | None) -> bool:
    """Whether each column is stored in the type of the values that it is compared with."""
    conditions = [] if condition is None else [condition]
    while conditions:
        part = conditions.pop()
        conditions += part.parts
        if part.values:
            kind = schema.field(part.column).type
            is_comparable = (
                pa.types.is_string
                if isinstance(part.values[0], str)
                else pa.types.is_signed_integer
            )
            if not is_comparable(kind):
                return False
    return True


_COMPARES: Final[Mapping[Operator, Callable[[Any, Any], Any]]] = {
    Operator.EQ: pc.equal,
    Operator.NE: pc.not_equal,
    Operator.LT: pc.less,
    Operator.LE: pc.less_equal,
    Operator.GT: pc.greater,
    Operator.GE: pc.greater_equal,
}


def matches(batch: pa.RecordBatch | pa.Table, condition: Condition) -> Any:
    """The condition's value for each row: true, false or null."""
    match condition.operator:
        case Operator.AND:
            return pc.and_kleene(*(matches(batch, part) for part in condition.parts))
        case Operator.OR:
            return pc.or_kleene(*(matches(batch, part) for part in condition.parts))
        case Operator.NOT:
            return pc.invert(matches(batch, condition.parts[0]))
    column = batch.column(condition.column)
    if condition.operator is Operator.IS_NULL:
        return pc.is_null(column)
    kind = pa.string() if isinstance(condition.values[0], str) else pa.int64()
    if condition.operator is Operator.IN:
        is_member = pc.is_in(column.cast(kind), pa.array(condition.values, kind))
        # NULL IN (...) is NULL, neither true nor false.
        return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), is_member)
    return _COMPARES[condition.operator](column, pa.scalar(condition.values[0], kind))


def bounds(condition: Condition) -> dict[str, tuple[int, int]]:
    """The least and the greatest integer of each column in the rows that may match."""
    if condition.operator is Operator.AND:
        ranges = bounds(condition.parts[0])
        for name, (low, high) in bounds(condition.parts[1]).items():
            before = ranges.get(name, (_LOWEST, _HIGHEST))
            ranges[name] = max(before[0], low), min(before[1], high)
        return ranges
    values = [value for value in condition.values if isinstance(value, int)]
    if not values:
        return {}
    match condition.operator:
        case Operator.EQ | Operator.IN:
            return {condition.column: (min(values), max(values))}
        case Operator.LT | Operator.LE:
            return {condition.column: (_LOWEST, values[0])}
        case Operator.GT | Operator.GE:
            return {condition.column: (values[0], _HIGHEST)}
    return {}
