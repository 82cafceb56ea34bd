"""Applies row filters to changes, and combines several publications' filters of one table.

Comes in: whether the filter is true for the old and the new row. Goes out: what is sent.

    old row      new row      sent
    ---------    ---------    -------------------------------------------------------------
    no match     no match     nothing
    no match     match        INSERT of the new row
    match        no match     DELETE of the old row
    match        match        the UPDATE
    not there    match        the UPDATE: the identity has not changed, so the old row would
    not there    no match     nothing; have matched as the new one does

A filter of UPDATE or DELETE reads columns of the replica identity only, so without an old row its
columns have not changed. What an UPDATE has not brought, an unchanged TOAST value, is taken from
the old row, if there is one: an INSERT needs it, and the new row is judged with it.

TRUNCATE has no rows and is sent whatever the filter is.

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
    """Return the form of one UPDATE; ``old`` None: there is no old row."""
    if old is None or old is new:
        return FilterOutcome.KEEP if new else FilterOutcome.NOTHING
    return FilterOutcome.INSERT if new else FilterOutcome.DELETE


def transforms(
    filter_: Filter,
    old: Sequence[pa.Array],
    new: Sequence[pa.Array],
    has_old: Sequence[bool],
) -> list[FilterOutcome]:
    """Return the forms of many UPDATEs: the filter's columns of both rows. ``new`` is whole
    (``filled``)."""
    rows = len(has_old)
    before = filter_.matches(old, rows) if any(has_old) else [False] * rows
    after = filter_.matches(new, rows)
    return [
        transform(was if there else None, now)
        for there, was, now in zip(has_old, before, after, strict=True)
    ]


def filled(new: pa.Array, old: pa.Array, unchanged: pa.BooleanArray) -> pa.Array:
    """A column of new rows with the old row's value where the change has none. Where there is no
    old row, ``old`` is null, and so is what nobody knows."""
    return pc.if_else(unchanged, old, new)


def combined(
    filters: Iterable[tuple[Expression, Sequence[str]] | None],
) -> tuple[Expression, tuple[str, ...]] | None:
    """Combine the filters of all publications that send one operation of a table: a row is sent if
    one of them lets it through. A publication without a filter (None) lets every row through."""
    names: list[str] = []
    found: list[Expression] = []
    for one in filters:
        if one is None:
            return None
        expression, columns = one
        numbers = []
        for name in columns:
            if name not in names:
                names.append(name)
            numbers.append(names.index(name))
        renumbered = _renumbered(expression, numbers)
        if renumbered not in found:
            found.append(renumbered)
    if not found:
        return None
    if len(found) == 1:
        return found[0], tuple(names)
    return Expression(ExpressionNode.OR, _BOOL, tuple(found)), tuple(names)


def _renumbered(one: Expression, numbers: Sequence[int]) -> Expression:
    value = one.value
    if one.node is ExpressionNode.COLUMN:
        assert isinstance(value, int)
        value = numbers[value]
    args = tuple(_renumbered(arg, numbers) for arg in one.args)
    return Expression(one.node, one.type_oid, args, value, one.typmod)
