"""Applies row filters to changes, and combines several publications' filters of one table.

In: whether the filter is true for the old and the new row. Out: the form in which the UPDATE is
sent.

    old row      new row      sent
    ---------    ---------    -------------------------------------------------------------
    no match     no match     nothing
    no match     match        INSERT of the new row
    match        no match     DELETE of the old row
    match        match        the UPDATE
    not sent     match        the UPDATE
    not sent     no match     nothing

A filter of UPDATE or DELETE uses only columns of the replica identity. If there is no old row,
these columns have not changed, and the old row would have matched like the new one. A value that an
UPDATE does not carry (an unchanged TOAST value) is taken from the old row, if there is one: the
filter and an INSERT need it.

TRUNCATE has no rows and is always sent.

Source: pgoutput_row_filter() and pgoutput_row_filter_init() in pgoutput.c; the manual, 29.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.pgtypes.expressions.evaluate import Filter
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode

_BOOL: Final = 16


class FilterOutcome(Enum):
    """Forms in which an UPDATE is sent."""

    KEEP = "keep"
    INSERT = "insert"
    DELETE = "delete"
    NOTHING = "nothing"


def transform(old: bool | None, new: bool) -> FilterOutcome:
    """Return the form of one UPDATE. ``old`` is None if there is no old row."""
    if old is None or old is new:
        return FilterOutcome.KEEP if new else FilterOutcome.NOTHING
    return FilterOutcome.INSERT if new else FilterOutcome.DELETE


def transforms(
    filter_: Filter,
    old: Sequence[pa.Array],
    new: Sequence[pa.Array],
    has_old: Sequence[bool],
) -> list[FilterOutcome]:
    """Return the forms of many UPDATEs. ``old`` and ``new`` are the filter's columns; ``new`` is
    complete (``filled``)."""
    rows = len(has_old)
    before = filter_.matches(old, rows) if any(has_old) else [False] * rows
    after = filter_.matches(new, rows)
    return [
        transform(was if old_exists else None, now)
        for old_exists, was, now in zip(has_old, before, after, strict=True)
    ]


def filled(new: pa.Array, old: pa.Array, unchanged: pa.BooleanArray) -> pa.Array:
    """Complete a column of new rows with old values where the change has none. Without an old row,
    ``old`` is null, and so is the result."""
    return pc.if_else(unchanged, old, new)


def combined(
    filters: Iterable[tuple[Expression, Sequence[str]] | None],
) -> tuple[Expression, tuple[str, ...]] | None:
    """Combine the filters of all publications that send one operation of a table: a row is sent if
    one filter accepts it. A publication without a filter (None) accepts every row."""
    names: list[str] = []
    expressions: list[Expression] = []
    for row_filter in filters:
        if row_filter is None:
            return None
        expression, columns = row_filter
        numbers = []
        for name in columns:
            if name not in names:
                names.append(name)
            numbers.append(names.index(name))
        renumbered = _renumbered(expression, numbers)
        if renumbered not in expressions:
            expressions.append(renumbered)
    if not expressions:
        return None
    if len(expressions) == 1:
        return expressions[0], tuple(names)
    return Expression(ExpressionNode.OR, _BOOL, tuple(expressions)), tuple(names)


def _renumbered(expression: Expression, numbers: Sequence[int]) -> Expression:
    value = expression.value
    if expression.node is ExpressionNode.COLUMN:
        assert isinstance(value, int)
        value = numbers[value]
    args = tuple(_renumbered(arg, numbers) for arg in expression.args)
    return Expression(
        expression.node, expression.type_oid, args, value, expression.typmod
    )
