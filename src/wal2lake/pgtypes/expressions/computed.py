"""Values of generated columns, which an expression computes from other columns.

Comes in: the tree, its columns, record batches of a table's files. Goes out: for each row
PostgreSQL's text of the value after its assignment to the column's type, or an error. The caller
applies a declared length of texts: their input functions do so like an assignment. Values are
computed row by row, as in ``evaluate``.

Source: build_generation_expression() in rewriteHandler.c; ExecComputeStoredGenerated() in
nodeModifyTable.c; pg_cast.dat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from wal2lake.errors import Wal2LakeError
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.expressions.evaluate import Filter
from wal2lake.pgtypes.expressions.operators import FLOATS, INTEGERS, NUMBERS, TEXTS
from wal2lake.pgtypes.expressions.stored import stored_values
from wal2lake.pgtypes.expressions.tree import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    BYTEA,
    DATE,
    DAY_MICROSECONDS,
    EPOCH_DAYS,
    FLOAT4,
    FLOAT8,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Value,
)
from wal2lake.pgtypes.moments import INFINITE_DAY, INFINITE_MICROSECOND

_STORED: Final = {
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    BYTEA: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
"""Arrow types of values that Arrow converts to text."""

_AS_TEXT: Final = (BOOL, UUID, *NUMBERS)
"""Types other than texts that can be assigned to a text column."""


def assignable(source: int, target: int) -> bool:
    """Return whether a value of one type can be assigned to a column of another, and is supported
    here."""
    if source == target:
        return True
    if target in TEXTS:
        return source in TEXTS or source in _AS_TEXT
    if source in NUMBERS and target in NUMBERS:
        return True
    return (source, target) in ((DATE, TIMESTAMP), (TIMESTAMP, DATE))


class Computation:
    """One expression for one column."""

    def __init__(
        self,
        expression: Expression,
        columns: Sequence[str],
        type_oid: int,
        typmod: int = -1,
    ) -> None:
        """``columns`` has the names for the tree's numbers; the type is the computed column's."""
        self.columns = tuple(columns)
        self._kind = expression.type_oid
        scale = typmod if type_oid == NUMERIC else -1
        printed = type_oid in TEXTS and self._kind not in TEXTS
        if not printed and (self._kind != type_oid or scale >= 0):
            cast = Expression(
                ExpressionNode.CAST, type_oid, (expression,), typmod=scale
            )
            expression, self._kind = cast, type_oid
        self._as_text = printed and self._kind == BOOL
        moments = type_oid in (TIMESTAMP, TIMESTAMPTZ)
        self._precision = typmod if moments and typmod >= 0 else None
        self._filter = Filter(expression, columns, stored_values)

    def texts(
        self, arrays: Sequence[pa.Array], rows: int
    ) -> tuple[pa.Array, list[tuple[int, Wal2LakeError]]]:
        """Return a text for each row, null for NULL, and the rows with an error."""
        values: list[Value] = []
        failed: list[tuple[int, Wal2LakeError]] = []
        for row, value in enumerate(self._filter.values(arrays, rows)):
            if isinstance(value, Wal2LakeError):
                failed.append((row, value))
                value = None
            values.append(value)
        if self._precision is not None:
            unit = 10 ** (6 - self._precision)
            values = [_rounded(value, unit) for value in values]
        if self._as_text:
            words = {None: None, True: b"true", False: b"false"}
            return pa.array([words[v] for v in values], pa.binary()), failed
        return texts_of(values, self._kind), failed


def _rounded(value: Value, unit: int) -> Value:
    """AdjustTimestampForTypmod(): rounds half away from zero."""
    if value is None or math.isinf(value):
        return value
    half = unit // 2
    if value >= 0:
        return (value + half) // unit * unit
    return -((-value + half) // unit * unit)


def texts_of(values: Sequence[Value], type_oid: int) -> pa.Array:
    """Write values as texts, the inverse of ``values.reader``, as a BinaryArray."""
    if type_oid == BOOL:
        words = {None: None, True: b"t", False: b"f"}
        return pa.array([words[v] for v in values], pa.binary())
    if type_oid in INTEGERS:
        texts = [None if v is None else b"%d" % v for v in values]
        return pa.array(texts, pa.binary())
    if type_oid == NUMERIC:
        texts = [None if v is None else _numeric(v) for v in values]
        return pa.array(texts, pa.binary())
    kind = _STORED.get(type_oid)
    if kind is None:
        return pa.array(values, pa.binary())
    if type_oid == DATE:
        values = _counted(values, EPOCH_DAYS, INFINITE_DAY)
        stored = pa.array(values, pa.int32()).cast(kind)
    elif type_oid in (TIMESTAMP, TIMESTAMPTZ):
        epoch = EPOCH_DAYS * DAY_MICROSECONDS
        values = _counted(values, epoch, INFINITE_MICROSECOND)
        stored = pa.array(values, pa.int64()).cast(kind)
    else:
        assert type_oid in FLOATS or type_oid == BYTEA
        stored = pa.array(values, kind)
    return pa.array(arrow_to_text(stored, type_oid), pa.binary())


def _numeric(value: Value) -> bytes:
    if value.is_nan():
        return b"NaN"
    if value.is_infinite():
        return b"Infinity" if value > 0 else b"-Infinity"
    # PostgreSQL has neither a negative zero nor a scale below zero.
    shown = f"{value:f}"
    if not value:
        shown = shown.lstrip("-")
    return shown.encode()


def _counted(values: Sequence[Value], epoch: int, infinite: int) -> list[int | None]:
    """Convert to stored days or microseconds since 1970."""
    return [
        None
        if v is None
        else (infinite if v > 0 else -infinite)
        if math.isinf(v)
        else int(v) + epoch
        for v in values
    ]
