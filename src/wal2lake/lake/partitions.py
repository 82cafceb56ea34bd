"""Partitions of a Delta table: which rows are of which, and their values as text. Pure.

Comes in: typed rows, or the ``partitionValues`` of a file. Goes out: the rows of each partition
without the columns that all of them have in common, or those columns again.

Delta keeps a partition's values as text beside each file, and an empty text means NULL there, for
every type. So text, whose '' would come back as NULL, is no type to partition by
(``port.can_partition``). What is left has one text for each value and is read back exactly, years
before 1 and after 9999 included.

Delta's writer in Spark has no era in its texts of timestamps with time zone, so it would make 44 AD
of 44 BC. Our sessions let it write them as texts in their own zone, which is UTC and which have a
sign; what such a commit adds says so before it is the table's (``zoned``), because elsewhere a text
without zone is one of the reader's.

Sources: Delta transaction log protocol, "Partition Value Serialization"; Spark SQL's
datetime patterns for casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import InternalError, StorageError
from wal2lake.lake.port import PhysicalField
from wal2lake.pgtypes.moments import spark_number, spark_text

Values = tuple[str | None, ...]
"""Values of one partition, in the order of the table's columns."""


def instants(fields: Sequence[PhysicalField]) -> frozenset[str]:
    """Physical names of columns of timestamps with time zone that divide a table."""
    return frozenset(
        field.physical_name
        for field in fields
        if field.is_partition and field.spark_ddl.lower() == "timestamp"
    )


def zoned(add: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """An ``add`` of our Spark's, whose timestamps of the columns ``names`` say that they are in
    UTC."""
    values = dict(add.get("partitionValues") or {})
    for name in names.intersection(values):
        number = value_of(values[name], _INSTANT)
        if number is not None:
            values[name] = spark_text(number, _INSTANT)
    return {**add, "partitionValues": values}


_INSTANT: Final = pa.timestamp("us", "UTC")


def by_partition(
    table: pa.Table, columns: Sequence[int]
) -> Iterator[tuple[Values, pa.Table]]:
    """The rows of each partition, in the order in which they came, without ``columns``."""
    if not columns:
        yield (), table
        return
    if not table.num_rows:
        return
    codes = np.zeros(table.num_rows, np.int64)
    for i in columns:
        column = pa.concat_arrays(table.column(i).chunks).dictionary_encode("encode")
        indices = column.indices.to_numpy(zero_copy_only=False)
        wide = codes * len(column.dictionary) + indices
        # Numbers without gaps again: products of many columns would overflow.
        codes = np.unique(wide, return_inverse=True)[1].astype(np.int64)
    firsts, lasts, order = _runs(codes)
    rest = [i for i in range(table.num_columns) if i not in set(columns)]
    kept = table.select(rest)
    if len(firsts) > 1:
        kept = kept.take(pa.array(order))
    for first, last in zip(firsts, lasts, strict=True):
        row = order[first]
        values = tuple(
            _text(table.column(i)[row], table.schema.field(i).type) for i in columns
        )
        yield values, kept.slice(first, last - first)


def _runs(
    codes: npt.NDArray[np.int64],
) -> tuple[list[int], list[int], npt.NDArray[np.int64]]:
    """Where the rows of each code begin and end, in an order that keeps equal ones as they are."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    firsts = [0, *changes.tolist()]
    return firsts, [*firsts[1:], len(codes)], order


def column_of(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A partition's column, as its files do not have it."""
    value = value_of(text, kind)
    if value is None:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(value, kind), rows)


def value_of(text: str | None, kind: pa.DataType) -> Any:
    """A value that Arrow takes for the type, the same for all texts of the value: of dates and
    timestamps the number that they are kept as. StorageError for what is none."""
    if text is None or text == "":
        return None
    try:
        if pa.types.is_integer(kind):
            return int(text)
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[text.lower()]
        if pa.types.is_decimal(kind):
            return Decimal(text)
        if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
            found = spark_number(text, kind)
            if found is None:
                raise ValueError(text)
            return found
    except (ValueError, KeyError, InvalidOperation) as error:
        raise StorageError(
            f'invalid partition value "{text}" for type {kind}', sqlstate="XX001"
        ) from error
    raise InternalError(f"type {kind} does not partition a table")


def values_in(column: pa.ChunkedArray) -> set[Any]:
    """Distinct values as ``value_of`` has them; no nulls."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return set(column.unique().drop_null().to_pylist())


def _text(value: pa.Scalar, kind: pa.DataType) -> str | None:
    if not value.is_valid:
        return None
    if pa.types.is_integer(kind):
        return str(value.as_py())
    if pa.types.is_boolean(kind):
        return "true" if value.as_py() else "false"
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_date32(kind):
        return spark_text(value.cast(pa.int32()).as_py(), kind)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return spark_text(value.cast(pa.int64()).as_py(), kind)
    raise InternalError(f"type {kind} does not partition a table")
